//! What can be seen without a device.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    NativeVerbs, convert,
    sleeper::{Sleeper, Trigger},
};
use crate::verbs::{Mtu, Status};

#[test]
fn a_missing_library_is_named_with_what_to_install() {
    let error = NativeVerbs::open_library(Path::new("/nowhere/libibverbs.so.1")).unwrap_err();
    assert_eq!(error.code, Errno::NOENT.raw_os_error());
    let text = error.to_string();
    for part in ["dlopen on /nowhere/libibverbs.so.1 failed", "libibverbs1", "ibverbs-providers", "rdma-core"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn another_library_is_named_with_the_function_that_it_lacks() {
    let error = NativeVerbs::open_library(Path::new("libc.so.6")).unwrap_err();
    assert_eq!((error.operation, error.code), ("ibv_get_device_list", Errno::NOSYS.raw_os_error()));
    assert!(error.to_string().contains("libibverbs1"), "{error}");
}

#[test]
fn a_wake_before_a_wait_ends_it_once() {
    let sleeper = Sleeper::new().unwrap();
    sleeper.wake();
    sleeper.wake();
    let began = Instant::now();
    sleeper.wait(None);
    assert!(began.elapsed() < Duration::from_secs(5));
    let began = Instant::now();
    sleeper.wait(Some(Duration::from_millis(30)));
    assert!(began.elapsed() >= Duration::from_millis(30));
    sleeper.wait(Some(Duration::ZERO));
}

#[test]
fn a_wake_from_another_thread_ends_a_wait() {
    let sleeper = Arc::new(Sleeper::new().unwrap());
    let other = Arc::clone(&sleeper);
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        other.wake();
    });
    sleeper.wait(Some(Duration::MAX));
    thread.join().unwrap();
}

#[test]
fn a_descriptor_wakes_once_or_while_it_has_something() {
    use std::os::fd::AsFd;
    let short = Some(Duration::from_millis(30));
    for (trigger, wakes) in [(Trigger::Once, false), (Trigger::While, true)] {
        let sleeper = Sleeper::new().unwrap();
        let source = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        sleeper.watch(source.as_fd(), trigger).unwrap();
        rustix::io::write(&source, &1_u64.to_ne_bytes()).unwrap();
        sleeper.wait(None);
        let began = Instant::now();
        sleeper.wait(short);
        assert_eq!(began.elapsed() < Duration::from_millis(30), wakes, "{trigger:?}");
        sleeper.forget(source.as_fd());
        let began = Instant::now();
        sleeper.wait(short);
        assert!(began.elapsed() >= Duration::from_millis(30));
        let mut value = [0; 8];
        assert_eq!(rustix::io::read(&source, &mut value), Ok(8));
        assert_eq!(rustix::io::read(&source, &mut value), Err(Errno::AGAIN), "it does not block");
    }
}

#[test]
fn numbers_of_the_library_have_their_meaning() {
    for mtu in [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096] {
        assert_eq!(convert::mtu(convert::mtu_code(mtu)), mtu);
    }
    assert_eq!(convert::speed_mbps(2, 128), Some(400_000));
    assert_eq!(convert::speed_mbps(1, 1), Some(2_500));
    assert_eq!(convert::speed_mbps(3, 1), None);
    let expected = [
        Status::Success,
        Status::LocalLength,
        Status::LocalOperation,
        Status::Other(3),
        Status::LocalProtection,
        Status::Flushed,
        Status::Other(6),
        Status::BadResponse,
        Status::Other(8),
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::RnrRetryExceeded,
        Status::Other(14),
    ];
    assert_eq!((0..15).map(convert::status).collect::<Vec<_>>(), expected);
}
