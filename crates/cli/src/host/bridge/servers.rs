//! The servers of a bridge: one from the command line, or several from a configuration of the form that all clients have.

use std::collections::BTreeMap;
use std::fs;

use camino::Utf8Path;
use mcp_bridge::host::ServerName;
use serde::Deserialize;
use serde::de::IgnoredAny;
use session_runner::workspace::environment::check_variable;

use crate::failure::{Failure, Kind, Outcome};
use crate::output;

/// No configuration is longer: what a client keeps beside its servers may be much.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// No bridge has more servers.
const SERVERS_MAX: usize = 100;

/// How a server is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// Its program and arguments.
    pub argv: Vec<String>,
    /// What it is given as its environment, beside what the host passes on.
    pub env: Vec<(String, String)>,
}

/// The servers by name.
pub type Servers = BTreeMap<ServerName, Server>;

#[derive(Deserialize)]
struct File {
    #[serde(rename = "mcpServers", alias = "servers", alias = "mcp_servers")]
    servers: BTreeMap<String, Entry>,
}

/// One of them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    disabled: bool,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default, alias = "httpUrl", alias = "serverUrl")]
    url: Option<IgnoredAny>,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

fn yes() -> bool {
    true
}

/// What clients keep there for themselves.
const THEIRS: [&str; 15] = [
    "type",
    "transport",
    "timeout",
    "startup_timeout_sec",
    "startup_timeout_ms",
    "tool_timeout_sec",
    "description",
    "alwaysAllow",
    "autoApprove",
    "trust",
    "gallery",
    "version",
    "enabled_tools",
    "disabled_tools",
    "tools",
];

/// The only server.
pub fn one(name: &str, argv: Vec<String>, env: Vec<(String, String)>) -> Outcome<Servers> {
    let name = name.parse().map_err(|error| Failure::of(Kind::Usage, &error))?;
    Ok([(name, Server { argv, env })].into())
}

/// Those of this file, each with these variables on top.
pub fn read(path: &Utf8Path, env: &[(String, String)]) -> Outcome<Servers> {
    let failed = |error: &std::io::Error| {
        Failure::caused(Kind::Usage, format!("the configuration {path} cannot be read"), error)
    };
    if fs::metadata(path).map_err(|error| failed(&error))?.len() > BYTES_MAX {
        return Err(Failure::usage(format!("the configuration {path} is longer than {BYTES_MAX} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    let is_toml = path.extension() == Some("toml");
    let (servers, notes) = parse(&text, is_toml, env).map_err(|failure| Failure {
        message: format!("the configuration {path}: {}", failure.message),
        ..failure
    })?;
    for note in notes {
        output::say(&format!("{path}: {note}"));
    }
    Ok(servers)
}

/// The servers, and what a person should know of what was passed over.
fn parse(text: &str, is_toml: bool, env: &[(String, String)]) -> Outcome<(Servers, Vec<String>)> {
    let file: Result<File, String> = if is_toml {
        toml::from_str(text).map_err(|error| error.to_string())
    } else {
        serde_json::from_str(text).map_err(|error| error.to_string())
    };
    let file = file.map_err(|error| {
        Failure::usage(error).hint("it holds `mcpServers`, and each server its `command`, `args` and `env`")
    })?;
    let (mut servers, mut notes) = (Servers::new(), Vec::new());
    for (name, entry) in file.servers.into_iter().filter(|(_, entry)| entry.enabled && !entry.disabled) {
        let key: ServerName = name.parse().map_err(|error| Failure::of(Kind::Usage, &error))?;
        if entry.url.is_some() {
            notes.push(format!("{name} is left out: with a `url` it is served over HTTP already"));
            continue;
        }
        notes.extend(entry.rest.keys().filter(|field| !THEIRS.contains(&field.as_str())).map(|field| {
            match field.as_str() {
                "cwd" => {
                    format!("{name}: `cwd` is passed over: a server works in the directory of its session")
                }
                field => format!("{name}: `{field}` means nothing here, and is passed over"),
            }
        }));
        servers.insert(key, entry.server(&name, env)?);
    }
    match servers.len() {
        0 if notes.is_empty() => Err(Failure::usage("it names no server that is to be served")),
        0 => Err(Failure::usage(format!("it names no server that is to be served: {}", notes.join("; ")))
            .hint("a bridge is for servers with a `command`")),
        1..=SERVERS_MAX => Ok((servers, notes)),
        more => Err(Failure::usage(format!("it names {more} servers; {SERVERS_MAX} are allowed"))),
    }
}

impl Entry {
    fn server(self, name: &str, over: &[(String, String)]) -> Outcome<Server> {
        let command = self.command.filter(|command| !command.is_empty());
        let command = command.ok_or_else(|| Failure::usage(format!("{name}: `command` is missing")))?;
        let mut env = self.env;
        env.extend(over.iter().cloned());
        for (variable, value) in &env {
            check_variable(variable, value)
                .map_err(|error| Failure::caused(Kind::Usage, format!("{name}: `env`"), &error))?;
        }
        let argv = std::iter::once(command).chain(self.args).collect();
        Ok(Server { argv, env: env.into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_any_client_is_read() {
        let json = r#"{"mcpServers": {
            "files": {"type": "stdio", "command": "npx", "args": ["-y", "server"], "env": {"A": "1"}, "timeout": 60,
                "trust": true, "cwd": "/x", "envFile": ".env"},
            "far": {"type": "http", "url": "https://example.com/mcp", "headers": {}},
            "off": {"command": "x", "disabled": true}
        }, "inputs": []}"#;
        let toml = "model = 'x'\n[mcp_servers.files]\ncommand = 'npx'\nargs = ['-y', 'server']\nenv = { A = '1' }\n\
                    startup_timeout_sec = 20\n[mcp_servers.off]\ncommand = 'x'\nenabled = false\n";
        for (text, is_toml, told) in [(json, false, &["far", "`cwd`", "`envFile`"][..]), (toml, true, &[])] {
            let (servers, notes) = parse(text, is_toml, &[("B".into(), "2".into())]).unwrap();
            assert_eq!(notes.len(), told.len(), "{notes:?}");
            assert!(told.iter().zip(&notes).all(|(told, note)| note.contains(told)), "{notes:?}");
            let server = &servers[&"files".parse().unwrap()];
            assert_eq!((servers.len(), server.argv.join(" ")), (1, "npx -y server".into()));
            assert_eq!(server.env, [("A".into(), "1".into()), ("B".into(), "2".into())]);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_name() {
        for (text, says) in [
            ("", "EOF"),
            ("[]", "expected"),
            ("{}", "mcpServers"),
            (r#"{"mcpServers": {}}"#, "no server"),
            (r#"{"mcpServers": {"a/b": {"command": "x"}}}"#, "a/b"),
            (r#"{"mcpServers": {"a": {"comand": "x"}}}"#, "`command` is missing"),
            (r#"{"mcpServers": {"a": {"command": ""}}}"#, "`command` is missing"),
            (r#"{"mcpServers": {"a": {"url": "http://x"}}}"#, "over HTTP already"),
            (r#"{"mcpServers": {"a": {"command": "x", "env": {"A=B": "1"}}}}"#, "`env`"),
            (r#"{"mcpServers": {"a": {"command": "x", "args": [1]}}}"#, "string"),
        ] {
            let failure = parse(text, false, &[]).unwrap_err();
            assert!(failure.message.contains(says), "{text}: {}", failure.message);
        }
    }
}
