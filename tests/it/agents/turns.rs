//! One turn from its start to its end, and what it uses up.

use std::fs;

use serde_json::json;

use super::executor::Can;
use super::room::Room;

pub(super) fn starts(room: &Room) {
    let ran = room.run(&[], "say hello").completed();
    assert_eq!(ran.left.code, 0);
    assert_eq!(room.home.run(&["result", &ran.session]).ok().stdout, "hello\n");
    let run = room.last_run(&ran.session);
    assert_ne!(run["sandbox"]["level"], "off");
    let states = room.events(&ran.session, "run.state");
    let states: Vec<_> = states.iter().map(|step| step["to"].as_str().unwrap()).collect();
    assert_eq!(states, ["pending", "claimed", "starting", "running", "completed"]);
    if room.executor.is_agent() {
        let bound = room.events(&ran.session, "bound");
        assert_eq!((bound.len(), &bound[0]["executor"]), (1, &json!(room.executor.name)));
        assert_eq!(room.said(&ran.session, "user"), ["say hello"]);
        assert_eq!(room.said(&ran.session, "assistant"), ["hello"]);
    } else {
        assert_eq!(room.home.run(&["logs", &ran.session]).ok().stdout, "hello\n");
    }
}

pub(super) fn streams(room: &Room) {
    let session = room.begin(&[], "think well\nsay first\nsay second\nhang");
    room.until_said(&session, "second");
    if room.executor.is_agent() {
        room.says(&session, &["first", "second"]);
    }
    if room.executor.can(Can::Think) {
        assert_eq!(room.events(&session, "thought")[0]["text"], "well");
    }
    assert_eq!(room.last_run(&session)["state"], "running");
    room.home.run(&["stop", &session]).ok();
}

pub(super) fn calls_a_tool(room: &Room) {
    let options = ["--allow-tool", room.executor.tool];
    let options = if room.executor.is_agent() { options.as_slice() } else { &[] };
    let ran = room.run(options, "tool pwd | tee where; echo out\nsay done").completed();
    let work = fs::canonicalize(room.home.session(&ran.session).join("work")).unwrap();
    assert_eq!(room.written(&ran.session, "where").unwrap().trim(), work.to_str().unwrap());
    if room.executor.is_agent() {
        let (calls, results) =
            (room.events(&ran.session, "tool_call"), room.events(&ran.session, "tool_result"));
        assert_eq!((calls.len(), results.len()), (1, 1));
        assert_eq!((&calls[0]["name"], &calls[0]["id"]), (&json!(room.executor.tool), &results[0]["id"]));
        // Some say with which shell as well.
        assert!(
            calls[0]["input"]["command"].as_str().unwrap().contains("pwd | tee where; echo out"),
            "{calls:?}"
        );
        assert!(results[0]["output"].to_string().contains("out"), "{results:?}");
        assert_eq!(room.questions(&ran.session, &["--all"]).len(), 0);
        let account = room.home.run(&["--json", "budget", "show", &ran.session]).ok().json().remove(0);
        assert_eq!(account["tool_calls"]["used"], 1);
    }
}

pub(super) fn fails(room: &Room) {
    let reason = if room.executor.is_agent() { "executor_error" } else { "exit_nonzero" };
    let ran = room.run(&[], "fail the model is away").failed(reason);
    assert_eq!(ran.left.code, 1);
    if room.executor.is_agent() {
        assert!(ran.message().contains("the model is away"), "{}", ran.message());
        // Some say it themselves, as if the model had.
        let said = room.said(&ran.session, "assistant");
        assert!(said.iter().all(|said| said.contains("the model is away")), "{said:?}");
    }
    let result = room.home.run(&["result", &ran.session]).exits(1);
    assert!(result.stderr.contains(ran.message()), "{}", result.stderr);
    room.send(&ran.session, &[], "say after").completed();
}

/// Nor does an exit code of 0 mean that all is well.
pub(super) fn leaves_without_a_word(room: &Room) {
    let ran = room.run(&[], "say before\nleave 0").failed("executor_error");
    assert!(ran.message().contains("ended before its turn did"), "{}", ran.message());
    let ran = room.send(&ran.session, &[], "leave 3").failed("executor_error");
    assert!(ran.message().contains("exit code 3"), "{}", ran.message());
}

pub(super) fn is_stopped(room: &Room) {
    let session = room.begin(&[], "say up\nhang");
    room.until_said(&session, "up");
    room.home.run(&["stop", &session]).ok();
    assert_eq!(room.last_run(&session)["state"], "stopped");
    room.nothing_is_left();
    room.send(&session, &[], "say after").completed();

    let session = room.begin(&[], "say up\nhang");
    room.until_said(&session, "up");
    room.home.run(&["stop", "--now", &session]).ok();
    assert_eq!(room.last_run(&session)["state"], "stopped");
}

/// The agent's own end is in its log: its processes are not ended before.
pub(super) fn ends_its_turn_when_it_is_stopped(room: &Room) {
    let session = room.begin(&[], "say up\nhang");
    room.until_said(&session, "up");
    room.home.run(&["stop", &session]).ok();
    let last = room.last_run(&session);
    assert_eq!((&last["state"], last["signal"].is_null()), (&json!("stopped"), true), "{last:#}");
    let log = room.home.run(&["logs", &session]).ok().stdout;
    // Some have a word more to say, about themselves.
    let end: Vec<_> = log.lines().rev().take(3).collect();
    assert!(end.iter().any(|line| line.contains("aborted") || line.contains("cancelled")), "{end:#?}");
}

pub(super) fn is_killed_for_good(room: &Room) {
    let options = ["--allow-tool", room.executor.tool];
    let asks_nobody = room.executor.is_agent() && !room.executor.can(Can::Ask);
    let options = if asks_nobody { options.as_slice() } else { &[] };
    let session = room.begin(options, "tool touch going && tail -f /dev/null");
    if room.executor.can(Can::Ask) {
        let question = room.until_it_asks(&session);
        room.home.run(&["approvals", "allow", question["id"].as_str().unwrap()]).ok();
    }
    room.home.until(|| room.written(&session, "going").is_some());
    room.home.run(&["kill", &session]).ok();
    let killed = room.home.inspect(&session);
    assert_eq!((&killed["state"], &killed["last_run"]["state"]), (&json!("terminated"), &json!("stopped")));
    room.nothing_is_left();
    room.home.run(&["resume", &session]).exits(6);
}

pub(super) fn spends_its_tokens(room: &Room) {
    let ran = room.run(&["--max-tokens", "500"], "say hello\nusage 300").completed();
    let used = |session: &str| {
        let account = room.home.run(&["--json", "budget", "show", session]).ok().json().remove(0);
        account["tokens"]["used"].as_u64().unwrap()
    };
    assert_eq!(used(&ran.session), 300);
    let usage = &room.events(&ran.session, "agent.usage")[0];
    assert_eq!(usage["tokens"], 300);
    // What it says when it is done is no reason to say that it is not.
    room.send(&ran.session, &[], "usage 400\nsay over").completed();
    assert_eq!(used(&ran.session), 700);
    let refused = room.send(&ran.session, &[], "say more").failed("budget_exhausted");
    assert_eq!(refused.left.code, 7);
    assert!(refused.message().contains("top-up"), "{}", refused.message());
    assert!(!room.said(&ran.session, "assistant").contains(&"more".to_owned()));
    room.home.run(&["budget", "top-up", &ran.session, "--tokens", "1000"]).ok();
    room.send(&ran.session, &[], "say more").completed();
}

/// The call that there is no budget for is not made.
pub(super) fn spends_its_tool_calls(room: &Room) {
    let options = ["--max-tool-calls", "1", "--allow-tool", room.executor.tool];
    let ran = room.run(&options, "tool touch one\ntool touch two\nhang").failed("budget_exhausted");
    assert!(ran.message().contains("tool_calls") && ran.message().contains("top-up"), "{}", ran.message());
    assert!(room.written(&ran.session, "one").is_some());
    assert!(room.written(&ran.session, "two").is_none(), "it was called for nothing");
}
