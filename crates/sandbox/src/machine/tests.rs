//! Reasons on machines that are made up, and a look at this one.

use super::*;
use crate::gap::gaps;
use crate::level::Level;
use crate::policy::Network;
use crate::report::{Holder, Report};

fn works(level: Level) -> Offer {
    let report = Report {
        level,
        policy: String::new(),
        landlock_abi: 7,
        seccomp_instructions: 1,
        namespaces: vec![],
        network: Network::None,
        processes_held_by: Holder::SessionLimit,
        verified: vec![],
        unprotected: vec![],
        gaps: gaps(level, Holder::SessionLimit),
    };
    Offer::Works { report }
}

fn missing(code: RefusalCode) -> Offer {
    Offer::Missing { refusal: Refusal::new(code, "it was refused") }
}

fn floor_only() -> Support {
    Support { full: missing(RefusalCode::Namespaces), floor: works(Level::Floor) }
}

fn user() -> Machine {
    Machine { kernel: Some("6.12.1".to_owned()), uid: Some(1000), ..Machine::default() }
}

#[track_caller]
fn check(machine: &Machine, support: &Support, words: &[&str]) {
    let sentences = machine.reason(support);
    assert_eq!(sentences.len(), words.len(), "{sentences:#?}");
    for (sentence, word) in sentences.iter().zip(words) {
        assert!(sentence.contains(word) && sentence.ends_with('.'), "{word}: {sentences:#?}");
    }
}

#[test]
fn full_needs_no_explanation() {
    check(&user(), &Support { full: works(Level::Full), floor: works(Level::Floor) }, &["full was tried"]);
}

#[test]
fn each_setting_that_is_in_the_way_is_named() {
    let floor = "floor was tried";
    let first = "full cannot be had: it was refused";
    check(&user(), &floor_only(), &[first, "To do: ", floor]);
    for (machine, word) in [
        (Machine { max_user_namespaces: Some(0), ..user() }, "max_user_namespaces is 0"),
        (Machine { unprivileged_userns_clone: Some(false), ..user() }, "unprivileged_userns_clone is 0"),
        (Machine { apparmor_restricts_userns: Some(true), ..user() }, "runs as \"unconfined\""),
        (Machine { container: Some(Container::Docker), seccomp: Some(Seccomp::Filter), ..user() }, "Docker"),
        (Machine { seccomp: Some(Seccomp::Filter), ..user() }, "RestrictNamespaces"),
    ] {
        check(&machine, &floor_only(), &[first, word, floor]);
    }
    let both = Machine { max_user_namespaces: Some(0), apparmor_restricts_userns: Some(true), ..user() };
    check(&both, &floor_only(), &[first, "max_user_namespaces", "AppArmor", floor]);
}

#[test]
fn what_holds_users_does_not_explain_root() {
    let root = Machine {
        uid: Some(0),
        unprivileged_userns_clone: Some(false),
        apparmor_restricts_userns: Some(true),
        max_user_namespaces: Some(100),
        ..user()
    };
    check(&root, &floor_only(), &["full cannot be had", "To do: ", "floor was tried"]);
}

#[test]
fn without_landlock_it_is_said_which_kind_of_without() {
    let support = || Support { full: missing(RefusalCode::Landlock), floor: missing(RefusalCode::Landlock) };
    for (landlock, word) in [
        (Landlock::Missing, "6.12.1 has no Landlock:"),
        (Landlock::Disabled, "switched off"),
        (Landlock::Available { abi: 4 }, "ABI 4, and a session wants 6"),
        (Landlock::Available { abi: 7 }, "To do: "),
    ] {
        check(&Machine { landlock, ..user() }, &support(), &["No sandbox can be had", word]);
    }
    let pod = Machine { container: Some(Container::Kubernetes), ..user() };
    check(&pod, &support(), &["No sandbox", "or a Kubernetes pod hides it"]);
}

#[test]
fn containers_are_known_by_their_marks() {
    let none = || std::iter::empty();
    let text = |text: &str| vec![text.to_owned()];
    for (words, expected) in [
        ("0::/", None),
        ("0::/system.slice/docker-1234.scope", Some(Container::Docker)),
        ("0::/kubepods.slice/docker-1234", Some(Container::Kubernetes)),
        ("lxc", Some(Container::Lxc)),
        ("0::/machine.slice/libpod-1.scope", Some(Container::Podman)),
    ] {
        assert_eq!(container(none(), &text(words)), expected, "{words}");
    }
    let files = [Container::Kubernetes, Container::Docker];
    assert_eq!(container(files.into_iter(), &[]), Some(Container::Kubernetes));
}

#[test]
fn the_status_of_a_process_is_read() {
    let status = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nSeccomp:\t2\nSeccomp_filters:\t1\n";
    assert_eq!(field(status, "Uid:"), Some("1000"));
    assert_eq!(field(status, "Seccomp:").and_then(seccomp), Some(Seccomp::Filter));
    assert_eq!(field(status, "Gid:"), None);
    assert_eq!(seccomp("3"), None);
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_can_be_looked_at() {
    let machine = Machine::look();
    assert!(machine.kernel.is_some() && machine.uid.is_some(), "{machine:?}");
    let text = serde_json::to_string(&machine).unwrap();
    assert_eq!(serde_json::from_str::<Machine>(&text).unwrap(), machine);
    // The look restricted a thread that is gone, and not this one.
    std::fs::read_dir("/").unwrap();
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    assert_eq!(field(&status, "NoNewPrivs:"), Some("0"));
}
