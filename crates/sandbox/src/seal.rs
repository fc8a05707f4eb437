//! A policy that nobody can change any more, with its roots held open.

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

#[cfg(target_os = "linux")]
use camino::Utf8Path;
use camino::Utf8PathBuf;
#[cfg(target_os = "linux")]
use rustix::{
    fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::policy::{Field, PathReason, Policy, PolicyError, require};
#[cfg(target_os = "linux")]
use crate::policy::{Network, path_error};

/// Which directory a root is, whatever its name leads to later: to be recorded with a session, and to be asked for
/// again when it goes on. A directory that is removed may hand its number on to a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The number of the file system.
    pub device: u64,
    /// The number of the directory in it.
    pub inode: u64,
}

/// A policy that was checked against the disk. Its roots are open, so a directory that is swapped for a symbolic
/// link after this moment is not followed.
#[derive(Debug)]
pub struct SealedPolicy {
    policy: Policy,
    json: String,
    digest: String,
    places: Vec<Place>,
    #[cfg(target_os = "linux")]
    roots: Vec<OwnedFd>,
}

impl Policy {
    /// Checks the policy, opens its roots and closes it. Every error names the field, the path and the reason.
    pub fn seal(self) -> Result<SealedPolicy, PolicyError> {
        self.check()?;
        #[cfg(target_os = "linux")]
        let (roots, places) = open_all(&self)?;
        #[cfg(not(target_os = "linux"))]
        let places = vec![];
        Ok(SealedPolicy {
            json: canonical(&self),
            digest: scope_digest(&self),
            policy: self,
            places,
            #[cfg(target_os = "linux")]
            roots,
        })
    }

    /// As [`seal`](Self::seal), and every root must still be the directory that was approved: `places` are those that
    /// [`SealedPolicy::places`] returned then. What is compared is what was opened, so a name that is swapped at
    /// this moment changes nothing.
    pub fn seal_at(self, places: &[Place]) -> Result<SealedPolicy, PolicyError> {
        let sealed = self.seal()?;
        let now = sealed.places.as_slice();
        if now.len() != places.len() {
            return Err(PolicyError::Places { roots: now.len(), places: places.len() });
        }
        for ((field, path), (now, approved)) in sealed.policy.roots().zip(now.iter().zip(places)) {
            require(now == approved, field, path, || PathReason::Replaced)?;
        }
        Ok(sealed)
    }

    /// As [`seal`](Self::seal), and every root must be one of the operator's or lie in one of them.
    pub fn seal_within(self, allowed: &[Utf8PathBuf]) -> Result<SealedPolicy, PolicyError> {
        for (field, path) in self.roots() {
            let inside = allowed.iter().any(|root| path.starts_with(root));
            require(inside, field, path, || PathReason::NotAllowed)?;
        }
        self.seal()
    }

    /// The roots: those that may be written first.
    fn roots(&self) -> impl Iterator<Item = (Field, &Utf8PathBuf)> {
        let writable = self.read_write.iter().map(|path| (Field::ReadWrite, path));
        writable.chain(self.read_only.iter().map(|path| (Field::ReadOnly, path)))
    }
}

impl SealedPolicy {
    /// What it says.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Names the scope: SHA-256 of [`json`](Self::json) with the names of the variables and without their values, in
    /// hexadecimal. Values change with each run and may be secrets, so two runs with the same scope have the same
    /// digest, and it can be recorded and shown.
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

    /// Which directories the roots are: those that may be written first, each group in the order of the policy. None
    /// where there is no sandbox.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        self.places.clone()
    }

    /// The open roots: those that may be written first, each group in the order of the policy. The directory of the
    /// proxy's socket is the last.
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

/// The canonical JSON with every value of the environment left empty, as a digest.
pub(crate) fn scope_digest(policy: &Policy) -> String {
    let environment = policy.environment.keys().map(|name| (name.clone(), String::new())).collect();
    digest(canonical(&Policy { environment, ..policy.clone() }).as_bytes())
}

/// SHA-256 in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        for half in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(u32::from(half), 16));
        }
        text
    })
}

/// Opens the roots, those that may be written first, and looks at whatever else is named.
#[cfg(target_os = "linux")]
fn open_all(policy: &Policy) -> Result<(Vec<OwnedFd>, Vec<Place>), PolicyError> {
    let (mut roots, mut places) = (Vec::new(), Vec::new());
    for (field, path) in policy.roots() {
        let descriptor = open(field, path)?;
        let stat = look(field, path, &descriptor)?;
        require(kind(&stat).is_dir(), field, path, || PathReason::NotADirectory)?;
        places.push(Place { device: stat.st_dev, inode: stat.st_ino });
        roots.push(descriptor);
    }
    for path in &policy.devices {
        let kind = kind(&look(Field::Devices, path, &open(Field::Devices, path)?)?);
        let device = kind.is_char_device() || kind.is_block_device();
        require(device, Field::Devices, path, || PathReason::NotADevice)?;
    }
    if let Network::Proxy { socket } = &policy.network {
        roots.push(proxy_directory(socket)?);
    }
    Ok((roots, places))
}

/// Opens the directory of the proxy's socket, in which nothing else may lie.
#[cfg(target_os = "linux")]
fn proxy_directory(socket: &Utf8Path) -> Result<OwnedFd, PolicyError> {
    let field = Field::Network;
    let stat = look(field, socket, &open(field, socket)?)?;
    require(kind(&stat).is_socket(), field, socket, || PathReason::NotASocket)?;
    let directory = open(field, socket.parent().unwrap_or(socket))?;
    let unreadable = |error: Errno| {
        path_error(field, socket, PathReason::Unreadable(std::io::Error::from(error).to_string()))
    };
    let entries =
        openat(&directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .and_then(Dir::new)
            .map_err(unreadable)?;
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_bytes();
        let is_own = socket.file_name().is_some_and(|own| own.as_bytes() == name);
        require(is_own || matches!(name, b"." | b".."), field, socket, || PathReason::NotAlone)?;
    }
    Ok(directory)
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
fn look(field: Field, path: &Utf8Path, descriptor: &OwnedFd) -> Result<Stat, PolicyError> {
    fstat(descriptor).map_err(|error| {
        path_error(field, path, PathReason::Unreadable(std::io::Error::from(error).to_string()))
    })
}

#[cfg(target_os = "linux")]
fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
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
    fn a_proxys_socket_is_alone_in_its_directory() {
        let (_directory, path) = place();
        let socket = path.join("proxy");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let policy = || Policy::new("/").with_network(Network::Proxy { socket: socket.clone() });
        let sealed = policy().seal().unwrap();
        assert_eq!((sealed.roots().len(), sealed.places()), (1, vec![]));
        fs::write(path.join("token"), "").unwrap();
        assert_eq!(reason(policy()), PathReason::NotAlone);
        let bare = Network::Proxy { socket: "/proxy".into() };
        assert_eq!(reason(Policy::new("/").with_network(bare)), PathReason::NotAlone);
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
    fn the_digest_names_the_scope_and_no_value() {
        let run = |token: &str| Policy::new("/").with_variable("TOKEN", token).seal().unwrap();
        assert_eq!(run("one").digest(), run("two").digest());
        assert!(run("one").json().contains("one"));
        let more = Policy::new("/").with_variable("TOKEN", "one").with_variable("MORE", "").seal().unwrap();
        assert_ne!(run("one").digest(), more.digest());
    }

    #[test]
    fn a_root_is_the_directory_that_was_approved() {
        let (_directory, path) = place();
        let (work, tools) = (path.join("work"), path.join("tools"));
        fs::create_dir(&work).unwrap();
        fs::create_dir(&tools).unwrap();
        let policy = || Policy::new(&work).allow_read(&tools).allow_write(&work);
        let places = policy().seal().unwrap().places();
        assert_eq!(policy().seal_at(&places).unwrap().places(), places);
        let text = serde_json::to_string(&places).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Place>>(&text).unwrap(), places);
        let fewer = policy().seal_at(&places[1..]).unwrap_err();
        assert_eq!(fewer, PolicyError::Places { roots: 2, places: 1 });
        fs::rename(&work, path.join("away")).unwrap();
        fs::create_dir(&work).unwrap();
        let refused = policy().seal_at(&places).unwrap_err();
        let expected = PolicyError::Path {
            field: Field::ReadWrite,
            path: work.to_string(),
            reason: PathReason::Replaced,
        };
        assert_eq!(refused, expected);
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
        assert_eq!(digest(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
