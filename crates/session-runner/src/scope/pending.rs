//! The scope of a session that any runner may execute: recorded by the names that were asked for ([`by_name`]), and looked at
//! once on the machine that opens the session first ([`Settlement`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::PathReason;
use serde::{Deserialize, Serialize};
use session_core::sandbox::{Pending, SandboxLevel, SandboxSpec};

use super::settle::{Asked, Bounds, InPlace, ScopeError, check, few, named, real, settle};
use super::toolchains::{Toolchains, toolchains};
use crate::workspace::file::{Outlives, replace};
use crate::workspace::{HostEnvironment, SessionDir};

/// The longest file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// The form of the file.
const VERSION: u32 = 1;

/// What is recorded where it is not known on which machine it will hold: names of directories, each by its letters within
/// `roots` (if there are any), and that a runner is to look at them. `plain` forbids links on the way to them.
pub fn by_name(asked: &Asked, roots: &[Utf8PathBuf], plain: bool) -> Result<SandboxSpec, ScopeError> {
    check(asked)?;
    let Asked { level, read, write, network, limits, project } = asked;
    let pending = match level {
        // It may go wherever its user may.
        SandboxLevel::Off => Pending::default(),
        SandboxLevel::Best | SandboxLevel::Full | SandboxLevel::Floor => {
            Pending { roots: roots.iter().cloned().collect(), plain }
        }
    };
    let place = |field, given: &Utf8Path| {
        let name = named(field, given)?;
        within(field, &name, &pending.roots).map(|()| name)
    };
    let places = |field, given: &[Utf8PathBuf]| {
        few(field, given.len())?;
        given.iter().map(|given| place(field, given)).collect::<Result<BTreeSet<_>, _>>()
    };
    if let Some((project, _)) = project.as_ref().filter(|_| *level != SandboxLevel::Off) {
        place("project", project)?;
    }
    Ok(SandboxSpec {
        level: *level,
        read: places("allow_read", read)?,
        write: places("allow_write", write)?,
        network: network.clone(),
        limits: *limits,
        repository: None,
        pending: Some(pending),
    })
}

fn within(field: &'static str, path: &Utf8Path, roots: &BTreeSet<Utf8PathBuf>) -> Result<(), ScopeError> {
    if roots.is_empty() || roots.iter().any(|root| path.starts_with(root)) {
        return Ok(());
    }
    Err(ScopeError::Directory { field, path: path.to_string(), reason: PathReason::NotAllowed })
}

/// What a machine gives to the sessions that it opens, and where it lets them work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// The allowed part of its own environment.
    pub environment: HostEnvironment,
    /// Where its operator lets sessions work, beside the system and their own directories; empty for anywhere.
    pub roots: Vec<Utf8PathBuf>,
}

/// What this machine has made of a session's scope. It is made once, and kept in the session's directory, where no session in
/// a sandbox can change it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settlement {
    v: u32,
    /// What holds: real paths of this machine, with its toolchains.
    pub sandbox: SandboxSpec,
    /// The real path of the project.
    pub project: Option<Utf8PathBuf>,
    /// Variables by which the toolchains find what they need.
    pub variables: BTreeMap<String, String>,
}

impl Settlement {
    /// Looks at everything that was asked for. Tools come along that are found by the machine's own `PATH`: what a run's
    /// `PATH` names beyond that is found if it was asked for by name, so that nobody opens a directory by a variable.
    ///
    /// `parent` is what a parent has that was opened on this machine. Where the parent is confined, a link may lead into what
    /// it has, and of the tools come along those that it has; both nowhere else.
    pub fn of(
        asked: &SandboxSpec,
        project: Option<(&Utf8Path, InPlace)>,
        machine: &Machine,
        parent: Option<&SandboxSpec>,
        data_dir: &Utf8Path,
    ) -> Result<Self, ScopeError> {
        let SandboxSpec { level, read, write, network, limits, repository: _, pending } = asked;
        let pending = pending.clone().unwrap_or_default();
        let found = match project {
            // What was imported was never looked at.
            Some((name, _)) if !name.is_absolute() => {
                let (field, path) = ("project", name.to_string());
                return Err(ScopeError::Directory { field, path, reason: PathReason::Relative });
            }
            Some((name, in_place)) => Some((real("project", name)?, in_place)),
            None => None,
        };
        if let (Some((name, _)), Some((real, _))) = (project, &found) {
            if pending.plain && name != real {
                return Err(linked("project", name));
            }
            within("project", real, &pending.roots)?;
        }
        let request = Asked {
            level: *level,
            read: read.iter().cloned().collect(),
            write: write.iter().cloned().collect(),
            network: network.clone(),
            limits: *limits,
            project: found.clone(),
        };
        let bounds = Bounds { data_dir, allowed: &machine.roots };
        let mut sandbox = settle(&request, &bounds)?;
        let may_read = |real: &Utf8Path| parent.is_some_and(|parent| parent.may_read(real));
        let may_change = |real: &Utf8Path| parent.is_some_and(|parent| parent.may_change(real));
        if pending.plain {
            not_led_out("allow_read", read, &sandbox.read, may_read)?;
            not_led_out("allow_write", write, &sandbox.write, may_change)?;
        }
        for (field, real) in [("allow_read", &sandbox.read), ("allow_write", &sandbox.write)] {
            real.iter().try_for_each(|real| within(field, real, &pending.roots))?;
        }
        if pending.plain {
            sandbox.repository = of_child(&sandbox, found.as_ref())?;
        }
        let variables = match level {
            SandboxLevel::Off => BTreeMap::new(),
            SandboxLevel::Best | SandboxLevel::Full | SandboxLevel::Floor => {
                let of_parent = |root: &Utf8Path| !pending.plain || may_read(root);
                let fits = |root: &Utf8Path| of_parent(root) && within("", root, &pending.roots).is_ok();
                tools(&mut sandbox, machine, &bounds, fits)
            }
        };
        Ok(Self { v: VERSION, sandbox, project: found.map(|(project, _)| project), variables })
    }

    /// What was settled for the session of this directory; `None` where its record does not leave that to this machine, and where
    /// nothing was made for the session here, or nothing is left of it. An error where it was settled and that cannot be read.
    pub fn found(directory: &SessionDir, recorded: &SandboxSpec) -> io::Result<Option<Self>> {
        if recorded.pending.is_none() {
            return Ok(None);
        }
        match fs::symlink_metadata(directory.root()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Ok(_) | Err(_) => Self::read(directory).map(Some),
        }
    }

    /// Reads what was settled. One that is not whole is an error, as one that is not there.
    pub fn read(directory: &SessionDir) -> io::Result<Self> {
        let path = directory.settlement();
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if fs::metadata(&path)?.len() > FILE_MAX {
            return Err(invalid(format!("it is longer than {FILE_MAX} bytes")));
        }
        let found: Self = serde_json::from_slice(&fs::read(&path)?)?;
        match found.v {
            VERSION => Ok(found),
            other => Err(invalid(format!("its form {other} is another version's"))),
        }
    }

    /// Keeps it, whole or not at all, over a crash of the machine too. The file is its owner's only.
    pub fn write(&self, directory: &SessionDir) -> io::Result<()> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        replace(&directory.settlement(), &text, Outlives::TheMachine)
    }

    /// The environment that lies beneath what a run was given by name: the machine's own, without its user's home where the
    /// session has another one.
    #[must_use]
    pub fn environment(&self, machine: &Machine) -> HostEnvironment {
        match self.sandbox.level {
            SandboxLevel::Off => machine.environment.clone(),
            SandboxLevel::Best | SandboxLevel::Full | SandboxLevel::Floor => {
                machine.environment.without_home()
            }
        }
    }
}

/// Refuses what a link leads to, unless that is the parent's. What was found is looked at, not the names once more: they may lead
/// elsewhere by now.
fn not_led_out(
    field: &'static str,
    names: &BTreeSet<Utf8PathBuf>,
    found: &BTreeSet<Utf8PathBuf>,
    of_parent: impl Fn(&Utf8Path) -> bool,
) -> Result<(), ScopeError> {
    let mut led = found.difference(names).filter(|real| !of_parent(real));
    match (led.next(), names.difference(found).next()) {
        (Some(_), Some(name)) => Err(linked(field, name)),
        (Some(real), None) => Err(linked(field, real)),
        (None, _) => Ok(()),
    }
}

fn linked(field: &'static str, name: &Utf8Path) -> ScopeError {
    ScopeError::Directory { field, path: name.to_string(), reason: PathReason::Link }
}

/// The repository of a child's project, where that holds it or the child may change it. A child that works in place needs none;
/// a worktree is not made of more than its parent was given.
fn of_child(
    sandbox: &SandboxSpec,
    project: Option<&(Utf8PathBuf, InPlace)>,
) -> Result<Option<Utf8PathBuf>, ScopeError> {
    let (Some(repository), Some((project, in_place))) = (&sandbox.repository, project) else {
        return Ok(None);
    };
    match in_place {
        _ if repository.starts_with(project) || sandbox.may_change(repository) => {
            Ok(Some(repository.clone()))
        }
        InPlace::Yes => Ok(None),
        InPlace::No => Err(ScopeError::Beyond { repository: repository.clone() }),
    }
}

/// Adds the machine's tools to what may be read, those that fit, and gives the variables by which they find what they need. What
/// may be read by name anyhow fits.
fn tools(
    sandbox: &mut SandboxSpec,
    machine: &Machine,
    bounds: &Bounds<'_>,
    fits: impl Fn(&Utf8Path) -> bool,
) -> BTreeMap<String, String> {
    let named = sandbox.clone();
    let fits = |root: &Utf8Path| {
        let read = vec![root.to_owned()];
        (named.may_read(root) || fits(root)) && settle(&Asked { read, ..Asked::default() }, bounds).is_ok()
    };
    let own = &machine.environment;
    let Toolchains { roots, variables } = toolchains(own.path(), own.home(), fits);
    sandbox.read.extend(roots.into_iter().filter(|root| !named.may_read(root)));
    variables
}

#[cfg(test)]
mod tests;
