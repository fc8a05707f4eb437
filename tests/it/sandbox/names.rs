//! The escapes by name: each is attempted through the built program, and none of them can be lost.

use std::collections::BTreeSet;
use std::process::Command;

use super::attempts::{FILES, HOST, NETWORK, PROCESSES};
use super::ground::skipped;

/// F files, W what is planted in the workspace, I processes and what they share, N network, K kernel, R resources and
/// orphans, T races. W05 is a control: what must go on working.
const NAMES: &str = "F01 F02 F12 F14 F18 F20 F25 F26 F27 F28 F29 F30 F31 F33 F39 F40 F41 F43 F03 F04 F05 F06 F08 F09 F11 F13 F19 \
    F21 F22 F23 F24 F37 F35 F36 F44 W01 W02 W03 W04 W05 W08 W09 W10 W11 \
    W12 W13 I19 I20 I22 I01 I02 I36 I03 I04 I05 I06 I07 I08 I15 I17 I09 I10 I11 \
    I12 I13 I14 I30 I26 I27 N01 N02 N03 N10 N11 N12 N14 N08 N15 N04 N06 N07 K02 K03 K04 K05 K06 K08 K11 K12 K13 K14 I18 \
    R01 R02 R03 R04 R05 R06 T01";

/// Those that want a session of their own, and the test that has it.
const OF_THEIR_OWN: &[(&str, &str)] = &[
    ("W01", "sandbox::workspace::hooks_and_configuration_stay_as_they_are"),
    ("W02", "sandbox::workspace::hooks_and_configuration_stay_as_they_are"),
    ("W03", "sandbox::workspace::new_names_that_run_code_are_told"),
    ("W04", "sandbox::workspace::hooks_and_configuration_stay_as_they_are"),
    ("W05", "sandbox::workspace::git_works"),
    ("W08", "sandbox::misled::the_host_works_in_the_repository_that_was_given"),
    ("W09", "sandbox::misled::a_check_out_leaves_hooks_and_configuration"),
    ("W10", "sandbox::misled::nothing_is_written_through_links_in_a_repository"),
    ("W11", "sandbox::misled::what_configuration_names_is_kept_from_changes"),
    ("W12", "sandbox::misled::a_repository_under_another_name_is_one"),
    ("W13", "sandbox::misled::a_mode_hides_no_repository"),
    ("R01", "sandbox::limits::processes"),
    ("R02", "sandbox::limits::memory_of_the_whole_tree"),
    ("R03", "sandbox::limits::one_large_file"),
    ("R04", "sandbox::limits::all_that_is_written"),
    ("R05", "sandbox::endings::nothing_outlives_its_launcher"),
    ("R06", "sandbox::endings::nothing_outlives_its_program"),
    ("T01", "sandbox::levels::a_project_that_was_swapped_for_a_link_is_refused"),
];

/// The names of all tests of this binary, as the test harness lists them.
#[expect(clippy::disallowed_methods, reason = "the tests ask their own binary")]
fn tests() -> BTreeSet<String> {
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(["--list", "--format", "terse"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[test]
fn every_name_is_attempted() {
    if skipped() {
        return;
    }
    let groups = [FILES, PROCESSES, HOST, NETWORK];
    // Of several ways each has a letter behind the name.
    let attempted = groups.into_iter().flatten().map(|attempt| attempt.name.get(..3).unwrap_or(attempt.name));
    let attempted: BTreeSet<_> = attempted.chain(OF_THEIR_OWN.iter().map(|(name, _)| *name)).collect();
    let missing: Vec<_> = NAMES.split_whitespace().filter(|name| !attempted.contains(name)).collect();
    assert_eq!(missing, [] as [&str; 0]);
    let tests = tests();
    let lost: Vec<_> = OF_THEIR_OWN.iter().filter(|(_, test)| !tests.contains(*test)).collect();
    assert!(lost.is_empty(), "no such tests: {lost:?}");
    let all: Vec<_> = groups.into_iter().flatten().map(|attempt| attempt.name).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a name stands twice");
}
