//! Many agents at once, from four processes.

use serde_json::json;
use session_tests::scribe::Agents;

use super::{Ground, on_both};

const AGENTS: usize = 64;
const ENTRIES: usize = 100;

on_both! {
    nothing_is_crossed_or_lost
}

fn nothing_is_crossed_or_lost(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    let names = ["one", "two", "three", "four"];
    for name in names {
        agents.start(&ground.home, name, &repository, &[]);
    }
    let context = json!({ "repo_root": repository, "execution_id": "storm" });
    let told =
        agents.ask(&json!({ "storm": names, "agents": AGENTS, "entries": ENTRIES, "context": context }));
    assert_eq!(told["wrong"], json!([]));
    let kept = told["kept"].as_array().unwrap();
    assert_eq!(kept.len(), AGENTS);
    for (agent, texts) in kept.iter().enumerate() {
        let expected: Vec<_> = (0..ENTRIES).map(|entry| format!("{agent}/{entry}")).collect();
        assert_eq!(*texts, json!(expected), "agent {agent}");
    }
}
