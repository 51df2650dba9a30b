//! The list of trials as tests.

/// Makes each trial of the conformance suite a test of its own, run with a fresh harness.
///
/// The argument is an expression that makes a [`Harness`](crate::conformance::Harness). To have contract clause C19 tried as well,
/// the test binary installs [`CountingAllocator`](crate::conformance::CountingAllocator).
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::conformance_tests! { @tests $harness;
            c01_a_submit_error_starts_nothing
            c01_a_refused_batch_takes_no_place
            c01_a_notification_that_is_too_long_is_refused
            c01_a_batch_that_does_not_fit_64_bits_is_refused
        }
    };
    (@tests $harness:expr; $($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::run(stringify!($name), $harness);
            }
        )+

        #[test]
        fn every_clause_has_its_trials() {
            $crate::conformance::assert_complete(&[$(stringify!($name)),+]);
        }
    };
}
