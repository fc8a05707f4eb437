//! What a bridge says when it is up: where it is, what holds its servers, and what to paste into clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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
            "address": address.to_string(),
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
    let (only, base) = (wish.servers.len() == 1, base(wish, address));
    let place = |name: &str| Place {
        name: name.to_owned(),
        url: if only { format!("{base}/mcp") } else { format!("{base}/{name}/mcp") },
    };
    wish.servers.keys().map(|name| place(name.as_str())).collect()
}

/// How clients reach it: as its operator says, or by its address, which is that of this machine where it is none of its own.
fn base(wish: &Wish, address: SocketAddr) -> String {
    if let Some(url) = &wish.url {
        return url.clone();
    }
    if let Some(host) = wish.hosts.first() {
        return format!("http://{host}");
    }
    let reached = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((Ipv6Addr::LOCALHOST, address.port())),
        IpAddr::V4(_) | IpAddr::V6(_) => address,
    };
    format!("http://{reached}")
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
    fn it_is_announced_as_it_is_reached() {
        let wish = |hosts: &[&str], url: Option<&str>| Wish {
            servers: [("git".parse().unwrap(), crate::host::bridge::servers::Server::default())].into(),
            listen: String::new(),
            isolation: true,
            grounds: crate::host::bridge::Grounds::default(),
            secrets: None,
            token_file: None,
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            origins: Vec::new(),
            url: url.map(str::to_owned),
            issuers: Vec::new(),
            sessions: 1,
            restart: mcp_bridge::settings::Restart::Never,
            check: false,
        };
        for (wish, address, reached) in [
            (wish(&[], None), "127.0.0.1:1", "http://127.0.0.1:1/mcp"),
            (wish(&[], None), "0.0.0.0:1", "http://127.0.0.1:1/mcp"),
            (wish(&[], None), "[::]:1", "http://[::1]:1/mcp"),
            (wish(&["box:1", "other:1"], None), "0.0.0.0:1", "http://box:1/mcp"),
            (wish(&["box:1"], Some("https://example.com")), "0.0.0.0:1", "https://example.com/mcp"),
        ] {
            assert_eq!(places(&wish, address.parse().unwrap())[0].url, reached);
        }
    }

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
