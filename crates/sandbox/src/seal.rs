//! A policy that nobody can change any more, with its roots held open.

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

#[cfg(target_os = "linux")]
use camino::Utf8Path;
use camino::Utf8PathBuf;
#[cfg(target_os = "linux")]
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    io::Errno,
};
use sha2::{Digest as _, Sha256};

use crate::policy::{Field, PathReason, Policy, PolicyError, require};
#[cfg(target_os = "linux")]
use crate::policy::{Network, path_error};

/// A policy that was checked against the disk. Its roots are open, so a directory that is swapped for a symbolic
/// link after this moment is not followed.
#[derive(Debug)]
pub struct SealedPolicy {
    policy: Policy,
    json: String,
    digest: String,
    #[cfg(target_os = "linux")]
    roots: Vec<OwnedFd>,
}

impl Policy {
    /// Checks the policy, opens its roots and closes it. Every error names the field, the path and the reason.
    pub fn seal(self) -> Result<SealedPolicy, PolicyError> {
        self.check()?;
        #[cfg(target_os = "linux")]
        let roots = open_all(&self)?;
        let json = canonical(&self);
        let digest = digest(&json);
        Ok(SealedPolicy {
            policy: self,
            json,
            digest,
            #[cfg(target_os = "linux")]
            roots,
        })
    }

    /// As [`seal`](Self::seal), and every root must be one of the operator's or lie in one of them.
    pub fn seal_within(self, allowed: &[Utf8PathBuf]) -> Result<SealedPolicy, PolicyError> {
        for (field, paths) in [(Field::ReadWrite, &self.read_write), (Field::ReadOnly, &self.read_only)] {
            for path in paths {
                let inside = allowed.iter().any(|root| path.starts_with(root));
                require(inside, field, path, || PathReason::NotAllowed)?;
            }
        }
        self.seal()
    }
}

impl SealedPolicy {
    /// What it says.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// SHA-256 of [`json`](Self::json), in hexadecimal: what is recorded with the session.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The canonical JSON: fixed order of fields, sorted sets, no spaces. It holds the environment's values, which
    /// may be secrets.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The open roots: those that may be written first, each group in the order of the policy.
    #[cfg(target_os = "linux")]
    pub(crate) fn roots(&self) -> &[OwnedFd] {
        &self.roots
    }
}

/// Fields in the order of their declaration, sets and maps sorted.
pub(crate) fn canonical(policy: &Policy) -> String {
    // Text, numbers and maps with text as keys: there is nothing that JSON could not hold.
    serde_json::to_string(policy).unwrap_or_default()
}

pub(crate) fn digest(json: &str) -> String {
    Sha256::digest(json.as_bytes()).iter().fold(String::with_capacity(64), |mut text, byte| {
        for half in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(u32::from(half), 16));
        }
        text
    })
}

/// Opens the roots, those that may be written first, and looks at whatever else is named.
#[cfg(target_os = "linux")]
fn open_all(policy: &Policy) -> Result<Vec<OwnedFd>, PolicyError> {
    let mut roots = Vec::new();
    for (field, paths) in [(Field::ReadWrite, &policy.read_write), (Field::ReadOnly, &policy.read_only)] {
        for path in paths {
            let descriptor = open(field, path)?;
            require(kind(field, path, &descriptor)?.is_dir(), field, path, || PathReason::NotADirectory)?;
            roots.push(descriptor);
        }
    }
    for path in &policy.devices {
        let kind = kind(Field::Devices, path, &open(Field::Devices, path)?)?;
        let device = kind.is_char_device() || kind.is_block_device();
        require(device, Field::Devices, path, || PathReason::NotADevice)?;
    }
    if let Network::Proxy { socket } = &policy.network {
        let kind = kind(Field::Network, socket, &open(Field::Network, socket)?)?;
        require(kind.is_socket(), Field::Network, socket, || PathReason::NotASocket)?;
    }
    Ok(roots)
}

/// Opens what is there as a place only, and through no symbolic link.
#[cfg(target_os = "linux")]
fn open(field: Field, path: &Utf8Path) -> Result<OwnedFd, PolicyError> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).map_err(|error| {
        let reason = match error {
            Errno::NOENT => PathReason::Missing,
            Errno::NOTDIR => PathReason::NotADirectory,
            Errno::LOOP => PathReason::Link,
            other => PathReason::Unreadable(std::io::Error::from(other).to_string()),
        };
        path_error(field, path, reason)
    })
}

#[cfg(target_os = "linux")]
fn kind(field: Field, path: &Utf8Path, descriptor: &OwnedFd) -> Result<FileType, PolicyError> {
    fstat(descriptor).map(|stat| FileType::from_raw_mode(stat.st_mode)).map_err(|error| {
        path_error(field, path, PathReason::Unreadable(std::io::Error::from(error).to_string()))
    })
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn place() -> (tempfile::TempDir, Utf8PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(directory.path()).unwrap();
        (directory, Utf8PathBuf::from_path_buf(path).unwrap())
    }

    fn reason(policy: Policy) -> PathReason {
        match policy.seal() {
            Err(PolicyError::Path { reason, .. }) => reason,
            other => panic!("not refused for a path: {other:?}"),
        }
    }

    #[test]
    fn what_is_on_the_disk_is_looked_at() {
        let (_directory, path) = place();
        fs::create_dir(path.join("real")).unwrap();
        fs::write(path.join("file"), "").unwrap();
        symlink("real", path.join("link")).unwrap();
        symlink("loop", path.join("loop")).unwrap();
        fs::create_dir(path.join("real/inner")).unwrap();
        for (name, expected) in [
            ("missing", PathReason::Missing),
            ("file", PathReason::NotADirectory),
            ("file/x", PathReason::NotADirectory),
            ("link", PathReason::Link),
            ("link/inner", PathReason::Link),
            ("loop", PathReason::Link),
        ] {
            assert_eq!(reason(Policy::new("/").allow_write(path.join(name))), expected, "{name}");
        }
        assert_eq!(reason(Policy::new("/").allow_device("/dev/fd")), PathReason::Link);
        assert_eq!(reason(Policy::new("/").allow_device("/dev/pts")), PathReason::NotADevice);
        let proxy = Network::Proxy { socket: path.join("file") };
        assert_eq!(reason(Policy::new("/").with_network(proxy)), PathReason::NotASocket);
    }

    #[test]
    fn the_operators_roots_bound_all_others() {
        let (_directory, path) = place();
        let policy = || Policy::new("/").allow_write(path.clone());
        policy().seal_within(std::slice::from_ref(&path)).unwrap();
        let refused = policy().seal_within(&[path.join("deeper")]).unwrap_err();
        assert!(refused.to_string().contains("outside of the roots that the operator allows"), "{refused}");
    }

    #[test]
    fn the_same_policy_has_the_same_digest_in_whatever_order_it_was_made() {
        let (_directory, path) = place();
        let (one, two) = (path.join("one"), path.join("two"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        let first = Policy::new("/")
            .allow_read(&one)
            .allow_read(&two)
            .with_variable("A", "1")
            .with_variable("B", "2");
        let second =
            Policy::new("/").allow_read(two).allow_read(one).with_variable("B", "2").with_variable("A", "1");
        let (first, second) = (first.seal().unwrap(), second.seal().unwrap());
        assert_eq!((first.json(), first.digest()), (second.json(), second.digest()));
        let other = Policy::new("/").with_network(Network::Open).seal().unwrap();
        assert_ne!(other.digest(), first.digest());
        assert_eq!(serde_json::from_str::<Policy>(first.json()).unwrap(), *first.policy());
        assert_eq!(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
