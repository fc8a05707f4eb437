//! What ends takes its children along: stopped, killed, cleaned up, and when the host dies half way.

use serde_json::json;
use session_tests::home::processes_with;

use super::{House, kill_9};

fn nothing_runs_in(session: &str) {
    assert_eq!(processes_with(&format!("ROOMETTE_SESSION_ID={session}")), [] as [i32; 0], "{session}");
}

#[test]
fn a_family_is_stopped_together_and_left_in_peace() {
    let house = House::new();
    let home = &house.home;
    let root = house.agent(&[], "say ready");
    let child = house.begin_sleeper(&root, &[]);
    let grandchild = house.begin_sleeper(&child, &[]);
    let other = home.detached(&["sh", "-c", "echo ready; exec sleep 600"]);
    home.until_logged(&other, "ready");
    let stopped = home.run(&["--json", "stop", &root]).ok().json();
    let mut named: Vec<_> = stopped.iter().map(|line| line["session"].as_str().unwrap().to_owned()).collect();
    named.sort();
    let mut expected = vec![root.clone(), child.clone(), grandchild.clone()];
    expected.sort();
    assert_eq!(named, expected);
    for session in [&child, &grandchild] {
        let last = &home.inspect(session)["last_run"];
        assert_eq!((&last["state"], &last["reason"]), (&json!("stopped"), &json!("stopped_by_user")));
        nothing_runs_in(session);
    }
    assert_eq!(home.inspect(&other)["status"], "running", "it belongs to nobody");
    home.run(&["stop", "--now", &other]).ok();
    // Whoever stopped it does not want to see it begin again. When it is used again it hears of it.
    home.run(&["stop", &root]).ok();
    home.run(&["send", &root, "say I am back"]).ok();
    let told = house.until_told(&root, 1);
    assert_eq!((&told[0]["child"], &told[0]["state"]), (&json!(child), &json!("stopped")));
    let prompts = house.prompts(&root);
    assert_eq!((prompts.len(), prompts[1].as_str()), (3, "say I am back"), "{prompts:?}");
    // A child alone is stopped without its parent, which hears of it at once.
    home.run(&["resume", "--detach", &child]).ok();
    home.until(|| home.inspect(&child)["status"] == "running");
    home.run(&["stop", &child]).ok();
    house.until_told(&root, 2);
}

#[test]
fn a_family_is_killed_together() {
    let house = House::new();
    let home = &house.home;
    let root = house.agent(&[], "say ready");
    let child = house.agent(&["--parent", &root, "--no-callback"], "say at rest");
    let grandchild = house.begin_sleeper(&child, &[]);
    let killed = home.run(&["--json", "kill", &root]).ok().json();
    assert_eq!(killed.len(), 3, "{killed:?}");
    for session in [&root, &child, &grandchild] {
        let shown = home.inspect(session);
        assert_eq!((&shown["state"], &shown["terminated_because"]), (&json!("terminated"), &json!("killed")));
        nothing_runs_in(session);
    }
    assert_eq!(house.told(&root).len(), 0);
    home.run(&["run", "--parent", &root, "--", "true"]).exits(6);
}

/// The host dies when the parent is over and its children are not: the next one ends them.
#[test]
fn what_a_crash_leaves_of_a_family_is_ended() {
    let house = House::with(&[("ROOMETTE_HOST_ON_HOST_LOSS", "adopt")]);
    let home = &house.home;
    let root = home.detached(&["true"]);
    home.run(&["wait", &root]).ok();
    home.until_free();
    let arguments = ["run", "--detach", "--parent", &root, "--", "sh", "-c", "echo ready; exec sleep 600"];
    let mut command = home.command(&[&["--json"], arguments.as_slice()].concat());
    command.env("ROOMETTE_TEST_STOP_AT", "cascade");
    let child = super::session_of(&session_tests::home::left(command).ok().json()[0]);
    home.until_logged(&child, "ready");
    let (mut killing, host) = house.stop_host_at("cascade", &["kill", &root]);
    kill_9(host);
    killing.wait().unwrap();
    let state = |session: &str| home.inspect(session)["state"].clone();
    assert_eq!((state(&root), state(&child)), (json!("terminated"), json!("active")));
    home.run(&["recover"]).ok();
    let shown = home.inspect(&child);
    assert_eq!((&shown["state"], &shown["terminated_because"]), (&json!("terminated"), &json!("killed")));
    home.until(|| home.inspect(&child)["last_run"]["state"] == "stopped");
    nothing_runs_in(&child);
}

#[test]
fn a_parent_that_is_cleaned_up_takes_its_children_along_unless_they_work() {
    let house = House::new();
    let home = &house.home;
    let root = home.detached(&["true"]);
    home.run(&["wait", &root]).ok();
    let idle = house.begin(&root, &[], "true");
    home.run(&["wait", &idle]).ok();
    let busy = house.begin_sleeper(&idle, &[]);
    let cleanup = || home.run(&["--json", "cleanup", "--older-than", "0s", &root]).ok().json().remove(0);
    let kept = cleanup();
    assert_eq!(kept["removed"], false);
    assert!(kept["kept_because"].as_str().unwrap().contains(&busy), "{kept}");
    home.run(&["stop", &busy]).ok();
    assert_eq!(cleanup()["removed"], true);
    for (session, reason) in [(&root, "cleaned_up"), (&idle, "parent_ended"), (&busy, "parent_ended")] {
        assert_eq!(home.inspect(session)["terminated_because"], reason, "{session}");
    }
}
