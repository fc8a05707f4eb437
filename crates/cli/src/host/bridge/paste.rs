//! What a bridge says when it is up: where it is, what holds its servers, and what to paste into clients.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::Wish;
use crate::context::Context;
use crate::failure::Outcome;
use crate::output;

/// The variable in which clients look for the token.
const TOKEN: &str = "ROOMETTE_BRIDGE_TOKEN";

/// Where a server is.
struct Place {
    name: String,
    url: String,
}

/// Tells a person; with `--json` a program, on stdout.
pub(super) fn announce(context: &Context, wish: &Wish, address: SocketAddr, level: &str) -> Outcome<()> {
    let places = places(wish, address);
    if context.json {
        let servers: Vec<_> =
            places.iter().map(|place| json!({ "name": place.name, "url": place.url })).collect();
        output::json(&json!({
            "servers": servers,
            "sandbox": level,
            "session_isolation": wish.isolation,
            "token_file": wish.token_file,
            "process": std::process::id(),
        }))?;
    }
    for place in &places {
        output::say(&format!("{} is at {}", place.name, place.url));
    }
    output::say(&format!("sandbox: {level}"));
    output::say(if wish.isolation {
        "each client session has a process of its own, which may touch what its client names and nothing else"
    } else {
        "all clients share one process and its directories; --session-isolation gives each its own"
    });
    if wish.token_file.is_none() {
        output::say("whoever can reach it on this machine is let in without a token (--no-auth)");
    }
    output::tell(&clients(&places, wish.token_file.as_ref().map(|file| file.as_str())));
    Ok(())
}

fn places(wish: &Wish, address: SocketAddr) -> Vec<Place> {
    let only = wish.servers.len() == 1;
    let place = |name: &str| Place {
        name: name.to_owned(),
        url: if only { format!("http://{address}/mcp") } else { format!("http://{address}/{name}/mcp") },
    };
    wish.servers.keys().map(|name| place(name.as_str())).collect()
}

/// The configuration of four clients.
fn clients(places: &[Place], token_file: Option<&str>) -> String {
    let mut text = String::new();
    let mut add = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    if let Some(file) = token_file {
        add("");
        add("The token, for the shells that start clients:");
        add(&format!("  export {TOKEN}=\"$(cat '{file}')\""));
    }
    add("");
    add("Claude Code:");
    for Place { name, url } in places {
        let header = token_file.map(|_| format!(" --header \"Authorization: Bearer ${{{TOKEN}}}\""));
        add(&format!("  claude mcp add --transport http {name} {url}{}", header.unwrap_or_default()));
    }
    add("Codex (~/.codex/config.toml):");
    for Place { name, url } in places {
        add(&format!("  [mcp_servers.{}]", json!(name)));
        add(&format!("  url = {}", json!(url)));
        if token_file.is_some() {
            add(&format!("  bearer_token_env_var = \"{TOKEN}\""));
        }
    }
    let servers = |kind: Option<&str>| {
        let one = |place: &Place| {
            let mut entry = json!({ "url": place.url });
            if let Some(kind) = kind {
                entry["type"] = json!(kind);
            }
            if token_file.is_some() {
                entry["headers"] = json!({ "Authorization": format!("Bearer ${{env:{TOKEN}}}") });
            }
            (place.name.clone(), entry)
        };
        Value::Object(places.iter().map(one).collect())
    };
    add("VS Code (.vscode/mcp.json):");
    add(&format!("  {}", json!({ "servers": servers(Some("http")) })));
    add("Cursor (.cursor/mcp.json):");
    add(&format!("  {}", json!({ "mcpServers": servers(None) })));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_named_and_never_shown() {
        let places = [Place { name: "git".into(), url: "http://127.0.0.1:1/mcp".into() }];
        let text = clients(&places, Some("/data/bridge.token"));
        assert!(text.contains("export ROOMETTE_BRIDGE_TOKEN=\"$(cat '/data/bridge.token')\""));
        assert!(text.contains(
            "claude mcp add --transport http git http://127.0.0.1:1/mcp --header \"Authorization: Bearer ${ROOMETTE_BRIDGE_TOKEN}\""
        ));
        assert!(
            text.contains(
                "[mcp_servers.\"git\"]\n  url = \"http://127.0.0.1:1/mcp\"\n  bearer_token_env_var"
            )
        );
        assert!(text.contains("\"type\":\"http\"") && text.contains("mcpServers"));
        assert!(!clients(&places, None).contains("Bearer"));
    }
}
