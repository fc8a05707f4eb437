//! Systems without a sandbox of ours. They say so, and start nothing.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};

use crate::guard::names::{Found, Listing};
use crate::guard::nested::Inside;
use crate::launch::{Confined, LaunchError};
use crate::level::{Level, Offer, Refusal, Support};
use crate::seal::SealedPolicy;

/// What a program's stdin could be.
#[cfg(unix)]
type Stdin = std::os::fd::OwnedFd;
/// What a program's stdin could be.
#[cfg(not(unix))]
type Stdin = std::process::Stdio;

impl SealedPolicy {
    /// Refuses: no program is started on this system.
    pub fn launch(
        &self,
        _launcher: Command,
        _level: Level,
        argv: &[String],
        _stdin: Option<Stdin>,
    ) -> Result<Confined, LaunchError> {
        Err(LaunchError::Refused { program: argv.first().cloned().unwrap_or_default(), refusal: refusal() })
    }
}

impl Support {
    /// Neither level can be had.
    pub fn probe(_launcher: impl FnMut() -> Command) -> Result<Self, LaunchError> {
        let missing = || Offer::Missing { refusal: refusal() };
        Ok(Self { full: missing(), floor: missing() })
    }
}

pub(crate) fn refusal() -> Refusal {
    Refusal::no_sandbox_on(std::env::consts::OS)
}

/// A directory by its name: between two looks it can be replaced, which no sandboxed program is here to do.
#[derive(Debug)]
pub(crate) struct Directory(Utf8PathBuf);

impl Directory {
    /// `None` if there is no directory of this name.
    pub(crate) fn open(path: &Utf8Path) -> Option<Self> {
        fs::symlink_metadata(path).ok()?.is_dir().then(|| Self(path.to_owned()))
    }

    /// What is there under this name.
    pub(crate) fn find(&self, name: &Utf8Path) -> Found {
        let behind_link =
            |above: &Utf8Path| fs::symlink_metadata(self.0.join(above)).is_ok_and(|data| data.is_symlink());
        if name.ancestors().skip(1).any(behind_link) {
            return Found::BehindLink;
        }
        let path = self.0.join(name);
        let Ok(data) = fs::symlink_metadata(&path) else { return Found::Nothing };
        if data.is_symlink() {
            fs::read_link(&path)
                .map_or(Found::Unreadable, |to| Found::Link(to.to_string_lossy().into_owned()))
        } else if data.is_file() {
            let since = data.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            let changed =
                since.map_or((0, 0), |time| (i128::from(time.as_secs()), i128::from(time.subsec_nanos())));
            Found::File { bytes: data.len(), is_program: is_program(&data), changed }
        } else if data.is_dir() {
            Found::Directory
        } else {
            Found::Special
        }
    }

    /// Up to `bytes_max` of a file; `None` if there is none that can be read.
    pub(crate) fn read(&self, name: &Utf8Path, bytes_max: u64) -> Option<Vec<u8>> {
        let Found::File { .. } = self.find(name) else { return None };
        let mut content = Vec::new();
        File::open(self.0.join(name)).ok()?.take(bytes_max).read_to_end(&mut content).ok()?;
        Some(content)
    }

    /// The names in a directory below, no more than `names_max`. Those that are not UTF-8 are left out.
    pub(crate) fn list(&self, name: &Utf8Path, names_max: usize) -> Listing {
        let mut listing = Listing::default();
        let Found::Directory = self.find(name) else { return listing };
        let Ok(entries) = fs::read_dir(self.0.join(name)) else { return Listing { is_cut: true, ..listing } };
        let entries = entries.filter_map(Result::ok);
        let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        listing.names.extend(names.by_ref().take(names_max));
        listing.is_cut = names.next().is_some();
        listing.names.sort_unstable();
        listing
    }

    /// Whether there is anything under this name, be it a link.
    pub(crate) fn has(&self, name: &Utf8Path) -> bool {
        match self.find(name) {
            Found::Nothing | Found::BehindLink => false,
            Found::File { .. } | Found::Directory | Found::Link(_) | Found::Special | Found::Unreadable => {
                true
            }
        }
    }

    /// What is in a directory below. No more than `entries_max` names of any kind are read.
    pub(crate) fn inside(&self, name: &Utf8Path, entries_max: usize) -> Inside {
        let mut inside = Inside::default();
        let Found::Directory = self.find(name) else { return inside };
        let Ok(entries) = fs::read_dir(self.0.join(name)) else { return Inside { is_cut: true, ..inside } };
        for entry in entries.filter_map(Result::ok) {
            if inside.entries == entries_max {
                inside.is_cut = true;
                break;
            }
            inside.entries += 1;
            inside.layout.see(entry.file_name().as_encoded_bytes());
            if entry.file_name() == ".git" {
                inside.has_git = true;
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                inside.add(entry.file_name().to_str());
            } else if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                inside.add_link(entry.file_name().to_str());
            }
        }
        inside.directories.sort_unstable();
        inside
    }

    /// Gives what has this name another one beside it. Nothing is replaced.
    pub(crate) fn rename(&self, name: &Utf8Path, new: &str) -> io::Result<()> {
        let (old, new) = (self.0.join(name), self.0.join(name.with_file_name(new)));
        if fs::symlink_metadata(&new).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::rename(old, new)
    }

    /// Removes what has this name, if it is no directory.
    pub(crate) fn remove(&self, name: &Utf8Path) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }
}

#[cfg(unix)]
fn is_program(data: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;

    data.permissions().mode() & 0o111 != 0
}

/// Whether a file can be run is in its name there.
#[cfg(not(unix))]
fn is_program(_: &fs::Metadata) -> bool {
    false
}
