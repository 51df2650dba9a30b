use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::*;

#[test]
fn ranges_are_checked_without_overflow() {
    let memory = Memory::host(100).unwrap();
    assert!(memory.write_at(92, &[1; 8]).is_ok());
    for (offset, len) in [(93, 8), (100, 1), (101, 0), (u64::MAX, 8), (u64::MAX - 3, 8)] {
        let error = memory.write_at(offset, &vec![0; len]).unwrap_err();
        assert_eq!(error, OutOfBounds { offset, len: len as u64, memory_len: 100 });
    }
    assert!(memory.read_at(100, &mut []).is_ok(), "an empty range at the end lies inside");
    assert_eq!(
        memory.read_at(99, &mut [0; 2]).unwrap_err().to_string(),
        "2 bytes at offset 99 do not lie inside memory of 100 bytes"
    );
}

#[test]
fn fill_and_copy_touch_nothing_else() {
    let source = Memory::host(10_000).unwrap();
    let target = Memory::host(10_000).unwrap();
    source.fill(1, 9_998, 7).unwrap();
    source.copy_to(0, &target, 100, 5_000).unwrap();
    let mut bytes = vec![0; 10_000];
    target.read_at(0, &mut bytes).unwrap();
    let expected: Vec<u8> = (0..10_000).map(|i| u8::from(i > 100 && i < 5_100) * 7).collect();
    assert_eq!(bytes, expected);
    assert!(source.copy_to(1, &target, 5_001, 5_000).is_err());
}

#[test]
fn foreign_memory_is_kept_alive_until_the_last_handle_is_gone() {
    struct Keeper(Arc<AtomicBool>, #[expect(dead_code)] Box<[u8; 64]>);
    impl Drop for Keeper {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let mut bytes = Box::new([0u8; 64]);
    let address = NonNull::from(bytes.as_mut()).cast();
    // SAFETY: the box is moved into the keep-alive, which does not move its contents, and is not used otherwise.
    let memory = Memory::new(unsafe { ForeignMemory::new(address, 64, Keeper(Arc::clone(&dropped), bytes)) });
    let other = memory.clone();
    let Err(memory) = memory.try_into_owner() else { panic!("another handle exists") };
    drop(memory);
    assert!(!dropped.load(Ordering::SeqCst));
    drop(other.try_into_owner());
    assert!(dropped.load(Ordering::SeqCst));
}
