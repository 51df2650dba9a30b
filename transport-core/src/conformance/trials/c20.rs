//! C20: a wrapper behaves like what it wraps. The suite as a whole runs on wrappers; this tries the one that everybody uses.

use std::sync::Arc;

use super::prelude::*;

pub(super) const TRIALS: &[Trial] =
    &[Trial::new(20, "c20_a_handle_behaves_like_its_transport", a_handle_behaves_like_its_transport)];

fn a_handle_behaves_like_its_transport(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let handle: Arc<dyn Transport> = Arc::new(Arc::new(Arc::clone(&pair.a.transport)));
    assert_eq!(handle.name(), pair.a.transport.name());
    assert_eq!(handle.capabilities(), pair.a.transport.capabilities());
    let through = Pair { a: Side { transport: handle, ..pair.a.clone() }, b: pair.b.clone() };
    // Registered through one, granted through the other, written through either.
    let (source, mut target) = suite.fields(&through, 4096);
    for (number, side) in [&pair.a, &through.a].into_iter().enumerate() {
        let batch = [slice(&source, 0, &target, number as u64 * 2048, 2048)];
        target.expect(&source, &batch);
        let options = BatchOptions::new().with_notification(b"either");
        let transfer = suite.submit(side, (&batch).into(), &options);
        assert_eq!(suite.notification(&pair.b), "either");
        suite.delivered(&transfer);
    }
    target.check("through either handle");
    assert!(pair.a.submit((&[slice(&source, 4000, &target, 0, 100)]).into()).is_err());
    suite.wait("room through the handle", through.a.transport.room(through.a.peer)).expect("there is room");
    let memory = suite.wait("deregistering", through.a.transport.deregister(source.region)).expect("it is registered");
    assert_eq!(memory.len(), 4096);
    suite.wait("shutting down", through.a.transport.shutdown(Shutdown::Drain));
    assert_eq!(pair.a.submit(Batch::Slices(&[])).unwrap_err(), SubmitError::Closed);
    Passed
}
