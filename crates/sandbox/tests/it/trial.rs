//! The trial that a doctor runs: it finds what is held and what is not, and leaves nothing behind.

use std::fs;

use sandbox::Gap;
use sandbox::trial::{Finding, Outcome};

use crate::room::{Guard, Room, Who, confine_program, processes_with, said, skipped};

/// What a machine refuses by itself: to everybody where its kernel has no such calls, and to an ordinary user.
const REFUSED_ANYWAY: [&str; 1] = ["K14"];
const REFUSED_TO_USERS: [&str; 8] = ["F20", "F37", "F39", "F41", "F43", "K02", "K12", "N04"];

fn trial(guard: Guard, who: Who) -> Vec<Finding> {
    let room = Room::new(guard, who);
    fs::create_dir(room.path("trial")).unwrap();
    room.give("trial");
    let directory = room.text("trial");
    let mut command = room.outside(confine_program().to_str().unwrap());
    let output = command.args(["--level", guard.name(), "--trial", &directory]).output().unwrap();
    let findings = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "{who:?} at {guard:?}: something is left");
    assert!(processes_with(&format!("{directory}/program/trial")).is_empty(), "{who:?} at {guard:?}");
    findings
}

fn with(findings: &[Finding], wanted: impl Fn(&Outcome) -> bool) -> Vec<&str> {
    let wanted = findings.iter().filter(|finding| wanted(&finding.outcome));
    wanted.map(|finding| finding.name.as_str()).collect()
}

#[test]
fn the_attempts_get_out_where_nothing_stops_them() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let findings = trial(Guard::Off, who);
        assert!(findings.len() >= 60, "{}", findings.len());
        let mut held = with(&findings, |outcome| *outcome == Outcome::Held);
        held.retain(|name| {
            let to_user = who == Who::User && REFUSED_TO_USERS.contains(name);
            !to_user && !REFUSED_ANYWAY.contains(name)
        });
        // The control is kept anywhere.
        assert_eq!(held, ["W05"], "{who:?}: {findings:#?}");
    }
}

#[test]
fn full_holds_all_but_what_it_tells() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let findings = trial(Guard::Full, who);
        let others = with(&findings, |outcome| *outcome != Outcome::Held);
        assert_eq!(others, ["W03"], "{who:?}: {findings:#?}");
    }
}

#[test]
fn floor_has_its_gaps_and_no_other() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let findings = trial(Guard::Floor, who);
        let gap = |name: &str| match name {
            "F21" | "F24" => Some(Gap::MetadataChange),
            "F25" | "F26" => Some(Gap::MetadataRead),
            "F28" => Some(Gap::Watch),
            "R05" => Some(Gap::Orphans),
            "W01" | "W02" | "W04" => Some(Gap::ProtectedPaths),
            "W03" => Some(Gap::NewProtectedPaths),
            _ => None,
        };
        for finding in &findings {
            let expected = gap(&finding.name).map_or(Outcome::Held, |gap| Outcome::Gap { gap });
            assert_eq!(finding.outcome, expected, "{who:?}: {finding:?}");
        }
    }
}
