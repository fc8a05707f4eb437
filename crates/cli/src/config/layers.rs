//! From files, environment and flags to one configuration that knows where each value came from.

use std::collections::BTreeMap;
use std::{fmt, fs, io};

use camino::{Utf8Path, Utf8PathBuf};
use toml::{Table, Value};

use super::schema::Config;
use crate::failure::{Failure, Kind, Outcome};

/// Where a value came from, from the weakest to the strongest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layer {
    /// Built in.
    Default,
    /// A file.
    File(Utf8PathBuf),
    /// A variable of the environment.
    Environment(String),
    /// A flag of the command.
    Flag(&'static str),
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{path}"),
            Self::Environment(name) => write!(f, "${name}"),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// Whose word a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// The user's own.
    Own,
    /// Whoever wrote the project: it may come with a repository that was cloned.
    Foreign,
}

/// What a project's file may set: nothing by which data or keys would go elsewhere.
const FOREIGN_KEYS: [&str; 2] = ["run.grace", "run.timeout"];

fn refuse_foreign(path: &Utf8Path, table: &Table) -> Outcome<()> {
    let mut found = BTreeMap::new();
    note(table, "", &Layer::File(path.into()), &mut found);
    match found.keys().find(|key| !FOREIGN_KEYS.contains(&key.as_str())) {
        Some(key) => Err(Failure::usage(format!("{path} sets {key}, which a project may not")).hint(
            format!("a project sets {}; the rest belongs into your own file", FOREIGN_KEYS.join(" and ")),
        )),
        None => Ok(()),
    }
}

/// What the settings are made from.
#[derive(Debug, Default)]
pub struct Sources {
    /// Files, weaker ones first, and whose word each is; a missing one is skipped.
    pub files: Vec<(Utf8PathBuf, Trust)>,
    /// Variables of the environment.
    pub environment: Vec<(String, String)>,
    /// Flags: name, key and value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

/// The settings, and for each key where its value came from.
pub fn load(sources: &Sources) -> Outcome<(Config, BTreeMap<String, Layer>)> {
    let defaults = Table::try_from(Config::default())
        .map_err(|error| Failure::caused(Kind::Error, "the built-in settings cannot be written", &error))?;
    let mut merged = defaults;
    let mut origins = BTreeMap::new();
    note(&merged, "", &Layer::Default, &mut origins);
    for (path, trust) in &sources.files {
        if let Some(table) = read(path)? {
            if *trust == Trust::Foreign {
                refuse_foreign(path, &table)?;
            }
            overlay(&mut merged, &table, "", &Layer::File(path.clone()), &mut origins);
            verify(&merged, &format!("{path}"))?;
        }
    }
    for (name, text) in &sources.environment {
        if let Some(key) = variable_key(name, &merged)? {
            set(&mut merged, &key, text);
            origins.insert(key, Layer::Environment(name.clone()));
            verify(&merged, &format!("${name}"))?;
        }
    }
    for (flag, key, text) in &sources.flags {
        set(&mut merged, key, text);
        origins.insert((*key).into(), Layer::Flag(flag));
        verify(&merged, &format!("--{flag}"))?;
    }
    Ok((verify(&merged, "the settings")?, origins))
}

fn read(path: &Utf8Path) -> Outcome<Option<Table>> {
    match fs::read_to_string(path) {
        Ok(text) => match text.parse::<Table>() {
            Ok(table) => Ok(Some(table)),
            Err(error) => Err(Failure::caused(Kind::Usage, format!("{path} is not valid"), &error)),
        },
        // A directory that is a file is told of when it is to be used.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Failure::caused(Kind::Error, format!("{path} cannot be read"), &error)),
    }
}

/// The configuration that a table stands for; `whose` names the layer that was added last, so the one at fault.
fn verify(table: &Table, whose: &str) -> Outcome<Config> {
    let config: Config = table
        .clone()
        .try_into()
        .map_err(|error| Failure::caused(Kind::Usage, format!("{whose} is not valid"), &error))?;
    config.check().map_err(|reason| Failure::usage(format!("{whose}: {reason}")))?;
    Ok(config)
}

fn overlay(
    base: &mut Table,
    over: &Table,
    prefix: &str,
    layer: &Layer,
    origins: &mut BTreeMap<String, Layer>,
) {
    for (name, value) in over {
        let key = join(prefix, name);
        if let (Some(Value::Table(base)), Value::Table(over)) = (base.get_mut(name), value) {
            overlay(base, over, &key, layer, origins);
        } else {
            base.insert(name.clone(), value.clone());
            origins.insert(key, layer.clone());
        }
    }
}

fn note(table: &Table, prefix: &str, layer: &Layer, origins: &mut BTreeMap<String, Layer>) {
    for (name, value) in table {
        let key = join(prefix, name);
        match value {
            Value::Table(table) => note(table, &key, layer, origins),
            Value::String(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Array(_) => {
                origins.insert(key, layer.clone());
            }
        }
    }
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.into() } else { format!("{prefix}.{name}") }
}

/// Variables that are no settings: what a run finds of itself, also when it calls us, who an agent of the scribe is, where
/// data lie, and what diagnostics and tests look at.
const NO_SETTINGS: [&str; 18] = [
    "ROOMETTE_SESSION_ID",
    "ROOMETTE_RUN_ID",
    "ROOMETTE_OUTPUT_DIR",
    "ROOMETTE_HISTORY",
    "ROOMETTE_URL",
    "ROOMETTE_TOKEN",
    "ROOMETTE_AGENT",
    "ROOMETTE_EXECUTION_ID",
    "ROOMETTE_MODE",
    "ROOMETTE_REPO_ROOT",
    "ROOMETTE_HOME",
    "ROOMETTE_LOG",
    "ROOMETTE_TEST_AGENTS",
    "ROOMETTE_TEST_MCP",
    "ROOMETTE_TEST_PG",
    "ROOMETTE_TEST_SKIP",
    "ROOMETTE_TEST_STOP_AT",
    "ROOMETTE_TEST_WORKERS",
];

/// `ROOMETTE_HOST_RUNS_AT_ONCE` is `host.runs_at_once`; `None` for what is not ours.
fn variable_key(name: &str, merged: &Table) -> Outcome<Option<String>> {
    let Some(rest) = name.strip_prefix("ROOMETTE_").filter(|_| !NO_SETTINGS.contains(&name)) else {
        return Ok(None);
    };
    let rest = rest.to_ascii_lowercase();
    match rest.split_once('_') {
        Some((section, key)) if merged.contains_key(section) => Ok(Some(format!("{section}.{key}"))),
        Some(_) | None => Err(Failure::usage(format!("${name} is no setting"))
            .hint("`roomette config show` lists the settings; host.linger is ROOMETTE_HOST_LINGER")),
    }
}

/// Sets a key to a text, as the type that the key's present value has.
fn set(table: &mut Table, key: &str, text: &str) {
    let (section, name) = key.split_once('.').unwrap_or(("", key));
    let Some(Value::Table(section)) = table.get_mut(section) else { return };
    let value = match section.get(name) {
        // A number also where there is no default: no setting that may be left out is a text of digits only.
        Some(Value::Integer(_)) | None => text.parse().map(Value::Integer).ok(),
        Some(Value::Boolean(_)) => text.parse().map(Value::Boolean).ok(),
        Some(Value::Array(_)) => {
            let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
            Some(Value::Array(words.map(|word| Value::String(word.into())).collect()))
        }
        Some(Value::String(_) | Value::Float(_) | Value::Datetime(_) | Value::Table(_)) => None,
    };
    // What cannot be parsed stays text, and is refused with the name of its layer when the types are checked.
    section.insert(name.into(), value.unwrap_or_else(|| Value::String(text.into())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> Utf8PathBuf {
        let path = Utf8Path::from_path(dir.path()).unwrap().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn stronger_layers_win_and_origins_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let user =
            file(&dir, "user.toml", "[host]\nruns_at_once = 2\nlinger = \"1m\"\n[run]\ntimeout = \"1h\"\n");
        let project = file(&dir, "project.toml", "[host]\nruns_at_once = 3\n");
        let sources = Sources {
            files: vec![
                (user.clone(), Trust::Own),
                (project.clone(), Trust::Own),
                ("/nowhere/at-all.toml".into(), Trust::Own),
            ],
            environment: vec![
                ("ROOMETTE_RUN_PASS_ENV".into(), "A_KEY, B_KEY".into()),
                ("ROOMETTE_RUN_ID".into(), "ignored".into()),
            ],
            flags: vec![("store", "store.url", "sqlite:/x.db".into())],
        };
        let (config, origins) = load(&sources).unwrap();
        assert_eq!(config.host.runs_at_once, 3);
        assert_eq!(config.host.linger.as_secs(), 60);
        assert_eq!(config.run.pass_env, ["A_KEY", "B_KEY"]);
        assert_eq!(origins["host.runs_at_once"], Layer::File(project));
        assert_eq!(origins["run.timeout"], Layer::File(user));
        assert_eq!(origins["run.pass_env"].to_string(), "$ROOMETTE_RUN_PASS_ENV");
        assert_eq!(origins["store.url"].to_string(), "--store");
        assert_eq!(origins["log.files"], Layer::Default);
    }

    #[test]
    fn faults_name_their_layer_and_key() {
        let dir = tempfile::tempdir().unwrap();
        let check = |text: &str, environment: &[(&str, &str)], expect: &[&str]| {
            let sources = Sources {
                files: vec![(file(&dir, "roomette.toml", text), Trust::Own)],
                environment: environment.iter().map(|&(n, v)| (n.into(), v.into())).collect(),
                flags: Vec::new(),
            };
            let failure = load(&sources).unwrap_err();
            assert_eq!(failure.kind, Kind::Usage);
            for word in expect {
                assert!(failure.to_string().contains(word), "{failure}: no {word}");
            }
        };
        check("[host]\nruns_at_onec = 3\n", &[], &["roomette.toml", "runs_at_onec"]);
        check("[hosts]\n", &[], &["roomette.toml", "hosts"]);
        check("[host]\nruns_at_once = 1001\n", &[], &["roomette.toml", "host.runs_at_once", "0 to 1000"]);
        check("[host]\nclaim_within = \"0s\"\n", &[], &["roomette.toml", "host.claim_within"]);
        check("[host]\nlease = \"4s\"\n", &[], &["roomette.toml", "host.lease", "5s"]);
        check("[host\n", &[], &["roomette.toml"]);
        check(
            "",
            &[("ROOMETTE_HOST_RUNS_AT_ONCE", "many")],
            &["$ROOMETTE_HOST_RUNS_AT_ONCE", "runs_at_once"],
        );
        check("", &[("ROOMETTE_STORE_URLL", "x")], &["$ROOMETTE_STORE_URLL", "urll"]);
        check("", &[("ROOMETTE_BOGUS", "1")], &["$ROOMETTE_BOGUS", "no setting"]);
    }

    #[test]
    fn a_project_cannot_send_data_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let load_project = |text: &str| {
            let files = vec![(file(&dir, ".roomette.toml", text), Trust::Foreign)];
            load(&Sources { files, ..Sources::default() })
        };
        assert_eq!(load_project("[run]\ntimeout = \"5m\"\n").unwrap().0.run.timeout.unwrap().as_mins(), 5);
        for (text, key) in [
            ("[store]\nurl = \"postgres://elsewhere/x\"\n", "store.url"),
            ("[run]\npass_env = [\"API_KEY\"]\n", "run.pass_env"),
        ] {
            let failure = load_project(text).unwrap_err();
            assert!(failure.message.contains(key), "{failure}");
        }
    }
}
