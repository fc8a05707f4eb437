//! The conformance suite: what the documentation of the ports says, as test cases for any store.
//!
//! In a crate with tokio (`macros`, `rt`) among its dev-dependencies:
//!
//! ```
//! use std::sync::Arc;
//! use session_core::{Store, testing::MemoryStore};
//!
//! async fn memory() -> Arc<dyn Store> {
//!     Arc::new(MemoryStore::new())
//! }
//! session_core::conformance_suite!(memory);
//! # fn main() {}
//! ```
//!
//! makes one `#[tokio::test]` a case, in one module a port. The function is called once a case and gives an *empty*
//! store: an `Arc<dyn Store>`, a pair of one and whatever must live as long (a temporary directory), or any other
//! [`Subject`]. Several stores in one file each get a module of their own around the macro.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "the cases are tests")]

mod deadline;
mod fixture;

pub mod allotments;
pub mod approvals;
pub mod bindings;
pub mod budgets;
pub mod crews;
pub mod events;
pub mod families;
pub mod forks;
pub mod idempotency;
pub mod identity;
pub mod keys;
pub mod leases;
pub mod listing;
pub mod queue;
pub mod races;
pub mod requeues;
pub mod runners;
pub mod sessions;
pub mod stops;
pub mod sweeps;
pub mod tokens;
pub mod unclaimed;
pub mod wakes;

use std::sync::Arc;

pub use fixture::{ALL, Fixture, LEASE, Snapshot, TICK};

use crate::ports::Store;

/// Something that holds the store under test.
pub trait Subject {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;
}

impl Subject for Arc<dyn Store> {
    fn store(&self) -> Arc<dyn Store> {
        Self::clone(self)
    }
}

impl<G> Subject for (Arc<dyn Store>, G) {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0)
    }
}

/// Makes one `#[tokio::test]` of every case of the conformance suite. The argument is the name of an async function
/// in scope that makes an empty store; see [`testing::conformance`](crate::testing::conformance).
#[macro_export]
macro_rules! conformance_suite {
    ($make:ident) => {
        $crate::conformance_cases! { tests $make }
    };
}

/// Every case, by module. The one list: a test compares it with the functions that there are.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($use:ident $($make:ident)?) => {
        $crate::conformance_group! { $use $($make)? => sessions:
            a_created_session_is_there_as_it_was_given
            every_kind_of_workspace_is_kept
            create_refuses_a_taken_id_and_an_unknown_parent
            an_unknown_session_is_none_or_an_error
            every_step_of_a_session_is_by_the_table
            every_termination_reason_is_kept
            one_of_many_concurrent_transitions_wins
            a_session_is_relabelled
            a_removed_workspace_is_recorded_once
            an_import_keeps_numbers_times_and_origins
            an_import_is_refused_as_a_whole
        }
        $crate::conformance_group! { $use $($make)? => listing:
            a_session_is_found_by_its_id
            a_prefix_names_every_session_that_begins_so
            an_id_goes_before_a_label
            a_label_names_every_session_with_it
            lists_are_in_order_and_paged_without_gaps
            pages_are_stable_while_new_sessions_arrive
            every_filter_leaves_out_what_it_should
            lists_show_the_last_run
        }
        $crate::conformance_group! { $use $($make)? => identity:
            the_truth_table_holds
            a_new_identity_makes_its_session
            a_known_identity_is_found_and_nothing_is_made
            where_an_identity_leads_is_told_without_using_it
            to_be_led_to_a_session_prolongs_it
            concurrent_calls_make_one_session
            concurrent_calls_on_an_expired_identity_make_one_generation
            the_stamp_is_written_at_most_once_a_minute
            an_expired_identity_makes_a_new_generation
            an_expired_session_is_never_revived
            a_lifetime_caps_the_expiry
            an_endless_ttl_lasts
            a_terminated_session_makes_its_identity_expire
            a_new_generation_ends_the_runs_of_the_old_one
            cleanup_takes_batches_of_expired_identities_only
            generations_count_on_after_a_cleanup
            cleanup_spares_sessions_with_a_run
            cleanup_and_use_at_once_agree
            a_refused_open_leaves_nothing
        }
        $crate::conformance_group! { $use $($make)? => queue:
            an_enqueued_run_is_there_as_it_was_given
            a_batch_keeps_its_order
            enqueue_is_all_or_nothing
            a_session_does_one_run_at_a_time
            one_of_many_concurrent_runs_of_a_session_gets_in
            a_run_uses_its_session
            a_terminated_session_takes_no_run
            the_first_run_starts_and_the_others_resume
            taken_ids_of_runs_and_crews_are_refused
            claims_go_by_priority_and_then_by_order
            a_claim_is_a_lease_under_an_epoch
            concurrent_claimers_get_each_run_once
            a_run_is_seen_only_by_a_runner_that_matches
            a_runner_knows_what_is_left_to_do
            in_flight_shows_what_a_runner_holds
        }
        $crate::conformance_group! { $use $($make)? => leases:
            a_run_advances_step_by_step
            every_step_of_a_run_is_by_the_table
            a_stale_fence_changes_nothing
            a_fence_of_no_run_is_refused
            a_claim_that_was_lost_counts_no_more
            a_run_that_is_over_never_changes
            a_binding_is_written_once
            renewal_prolongs_the_lease
            an_end_is_recorded_after_its_result
            every_reason_for_an_end_is_kept
            one_of_many_concurrent_ends_wins
            a_takeover_fences_the_old_host
            a_lease_runs_out_after_its_last_instant
            an_expired_run_is_queued_again_or_lost
            an_expired_run_with_a_stop_order_is_stopped
            concurrent_reapers_take_each_run_once
            a_life_leaves_exactly_its_events
        }
        $crate::conformance_group! { $use $($make)? => bindings:
            a_binding_becomes_resumable_once
            nothing_is_resumable_that_is_not_bound
            what_never_became_resumable_gives_way
            a_conversation_from_history_replaces_an_earlier_one_once
            a_conversation_that_begins_anew_under_the_same_id_is_another
            one_of_many_concurrent_bindings_wins
            a_further_run_goes_where_its_conversation_is
            a_further_run_goes_where_its_workspace_is
            what_a_forgotten_runner_has_holds_nobody
            a_runner_that_could_not_start_a_session_has_nothing_of_it
            a_session_that_is_found_by_its_key_is_no_exception
            another_executor_is_refused_unless_it_begins_from_history
        }
        $crate::conformance_group! { $use $($make)? => approvals:
            a_question_is_there_as_it_was_asked
            a_question_that_is_asked_again_is_the_same
            a_session_has_so_many_open_questions_at_once
            concurrent_questions_keep_to_the_limit
            the_first_answer_counts
            a_lasting_answer_is_granted_to_the_session
            a_withdrawal_leaves_what_was_answered
            the_end_of_a_run_withdraws_what_it_asked
            a_run_that_goes_back_withdraws_what_it_asked
            a_takeover_leaves_what_was_asked
            approvals_are_listed_newest_first
            one_of_many_concurrent_answers_wins
            an_answer_and_a_withdrawal_agree
            an_answer_and_the_end_of_its_run_agree
        }
        $crate::conformance_group! { $use $($make)? => idempotency:
            a_repeated_call_makes_nothing
            another_request_under_a_key_is_refused
            a_refused_call_is_not_remembered
            a_key_is_free_after_a_day
            calls_are_forgotten_in_batches
            concurrent_calls_make_one_batch
        }
        $crate::conformance_group! { $use $($make)? => runners:
            a_runner_is_there_as_it_registered
            a_sign_of_life_is_written_now_and_then
            concurrent_registrations_are_instances_of_their_own
            a_draining_runner_gets_nothing
            a_runner_is_forgotten_with_a_word_on_what_it_leaves
            a_repeated_claim_gets_its_run_again
            a_claim_that_is_over_is_not_repeated
            concurrent_claims_of_one_name_get_one_run
        }
        $crate::conformance_group! { $use $($make)? => unclaimed:
            a_run_that_nobody_takes_fails
            a_run_that_waits_its_turn_waits_on
            no_other_run_is_touched
            they_are_dealt_with_in_batches
            a_claim_and_a_deadline_agree
        }
        $crate::conformance_group! { $use $($make)? => families:
            a_family_is_only_so_deep
            a_family_is_only_so_wide
            a_child_is_narrower_than_its_parent
            concurrent_children_keep_to_the_limit
            a_parent_hears_of_every_end
            only_who_wants_to_hear_is_told
            a_callback_is_delivered_once
            a_parent_in_peace_is_told_later
            what_was_heard_is_due_no_more
            a_parent_that_is_over_is_told_nothing
            children_that_are_left_are_found
            a_session_does_not_expire_above_one_that_works
            concurrent_ends_are_each_heard_once
            an_end_and_the_end_of_the_parent_agree
        }
        $crate::conformance_group! { $use $($make)? => tokens:
            a_token_is_there_as_it_was_issued
            a_taken_token_is_refused
            a_child_is_never_stronger
            only_a_token_that_counts_issues
            a_revocation_takes_along_what_was_issued
            tokens_are_listed_newest_first
            a_revocation_and_an_issue_agree
            the_first_signing_key_wins
        }
        $crate::conformance_group! { $use $($make)? => requeues:
            a_run_goes_back_to_its_place
            no_other_run_is_touched
            only_what_has_not_begun_goes_back
            a_run_that_is_to_end_ends
            a_return_an_end_and_an_order_agree
        }
        $crate::conformance_group! { $use $($make)? => stops:
            a_pending_run_is_stopped_at_once
            a_run_in_flight_is_ordered_to_stop
            orders_only_harden
            a_late_order_changes_no_outcome
            termination_ends_the_pending_run
            a_session_rests_only_when_nobody_works_in_it
            the_end_of_a_run_is_use_of_its_session
            termination_orders_the_run_in_flight_to_be_killed
        }
        $crate::conformance_group! { $use $($make)? => crews:
            a_crew_has_so_many_in_flight_at_once
            a_crew_without_a_limit_has_none
            concurrent_claimers_keep_to_the_limit
            a_chain_goes_one_after_the_other
            a_diamond_waits_for_both_sides
            concurrent_ends_free_what_waits_for_all
            waiting_goes_before_priority
            bad_dependencies_are_refused
            a_failure_takes_along_what_waits_for_it
            the_other_side_of_a_failed_diamond_goes_on
            stops_terminations_and_losses_take_along_too
            a_waiting_run_is_stopped_by_itself
            a_requeued_run_is_still_waited_for
        }
        $crate::conformance_group! { $use $($make)? => events:
            a_batch_gets_the_next_numbers
            a_payload_of_the_largest_size_is_kept
            an_empty_batch_appends_nothing
            events_of_a_run_are_its_own
            a_run_says_nothing_that_only_the_program_says
            a_retry_gets_the_first_answer
            a_retry_of_a_run_gets_the_first_answer
            another_content_under_one_origin_is_a_conflict
            origins_count_within_a_batch
            origins_are_per_session_and_producer
            concurrent_appends_are_dense
            concurrent_retries_append_once
            logs_are_apart
            a_log_is_read_in_portions_and_from_its_end
            notes_are_read_from_the_end
            who_was_led_to_a_session_writes_while_it_lives
        }
        $crate::conformance_group! { $use $($make)? => wakes:
            everybody_who_waits_is_woken_each_time
            the_queue_wakes_for_a_new_run
            the_queue_wakes_when_a_dependency_completes
            the_queue_wakes_when_a_run_comes_back
            the_queue_wakes_when_a_crew_has_a_place
            a_runner_wakes_for_a_stop_order
            a_session_wakes_for_every_entry_of_its_log
            a_session_wakes_for_what_others_do_to_it
            whoever_remembers_tokens_wakes_for_a_revocation
        }
        $crate::conformance_group! { $use $($make)? => budgets:
            a_reservation_is_set_aside
            a_reservation_beyond_the_limit_is_refused
            a_settlement_books_what_was_used
            each_crossing_warns_once
            what_is_forfeited_counts_as_used
            a_settlement_after_a_forfeit_books_again
            limits_are_changed_and_recorded
            a_terminated_session_only_settles
            accounts_hold_every_number
            tokens_are_counted_by_the_minute
            concurrent_reservations_never_overshoot
            concurrent_settlements_are_all_booked
            concurrent_changes_of_different_limits_all_hold
        }
        $crate::conformance_group! { $use $($make)? => allotments:
            a_child_spends_from_its_parents_budget
            children_of_children_share_the_same_purse
            an_allotment_is_settled_in_every_way_a_child_ends
            what_was_never_settled_counts_as_used
            a_forfeit_leaves_what_children_have
            an_end_settles_what_its_run_used
            a_child_that_is_used_again_takes_what_there_is
            a_child_gets_back_what_its_parent_has_again
            families_settle_from_below
            what_an_owner_gives_is_the_owners
            a_renewal_tells_what_is_left
            what_a_run_has_used_is_given_to_no_child
            a_run_that_is_over_starts_no_child
            concurrent_children_take_no_more_than_there_is
            concurrent_ends_are_all_settled
        }
        $crate::conformance_group! { $use $($make)? => keys:
            a_new_key_makes_its_session
            a_known_key_is_found_and_nothing_is_made
            keys_are_per_owner
            to_be_found_is_use
            a_terminated_session_gives_its_key_up
            a_taken_key_is_refused
            a_key_is_needed
            concurrent_calls_make_one_session
            concurrent_calls_on_a_key_that_was_given_up_make_one_session
            a_run_finds_or_makes_its_session_by_key
            a_key_does_one_run_at_a_time
            a_run_gets_no_session_that_is_otherwise
        }
        $crate::conformance_group! { $use $($make)? => forks:
            a_fork_has_the_log_up_to_its_point
            a_fork_has_nothing_else_of_its_source
            origins_count_on_in_a_fork
            a_fork_beyond_the_log_is_refused
            a_fork_is_refused_as_a_whole
            a_source_in_use_is_forked
        }
        $crate::conformance_group! { $use $($make)? => sweeps:
            each_step_comes_at_its_time
            a_session_goes_through_several_steps_at_once
            times_of_none_never_come
            a_busy_session_is_never_swept
            only_what_rests_here_is_swept
            those_that_are_left_out_stay
            sweeps_take_what_is_due_for_longest_first
            concurrent_sweeps_take_each_session_once
            a_session_of_a_live_identity_stays
        }
        $crate::conformance_group! { $use $($make)? => races:
            renewal_and_reaping_agree
            an_end_and_reaping_agree
            a_takeover_and_an_end_agree
            a_claim_and_a_stop_agree
            a_claim_and_a_termination_agree
            enqueueing_and_a_termination_agree
            enqueueing_and_suspending_agree
            enqueueing_and_sweeping_agree
            nothing_is_appended_after_the_end
            an_end_and_a_failure_of_two_dependencies_agree
        }
    };
}

/// One module of cases: as tests, or as the list of their names.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_group {
    (tests $make:ident => $group:ident: $($case:ident)+) => {
        mod $group {
            $(
                #[tokio::test]
                async fn $case() {
                    let subject = super::$make().await;
                    let store = $crate::testing::conformance::Subject::store(&subject);
                    let fixture = $crate::testing::conformance::Fixture::new(store);
                    $crate::testing::conformance::$group::$case(&fixture).await;
                }
            )+
        }
    };
    (names => $group:ident: $($case:ident)+) => {
        mod $group {
            pub(super) const CASES: &[&str] = &[$(stringify!($case),)+];
        }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::MemoryStore;

    async fn memory() -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }

    crate::conformance_suite!(memory);

    mod names {
        crate::conformance_cases! { names }

        pub(super) const LISTED: &[(&str, &[&str], &str)] = &[
            ("allotments", allotments::CASES, include_str!("allotments.rs")),
            ("approvals", approvals::CASES, include_str!("approvals.rs")),
            ("bindings", bindings::CASES, include_str!("bindings.rs")),
            ("sessions", sessions::CASES, include_str!("sessions.rs")),
            ("listing", listing::CASES, include_str!("listing.rs")),
            ("identity", identity::CASES, include_str!("identity.rs")),
            ("queue", queue::CASES, include_str!("queue.rs")),
            ("leases", leases::CASES, include_str!("leases.rs")),
            ("requeues", requeues::CASES, include_str!("requeues.rs")),
            ("stops", stops::CASES, include_str!("stops.rs")),
            ("crews", crews::CASES, include_str!("crews.rs")),
            ("events", events::CASES, include_str!("events.rs")),
            ("wakes", wakes::CASES, include_str!("wakes.rs")),
            ("races", races::CASES, include_str!("races.rs")),
            ("budgets", budgets::CASES, include_str!("budgets.rs")),
            ("keys", keys::CASES, include_str!("keys.rs")),
            ("forks", forks::CASES, include_str!("forks.rs")),
            ("sweeps", sweeps::CASES, include_str!("sweeps.rs")),
            ("idempotency", idempotency::CASES, include_str!("idempotency.rs")),
            ("families", families::CASES, include_str!("families.rs")),
            ("tokens", tokens::CASES, include_str!("tokens.rs")),
            ("runners", runners::CASES, include_str!("runners.rs")),
            ("unclaimed", unclaimed::CASES, include_str!("unclaimed.rs")),
        ];
    }

    #[test]
    fn every_case_is_listed() {
        let mut files = 0;
        for entry in
            std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/testing/conformance")).unwrap()
        {
            let name = entry.unwrap().file_name().into_string().unwrap();
            files += usize::from(!["mod.rs", "fixture.rs", "deadline.rs"].contains(&name.as_str()));
        }
        assert_eq!(files, names::LISTED.len(), "a file of cases is not in the list");
        for (group, listed, source) in names::LISTED {
            let written = source.lines().filter_map(|line| line.strip_prefix("pub async fn "));
            let written: BTreeSet<_> = written.filter_map(|line| line.split('(').next()).collect();
            assert_eq!(written, listed.iter().copied().collect(), "{group}");
        }
    }
}
