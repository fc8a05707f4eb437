//! The tests with real processes. One binary is all of it: the tests, the keeper, the sandbox's launcher, a host
//! that can be killed, and the programs that are run. So it brings its own small harness, which speaks the protocol of libtest as
//! far as cargo and nextest use it.

#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "as in every test; without libtest's harness clippy cannot see that these are tests"
)]

mod confined;
mod egress;
mod egress_sandbox;
mod fixture;
mod harness;
mod keeper;
mod keeper_output;
mod keeper_start;
mod keeper_wire;
mod limits;
mod log;
mod misled;
mod orphans;
mod programs;
mod recovery;
mod workspace;
mod worktree;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(fixture::KEEPER) => session_runner::process::keeper_main(),
        Some(fixture::LAUNCHER) => sandbox::launcher::main(),
        Some(fixture::SLOW_LAUNCHER) => {
            // The second process of a launcher finds it gone.
            if let Some(fifo) = arguments.get(1)
                && std::fs::read(fifo).is_ok()
            {
                std::fs::remove_file(fifo).unwrap();
            }
            sandbox::launcher::main()
        }
        Some(fixture::HOST) => fixture::host(&arguments),
        Some(fixture::PROGRAM) => programs::run(arguments.get(1..).unwrap_or_default()),
        _ => harness::run(&arguments, TESTS),
    }
}

/// A test that is written and not listed here is dead code, which the compiler reports.
const TESTS: &[harness::Test] = harness::tests![
    keeper::exit_codes_and_signals_are_told_apart,
    keeper::a_stop_lets_the_program_end_in_its_own_way,
    keeper::a_program_that_ignores_sigterm_is_killed_after_the_grace,
    keeper::a_kill_does_not_ask,
    keeper::daemons_end_with_a_stop,
    keeper::daemons_end_with_the_program,
    keeper::a_tree_that_forks_is_outrun,
    keeper::a_timeout_ends_the_run,
    keeper::a_stopped_program_can_be_stopped,
    keeper::a_silent_program_sees_the_end_of_stdin,
    keeper_start::argv_travels_verbatim,
    keeper_start::the_environment_is_what_was_given,
    keeper_start::no_descriptor_is_inherited,
    keeper_start::what_cannot_be_started_says_why,
    keeper_start::what_no_process_can_hold_is_refused_before_anything_is_made,
    keeper_start::without_a_record_nothing_is_started,
    keeper_start::a_keeper_that_is_none_is_an_error,
    keeper_start::what_a_keeper_that_fails_has_started_ends,
    keeper_wire::each_side_hears_the_other_and_its_end,
    keeper_wire::a_hundred_megabytes_come_whole_and_whoever_is_slow_is_waited_for,
    keeper_wire::a_host_that_lets_go_of_the_wire_is_taken_for_silent,
    keeper_wire::a_host_that_never_reads_does_not_keep_a_run_that_is_stopped,
    keeper_wire::a_program_that_reads_nothing_does_not_hold_its_host_up_for_ever,
    keeper_wire::pipes_that_are_handed_out_are_seen_by_nobody_on_the_way,
    keeper_wire::a_program_whose_pipes_nobody_keeps_reads_its_end,
    keeper_output::a_gigabyte_is_quick_and_bounded_on_disk,
    keeper_output::a_line_of_100_megabytes_is_whole,
    keeper_output::binary_bytes_are_verbatim,
    keeper_output::a_full_disk_is_counted_and_does_not_stop_the_run,
    keeper_output::a_prompt_is_shown_before_its_line_ends,
    keeper_output::a_host_that_does_not_read_slows_nothing,
    confined::a_confined_program_ends_as_any_other,
    confined::what_was_applied_is_recorded_before_anybody_hears_of_the_start,
    confined::a_stop_reaches_the_program_once,
    confined::a_deaf_tree_is_killed_after_the_grace,
    confined::a_kill_takes_the_whole_tree,
    confined::daemons_end_with_a_confined_program,
    confined::what_the_sandbox_refuses_says_why,
    confined::the_death_of_the_host_ends_a_confined_tree,
    confined::what_a_killed_keeper_leaves_ends,
    confined::what_comes_while_the_sandbox_is_made_is_heard_after_it,
    confined::a_start_that_is_given_up_leaves_nothing,
    confined::what_was_planted_in_a_workspace_is_told_and_set_aside,
    confined::a_flood_of_planted_names_is_bounded,
    limits::memory_of_the_whole_tree_is_held,
    limits::processes_of_the_whole_tree_are_held,
    limits::a_tree_that_writes_too_much_is_killed,
    limits::what_is_within_its_limits_is_left_alone,
    limits::limits_that_are_not_held_say_why,
    orphans::the_death_of_the_host_ends_the_tree,
    orphans::an_adopted_run_outlives_its_host_and_can_be_stopped,
    orphans::an_adopted_run_ends_by_itself_and_is_recorded,
    orphans::a_killed_keeper_is_noticed_and_its_tree_ended,
    orphans::the_death_of_host_and_keeper_leaves_what_recovery_ends,
    orphans::a_state_file_of_another_run_says_nothing,
    recovery::what_had_not_begun_takes_nothing_else_along,
    recovery::what_another_host_has_ended_does_not_live_on,
    recovery::what_left_nothing_is_lost_and_what_had_not_begun_goes_back,
    egress::a_listed_address_is_reached_and_a_half_close_is_passed_on,
    egress::what_is_not_listed_is_denied_and_told_once,
    egress::a_name_does_not_lead_to_the_host,
    egress::what_cannot_be_reached_says_why,
    egress::plain_http_is_passed_on_one_request_at_a_time,
    egress::thirty_two_tunnels_carry_at_once,
    egress::one_connection_too_many_is_told_so,
    egress::whatever_is_sent_is_answered_or_ended,
    egress::the_end_of_the_proxy_ends_its_connections,
    egress::a_dead_hosts_socket_is_replaced_and_nothing_else_is,
    egress::a_path_may_be_longer_than_an_address_of_a_socket,
    egress_sandbox::a_session_reaches_what_is_listed_and_nothing_else,
    log::records_come_back_as_they_were_written,
    log::rotation_bounds_the_log,
    log::the_last_lines_are_found_across_files,
    log::torn_lines_are_closed_and_skipped,
    log::a_follower_loses_nothing_over_rotations,
    log::a_follower_that_is_outrun_says_so,
    log::a_follower_waits_for_a_log_that_is_not_there_yet,
    log::a_link_in_the_place_of_the_log_is_not_followed,
    workspace::a_scratch_workspace_is_private_and_found_again,
    workspace::an_in_place_workspace_is_the_project,
    workspace::bad_places_are_named,
    workspace::what_a_crash_left_half_made_is_made_anew,
    workspace::a_lost_workspace_is_not_made_up,
    workspace::a_removal_keeps_the_output_and_follows_no_link,
    workspace::an_archive_holds_everything,
    workspace::a_removal_that_was_cut_off_is_finished,
    workspace::twenty_sessions_have_twenty_places,
    worktree::a_worktree_is_a_branch_of_its_own,
    worktree::a_part_of_a_project_is_worked_in,
    worktree::projects_that_cannot_have_a_worktree_say_why,
    worktree::unsaved_work_is_seen,
    worktree::a_removal_keeps_unsaved_work,
    worktree::a_branch_with_commits_of_its_own_survives,
    worktree::a_half_made_worktree_is_taken_back,
    worktree::a_worktree_that_another_is_making_is_waited_for,
    worktree::no_hook_of_the_project_runs,
    worktree::a_moved_project_does_not_hold_a_forced_removal,
    misled::a_planted_way_to_another_repository_is_refused,
    misled::a_repository_that_is_kept_elsewhere_has_to_be_recorded,
    misled::without_a_sandbox_the_repository_is_told_to_git_too,
    misled::a_check_out_changes_nothing_of_the_repository,
    misled::nothing_is_written_where_links_in_a_repository_lead,
    misled::commits_of_submodules_alone_are_unsaved,
    misled::settings_that_name_a_home_are_no_hindrance,
    misled::borrowed_objects_are_read_where_the_session_may,
    misled::a_branch_that_git_would_not_delete_is_kept,
    misled::a_part_of_a_repository_that_is_too_deep_for_git_goes,
    misled::no_more_is_taken_down_than_the_worktrees_own,
];
