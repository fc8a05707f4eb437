//! The official SDKs as clients, in both eras of the protocol: all that a client can do, and be asked, comes through.

use std::process::Command;

use camino::Utf8Path;
use serde_json::{Value, json};
use session_tests::bridge::Bridge;
use session_tests::home::{Home, left};
use session_tests::peers::Peers;

const TYPESCRIPT: &str = include_str!("../../fixtures/mcp/client.mjs");
const PYTHON: &str = include_str!("../../fixtures/mcp/client.py");
/// Has the server speak the era with sessions alone.
const OLDER: &str = "--older";
/// How many steps the call has whose stream breaks.
const STEPS: u64 = 30;

#[test]
fn the_typescript_sdk_with_sessions() {
    speaks(typescript, "legacy", &[]);
}

#[test]
fn the_typescript_sdk_without_sessions() {
    speaks(typescript, "2026-07-28", &[]);
}

/// What it says and is asked is put into the words of the other era, both ways.
#[test]
fn the_typescript_sdk_without_sessions_before_a_server_that_knows_nothing_else() {
    speaks(typescript, "2026-07-28", &[OLDER]);
}

#[test]
fn the_python_sdk_with_sessions() {
    speaks(python, "legacy", &[]);
}

#[test]
fn the_python_sdk_without_sessions() {
    speaks(python, "2026-07-28", &[]);
}

#[test]
fn the_rust_sdk_with_sessions() {
    speaks(rust, "legacy", &[]);
}

#[test]
fn the_rust_sdk_without_sessions() {
    speaks(rust, "2026-07-28", &[]);
}

fn rust(peers: &Peers, home: &Home, arguments: &[&str]) -> Command {
    peers.program(home, &peers.place().join("bin/rmcp-client"), arguments)
}

fn typescript(peers: &Peers, home: &Home, arguments: &[&str]) -> Command {
    let script = peers.script("client.mjs", TYPESCRIPT);
    peers.program(home, &peers.node(), &[&[script.as_str()], arguments].concat())
}

fn python(peers: &Peers, home: &Home, arguments: &[&str]) -> Command {
    let script = peers.script("client.py", PYTHON);
    peers.program(home, &peers.python(), &[&[script.as_str()], arguments].concat())
}

/// A client with one root speaks with the server that has everything, and tells what it saw.
fn speaks(client: fn(&Peers, &Home, &[&str]) -> Command, era: &str, more: &[&str]) {
    let Some(peers) = Peers::installed() else { return };
    let (home, sessions) = (Home::new(), era == "legacy");
    let mine = super::project(&home, "mine");
    let (place, server) = (peers.place().to_owned(), peers.everything());
    let first = ["--listen", "127.0.0.1:0", "--session-isolation", "--allow-read", place.as_str()];
    // Without sessions the operator says what a client may touch: nobody is asked for roots.
    let scope = ["--sandbox-scope", mine.as_str()];
    let scope: &[&str] = if sessions { &[] } else { &scope };
    let command = ["--", peers.node().as_str(), server.as_str()].map(str::to_owned);
    let command = command.each_ref().map(String::as_str);
    let bridge = Bridge::serving(&home, &[&first, scope, &command, more].concat());
    let url = format!("http://{}/mcp", bridge.address);
    let told = left(client(&peers, &home, &[&url, &bridge.token, mine.as_str(), era])).ok();
    let report: Value = serde_json::from_str(&told.stdout).unwrap();
    holds_in_both(&report, &mine);
    let roots = report["roots"].as_str().unwrap_or_default();
    if more.contains(&OLDER) {
        // Its client is the bridge, which names no directories: the operator has set them.
        assert!(roots.contains("did not declare the required capability"), "{report}");
    } else {
        assert!(roots.contains(&format!("file://{mine}")), "{report}");
    }
    if !sessions {
        assert_eq!(report["version"], json!(era), "{report}");
        return;
    }
    assert_eq!(report["version"], json!("2025-11-25"), "{report}");
    let logged = ["Tool execution started", "Tool processing data", "Tool execution completed"];
    assert_eq!(report["logged"], json!(logged), "{report}");
    // The stream broke once, and what it had not brought came on the next one, in order and once.
    assert_eq!(report["resumed"], json!(1), "{report}");
    assert_eq!(report["resumption"], json!(format!("{STEPS} steps")), "{report}");
    assert_eq!(numbers(&report["steps"]), (0..STEPS).collect::<Vec<_>>(), "{report}");
    // It said goodbye.
    let seen = home.run(&["--json", "ps", "--all"]).ok().json().remove(0);
    let sessions = seen["sessions"].as_array().unwrap();
    assert!(!sessions.is_empty() && sessions.iter().all(|one| one["state"] == json!("terminated")), "{seen}");
}

/// What holds in both eras.
fn holds_in_both(report: &Value, root: &Utf8Path) {
    assert!(report["tools"].as_u64().is_some_and(|tools| tools > 20), "{report}");
    assert_eq!(report["where"], json!(root), "{report}");
    for (key, says) in [
        ("sampling", "to be sampled"),
        ("elicitation", "action=accept"),
        ("elicitation", r#""username":"someone""#),
        ("resource", "This is the content of the static text resource."),
        ("prompt", "This is a simple prompt for testing."),
    ] {
        assert!(report[key].as_str().is_some_and(|text| text.contains(says)), "{key}: {report}");
    }
    assert_eq!(numbers(&report["progress"]), [0, 1, 2, 3], "{report}");
    assert_eq!(report["cancellation"], json!("cancelled"), "{report}");
    assert_eq!(report["held"], json!("begun cancelled"), "the server was told: {report}");
}

/// Whole numbers, also where a language writes them with a point.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "steps are small numbers from nought on"
)]
fn numbers(list: &Value) -> Vec<u64> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(Value::as_f64).map(|number| number as u64).collect()
}
