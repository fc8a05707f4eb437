//! What a session may do, as plain data: nothing here opens a file or asks the kernel.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::guard::Guarded;
#[cfg(target_os = "linux")]
use crate::level::Level;
use crate::level::Wanted;

mod error;

pub use error::{Field, PathReason, PolicyError};

/// How many roots and devices one policy may name, each kind counted by itself.
pub const PATHS_MAX: usize = 64;
/// How many protected paths it may name.
pub const PROTECTED_MAX: usize = 512;
/// How many variables the environment may hold.
pub const VARIABLES_MAX: usize = 512;
/// The longest path, in bytes; the kernel takes no longer one.
pub const PATH_BYTES_MAX: usize = 4095;
/// The fewest processes that a limit may allow: less than this, and no shell starts.
pub const PROCESSES_MIN: u64 = 8;
/// The fewest open files that a limit may allow.
pub const OPEN_FILES_MIN: u64 = 16;
/// The least memory that a limit may allow, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Trees that are made anew or shown in part for every session, so they cannot be roots.
const MADE_ANEW: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Trees of the system that no session gets as a whole: they hold its secrets and its programs.
const OF_SYSTEM: [&str; 9] = ["/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/run"];

/// What one session may read, write, reach and use. Set once: [`Policy::seal`](crate::Policy::seal) closes it.
///
/// The paths are real paths: absolute, without `.`, `..` or symbolic links. What the system itself consists of
/// (programs, libraries, certificates) can always be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Which level must be had.
    pub level: Wanted,
    /// Where the program starts. It must lie in a root, or be `/`.
    pub directory: Utf8PathBuf,
    /// Directories that it may change, with all that is in them.
    #[serde(default)]
    pub read_write: BTreeSet<Utf8PathBuf>,
    /// Directories that it may read and run programs from. One that lies in a read-write root is kept from changes at
    /// [`Level::Full`](crate::Level::Full) alone; at floor the report lists it as unprotected.
    #[serde(default)]
    pub read_only: BTreeSet<Utf8PathBuf>,
    /// Devices below `/dev` that it may use beyond `null`, `zero`, `full`, `random`, `urandom` and its own terminals.
    #[serde(default)]
    pub devices: BTreeSet<Utf8PathBuf>,
    /// Paths inside read-write roots that it may read but not change, replace or rename away. Enforced at
    /// [`Level::Full`](crate::Level::Full); those that do not exist at the start are listed in the report.
    #[serde(default)]
    pub protected: BTreeSet<Utf8PathBuf>,
    /// Paths where something should be protected and cannot be, of which there may be too much: the report lists them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unguarded: BTreeSet<Utf8PathBuf>,
    /// What it may reach.
    pub network: Network,
    /// What it may use up.
    #[serde(default)]
    pub limits: Limits,
    /// The whole environment of the program: nothing is inherited.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// What a session may reach over a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mode", deny_unknown_fields)]
pub enum Network {
    /// Whatever the host reaches.
    Open,
    /// Nothing, not even itself.
    None,
    /// Itself: a loopback interface that nobody else sees. Only at [`Level::Full`](crate::Level::Full).
    Loopback,
    /// Itself, and what a proxy lets through. The session finds it at `http://127.0.0.1:3128`, which
    /// `HTTP_PROXY` and its kin then name. Only at [`Level::Full`](crate::Level::Full).
    Proxy {
        /// The Unix socket at which the host's proxy listens, alone in its directory. The session sees the directory,
        /// so a proxy that comes back under the same name is found again.
        socket: Utf8PathBuf,
    },
}

/// What a session may use up. `None` is without a limit of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Private memory of each process, in bytes. The sum over all processes, and what they share, want a cgroup.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once. At full as root no fewer than 301 can be enforced.
    pub processes: Option<u64>,
    /// Open files of each process.
    pub open_files: Option<u64>,
    /// The largest file that can be written, in bytes.
    pub file_size_bytes: Option<u64>,
    /// Processor time of each process, in seconds.
    pub cpu_seconds: Option<u64>,
    /// What the private `/tmp` holds at most, and `/dev/shm` once more, in bytes. Only at full.
    pub tmp_bytes: u64,
}

impl Default for Limits {
    /// Room for a large build, and an end for a runaway.
    fn default() -> Self {
        Self {
            memory_bytes: Some(16 << 30),
            processes: Some(2048),
            open_files: Some(16_384),
            file_size_bytes: Some(16 << 30),
            cpu_seconds: None,
            tmp_bytes: 1 << 30,
        }
    }
}

impl Policy {
    /// A policy that allows nothing beyond the system's programs: no root, no network, the best level there is.
    #[must_use]
    pub fn new(directory: impl Into<Utf8PathBuf>) -> Self {
        Self {
            level: Wanted::Best,
            directory: directory.into(),
            read_write: BTreeSet::new(),
            read_only: BTreeSet::new(),
            devices: BTreeSet::new(),
            protected: BTreeSet::new(),
            unguarded: BTreeSet::new(),
            network: Network::None,
            limits: Limits::default(),
            environment: BTreeMap::new(),
        }
    }

    /// With another level.
    #[must_use]
    pub fn with_level(mut self, level: Wanted) -> Self {
        self.level = level;
        self
    }

    /// With a directory that may be changed.
    #[must_use]
    pub fn allow_write(mut self, root: impl Into<Utf8PathBuf>) -> Self {
        self.read_write.insert(root.into());
        self
    }

    /// With a directory that may be read.
    #[must_use]
    pub fn allow_read(mut self, root: impl Into<Utf8PathBuf>) -> Self {
        self.read_only.insert(root.into());
        self
    }

    /// With a device.
    #[must_use]
    pub fn allow_device(mut self, device: impl Into<Utf8PathBuf>) -> Self {
        self.devices.insert(device.into());
        self
    }

    /// With paths that may be read, but neither changed nor renamed away.
    #[must_use]
    pub fn protect(mut self, paths: impl IntoIterator<Item = Utf8PathBuf>) -> Self {
        self.protected.extend(paths);
        self
    }

    /// With what of workspaces must be guarded, as far as it lies in the read-write roots: those must be named by now. One
    /// that is such a root itself is listed as not guarded.
    #[must_use]
    pub fn guard(mut self, guarded: Guarded) -> Self {
        let Guarded { mut paths, unguarded } = guarded;
        paths.retain(|path| is_inside(path, &self.read_write));
        let (open, closed): (Vec<_>, _) = paths.into_iter().partition(|path| self.read_write.contains(path));
        self.unguarded.extend(unguarded.into_iter().chain(open));
        self.protect(closed)
    }

    /// With this network.
    #[must_use]
    pub fn with_network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// With these limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// With a variable in the environment.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// The directory of the proxy's socket, which the session sees.
    #[cfg(target_os = "linux")]
    pub(crate) fn proxy_directory(&self) -> Option<&Utf8Path> {
        match &self.network {
            Network::Proxy { socket } => socket.parent(),
            Network::Open | Network::None | Network::Loopback => None,
        }
    }

    /// How many directories are held open for it.
    #[cfg(target_os = "linux")]
    pub(crate) fn open_directories(&self) -> usize {
        self.read_write.len() + self.read_only.len() + usize::from(self.proxy_directory().is_some())
    }

    /// Whether it wants a network that namespaces alone can give.
    pub(crate) fn wants_own_network(&self) -> bool {
        match self.network {
            Network::Loopback | Network::Proxy { .. } => true,
            Network::Open | Network::None => false,
        }
    }

    /// What would be missing at this level, if anything.
    #[cfg(target_os = "linux")]
    pub(crate) fn refused_at(&self, level: Level) -> Option<&'static str> {
        if level == Level::Full {
            None
        } else if self.level == Wanted::Full {
            Some("the policy wants level full, and floor was to be applied")
        } else {
            self.wants_own_network().then_some("the policy's network wants level full")
        }
    }

    /// Whether the policy can be meant, as far as that is seen without looking at the disk.
    pub fn check(&self) -> Result<(), PolicyError> {
        for (field, paths) in [
            (Field::ReadWrite, &self.read_write),
            (Field::ReadOnly, &self.read_only),
            (Field::Devices, &self.devices),
            (Field::Protected, &self.protected),
            (Field::Protected, &self.unguarded),
        ] {
            too_many(field, paths.len(), if field == Field::Protected { PROTECTED_MAX } else { PATHS_MAX })?;
            for path in paths {
                check_path(field, path)?;
            }
        }
        check_path(Field::Directory, &self.directory)?;
        if let Network::Proxy { socket } = &self.network {
            check_path(Field::Network, socket)?;
            let has_place = socket.parent().is_some_and(|directory| directory != "/");
            require(has_place, Field::Network, socket, || PathReason::NotAlone)?;
        }
        for device in &self.devices {
            require(device.starts_with("/dev") && device != "/dev", Field::Devices, device, || {
                PathReason::NotADevicePath
            })?;
        }
        for path in &self.protected {
            require(
                is_inside(path, &self.read_write) && !self.read_write.contains(path),
                Field::Protected,
                path,
                || PathReason::NotInReadWriteRoot,
            )?;
        }
        let reachable = self.directory == "/"
            || is_inside(&self.directory, &self.read_write)
            || is_inside(&self.directory, &self.read_only);
        require(reachable, Field::Directory, &self.directory, || PathReason::NotInRoot)?;
        self.check_environment()?;
        self.check_limits()
    }

    fn check_environment(&self) -> Result<(), PolicyError> {
        too_many(Field::Environment, self.environment.len(), VARIABLES_MAX)?;
        for (name, value) in &self.environment {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(PolicyError::Variable { name: name.clone() });
            }
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), PolicyError> {
        for (name, given, min) in [
            ("memory_bytes", self.limits.memory_bytes, MEMORY_BYTES_MIN),
            ("processes", self.limits.processes, PROCESSES_MIN),
            ("open_files", self.limits.open_files, OPEN_FILES_MIN),
            ("cpu_seconds", self.limits.cpu_seconds, 1),
        ] {
            match given {
                Some(given) if given < min => return Err(PolicyError::Limit { name, given, min }),
                Some(_) | None => {}
            }
        }
        Ok(())
    }
}

/// Whether `path` is one of the roots or lies in one of them.
pub(crate) fn is_inside(path: &Utf8Path, roots: &BTreeSet<Utf8PathBuf>) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}

pub(crate) fn path_error(field: Field, path: &Utf8Path, reason: PathReason) -> PolicyError {
    PolicyError::Path { field, path: path.to_string(), reason }
}

pub(crate) fn require(
    holds: bool,
    field: Field,
    path: &Utf8Path,
    reason: impl FnOnce() -> PathReason,
) -> Result<(), PolicyError> {
    if holds { Ok(()) } else { Err(path_error(field, path, reason())) }
}

fn too_many(field: Field, count: usize, max: usize) -> Result<(), PolicyError> {
    if count > max { Err(PolicyError::TooMany { field, count, max }) } else { Ok(()) }
}

fn check_path(field: Field, path: &Utf8Path) -> Result<(), PolicyError> {
    let reason = form_of(path).or_else(|| {
        let root = matches!(field, Field::ReadWrite | Field::ReadOnly);
        if root && path == "/" {
            Some(PathReason::Everything)
        } else if root && OF_SYSTEM.iter().any(|tree| path == *tree) {
            Some(PathReason::OfSystem)
        } else if root && MADE_ANEW.iter().any(|tree| path.starts_with(tree)) {
            Some(PathReason::MadeAnew)
        } else {
            None
        }
    });
    reason.map_or(Ok(()), |reason| Err(path_error(field, path, reason)))
}

/// What is wrong with a path by its letters alone.
pub(crate) fn form_of(path: &Utf8Path) -> Option<PathReason> {
    if path.as_str().is_empty() {
        return Some(PathReason::Empty);
    }
    if path.as_str().len() > PATH_BYTES_MAX {
        return Some(PathReason::TooLong);
    }
    if path.as_str().chars().any(char::is_control) {
        return Some(PathReason::ControlCharacter);
    }
    if !path.is_absolute() {
        return Some(PathReason::Relative);
    }
    let climbs = path.components().any(|component| matches!(component, Utf8Component::ParentDir));
    let plain: Utf8PathBuf = path.components().collect();
    (climbs || plain.as_str() != path.as_str()).then_some(PathReason::NotPlain)
}

#[cfg(test)]
mod tests;
