//! The official conformance suite of MCP before a server that has all that it asks for, directly over HTTP and behind the
//! bridge over stdio: what the server passes, the bridge passes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use camino::Utf8Path;
use serde_json::Value;
use session_tests::bridge::Bridge;
use session_tests::home::{Home, left};
use session_tests::peers::Peers;

/// What the suite runs.
const SUITE: &str = "@modelcontextprotocol/conformance/dist/index.js";
/// A scenario may take so long, in milliseconds.
const SCENARIO_MS: &str = "45000";
/// Checks of what only a server over HTTP decides: whether an answer that is there soon comes as a stream, and when a
/// stream is broken off in the middle of a call. Behind the bridge the suite has nothing to look at, and says so.
const OF_HTTP: [&str; 2] = ["server-sse-streams-functional", "server-sse-disconnect-resume"];

/// What has no words in the older era: by which name a server knows its own question, directories that the operator has set, and
/// several questions at once.
const UNTRANSLATED: [&str; 3] = [
    "sep-2322-elicitation-incomplete",
    "sep-2322-list-roots-incomplete",
    "sep-2322-multiple-inputs-incomplete",
];

/// How often a check of a scenario went well, and how often not.
type Checks = BTreeMap<(String, String), (usize, usize)>;

#[test]
fn the_bridge_loses_nothing_that_a_server_with_sessions_passes() {
    compare("2025-11-25", 80);
}

#[test]
fn the_bridge_loses_nothing_that_a_server_without_sessions_passes() {
    compare("2026-07-28", 185);
}

/// What is translated: the server behind the bridge knows the era with sessions alone.
#[test]
fn the_bridge_speaks_the_era_without_sessions_for_a_server_that_does_not() {
    let Some(peers) = Peers::installed() else { return };
    let home = Home::new();
    let (bridge, url) = before(&home, &peers, &["--older"]);
    let found = run(&home, &peers, "2026-07-28", &url, "translated");
    drop(bridge);
    let passed: usize = found.values().map(|(passed, _)| passed).sum();
    assert!(passed >= 185, "only {passed} checks are passed: {found:#?}");
    let failed: Vec<_> =
        found.iter().filter(|(_, found)| found.1 > 0).map(|((_, check), _)| check.as_str()).collect();
    assert_eq!(failed, UNTRANSLATED);
}

/// A bridge before the server with everything, and where that is.
fn before(home: &Home, peers: &Peers, more: &[&str]) -> (Bridge, String) {
    let (server, place) = (peers.everything(), peers.place().as_str());
    let first = ["--listen", "127.0.0.1:0", "--no-auth", "--session-isolation"];
    let open = ["--allow-root", place, "--allow-read", place, "--"];
    let node = peers.node();
    let command = [node.as_str(), server.as_str()];
    let bridge = Bridge::serving(home, &[&first[..], &open, &command, more].concat());
    let url = format!("http://{}/mcp", bridge.address);
    (bridge, url)
}

/// Runs what a revision requires against both; the server itself passes so many checks at the least.
fn compare(revision: &str, least: usize) {
    let Some(peers) = Peers::installed() else { return };
    let home = Home::new();
    let alone = Alone::start(&home, &peers);
    let (_bridge, through) = before(&home, &peers, &[]);
    let (direct, bridged) = std::thread::scope(|scope| {
        let direct = scope.spawn(|| run(&home, &peers, revision, &alone.url, "direct"));
        let bridged = run(&home, &peers, revision, &through, "bridged");
        (direct.join().unwrap(), bridged)
    });
    let passed: usize = direct.values().map(|(passed, _)| passed).sum();
    assert!(passed >= least, "the server alone passes {passed} checks: {direct:#?}");
    let lost: Vec<_> = direct
        .iter()
        .filter(|((_, check), _)| !OF_HTTP.contains(&check.as_str()))
        .filter_map(|(check, alone)| {
            let behind = bridged.get(check).copied().unwrap_or_default();
            (behind.0 < alone.0 || behind.1 > alone.1)
                .then(|| format!("{check:?}: {alone:?} alone, {behind:?} behind it"))
        })
        .collect();
    assert_eq!(lost, [] as [String; 0], "passed and failed");
    let failed: Vec<_> =
        bridged.iter().filter(|(check, found)| found.1 > 0 && !direct.contains_key(*check)).collect();
    assert!(failed.is_empty(), "it fails where the server alone is not even asked: {failed:#?}");
}

/// One run of the suite.
fn run(home: &Home, peers: &Peers, revision: &str, url: &str, name: &str) -> Checks {
    let (suite, results) = (peers.package(SUITE), home.path().join(name));
    let arguments =
        [suite.as_str(), "server", "--url", url, "--requirements", revision, "--timeout", SCENARIO_MS];
    let ran = left(peers.program(home, &peers.node(), &[&arguments[..], &["-o", results.as_str()]].concat()));
    assert!(results.is_dir(), "the suite did not run: {}\n{}", ran.stdout, ran.stderr);
    let mut checks = Checks::new();
    for entry in results.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        count(&scenario(entry.file_name()), &entry.path().join("checks.json"), &mut checks);
    }
    checks
}

/// `server-ping-2026-11-22T12-07-34-594Z` is of the scenario `ping`.
fn scenario(directory: &str) -> String {
    const TIME: usize = "-2026-11-22T12-07-34-594Z".len();
    let name = directory.strip_prefix("server-").unwrap_or(directory);
    name[..name.len().saturating_sub(TIME)].to_owned()
}

fn count(scenario: &str, file: &Utf8Path, checks: &mut Checks) {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let found: Vec<Value> = serde_json::from_str(&text).unwrap();
    for check in found {
        let counted = match check["status"].as_str() {
            Some("SUCCESS") => (1, 0),
            Some("FAILURE" | "WARNING") => (0, 1),
            Some(_) | None => continue,
        };
        let id = check["id"].as_str().unwrap_or_default().to_owned();
        let sum = checks.entry((scenario.to_owned(), id)).or_default();
        *sum = (sum.0 + counted.0, sum.1 + counted.1);
    }
}

/// The server over HTTP, without a bridge.
struct Alone {
    child: Child,
    url: String,
}

impl Alone {
    fn start(home: &Home, peers: &Peers) -> Self {
        let server = peers.everything();
        let mut command = peers.program(home, &peers.node(), &[server.as_str(), "--http"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        assert!(url.starts_with("http://"), "the server did not come up: {url}");
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}
