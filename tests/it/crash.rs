//! What is left when processes are killed with -9, and what becomes of it.

use std::collections::HashSet;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use session_tests::home::{Home, gone_within, processes_with};

fn kill_9(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert!(gone_within(pid, Duration::from_secs(10)));
}

const SLEEPER: &str = "echo note >> notes; (setsid sleep 600 &) & echo ready; exec sleep 600";

#[test]
fn a_killed_host_leaves_nothing_running_and_everything_resumable() {
    let home = Home::new().with("ROOMETTE_RUN_GRACE", "200ms").with("ROOMETTE_HOST_RUNS_AT_ONCE", "3");
    let arguments = ["run", "--detach", "--count", "5", "--", "sh", "-c", SLEEPER];
    let left = home.run(&arguments).ok();
    let sessions: Vec<String> = left.lines().iter().map(|&id| id.to_owned()).collect();
    for session in &sessions[..3] {
        home.until_logged(session, "ready");
    }
    let before: Vec<_> = sessions.iter().map(|id| home.run(&["--json", "events", id]).ok().stdout).collect();
    kill_9(home.host());
    let recovered = home.run(&["--json", "recover"]).ok().json();
    assert_eq!(recovered.len(), 3, "{recovered:?}");
    for (session, before) in sessions.iter().zip(&before) {
        assert_eq!(processes_with(&format!("ROOMETTE_SESSION_ID={session}")), [] as [i32; 0]);
        let after = home.run(&["--json", "events", session]).ok().stdout;
        assert!(after.starts_with(before.as_str()), "acknowledged events are missing:\n{before}\n{after}");
    }
    let state = |session: &String| home.inspect(session)["last_run"]["state"].as_str().unwrap().to_owned();
    let states: Vec<String> = sessions.iter().map(state).collect();
    assert_eq!(states, ["lost", "lost", "lost", "pending", "pending"]);
    let resumed = home.run(&["--json", "resume", &sessions[0], "--", "cat", "notes"]).ok();
    assert_eq!(resumed.json()[0]["last_line"], "note");
    // All that were lost at once; the host that was started for it goes on with what was pending, too.
    let again = home.run(&["recover", "--resume"]).ok();
    assert!(again.stderr.contains("2 run again"), "{}", again.stderr);
    home.run(&["stop", &sessions[1], &sessions[2]]).ok();
    home.run(&["stop", &sessions[3], &sessions[4]]).ok();
}

/// The host is killed at ever other moments of its work: while it starts, claims, begins, watches and ends runs.
#[test]
fn a_host_can_be_killed_at_any_moment() {
    let home = Home::new().with("ROOMETTE_RUN_GRACE", "200ms");
    let script = "echo $ROOMETTE_RUN_ID >> notes; (setsid sleep 600 &) & sleep 0.05";
    for step in 0..16_u64 {
        let mut command = home.command(&["run", "--detach", "--count", "4", "--", "sh", "-c", script]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // Not for anything to happen: to be somewhere else each time.
        assert!(!gone_within(std::process::id().try_into().unwrap(), Duration::from_millis(step * 9)));
        home.kill_host();
        let output = child.wait_with_output().unwrap();
        home.kill_host();
        home.run(&["recover"]).ok();
        let listed = home.run(&["--json", "ps", "--all", "-n", "1000"]).ok().json().remove(0);
        let sessions = listed["sessions"].as_array().unwrap();
        let known: HashSet<&str> = sessions.iter().map(|session| session["id"].as_str().unwrap()).collect();
        for id in String::from_utf8(output.stdout).unwrap().lines() {
            assert!(known.contains(id), "{id} was acknowledged and is gone");
        }
        for session in sessions {
            let (id, state) = (session["id"].as_str().unwrap(), &session["last_run"]["state"]);
            assert!(["pending", "completed", "lost"].contains(&state.as_str().unwrap()), "{id} is {state}");
            assert_eq!(
                processes_with(&format!("ROOMETTE_SESSION_ID={id}")),
                [] as [i32; 0],
                "{id} is {state}"
            );
        }
        if let Some(lost) = sessions.iter().find(|session| session["status"] == "lost") {
            let id = lost["id"].as_str().unwrap();
            home.run(&["resume", id, "--", "true"]).ok();
        }
    }
}

#[test]
fn what_ended_while_no_host_was_there_is_not_lost() {
    let home = Home::new().with("ROOMETTE_HOST_ON_HOST_LOSS", "adopt");
    let session =
        home.detached(&["sh", "-c", "echo ready; until [ -e go ]; do sleep 0.05; done; echo over; exit 5"]);
    home.until_logged(&session, "ready");
    kill_9(home.host());
    fs::write(home.session(&session).join("work/go"), "").unwrap();
    home.until_logged(&session, "over");
    for pid in processes_with(&format!("ROOMETTE_SESSION_ID={session}")) {
        assert!(gone_within(pid, Duration::from_secs(10)));
    }
    home.run(&["recover"]).ok();
    home.run(&["wait", &session]).exits(1);
    let run = &home.inspect(&session)["last_run"];
    assert_eq!((&run["state"], &run["exit_code"]), (&"failed".into(), &5.into()));
}

#[test]
fn a_run_that_lives_on_is_adopted() {
    let home = Home::new().with("ROOMETTE_HOST_ON_HOST_LOSS", "adopt");
    let session = home.detached(&["sh", "-c", "echo ready; until [ -e go ]; do sleep 0.05; done; echo over"]);
    home.until_logged(&session, "ready");
    // A program may speak before its host has said that it runs.
    home.until(|| home.inspect(&session)["status"] == "running");
    kill_9(home.host());
    let recovered = home.run(&["--json", "recover"]).ok().json();
    assert_eq!(recovered[0]["state"], "running");
    assert_eq!(home.inspect(&session)["last_run"]["epoch"], 2);
    fs::write(home.session(&session).join("work/go"), "").unwrap();
    home.run(&["wait", &session]).ok();
}

#[test]
fn a_killed_keeper_is_a_lost_run_without_processes() {
    let home = Home::new();
    let session = home.detached(&["sh", "-c", SLEEPER]);
    home.until_logged(&session, "ready");
    let record = fs::read_to_string(home.session(&session).join("keeper.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    kill_9(record["keeper"]["pid"].as_i64().unwrap().try_into().unwrap());
    home.run(&["wait", &session]).exits(1);
    assert_eq!(home.inspect(&session)["last_run"]["state"], "lost");
    assert_eq!(processes_with(&format!("ROOMETTE_SESSION_ID={session}")), [] as [i32; 0]);
}

#[test]
fn commands_that_watch_say_that_the_host_is_gone() {
    let home = Home::new();
    let session = home.detached(&["sh", "-c", "echo ready; exec sleep 600"]);
    home.until_logged(&session, "ready");
    let host = home.host();
    let mut command = home.command(&["wait", &session]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    kill_9(host);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{stderr}");
    home.run(&["recover"]).ok();
}

#[test]
fn of_two_hosts_one_wins_and_the_other_says_so() {
    let home = Home::new();
    let spawn = || {
        let mut command = home.command(&["serve"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (first, second) = (spawn(), spawn());
    let pids = [&first, &second].map(Pid::from_child);
    // Exactly one ends by itself, with a conflict; the other is the host.
    let mut ended = HashSet::new();
    while ended.is_empty() {
        for pid in pids {
            if gone_within(pid.as_raw_pid(), Duration::from_millis(50)) {
                ended.insert(pid);
            }
        }
    }
    let host = home.host();
    assert_eq!(ended.len(), 1);
    assert!(pids.iter().any(|pid| pid.as_raw_pid() == host && !ended.contains(pid)));
    kill_process(Pid::from_raw(host).unwrap(), Signal::TERM).unwrap();
    for child in [first, second] {
        let is_host = i32::try_from(child.id()).unwrap() == host;
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(if is_host { 0 } else { 6 }), "{stderr}");
        assert!(stderr.contains(&host.to_string()), "{stderr}");
    }
}

#[test]
fn many_commands_at_once_start_one_host() {
    let home = Home::new();
    let children: Vec<_> = (0..8)
        .map(|_| {
            let mut command = home.command(&["run", "--", "true"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(home.run(&["ps", "--quiet"]).ok().lines().len(), 8);
}
