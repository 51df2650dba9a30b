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
            c02_a_delivery_stays_a_delivery
            c02_a_failure_stays_a_failure
            c02_cancelling_ends_what_is_in_flight
            c02_cancelling_at_any_moment_gives_one_outcome
            c03_a_deadline_is_not_an_outcome
            c03_after_the_outcome_nothing_reads_the_source
            c03_after_a_cancellation_nothing_lands
            c04_every_size_is_exact_between_canaries
            c04_scattered_pages_are_exact
            c04_runs_times_tables_are_exact
            c04_odd_slices_of_many_regions_are_exact
            c04_both_directions_at_once_are_exact
            c05_the_bytes_are_there_before_the_notification
            c05_every_notification_arrives_once
            c05_payloads_of_every_length_arrive
            c05_a_failed_batch_notifies_nobody
            c05_one_commit_comes_after_all_its_batches
            c05_a_commit_waits_for_a_slow_batch_to_another_peer
            c05_a_batch_that_failed_fails_the_commit
            c05_a_receiver_that_does_not_listen_holds_up_no_other
            c06_a_dropped_handle_stops_nothing
            c06_a_forgotten_handle_stops_nothing
            c06_an_awaited_and_dropped_handle_stops_nothing
            c06_a_dropped_handle_still_counts_for_its_commit
            c07_a_region_in_use_outlives_its_deregistration
            c07_deregistering_gives_the_memory_back
            c07_a_deregistered_target_is_quiet
            c07_dropping_everything_in_flight_harms_nothing
            c07_a_failed_registration_gives_the_memory_back
            c08_out_of_bounds_is_refused_with_its_numbers
            c08_overflow_does_not_pass_the_check
            c08_groups_are_checked_to_their_last_unit
            c08_names_that_are_not_there_are_refused
            c08_only_writable_regions_are_granted
            c08_the_receiver_checks_the_length_itself
            c08_the_receiver_checks_what_it_granted
            c08_a_grant_is_for_one_peer
            c09_a_deregistered_source_is_stale
            c09_a_deregistered_target_is_stale
            c09_a_successor_is_not_its_predecessor
            c09_a_restarted_peer_is_another
            c09_a_new_connection_begins_without_grants
            c10_full_says_so_and_starts_nothing
            c10_room_wakes_everyone_who_waits
            c10_waiting_for_room_ends_with_the_connection
            c10_far_more_batches_than_room_all_arrive
            c11_batches_in_any_order_give_the_same_bytes
            c11_overlapping_slices_harm_only_the_overlap
            c12_an_empty_batch_delivers_its_notification
            c12_empty_slices_move_nothing
            c12_empty_slices_are_checked
            c12_an_empty_region_can_be_registered
            c13_a_batch_of_very_many_slices_arrives
            c13_a_batch_beyond_every_window_arrives
            c13_a_model_of_many_layers_arrives
            c14_a_lost_receiver_ends_its_transfers_in_time
            c14_a_lost_sender_is_reported_and_quiet
            c14_other_peers_go_on
            c14_after_disconnecting_no_byte_lands
            c14_disconnecting_ends_what_was_in_flight
            c14_the_other_side_hears_of_a_disconnection
            c14_disconnecting_nobody_is_fine
            c14_connecting_alone_comes_to_an_end
            c15_draining_lets_everything_arrive
            c15_aborting_leaves_nothing_in_flight
            c15_after_the_end_everything_answers_closed
            c15_a_receiver_that_shuts_down_is_quiet
            c15_shutting_down_twice_waits_for_one_end
            c15_a_dropped_shutdown_goes_on
            c16_a_finished_transfer_answers_again_and_again
            c16_the_last_waker_is_woken
            c16_the_last_listener_is_woken
            c17_garbage_is_no_grant
            c17_hostile_grants_do_no_harm
            c17_grants_are_bounded
            c17_hostile_slices_do_no_harm
            c17_hostile_groups_do_no_harm
            c18_many_threads_submit_many_batches
            c18_many_threads_register_write_and_deregister
            c19_submitting_and_polling_allocates_nothing_by_slice
            c20_a_handle_behaves_like_its_transport
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
