//! Crew files: several tasks in one TOML file.

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use jiff::SignedDuration;
use serde::Deserialize;

use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link::Connection;
use crate::host::protocol::{BudgetWire, Inherited, NewSessionWire, SandboxWire, SessionWire, TaskWire};
use crate::{duration, select};

/// A crew file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CrewFile {
    /// How many tasks run at once; default: as many as the host takes.
    at_once: Option<u32>,
    /// The tasks.
    #[serde(default, rename = "task")]
    tasks: Vec<CrewTask>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CrewTask {
    name: String,
    argv: Vec<String>,
    #[serde(default)]
    after: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    workspace: Option<String>,
    project: Option<Utf8PathBuf>,
    label: Option<String>,
    #[serde(default, deserialize_with = "duration::deserialize_some")]
    timeout: Option<SignedDuration>,
    #[serde(default)]
    priority: i32,
    metadata: Option<toml::Table>,
    #[serde(default)]
    budget: BudgetWire,
    #[serde(default)]
    sandbox: SandboxWire,
}

/// A crew, ready to be submitted.
#[derive(Debug)]
pub struct Crew {
    /// How many tasks run at once.
    pub at_once: Option<u32>,
    /// The tasks.
    pub tasks: Vec<TaskWire>,
}

/// What every task of a crew gets.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// What the caller's environment gives.
    pub base_env: Inherited,
    /// Variables that were set on the command line; a task's own come on top.
    pub env: Vec<(String, String)>,
    /// The longest wall time of a task that sets none.
    pub timeout: Option<SignedDuration>,
    /// For how long each waits for a runner that may take it.
    pub claim_within: Option<SignedDuration>,
    /// Which machine has their projects.
    pub projects: Projects,
}

/// Which machine has the projects of new sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projects {
    /// This one: they are looked at.
    Here,
    /// Whichever opens the session: their names are passed on.
    Anywhere,
}

impl Projects {
    /// By the host that is there, or by the settings, which the next one begins with.
    pub async fn of(context: &Context) -> Outcome<Self> {
        let has_fleet = match Connection::open(context).await? {
            Some(host) => host.has_fleet(),
            None => context.config.host.fleet().is_some(),
        };
        Ok(if has_fleet { Self::Anywhere } else { Self::Here })
    }

    /// The project's path as it is asked for.
    pub fn named(self, path: &Utf8Path) -> Result<Utf8PathBuf, String> {
        let path = if path.as_str().is_empty() { Utf8Path::new(".") } else { path };
        match self {
            Self::Here => resolve(path),
            Self::Anywhere => camino::absolute_utf8(path).map_err(|error| format!("{path}: {error}")),
        }
    }
}

/// Reads a crew file. Relative project paths begin at the file's directory.
pub fn read(path: &Utf8Path, defaults: &Defaults) -> Outcome<Crew> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::caused(Kind::Usage, format!("crew file {path} cannot be read"), &error))?;
    let file: CrewFile = toml::from_str(&text)
        .map_err(|error| Failure::caused(Kind::Usage, format!("crew file {path} is not valid"), &error))?;
    if file.tasks.is_empty() {
        return Err(Failure::usage(format!("crew file {path} has no task"))
            .hint("begin each task with [[task]], a name and an argv"));
    }
    let directory = path.parent().unwrap_or(Utf8Path::new(""));
    let tasks = file.tasks.into_iter().map(|task| wire(task, directory, defaults)).collect::<Outcome<_>>();
    Ok(Crew {
        at_once: file.at_once,
        tasks: tasks.map_err(|failure| Failure {
            message: format!("crew file {path}: {}", failure.message),
            ..failure
        })?,
    })
}

fn wire(task: CrewTask, directory: &Utf8Path, defaults: &Defaults) -> Outcome<TaskWire> {
    let CrewTask {
        name,
        argv,
        after,
        env,
        workspace,
        project,
        label,
        timeout,
        priority,
        metadata,
        budget,
        sandbox,
    } = task;
    let projects = defaults.projects;
    let fault = |field: &str, reason: String| Failure::usage(format!("task {name:?}.{field}: {reason}"));
    let label = label.unwrap_or_else(|| name.clone());
    select::label(&label).map_err(|failure| fault("label", failure.message))?;
    let workspace = match (workspace, &project) {
        (Some(kind), _) => kind,
        (None, Some(_)) => "worktree".into(),
        (None, None) => "scratch".into(),
    };
    let wants_project = workspace != "scratch";
    let project = match project {
        Some(project) => {
            Some(projects.named(&directory.join(project)).map_err(|reason| fault("project", reason))?)
        }
        None if wants_project => Some(projects.named(directory).map_err(|reason| fault("project", reason))?),
        None => None,
    };
    let metadata = serde_json::to_string(&metadata.unwrap_or_default())
        .map_err(|error| fault("metadata", error.to_string()))?;
    let mut variables = defaults.env.clone();
    variables.extend(env);
    Ok(TaskWire {
        executor: None,
        turn: None,
        session: SessionWire::New(NewSessionWire {
            label: Some(label),
            agent: None,
            workspace,
            project: project.map(Into::into),
            metadata,
            budget,
            sandbox,
            parent: None,
            callback: false,
        }),
        name: Some(name),
        after,
        argv,
        base_env: defaults.base_env.clone(),
        env: variables,
        timeout: timeout.or(defaults.timeout),
        claim_within: defaults.claim_within,
        priority,
    })
}

/// The directory that a path leads to, every symbolic link resolved.
fn resolve(path: &Utf8Path) -> Result<Utf8PathBuf, String> {
    let real = path.canonicalize_utf8().map_err(|error| format!("{path}: {error}"))?;
    if real.is_dir() { Ok(real) } else { Err(format!("{path} is not a directory")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Outcome<Crew> {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("crew.toml");
        fs::write(&path, text).unwrap();
        let defaults = Defaults {
            base_env: Inherited::default(),
            env: Vec::new(),
            timeout: Some(SignedDuration::from_secs(9)),
            claim_within: None,
            projects: Projects::Here,
        };
        read(&path, &defaults)
    }

    #[test]
    fn a_task_says_what_differs() {
        let crew = parse(
            "at_once = 2\n[[task]]\nname = \"a\"\nargv = [\"echo\", \"$(x)\\n'\\\"\"]\n[[task]]\nname = \"b\"\nargv = \
             [\"true\"]\nafter = [\"a\"]\ntimeout = \"2m\"\nmetadata = { k = [1, \"ü\"] }\nworkspace = \"in-place\"\n",
        );
        let crew = crew.unwrap();
        assert_eq!(crew.at_once, Some(2));
        assert_eq!(crew.tasks[0].argv[1], "$(x)\n'\"");
        assert_eq!(crew.tasks[0].timeout, Some(SignedDuration::from_secs(9)));
        assert_eq!(crew.tasks[1].timeout, Some(SignedDuration::from_mins(2)));
        let SessionWire::New(session) = &crew.tasks[1].session else { panic!() };
        assert_eq!(session.metadata, r#"{"k":[1,"ü"]}"#);
        assert_eq!((session.label.as_deref(), session.workspace.as_str()), (Some("b"), "in-place"));
        assert!(session.project.is_some());
    }

    #[test]
    fn faults_name_the_file_and_the_field() {
        let cases = [
            ("", "has no task"),
            ("[[task]]\nname = \"a\"\nargv = [\"x\"]\ntimeuot = 3\n", "timeuot"),
            ("[[task]]\nargv = [\"x\"]\n", "name"),
            ("[[task]]\nname = \"a\"\nargv = [\"x\"]\ntimeout = \"soon\"\n", "timeout"),
            ("[[task]]\nname = \"a\"\nargv = [\"x\"]\nproject = \"gone\"\n", "task \"a\".project"),
            ("[[task]\n", "crew.toml"),
        ];
        for (text, reason) in cases {
            let failure = parse(text).unwrap_err();
            assert_eq!(failure.kind, Kind::Usage);
            assert!(failure.to_string().contains(reason), "{failure}: no {reason}");
        }
    }
}
