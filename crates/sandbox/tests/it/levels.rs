//! Which level is had on which machine, and what is said where none can be had.

use std::process::Output;

use sandbox::{Level, Offer, RefusalCode, Support};

use crate::room::{Guard, Room, Who, confine_program, said, skipped};

fn confine(options: &[&str]) -> Output {
    let room = Room::new(Guard::Full, Who::User);
    room.outside(confine_program().to_str().unwrap()).args(options).output().unwrap()
}

fn probe(options: &[&str]) -> Support {
    let output = confine(&[options, &["--probe"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(&output)))
}

fn code(offer: &Offer) -> Option<RefusalCode> {
    match offer {
        Offer::Works { .. } => None,
        Offer::Missing { refusal } => Some(refusal.code),
    }
}

/// The machine of the tests must have it all; whoever has no such machine leaves the tests out by name.
#[test]
fn this_machine_offers_full() {
    if skipped() {
        return;
    }
    let support = probe(&[]);
    assert_eq!(
        support.best(),
        Some(Level::Full),
        "{support:?} (ROOMETTE_TEST_SKIP=sandbox leaves these tests out)"
    );
    assert!(support.floor.works(), "{support:?}");
}

#[test]
fn without_user_namespaces_it_is_floor() {
    if skipped() {
        return;
    }
    let support = probe(&["--degrade", "userns"]);
    assert_eq!(code(&support.full), Some(RefusalCode::Namespaces));
    assert_eq!(support.best(), Some(Level::Floor));
    let best = confine(&["--degrade", "userns", "--", "/bin/sh", "-c", "echo here"]);
    assert_eq!(String::from_utf8_lossy(&best.stdout), "here\n", "{}", said(&best));
    let full = confine(&["--degrade", "userns", "--level", "full", "--", "/bin/sh", "-c", "echo here"]);
    assert_eq!(full.status.code(), Some(125));
    let text = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(
        full.stdout.is_empty() && text.contains("level full") && text.contains("max_user_namespaces"),
        "{text}"
    );
}

#[test]
fn without_landlock_nothing_starts() {
    if skipped() {
        return;
    }
    let support = probe(&["--degrade", "landlock"]);
    assert_eq!([&support.full, &support.floor].map(code), [Some(RefusalCode::Landlock); 2]);
    for level in ["best", "full", "floor"] {
        let output =
            confine(&["--degrade", "landlock", "--level", level, "--", "/bin/sh", "-c", "echo here"]);
        assert_eq!(output.status.code(), Some(125), "{level}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.stdout.is_empty() && text.contains("no sandbox at level"), "{level}: {text}");
        assert!(text.contains("Linux 6.12"), "{level}: {text}");
    }
}

#[test]
fn floor_does_not_pretend_to_have_a_network_of_its_own() {
    if skipped() {
        return;
    }
    let output = confine(&["--level", "floor", "--net", "loopback", "--", "/bin/true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("want level full"), "{}", said(&output));
}
