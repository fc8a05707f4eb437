//! Identity: the same agent finds the same session again, whatever connection, process or restart lies between
//! (SPEC section 3).
//!
//! The key is a SHA-256 over length-prefixed fields under a domain tag with a version, so that no choice of
//! names can make two identities meet: `("a:b", "c")` and `("a", "b:c")` differ. Test vectors stand in
//! `docs/identity.md`.

use std::fmt;
use std::io;
use std::str::FromStr;

use camino::{Utf8Path, Utf8PathBuf};
use jiff::civil::Date;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::digest::Digest;
use crate::names::{AgentKey, ExecutionId, MachineNamespace, NameError};

/// What a deterministic get-or-create is keyed by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionIdentity {
    /// Whose paths `repo_root` speaks of: the same path on two machines is two places.
    pub machine: MachineNamespace,
    /// The repository.
    pub repo_root: RepoRoot,
    /// Which stretch of work in it.
    pub scope: Scope,
    /// Which agent.
    pub agent: AgentKey,
}

/// The first bytes of every hashed identity. A change of the encoding is a new version.
const DOMAIN: &[u8] = b"roomette.identity.v1";

impl SessionIdentity {
    /// The key: SHA-256 over the domain tag and then each field as an 8-byte big-endian length and its bytes,
    /// in the order machine, repository, mode, scope key, agent.
    #[must_use]
    pub fn key(&self) -> IdentityKey {
        let scope = self.scope.key();
        let fields =
            [self.machine.as_str(), self.repo_root.as_str(), self.scope.mode(), &scope, self.agent.as_str()];
        let mut hash = Sha256::new_with_prefix(DOMAIN);
        for field in fields {
            hash.update((field.len() as u64).to_be_bytes());
            hash.update(field.as_bytes());
        }
        IdentityKey(Digest::from_bytes(hash.finalize().into()))
    }
}

/// A repository's directory with every symbolic link resolved.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RepoRoot(Utf8PathBuf);

impl RepoRoot {
    /// Resolves a path that exists; a missing one is an error, never a guess. The only I/O of this crate.
    pub fn resolve(path: &Utf8Path) -> Result<Self, RepoRootError> {
        let failed = |source| RepoRootError::Unresolved { path: path.into(), source };
        let real = path.canonicalize_utf8().map_err(failed)?;
        if !real.metadata().map_err(failed)?.is_dir() {
            return Err(RepoRootError::NotADirectory(path.into()));
        }
        Ok(Self(real))
    }

    /// Takes a path that was resolved before, as it stands in a record.
    pub fn from_record(path: &str) -> Result<Self, RepoRootError> {
        let path = Utf8PathBuf::from(path);
        if path.is_absolute() { Ok(Self(path)) } else { Err(RepoRootError::Relative(path)) }
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Utf8Path {
        &self.0
    }
}

/// Why a path is not a repository root.
#[derive(Debug, Error)]
pub enum RepoRootError {
    /// It does not exist, or is out of reach.
    #[error("repository {path} cannot be resolved")]
    Unresolved {
        /// The path as given.
        path: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a file.
    #[error("repository {0} is not a directory")]
    NotADirectory(Utf8PathBuf),
    /// A record holds a path that was never resolved.
    #[error("recorded repository {0} is not absolute")]
    Relative(Utf8PathBuf),
}

/// Which stretch of work in a repository an identity covers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One declared piece of work.
    Project {
        /// The client's name for it.
        execution_id: ExecutionId,
    },
    /// Standing watch: one identity a UTC day.
    Sentinel {
        /// The day.
        day: Date,
    },
}

impl Scope {
    /// The mode's name.
    #[must_use]
    pub fn mode(&self) -> &'static str {
        match self {
            Self::Project { .. } => "project",
            Self::Sentinel { .. } => "sentinel",
        }
    }

    /// The part that tells two stretches of one mode apart.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Project { execution_id } => execution_id.as_str().into(),
            Self::Sentinel { day } => day.to_string(),
        }
    }

    /// The scope with this mode and key, as they stand in a record.
    pub fn from_record(mode: &str, key: &str) -> Result<Self, ScopeError> {
        match mode {
            "project" => Ok(Self::Project { execution_id: ExecutionId::new(key)? }),
            "sentinel" => Ok(Self::Sentinel { day: key.parse().map_err(|_| ScopeError::Day(key.into()))? }),
            other => Err(ScopeError::Mode(other.into())),
        }
    }
}

/// Why a mode and a key are not a scope.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScopeError {
    /// Neither `project` nor `sentinel`.
    #[error("mode {0:?} is neither project nor sentinel")]
    Mode(String),
    /// Not a day such as 2026-11-21.
    #[error("sentinel day {0:?} is not a date")]
    Day(String),
    /// Not an execution id.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// What a caller said about itself, from which the agent key is taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentContext {
    /// The agent's own lasting id.
    pub identity_id: Option<AgentKey>,
    /// The id of this instance of the agent. Not the id of a server process: that names no agent.
    pub instance_id: Option<AgentKey>,
    /// The name shown to people.
    pub display_name: Option<AgentKey>,
    /// The explicit `agent` argument.
    pub agent: Option<AgentKey>,
}

/// No part of the context names the agent, and `require_agent` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no agent is named, and require_agent is set: pass `agent`")]
pub struct AgentMissing;

impl AgentContext {
    /// The key of an agent that named itself in no way.
    pub const DEFAULT: &'static str = "default";

    /// The first that is given: identity id, instance id, display name, explicit argument, `"default"`.
    pub fn key(&self, require_agent: bool) -> Result<AgentKey, AgentMissing> {
        let given = [&self.identity_id, &self.instance_id, &self.display_name, &self.agent];
        match given.into_iter().flatten().next() {
            Some(key) => Ok(key.clone()),
            None if require_agent => Err(AgentMissing),
            None => AgentKey::new(Self::DEFAULT).map_err(|_| AgentMissing),
        }
    }
}

/// The hash of an identity: always computed by us, never taken from a caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityKey(Digest);

impl fmt::Display for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A recorded key is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("an identity key is 64 hex digits")]
pub struct IdentityKeyError;

impl FromStr for IdentityKey {
    type Err = IdentityKeyError;

    fn from_str(text: &str) -> Result<Self, IdentityKeyError> {
        text.parse().map(Self).map_err(|_| IdentityKeyError)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Write as _;

    use super::*;

    fn identity(machine: &str, repo: &str, mode: &str, scope: &str, agent: &str) -> SessionIdentity {
        SessionIdentity {
            machine: machine.parse().unwrap(),
            repo_root: RepoRoot::from_record(repo).unwrap(),
            scope: Scope::from_record(mode, scope).unwrap(),
            agent: agent.parse().unwrap(),
        }
    }

    const VECTORS: [[&str; 5]; 6] = [
        ["laptop", "/repo", "project", "run-1", "default"],
        ["laptop", "/repo", "project", "a:b", "c"],
        ["laptop", "/repo", "project", "a", "b:c"],
        ["laptop", "/repo", "sentinel", "2026-11-21", "default"],
        ["build-7", "/repo", "project", "run-1", "default"],
        ["laptop", "/répo/ünï", "project", "run-1", "café"],
    ];

    #[test]
    fn published_vectors_hold() {
        let mut page = String::from(
            "# Identity: test vectors\n\nWritten by a test of `session-core` from `identity.rs`. The key is SHA-256 \
             over the bytes `roomette.identity.v1`\nand then, for each field in this order, its length in bytes as \
             8 bytes big-endian and the field in UTF-8.\n\n| machine | repository | mode | scope key | agent | key \
             |\n|---|---|---|---|---|---|\n",
        );
        let mut keys = HashSet::new();
        for [machine, repo, mode, scope, agent] in VECTORS {
            let key = identity(machine, repo, mode, scope, agent).key();
            assert!(keys.insert(key), "two vectors share {key}");
            assert_eq!(key.to_string().parse(), Ok(key));
            writeln!(page, "| `{machine}` | `{repo}` | `{mode}` | `{scope}` | `{agent}` | `{key}` |")
                .unwrap();
        }
        crate::golden::check("docs/identity.md", &page);
    }

    #[test]
    fn a_symbolic_link_is_the_place_it_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        std::fs::create_dir(root.join("repo")).unwrap();
        std::os::unix::fs::symlink(root.join("repo"), root.join("link")).unwrap();
        let resolve = |name: &str| RepoRoot::resolve(&root.join(name));
        assert_eq!(resolve("repo").unwrap(), resolve("link/").unwrap());
        assert!(matches!(resolve("gone"), Err(RepoRootError::Unresolved { .. })));
        std::fs::write(root.join("file"), "").unwrap();
        assert!(matches!(resolve("file"), Err(RepoRootError::NotADirectory(_))));
    }

    #[test]
    fn the_first_given_name_of_an_agent_counts() {
        let key = |text: &str| Some(AgentKey::new(text).unwrap());
        let mut context = AgentContext { agent: key("argument"), ..AgentContext::default() };
        assert_eq!(context.key(true).unwrap().as_str(), "argument");
        context.display_name = key("display");
        assert_eq!(context.key(true).unwrap().as_str(), "display");
        context.instance_id = key("instance");
        assert_eq!(context.key(true).unwrap().as_str(), "instance");
        context.identity_id = key("identity");
        assert_eq!(context.key(true).unwrap().as_str(), "identity");
        assert_eq!(AgentContext::default().key(false).unwrap().as_str(), "default");
        assert_eq!(AgentContext::default().key(true), Err(AgentMissing));
    }
}
