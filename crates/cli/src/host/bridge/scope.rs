//! Which directories a session of the bridge gets: those that its client names, within what the operator allows, or those
//! that the operator set.

use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use mcp_bridge::gate::Scope;
use mcp_bridge::host::HostError;
use mcp_bridge::roots::Root;
use session_core::names::Principal;
use session_core::sandbox::SandboxLevel;
use session_core::{SandboxSpec, WorkspaceKind};
use session_runner::scope::{InPlace, ScopeError};

use super::port::other;
use super::servers::Server;
use crate::config::{Net, SandboxConfig};
use crate::environment;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::operations::Operations;
use crate::host::protocol::{Inherited, SandboxWire};
use crate::host::scope::Settled;

/// What the operator set for all sessions.
#[derive(Debug, Clone, Default)]
pub struct Grounds {
    /// The directories of a session whose client names none; the first one is the working directory. Real paths.
    pub scope: Vec<Utf8PathBuf>,
    /// Below which directories clients may name theirs; nothing for wherever this user may. Real paths.
    pub allowed: Vec<Utf8PathBuf>,
    /// What every session may read.
    pub allow_read: Vec<Utf8PathBuf>,
    /// Files that no session may see, as [`hide`](Self::hide) found them.
    pub hidden: Vec<Utf8PathBuf>,
    /// How much the kernel must enforce.
    pub level: Option<SandboxLevel>,
    /// What they may reach.
    pub net: Option<Net>,
}

/// What a session gets.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) kind: WorkspaceKind,
    pub(super) project: Option<Utf8PathBuf>,
    pub(super) sandbox: SandboxSpec,
    pub(super) base_env: Vec<(String, String)>,
}

impl Grounds {
    /// Keeps these files from every session: whoever reads the token begins sessions with any directories of this user. A
    /// directory that holds one is nobody's root; refused where the operator has opened one to all, here or in these settings.
    pub(super) fn hide(&mut self, files: &[Utf8PathBuf], settings: &SandboxConfig) -> Outcome<()> {
        for file in files {
            let failed = |error: &io::Error| {
                Failure::caused(Kind::Error, format!("it cannot be found out where {file} really is"), error)
            };
            let real = file.canonicalize_utf8().map_err(|error| failed(&error))?;
            // Whoever may write where its link is leads the bridge to another.
            let parent =
                file.parent().filter(|parent| !parent.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
            let parent = parent.canonicalize_utf8().map_err(|error| failed(&error))?;
            self.hidden.push(parent.join(file.file_name().unwrap_or_default()));
            self.hidden.push(real);
        }
        let opened = self.scope.iter().map(|place| ("--sandbox-scope", place));
        let opened = opened.chain(self.allow_read.iter().map(|place| ("--allow-read", place)));
        // What may be changed may be read. Without a sandbox nothing is added to it.
        let is_confined = self.level.unwrap_or(settings.level) != SandboxLevel::Off;
        let changed = settings.allow_write.iter().filter(|_| is_confined);
        for (flag, place) in opened.chain(changed.map(|place| ("sandbox.allow_write", place))) {
            let real = place.canonicalize_utf8().unwrap_or_else(|_| place.clone());
            if let Some(file) = self.holds(&real) {
                let message = format!("{flag} {place} holds {file}, which no session may see");
                return Err(Failure::usage(message)
                    .hint("open directories that do not hold it, or keep it elsewhere"));
            }
        }
        Ok(())
    }

    /// What of this is in a directory that no session may see.
    fn holds(&self, place: &Utf8Path) -> Option<&Utf8PathBuf> {
        self.hidden.iter().find(|file| file.starts_with(place))
    }

    /// What a session gets in this scope; without one, private directories alone.
    pub(super) fn given(
        &self,
        operations: &Operations,
        principal: &Principal,
        server: &Server,
        scope: Option<&Scope>,
    ) -> Result<Given, HostError> {
        let context = operations.context();
        let own = context.principal().is_ok_and(|own| own == *principal);
        if !own && self.level.unwrap_or(context.config.sandbox.level) == SandboxLevel::Off {
            let why = "a session without a sandbox is for the host's own user";
            return Err(HostError::Sandbox(why.into()));
        }
        let mut places = match scope {
            Some(Scope::Roots(roots)) => self.places(roots, own)?,
            Some(Scope::Default) => self.scope.clone(),
            None => Vec::new(),
        }
        .into_iter();
        let project = places.next();
        let wire = SandboxWire {
            level: self.level,
            net: self.net,
            allow_read: self.allow_read.clone(),
            allow_write: places.collect(),
            ..SandboxWire::default()
        };
        let base = if own {
            environment::base(context, &[]).map_err(|failure| other(failure.in_one_line()))?
        } else {
            // What the user whose host this is passes on to tasks is for that user's own.
            Inherited { own: context.host_environment().pairs().to_vec(), named: Vec::new() }
        };
        // A server is executed here, where its bridge is.
        let base = base.given(false);
        let in_place = project.clone().map(|project| (project, InPlace::Yes));
        let settled = operations.settle(operations.settling(), None, &wire, in_place, base, &server.env);
        let Settled { mut sandbox, base_env, .. } = settled.map_err(|error| refused(&error))?;
        if sandbox.write.iter().any(|place| self.holds(place).is_some()) {
            let why = "what every session may change holds a file that no session may see";
            return Err(HostError::Sandbox(why.into()));
        }
        // Toolchains come along by `PATH`, and nobody asked for one of them.
        sandbox.read.retain(|place| self.holds(place).is_none());
        let kind = if project.is_some() { WorkspaceKind::InPlace } else { WorkspaceKind::Scratch };
        Ok(Given { kind, project, sandbox, base_env })
    }

    /// Where the client's roots really are, each within what is allowed. What is opened later is held to be the same place.
    fn places(&self, roots: &[Root], own: bool) -> Result<Vec<Utf8PathBuf>, HostError> {
        let mut places = Vec::with_capacity(roots.len());
        for root in roots {
            let place = real(root.path()).map_err(|(code, why)| denied(code, root.path(), &why))?;
            let within = |allowed: &Utf8PathBuf| place.starts_with(allowed);
            let is_allowed = if self.allowed.is_empty() { own } else { self.allowed.iter().any(within) };
            if !is_allowed {
                let why = "it is not below a directory that the operator of this bridge allows";
                return Err(denied("root_not_allowed", root.path(), why));
            }
            if self.holds(&place).is_some() {
                let why = "it holds a file that no session may see, such as the token of this bridge";
                return Err(denied("root_holds_data", root.path(), why));
            }
            if !places.contains(&place) {
                places.push(place);
            }
        }
        Ok(places)
    }
}

/// The directories that the operator named, as they really are.
pub fn directories(flag: &str, named: &[Utf8PathBuf]) -> Outcome<Vec<Utf8PathBuf>> {
    let one = |path: &Utf8PathBuf| {
        real(path).map_err(|(_, why)| Failure::new(Kind::Usage, format!("{flag} {path}: {why}")))
    };
    named.iter().map(one).collect()
}

/// Where a directory really is.
fn real(path: &Utf8Path) -> Result<Utf8PathBuf, (&'static str, String)> {
    let found = path.canonicalize_utf8().and_then(|real| Ok((fs::metadata(&real)?.is_dir(), real)));
    match found {
        Ok((_, real)) if real == "/" => {
            Err(("root_everything", "the whole file system is nobody's to have".into()))
        }
        Ok((true, real)) => Ok(real),
        Ok((false, _)) => Err(("root_not_a_directory", "it is not a directory".into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(("root_not_found", "there is nothing at this path".into()))
        }
        Err(error) => Err(("root_out_of_reach", error.to_string())),
    }
}

fn denied(code: &str, root: &Utf8Path, why: &str) -> HostError {
    HostError::Scope { code: code.into(), message: format!("{root}: {why}") }
}

/// The client learns what is wrong with what it named, and nothing else of this machine.
fn refused(error: &ScopeError) -> HostError {
    let scope = |code: &str, message: String| HostError::Scope { code: code.into(), message };
    match error {
        ScopeError::Directory { .. } | ScopeError::Repository { .. } | ScopeError::Beyond { .. } => {
            scope("root_refused", error.to_string())
        }
        ScopeError::HoldsData { path, .. } => {
            scope("root_holds_data", format!("{path}: it overlaps what no session may see"))
        }
        ScopeError::TooMany { .. } => scope("roots_too_many", error.to_string()),
        ScopeError::TooLittle { .. }
        | ScopeError::NetworkWantsFull { .. }
        | ScopeError::Unenforced { .. } => HostError::Sandbox(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_a_directory_that_is_there() {
        let place = tempfile::tempdir().unwrap();
        let place = Utf8PathBuf::from_path_buf(place.path().canonicalize().unwrap()).unwrap();
        let file = place.join("server.py");
        fs::write(&file, "").unwrap();
        assert_eq!(directories("--allow-read", std::slice::from_ref(&place)).unwrap(), [place.as_path()]);
        for (wrong, why) in [(file, "not a directory"), (place.join("nowhere"), "nothing at this path")] {
            let message = directories("--allow-read", &[wrong]).unwrap_err().message;
            assert!(message.contains("--allow-read") && message.contains(why), "{message}");
        }
    }

    #[test]
    fn what_the_settings_open_to_change_holds_nothing_that_no_session_may_see() {
        let place = tempfile::tempdir().unwrap();
        let place = Utf8PathBuf::from_path_buf(place.path().canonicalize().unwrap()).unwrap();
        let (file, link) = (place.join("work/bridge.token"), place.join("link"));
        fs::create_dir(place.join("work")).unwrap();
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(place.join("work"), &link).unwrap();
        let hide = |write: Utf8PathBuf, level| {
            let settings = SandboxConfig { allow_write: vec![write], ..SandboxConfig::default() };
            Grounds { level, ..Grounds::default() }.hide(std::slice::from_ref(&file), &settings)
        };
        for write in [place.clone(), place.join("work"), link] {
            let message = hide(write, None).unwrap_err().message;
            assert!(message.contains("sandbox.allow_write") && message.contains("bridge.token"), "{message}");
        }
        hide(place.join("elsewhere"), None).unwrap();
        hide(place, Some(SandboxLevel::Off)).unwrap();
    }
}
