//! Claude Code and Codex, where they are installed: each keeps and reads its own entries while the other does.

use std::fs;
use std::process::{Command, Stdio};

use camino::Utf8Path;
use serde_json::{Value, json};
use session_tests::home::Home;
use session_tests::http::Served;
use session_tests::model::Model;
use session_tests::program::roomette;

use super::Ground;

/// What each is asked for.
fn prompt(agent: &str) -> String {
    let keep = |n: u32| {
        format!("tool mcp append_entry {}", json!({ "agent": agent, "text": format!("{agent} kept {n}") }))
    };
    let read = format!("tool mcp read_recent {}", json!({ "agent": agent }));
    [keep(1), keep(2), read, "say done".into()].join("\n")
}

fn claude(home: &Home, agents: &Utf8Path, model: &str, directory: &Utf8Path) -> Command {
    claude_with(&json!({ "command": roomette(), "args": ["mcp"] }), home, agents, model, directory)
}

/// With the scribe as it is told here.
fn claude_with(scribe: &Value, home: &Home, agents: &Utf8Path, model: &str, directory: &Utf8Path) -> Command {
    let servers = json!({ "mcpServers": { "scribe": scribe } });
    let config = home.path().join("claude.json");
    fs::write(&config, servers.to_string()).unwrap();
    let program = agents.join("bin/claude");
    let allowed = "mcp__scribe__append_entry,mcp__scribe__read_recent";
    let mut command = home.program(
        program.as_str(),
        &[
            "-p",
            "--output-format",
            "stream-json",
            "--verbose",
            "--strict-mcp-config",
            "--mcp-config",
            config.as_str(),
        ],
    );
    command.args(["--allowedTools", allowed, "--", &prompt("claude")]).current_dir(directory);
    command
        .env("ANTHROPIC_BASE_URL", model)
        .env("ANTHROPIC_API_KEY", "none")
        .env("ENABLE_TOOL_SEARCH", "false");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    command
}

fn codex(home: &Home, agents: &Utf8Path, model: &str, directory: &Utf8Path) -> Command {
    let program = agents.join("bin/codex");
    let variables = home.command(&[]);
    let variables = variables.get_envs().filter_map(|(name, value)| {
        Some(format!("{} = {}", name.to_str()?, serde_json::to_string(value?.to_str()?).ok()?))
    });
    let env = format!("mcp_servers.scribe.env={{ {} }}", variables.collect::<Vec<_>>().join(", "));
    let settings = [
        "model=ours".into(),
        "model_provider=ours".into(),
        "model_providers.ours.name=ours".into(),
        format!("model_providers.ours.base_url={model}/v1"),
        "model_providers.ours.wire_api=responses".into(),
        "model_providers.ours.env_key=MODEL_KEY".into(),
        "features.plugins=false".into(),
        "analytics.enabled=false".into(),
        "approval_policy=never".into(),
        format!("mcp_servers.scribe.command={}", roomette()),
        r#"mcp_servers.scribe.args=["mcp"]"#.into(),
        r#"mcp_servers.scribe.default_tools_approval_mode="approve""#.into(),
        env,
    ];
    let mut command = home.program(program.as_str(), &["exec", "--json", "--skip-git-repo-check"]);
    for setting in settings {
        command.args(["-c", &setting]);
    }
    command.args(["--", &prompt("codex")]).current_dir(directory).env("MODEL_KEY", "none");
    command
}

#[test]
fn claude_code_reads_what_it_kept_over_http() {
    let Some(agents) = session_tests::agents() else { return };
    let ground = Ground::sqlite();
    let (model, served) = (Model::start(), Served::start(&ground.home));
    let directory = ground.repository("repo");
    let headers = json!({
        "Authorization": format!("Bearer {}", served.token),
        "Roomette-Repo-Root": directory,
    });
    let url = format!("http://{}/mcp/scribe", served.address);
    let scribe = json!({ "type": "http", "url": url, "headers": headers });
    let mut command = claude_with(&scribe, &ground.home, &agents, &model.url(), &directory);
    let left = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&left.stdout);
    assert!(left.status.success(), "{said}\n{}", String::from_utf8_lossy(&left.stderr));
    let answer = said.lines().rfind(|line| line.contains("entries") && line.contains("claude kept 2"));
    assert!(answer.is_some_and(|answer| answer.contains("claude kept 1")), "{said}");
    let listed = ground.home.run(&["--json", "ps", "--all"]).ok().json().remove(0);
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1, "{listed}");
}

#[test]
fn claude_code_and_codex_read_what_they_kept() {
    let Some(agents) = session_tests::agents() else { return };
    let ground = Ground::sqlite();
    let model = Model::start();
    let directory = ground.repository("repo");
    let starts = [("claude", claude as fn(&Home, &Utf8Path, &str, &Utf8Path) -> Command), ("codex", codex)];
    let mut running = Vec::new();
    for (name, start) in starts {
        let mut command = start(&ground.home, &agents, &model.url(), &directory);
        running.push((name, command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()));
    }
    for (name, child) in running {
        let left = child.wait_with_output().unwrap();
        let (said, errors) = (String::from_utf8_lossy(&left.stdout), String::from_utf8_lossy(&left.stderr));
        assert!(left.status.success(), "{name}: {said}\n{errors}");
        let other = if name == "claude" { "codex" } else { "claude" };
        let answer =
            said.lines().rfind(|line| line.contains("entries") && line.contains(&format!("{name} kept 2")));
        let answer = answer.unwrap_or_else(|| panic!("{name} read nothing: {said}\n{errors}"));
        assert!(answer.contains(&format!("{name} kept 1")), "{answer}");
        assert!(!said.contains(&format!("{other} kept")), "{said}");
    }
    let listed = ground.home.run(&["--json", "ps", "--all"]).ok().json().remove(0);
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2, "{listed}");
}
