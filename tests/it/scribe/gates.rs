//! The gates: parallel agents, another run, a symbolic link, a missing agent; and what lies between two calls.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use session_tests::http::Served;
use session_tests::scribe::Agents;

use super::{Ground, on_both};

on_both! {
    agents_in_parallel
    another_run_is_another_session
    a_link_leads_to_the_same_session
    an_agent_without_a_name
    the_truth_table
    two_agents_on_one_connection
    everything_is_started_anew
    what_expired_has_a_next_generation
    an_end_counts_at_once_and_everywhere
}

fn who(repository: impl AsRef<str>, run: &str, agent: Option<&str>) -> Value {
    let mut who = json!({ "repo_root": repository.as_ref(), "execution_id": run });
    if let Some(agent) = agent {
        who["agent"] = json!(agent);
    }
    who
}

fn with(mut who: Value, more: Value) -> Value {
    if let (Some(who), Value::Object(more)) = (who.as_object_mut(), more) {
        who.extend(more);
    }
    who
}

fn agents_in_parallel(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    agents.start(&ground.home, "one", &repository, &[]);
    agents.start(&ground.home, "two", &repository, &[]);
    let call = |connection: &str, agent: &str, tool: &str, more: Value| json!({ "call": connection, "tool": tool, "arguments": with(who(&repository, "run", Some(agent)), more) });
    for round in 0..5 {
        let set = |connection, agent| {
            call(connection, agent, "set_project", json!({ "name": format!("of {agent}") }))
        };
        let keep = |connection, agent| {
            call(connection, agent, "append_entry", json!({ "text": format!("{agent} {round}") }))
        };
        let together =
            json!({ "together": [set("one", "a"), set("two", "b"), keep("one", "a"), keep("two", "b")] });
        let told = agents.ask(&together);
        assert!(!told.to_string().contains("refused"), "{told}");
    }
    for (connection, agent) in [("one", "a"), ("two", "b"), ("two", "a"), ("one", "b")] {
        let context = who(&repository, "run", Some(agent));
        assert_eq!(
            agents.texts(connection, &context),
            (0..5).map(|n| format!("{agent} {n}")).collect::<Vec<_>>()
        );
        assert_eq!(agents.done(connection, "get_project", &context)["name"], format!("of {agent}"));
    }
}

fn another_run_is_another_session(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    agents.start(&ground.home, "one", &repository, &[("ROOMETTE_EXECUTION_ID", "first")]);
    agents.start(&ground.home, "two", &repository, &[("ROOMETTE_EXECUTION_ID", "second")]);
    agents.done("one", "append_entry", &json!({ "agent": "a", "text": "of the first" }));
    assert!(agents.texts("two", &json!({ "agent": "a" })).is_empty());
    agents.done("two", "append_entry", &json!({ "agent": "a", "text": "of the second" }));
    assert_eq!(agents.texts("one", &json!({ "agent": "a" })), ["of the first"]);
    let named = json!({ "agent": "a", "execution_id": "first" });
    assert_eq!(agents.texts("two", &named), ["of the first"], "the call says more than the connection");
    let told = agents.done("two", "whoami", &named);
    assert_eq!(
        (&told["scope"]["from"], &told["repo_root"]["from"]),
        (&json!("argument"), &json!("inferred"))
    );
}

fn a_link_leads_to_the_same_session(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    let link = repository.with_file_name("link");
    std::os::unix::fs::symlink(&repository, &link).unwrap();
    agents.start(&ground.home, "real", &repository, &[]);
    agents.start(&ground.home, "linked", &link, &[]);
    agents.done("real", "append_entry", &json!({ "agent": "a", "text": "here" }));
    assert_eq!(agents.texts("linked", &json!({ "agent": "a" })), ["here"]);
    assert_eq!(agents.texts("real", &json!({ "agent": "a", "repo_root": link.join("../link/") })), ["here"]);
}

fn an_agent_without_a_name(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    agents.start(&ground.home, "one", &repository, &[]);
    for run in ["first", "second"] {
        agents.done("one", "append_entry", &with(who(&repository, run, None), json!({ "text": run })));
    }
    for run in ["first", "second"] {
        assert_eq!(agents.texts("one", &who(&repository, run, None)), [run]);
        let told = agents.done("one", "whoami", &who(&repository, run, None));
        assert_eq!(told["agent"], json!({ "value": "default", "from": "inferred" }));
    }
    assert!(agents.texts("one", &who(&repository, "first", Some("a"))).is_empty());
}

fn the_truth_table(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let (repository, other) = (ground.repository("repo"), ground.repository("other"));
    agents.start(&ground.home, "one", &repository, &[]);
    let sentinel = json!({ "mode": "sentinel", "repo_root": repository, "agent": "a" });
    let rows = [
        who(&repository, "run", Some("a")),
        who(&repository, "run", Some("b")),
        who(&repository, "another", Some("a")),
        who(&other, "run", Some("a")),
        who(&repository, "run", None),
        who(&repository, "another", None),
        who(&repository, "a:b", Some("c")),
        who(&repository, "a", Some("b:c")),
        json!({ "repo_root": repository, "agent": "a" }),
        sentinel,
    ];
    let mut sessions = BTreeSet::new();
    for row in &rows {
        // To look makes nothing.
        assert!(agents.texts("one", row).is_empty());
        assert!(agents.done("one", "whoami", row).get("session_id").is_none());
        let entry = with(row.clone(), json!({ "text": row.to_string() }));
        let kept = agents.done("one", "append_entry", &entry);
        assert!(sessions.insert(kept["session_id"].to_string()), "{row} met another");
        assert_eq!(agents.done("one", "whoami", row)["session_id"], kept["session_id"]);
    }
    for row in &rows {
        assert_eq!(agents.texts("one", row), [row.to_string()]);
    }
    let own = agents.done("one", "list_sessions", &rows[0]);
    assert_eq!(own["sessions"].as_array().unwrap().len(), 1, "{own}");
    assert_eq!(
        ground.home.run(&["--json", "ps", "--all"]).ok().json()[0]["sessions"].as_array().unwrap().len(),
        rows.len()
    );
}

fn two_agents_on_one_connection(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    for era in ["legacy", "2026-07-28"] {
        let opened =
            agents.start_in(&ground.home, era, &repository, &[("ROOMETTE_AGENT", "of the connection")], era);
        assert_eq!(opened["version"] == json!("2026-07-28"), era != "legacy", "{opened}");
        for (agent, text) in [(Some("a"), "one"), (Some("b"), "two"), (None, "three")] {
            agents.done(era, "append_entry", &with(who(&repository, era, agent), json!({ "text": text })));
        }
        assert_eq!(agents.texts(era, &who(&repository, era, Some("a"))), ["one"]);
        assert_eq!(agents.texts(era, &who(&repository, era, Some("b"))), ["two"]);
        assert_eq!(agents.texts(era, &who(&repository, era, None)), ["three"]);
        let told = agents.done(era, "whoami", &who(&repository, era, None));
        assert_eq!(told["agent"], json!({ "value": "of the connection", "from": "environment" }));
        let meta = json!({ "roomette/agent_id": "b" });
        let named = json!({ "call": era, "tool": "whoami", "arguments": who(&repository, era, Some("a")), "meta": meta });
        let told = agents.ask(&named);
        assert_eq!(told["agent"], json!({ "value": "b", "from": "meta" }), "{told}");
    }
}

fn everything_is_started_anew(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    let context = who(&repository, "run", Some("a"));
    agents.start(&ground.home, "one", &repository, &[("ROOMETTE_HOST_LINGER", "30s")]);
    agents.done("one", "set_project", &with(context.clone(), json!({ "name": "harbour" })));
    agents.done("one", "append_entry", &with(context.clone(), json!({ "text": "before", "key": "k" })));
    let session = agents.done("one", "whoami", &context)["session_id"].clone();
    // The host is killed under a connection that stays open.
    ground.home.kill_host();
    agents.done("one", "append_entry", &with(context.clone(), json!({ "text": "after" })));
    // Then everything else ends as well.
    agents.close("one");
    drop(agents);
    ground.home.kill_host();
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let served = Served::start(&ground.home);
    agents.start(&ground.home, "two", &repository, &[]);
    let token = served.token.clone();
    agents.connect(&served, "three", &token, &json!({}), "legacy");
    let headers =
        json!({ "Roomette-Agent": "a", "Roomette-Execution-Id": "run", "Roomette-Repo-Root": repository });
    agents.connect(&served, "four", &token, &headers, "2026-07-28");
    for (connection, context) in [("two", &context), ("three", &context), ("four", &json!({}))] {
        assert_eq!(agents.done(connection, "whoami", context)["session_id"], session, "{connection}");
        assert_eq!(agents.texts(connection, context), ["before", "after"]);
        assert_eq!(agents.done(connection, "get_project", context)["name"], "harbour");
        agents.done(
            connection,
            "append_entry",
            &with(context.clone(), json!({ "text": "before", "key": "k" })),
        );
    }
    assert_eq!(agents.texts("two", &context), ["before", "after"], "a key keeps an entry once");
}

fn what_expired_has_a_next_generation(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    let context = who(&repository, "run", Some("a"));
    let short = [("ROOMETTE_SCRIBE_TTL", "3s")];
    agents.start(&ground.home, "one", &repository, &short);
    agents.start(&ground.home, "two", &repository, &short);
    for later in ["three", "four"] {
        agents.start(&ground.home, later, &repository, &[("ROOMETTE_SCRIBE_TTL", "1h")]);
    }
    let keep = |text: &str| with(context.clone(), json!({ "text": text }));
    let first = agents.done("one", "append_entry", &keep("old"));
    // Each reads it until it is over: its time is too short to be prolonged.
    while agents.texts("two", &context) == ["old"] {}
    assert!(agents.texts("one", &context).is_empty());
    assert!(agents.done("one", "whoami", &context).get("session_id").is_none(), "to look makes none");
    let next = agents.done("three", "append_entry", &keep("new"));
    assert_ne!(next["session_id"], first["session_id"]);
    let told = agents.done("four", "whoami", &context);
    assert_eq!((&told["session_id"], &told["generation"]), (&next["session_id"], &json!(2)), "{told}");
    assert_eq!(told["previous"], first["session_id"]);
    assert_eq!(agents.texts("four", &context), ["new"]);
}

fn an_end_counts_at_once_and_everywhere(ground: &Ground) {
    let Some(mut agents) = Agents::new(&ground.home) else { return };
    let repository = ground.repository("repo");
    let context = who(&repository, "run", Some("a"));
    agents.start(&ground.home, "one", &repository, &[]);
    agents.start(&ground.home, "two", &repository, &[]);
    let keep = |text: &str| with(context.clone(), json!({ "text": text }));
    let first = agents.done("one", "append_entry", &keep("old"))["session_id"].clone();
    assert_eq!(agents.texts("two", &context), ["old"]);
    ground.home.run(&["kill", first.as_str().unwrap()]).ok();
    for connection in ["one", "two"] {
        assert!(agents.texts(connection, &context).is_empty());
        assert!(agents.done(connection, "whoami", &context).get("session_id").is_none());
    }
    let next = agents.done("two", "append_entry", &keep("new"))["session_id"].clone();
    assert_ne!(next, first);
    let told = agents.done("one", "whoami", &context);
    assert_eq!((&told["session_id"], &told["previous"]), (&next, &first), "{told}");
    assert_eq!(agents.texts("one", &context), ["new"]);
}
