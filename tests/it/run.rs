//! `roomette run` and what goes with it, from the built program.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use session_tests::home::{Home, gone_within, processes_with};

#[test]
fn twenty_tasks_have_twenty_databases() {
    let home = Home::new();
    let script = "CREATE TABLE t (n INTEGER); WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < \
                  1000) INSERT INTO t SELECT n FROM c; SELECT count(*) FROM t;";
    let left = home.run(&["--json", "run", "--count", "20", "--", "sqlite3", "memory.db", script]).ok();
    let runs = left.json();
    assert_eq!(runs.len(), 20);
    for run in &runs {
        assert_eq!((&run["state"], &run["last_line"]), (&"completed".into(), &"1000".into()), "{run}");
        let database = home.session(run["session"].as_str().unwrap()).join("work/memory.db");
        assert!(fs::metadata(&database).unwrap().len() > 4_096, "{database}");
    }
    let sessions = home.run(&["ps", "--quiet"]).ok();
    assert_eq!(sessions.lines().len(), 20);
}

/// The host has let go of the first run's progress long before anybody asks: its last line is in the record.
#[test]
fn who_comes_late_hears_the_last_line_too() {
    let home = Home::new();
    let left = home.run(&["--json", "run", "--", "echo", "the last word"]).ok();
    let first = left.json()[0]["session"].as_str().unwrap().to_owned();
    let second = home.detached(&["sh", "-c", "mkfifo gate; cat gate"]);
    let gate = home.session(&second).join("work/gate");
    home.until(|| gate.exists());
    let waits = home.command(&["--json", "wait", &first, &second]).stdout(Stdio::piped()).spawn().unwrap();
    fs::write(gate, "went\n").unwrap();
    let told = waits.wait_with_output().unwrap();
    let shown = String::from_utf8(told.stdout).unwrap();
    let both: Vec<serde_json::Value> =
        shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!([&both[0]["last_line"], &both[1]["last_line"]], ["the last word", "went"]);
    assert_eq!(home.run(&["--json", "wait", &first, &second]).ok().json(), both);
}

#[test]
fn arguments_are_data() {
    let home = Home::new();
    let hostile = "it's \"quoted\"\nand $(touch pwned) `touch pwned` \\ ; & | * ünï";
    let left = home.run(&["--json", "run", "--", "printf", "%s\\n", hostile]).ok();
    let session = left.json()[0]["session"].as_str().unwrap().to_owned();
    assert_eq!(home.run(&["logs", &session]).ok().stdout, format!("{hostile}\n"));
    assert!(!home.session(&session).join("work/pwned").exists());
    assert_eq!(home.inspect(&session)["runs"][0]["argv"][2], hostile);
}

#[test]
fn outcomes_have_their_exit_codes() {
    let home = Home::new();
    let check = |arguments: &[&str], code: i32, state: &str, reason: &str| {
        let left = home.run(&[&["--json", "run"], arguments].concat()).exits(code);
        let run = &left.json()[0];
        assert_eq!((run["state"].as_str(), run["reason"].as_str()), (Some(state), Some(reason)), "{run}");
        left
    };
    let failed = check(&["--", "sh", "-c", "exit 7"], 1, "failed", "exit_nonzero");
    assert_eq!(failed.json()[0]["exit_code"], 7);
    let signalled = check(&["--", "sh", "-c", "kill -SEGV $$"], 1, "failed", "signalled");
    assert_eq!(signalled.json()[0]["signal"], 11);
    let missing = check(&["--", "no-such-program-anywhere"], 1, "failed", "spawn_failed");
    assert!(missing.json()[0]["message"].as_str().unwrap().contains("no-such-program-anywhere"));
    check(&["--timeout", "200ms", "--", "sleep", "600"], 3, "stopped", "timeout");
}

#[test]
fn the_environment_is_an_allow_list() {
    let home = Home::new().with("SECRET_KEY", "do not leak").with("NAMED_KEY", "passed on");
    let arguments = ["--json", "run", "--env", "A=1=2", "--env", "NAMED_KEY", "--", "env", "-0"];
    let left = home.run(&arguments).ok();
    let session = left.json()[0]["session"].as_str().unwrap().to_owned();
    let log = home.run(&["logs", &session]).ok().stdout;
    let variables: Vec<&str> = log.trim_end().split('\0').filter(|text| !text.is_empty()).collect();
    let names: Vec<&str> = variables.iter().map(|pair| pair.split('=').next().unwrap()).collect();
    for needed in
        ["PATH", "HOME", "USER", "TMPDIR", "ROOMETTE_SESSION_ID", "ROOMETTE_RUN_ID", "ROOMETTE_OUTPUT_DIR"]
    {
        assert!(names.contains(&needed), "{needed} is missing: {names:?}");
    }
    assert!(variables.contains(&"A=1=2") && variables.contains(&"NAMED_KEY=passed on"), "{variables:?}");
    assert!(!names.contains(&"SECRET_KEY") && !names.contains(&"ROOMETTE_HOME"), "{names:?}");
    let shown = home.run(&["inspect", &session]).ok().stdout;
    assert!(shown.contains("NAMED_KEY") && !shown.contains("passed on"), "values of variables are not shown");
}

#[test]
fn a_session_is_resumed_in_its_own_workspace() {
    let home = Home::new();
    let script = "echo line >> notes; wc -l < notes";
    let left = home.run(&["--json", "run", "--label", "notes", "--", "sh", "-c", script]).ok();
    let session = left.json()[0]["session"].as_str().unwrap().to_owned();
    let again = home.run(&["--json", "resume", "notes"]).ok();
    assert_eq!(again.json()[0]["session"], session.as_str());
    assert_eq!(again.json()[0]["last_line"], "2");
    let other = home.run(&["--json", "resume", &session[..12], "--", "cat", "notes"]).ok();
    assert_eq!(other.json()[0]["last_line"], "line");
    let runs = home.inspect(&session)["runs"].as_array().unwrap().clone();
    let kinds: Vec<_> = runs.iter().map(|run| run["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["resume", "resume", "start"]);
}

#[test]
fn detached_tasks_are_waited_for_followed_and_stopped() {
    let home = Home::new();
    let session = home.detached(&["sh", "-c", "echo begun; exec sleep 600"]);
    home.until_logged(&session, "begun");
    let busy = home.run(&["resume", &session]).exits(6);
    assert!(busy.stderr.contains("which is running"), "{}", busy.stderr);
    home.run(&["wait", "--timeout", "100ms", &session]).exits(3);
    home.run(&["stop", &session]).ok();
    assert_eq!(home.inspect(&session)["last_run"]["state"], "stopped");
    home.run(&["wait", &session]).exits(1);
    let nothing = home.run(&["stop", &session]).ok();
    assert!(nothing.stderr.contains("nothing was running"), "{}", nothing.stderr);
}

/// A task that ignores SIGTERM and leaves a daemon in a session of its own, twice forked.
const STUBBORN: &str = "trap '' TERM
(setsid sh -c \"trap '' TERM HUP; echo \\$\\$ > daemon.pid; mv daemon.pid daemon; exec sleep 600\" &) &
until [ -s daemon ]; do :; done
echo ready
while :; do sleep 600; done";

#[test]
fn stop_ends_the_whole_tree() {
    let home = Home::new().with("ROOMETTE_RUN_GRACE", "300ms");
    let session = home.detached(&["sh", "-c", STUBBORN]);
    home.until_logged(&session, "ready");
    let marker = format!("ROOMETTE_SESSION_ID={session}");
    assert!(processes_with(&marker).len() >= 2);
    home.run(&["stop", &session]).ok();
    assert_eq!(processes_with(&marker), [] as [i32; 0]);
    let run = &home.inspect(&session)["last_run"];
    assert_eq!((&run["state"], &run["reason"]), (&"stopped".into(), &"stopped_by_user".into()));
    home.run(&["--json", "resume", &session, "--", "true"]).ok();
}

#[test]
fn kill_is_for_good() {
    let home = Home::new();
    let session = home.detached(&["sh", "-c", STUBBORN]);
    home.until_logged(&session, "ready");
    home.run(&["kill", &session]).ok();
    assert_eq!(processes_with(&format!("ROOMETTE_SESSION_ID={session}")), [] as [i32; 0]);
    let inspected = home.inspect(&session);
    assert_eq!(
        (&inspected["state"], &inspected["terminated_because"]),
        (&"terminated".into(), &"killed".into())
    );
    home.run(&["resume", &session]).exits(6);
    assert_eq!(home.run(&["ps", "--quiet"]).ok().stdout, "");
    assert_eq!(home.run(&["ps", "--quiet", "--all"]).ok().stdout.trim(), session);
}

#[test]
fn a_daemon_does_not_outlive_its_task() {
    let home = Home::new();
    let script = "(setsid sleep 600 &) & echo done";
    let left = home.run(&["--json", "run", "--", "sh", "-c", script]).ok();
    let session = left.json()[0]["session"].as_str().unwrap().to_owned();
    assert_eq!(processes_with(&format!("ROOMETTE_SESSION_ID={session}")), [] as [i32; 0]);
}

#[test]
fn ctrl_c_stops_what_it_started() {
    let home = Home::new();
    let mut command = home.command(&["--json", "run", "--", "sh", "-c", "echo ready; exec sleep 600"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let session = loop {
        // Waits for the session to appear: the command says nothing before the end.
        let listed = home.run(&["ps", "--quiet"]).ok().stdout;
        if let Some(session) = listed.lines().next() {
            break session.to_owned();
        }
    };
    home.until_logged(&session, "ready");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(home.inspect(&session)["last_run"]["state"], "stopped");
}

#[test]
fn a_lost_terminal_loses_nothing() {
    let home = Home::new();
    let mut command = home.command(&[
        "run",
        "--",
        "sh",
        "-c",
        "echo ready; until [ -p go ]; do :; done; read x < go; echo over",
    ]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let session = loop {
        let listed = home.run(&["ps", "--quiet"]).ok().stdout;
        if let Some(session) = listed.lines().next() {
            break session.to_owned();
        }
    };
    home.until_logged(&session, "ready");
    let pipe = home.session(&session).join("work/go");
    assert_eq!(program("mkfifo").arg(&pipe).status().unwrap().code(), Some(0));
    child.kill().unwrap();
    child.wait().unwrap();
    fs::write(&pipe, "x\n").unwrap();
    home.run(&["wait", &session]).ok();
}

#[expect(clippy::disallowed_methods, reason = "a test uses the system's tools")]
fn program(name: &str) -> std::process::Command {
    std::process::Command::new(name)
}

#[test]
fn much_output_is_bounded_on_disk() {
    let home = Home::new().with("ROOMETTE_LOG_MAX_BYTES", "1048576");
    let script =
        "head -c 300000000 /dev/zero | tr '\\0' x; echo; head -c 300000000 /dev/urandom >&2; echo end";
    let left = home.run(&["--json", "run", "--", "sh", "-c", script]).ok();
    let run = &left.json()[0];
    assert_eq!(run["state"], "completed");
    let session = run["session"].as_str().unwrap();
    let logs = fs::read_dir(home.session(session)).unwrap().flatten();
    let sizes = logs.filter(|entry| entry.file_name().to_string_lossy().starts_with("log"));
    let total: u64 = sizes.map(|entry| entry.metadata().unwrap().len()).sum();
    assert!(total <= 5 * 1_048_576, "{total} bytes of log");
    let events = home.run(&["--json", "events", session]).ok();
    let result = events.json().into_iter().find(|event| event["kind"] == "result").unwrap();
    assert_eq!(result["payload"]["stderr_bytes"], 300_000_000);
}

#[test]
fn the_host_leaves_when_there_is_nothing_left_to_do() {
    let home = Home::new();
    let session = home.detached(&["sh", "-c", "echo $PPID"]);
    let host = home.host();
    home.run(&["wait", &session]).ok();
    assert!(gone_within(host, Duration::from_secs(30)), "the host stays");
    home.until_free();
    assert!(!home.data().join("host.sock").exists());
}
