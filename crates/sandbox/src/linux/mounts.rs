//! The session's own view of the file system: the system to read, the roots, and nothing else.
//!
//! Whatever is not put there does not exist inside, so it can be neither looked at nor changed: no names, no sizes,
//! no sockets.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, stat, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change,
    mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};

use super::mount_table::{Strictness, too_loose};
use super::system;
use super::wire::refusal;
use crate::level::{Refusal, RefusalCode};
use crate::policy::{Network, Policy, is_inside};

/// Where the directory of the proxy's socket appears inside.
const PROXY: &str = "/run/sandbox";
/// Where the new root is attached until it is the root. It is there on every system.
const SCAFFOLD: &str = "/proc";
/// What the root's own file system holds: directories and links only.
const SKELETON_BYTES: u64 = 4 << 20;

const WRITE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const READ: MountFlags = WRITE.union(MountFlags::RDONLY);
/// A device can be written to on a read-only mount; its mode and owner cannot be changed, which root could otherwise.
const DEVICE: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC).union(MountFlags::RDONLY);
const TERMINALS: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC);

/// What has been built so far.
struct Builder {
    root: OwnedFd,
    rules: Vec<Strictness>,
    /// The directories that are there.
    made: BTreeSet<Utf8PathBuf>,
}

/// A tree that waits for its place.
struct Tree {
    target: Utf8PathBuf,
    source: OwnedFd,
    flags: MountFlags,
}

/// Builds the view and goes into it. `approved` are the roots as they were when the policy was sealed. Returns the
/// protected paths that could not be protected. `/proc` stays writable until [`close`].
pub(super) fn build(policy: &Policy, approved: &[OwnedFd]) -> Result<View, Refusal> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .map_err(|error| failed("mounts cannot be kept private", error))?;
    // All sources are held before the scaffold covers anything.
    let system = system_trees(policy)?;
    let devices = device_trees(policy)?;
    let roots = root_trees(policy, approved)?;
    let root = file_system("tmpfs", &[("size", SKELETON_BYTES.to_string()), ("mode", "755".to_owned())])?;
    move_mount(&root, "", CWD, SCAFFOLD, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| failed("the new root cannot be attached", error))?;
    let rules = vec![Strictness { target: "/".into(), flags: READ }];
    let mut builder = Builder { root, rules, made: BTreeSet::from(["/".into()]) };
    builder.skeleton(policy)?;
    for tree in system.into_iter().chain(devices).chain(roots) {
        builder.attach(tree)?;
    }
    builder.mask()?;
    let unprotected = builder.protect(policy)?;
    builder.become_root()?;
    Ok(View { rules: builder.rules, unprotected })
}

/// A view that is entered and not yet closed.
pub(super) struct View {
    rules: Vec<Strictness>,
    pub(super) unprotected: Vec<String>,
}

impl View {
    /// Makes every mount as strict as its place demands.
    pub(super) fn close(&self) -> Result<(), Refusal> {
        let table = fs::read("/proc/self/mountinfo")
            .map_err(|error| refusal(RefusalCode::Mounts, "the table of mounts cannot be read", error))?;
        // A mount that another covers cannot be reached by its path, and neither can the session.
        for remount in too_loose(&table, &self.rules) {
            mount_remount(&remount.target, MountFlags::BIND | remount.flags, c"").map_err(|error| {
                failed(&format!("{} cannot be made stricter", remount.target.display()), error)
            })?;
        }
        Ok(())
    }
}

impl Builder {
    /// Directories, links and file systems that every session gets anew.
    fn skeleton(&mut self, policy: &Policy) -> Result<(), Refusal> {
        for path in system::PROGRAMS {
            if let Ok(target) = fs::read_link(path) {
                let failed = |error| failed(&format!("{path} cannot be linked"), error);
                symlinkat(&target, &self.root, path.trim_start_matches('/')).map_err(failed)?;
            }
        }
        let size = || ("size", policy.limits.tmp_bytes.to_string());
        let open = || ("mode", "1777".to_owned());
        self.mount("/tmp", file_system("tmpfs", &[size(), open()])?, WRITE)?;
        self.mount("/dev/shm", file_system("tmpfs", &[size(), open()])?, WRITE)?;
        let terminals = [("ptmxmode", "0666".to_owned()), ("mode", "0620".to_owned())];
        self.mount("/dev/pts", file_system("devpts", &terminals)?, TERMINALS)?;
        self.mount("/proc", file_system("proc", &[])?, READ | MountFlags::NOEXEC)?;
        self.directories(Utf8Path::new("/run"))?;
        self.directories(Utf8Path::new("/var"))?;
        for (target, link) in [
            ("/tmp", "var/tmp"),
            ("/proc/self/fd", "dev/fd"),
            ("/proc/self/fd/0", "dev/stdin"),
            ("/proc/self/fd/1", "dev/stdout"),
            ("/proc/self/fd/2", "dev/stderr"),
            ("pts/ptmx", "dev/ptmx"),
        ] {
            symlinkat(target, &self.root, link)
                .map_err(|error| failed(&format!("/{link} cannot be made"), error))?;
        }
        Ok(())
    }

    fn mount(&mut self, target: &str, source: OwnedFd, flags: MountFlags) -> Result<(), Refusal> {
        self.attach(Tree { target: target.into(), source, flags })
    }

    /// Puts a tree at its place, which is made if it is not there.
    fn attach(&mut self, tree: Tree) -> Result<(), Refusal> {
        let Tree { target, source, flags } = tree;
        let failed = |error| failed(&format!("{target} cannot be shown"), error);
        let stat = fstat(&source).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            self.directories(&target)?;
        } else {
            if let Some(parent) = target.parent() {
                self.directories(parent)?;
            }
            let create = OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            openat(&self.root, relative(&target), create, Mode::RUSR).map_err(failed)?;
        }
        move_mount(&source, "", &self.root, relative(&target), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(failed)?;
        self.rules.push(Strictness { target, flags });
        Ok(())
    }

    /// The directory with all above it. Those of a tree that is attached already are there.
    fn directories(&mut self, path: &Utf8Path) -> Result<(), Refusal> {
        let mut missing: Vec<_> = path.ancestors().take_while(|above| !self.made.contains(*above)).collect();
        while let Some(directory) = missing.pop() {
            match mkdirat(&self.root, relative(directory), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => self.made.insert(directory.to_owned()),
                Err(error) => return Err(failed(&format!("the place {directory} cannot be made"), error)),
            };
        }
        Ok(())
    }

    /// Puts nothing in the place of what `/proc` should not tell.
    fn mask(&mut self) -> Result<(), Refusal> {
        let null = Utf8Path::new("/dev/null");
        // Each cover is then strict from the start. If this cannot be done here, all of them are made so in the end.
        let _loose = mount_remount(format!("{SCAFFOLD}{null}"), MountFlags::BIND | DEVICE, c"");
        let null = self.open(null).map_err(|error| failed("/dev/null", error))?;
        for name in system::PROC_MASKED {
            let path = Utf8Path::new("/proc").join(name);
            // Some kernels do not have it.
            if let Ok(place) = self.open(&path) {
                self.cover(path, &null, &place, DEVICE)?;
            }
        }
        Ok(())
    }

    /// Mounts `source` on `place`, which `path` names.
    fn cover(
        &mut self,
        path: Utf8PathBuf,
        source: impl AsFd,
        place: impl AsFd,
        flags: MountFlags,
    ) -> Result<(), Refusal> {
        let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        clone_of(source)
            .and_then(|tree| move_mount(&tree, "", place, "", both))
            .map_err(|error| failed(&format!("{path} cannot be covered"), error))?;
        self.rules.push(Strictness { target: path, flags });
        Ok(())
    }

    /// Mounts each protected path on itself, and every directory between it and its root: what is a mount point can
    /// be neither replaced nor renamed.
    fn protect(&mut self, policy: &Policy) -> Result<Vec<String>, Refusal> {
        let mut unprotected = Vec::new();
        let mut pinned = BTreeSet::new();
        for path in &policy.protected {
            let pins = path
                .ancestors()
                .skip(1)
                .filter(|above| is_inside(above, &policy.read_write) && !policy.read_write.contains(*above))
                .filter(|above| !policy.read_only.contains(*above) && !is_closed(above, policy));
            let mut chain: Vec<_> = pins.map(Utf8Path::to_owned).collect();
            chain.reverse();
            if self.open(path).is_err() {
                // What does not exist cannot be mounted on, and it is not ours to make.
                unprotected.push(path.to_string());
            }
            // A pin would open to changes what is closed to them as a whole.
            if is_closed(path, policy) {
                continue;
            }
            for pin in chain.into_iter().filter(|pin| !policy.protected.contains(pin)) {
                if pinned.insert(pin.clone()) {
                    self.pin(pin, WRITE)?;
                }
            }
            self.pin(path.clone(), READ)?;
        }
        Ok(unprotected)
    }

    fn pin(&mut self, path: Utf8PathBuf, flags: MountFlags) -> Result<(), Refusal> {
        let Ok(place) = self.open(&path) else { return Ok(()) };
        self.cover(path, &place, &place, flags)
    }

    /// What lies there inside the new root, through no link.
    fn open(&self, path: &Utf8Path) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
        openat2(&self.root, relative(path), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// Makes the new root the root, and lets go of the old one with all that is in it.
    fn become_root(&self) -> Result<(), Refusal> {
        fchdir(&self.root)
            .and_then(|()| pivot_root(".", "."))
            .and_then(|()| unmount(".", UnmountFlags::DETACH))
            .and_then(|()| chdir("/"))
            .map_err(|error| failed("the new root cannot be entered", error))?;
        // A filter around this process may say that a call was made which never was.
        let (built, entered) = fstat(&self.root)
            .and_then(|built| Ok((built, stat("/")?)))
            .map_err(|error| failed("the new root cannot be looked at", error))?;
        if (built.st_dev, built.st_ino) == (entered.st_dev, entered.st_ino) {
            return Ok(());
        }
        let message = "the root was not changed, although the system says so: look at what filters the system calls of \
                       this process";
        Err(Refusal::new(RefusalCode::Mounts, message))
    }
}

/// Whether it lies in a protected directory, or in a read-only root that lies in a read-write one.
fn is_closed(path: &Utf8Path, policy: &Policy) -> bool {
    let above = path.ancestors().skip(1).find(|above| {
        policy.protected.contains(*above)
            || policy.read_only.contains(*above)
            || policy.read_write.contains(*above)
    });
    above.is_some_and(|above| !policy.read_write.contains(above))
}

/// Programs, libraries and `/etc`.
fn system_trees(policy: &Policy) -> Result<Vec<Tree>, Refusal> {
    let mut trees = Vec::new();
    let linked = |path: &&&str| !fs::symlink_metadata(path).is_ok_and(|data| data.is_symlink());
    for path in system::PROGRAMS.iter().filter(linked).chain(&["/etc", "/sys/devices/system/cpu"]) {
        trees.extend(present(path, READ)?);
    }
    if policy.network == Network::Open
        && let Some(file) = system::resolver_elsewhere()
    {
        trees.extend(present(file.as_str(), READ)?);
    }
    Ok(trees)
}

fn device_trees(policy: &Policy) -> Result<Vec<Tree>, Refusal> {
    let mut trees = Vec::new();
    for name in system::DEVICES.iter().chain(&["tty"]) {
        trees.extend(present(&format!("/dev/{name}"), DEVICE)?);
    }
    for path in &policy.devices {
        let source =
            clone_of_path(path.as_str()).map_err(|error| failed(&format!("the device {path}"), error))?;
        trees.push(Tree { target: path.clone(), source, flags: DEVICE });
    }
    Ok(trees)
}

/// The roots, opened once more in this mount namespace: each must be what was approved.
fn root_trees(policy: &Policy, approved: &[OwnedFd]) -> Result<Vec<Tree>, Refusal> {
    let writable = policy.read_write.iter().map(|path| (path.as_path(), path.as_path(), WRITE));
    let readable = policy.read_only.iter().map(|path| (path.as_path(), path.as_path(), READ));
    let proxy = policy.proxy_directory().map(|path| (path, Utf8Path::new(PROXY), READ));
    let mut trees = Vec::new();
    for ((path, target, flags), approved) in writable.chain(readable).chain(proxy).zip(approved) {
        let changed = |why: &str| Refusal::new(RefusalCode::RootChanged, format!("the root {path} {why}"));
        let now = open_root(path).map_err(|error| changed(&format!("cannot be opened any more: {error}")))?;
        let failed = |error| failed(&format!("the root {path}"), error);
        let (before, after) = (fstat(approved).map_err(failed)?, fstat(&now).map_err(failed)?);
        if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino) {
            return Err(changed("is another directory than the one that was approved"));
        }
        trees.push(Tree { target: target.to_owned(), source: clone_of(&now).map_err(failed)?, flags });
    }
    // Outer roots first, so that inner ones lie in them; of the same path, the one that may be written last.
    trees.sort_by_key(|tree| (tree.target.components().count(), tree.flags == WRITE));
    Ok(trees)
}

/// The proxy's socket as it is named inside.
pub(super) fn proxy_inside(policy: &Policy) -> Utf8PathBuf {
    let name = match &policy.network {
        Network::Proxy { socket } => socket.file_name().unwrap_or_default(),
        Network::Open | Network::None | Network::Loopback => "",
    };
    Utf8Path::new(PROXY).join(name)
}

/// Opens a root as a place, through no link.
pub(super) fn open_root(path: &Utf8Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// The tree, if there is one at this path.
fn present(path: &str, flags: MountFlags) -> Result<Option<Tree>, Refusal> {
    match clone_of_path(path) {
        Ok(source) => Ok(Some(Tree { target: path.into(), source, flags })),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed(&format!("{path} cannot be shown"), error)),
    }
}

fn clone_of_path(path: &str) -> rustix::io::Result<OwnedFd> {
    open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE,
    )
}

fn clone_of(place: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(place, "", flags)
}

/// A new file system that is attached nowhere yet.
fn file_system(kind: &str, options: &[(&str, String)]) -> Result<OwnedFd, Refusal> {
    let attempt = || {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (name, value) in options {
            fsconfig_set_string(&context, *name, value.as_str())?;
        }
        fsconfig_create(&context)?;
        let device =
            if kind == "devpts" { MountAttrFlags::empty() } else { MountAttrFlags::MOUNT_ATTR_NODEV };
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOSUID | device)
    };
    attempt().map_err(|error| failed(&format!("a new {kind} cannot be mounted"), error))
}

fn relative(path: &Utf8Path) -> &str {
    path.as_str().trim_start_matches('/')
}

fn failed(what: &str, error: Errno) -> Refusal {
    refusal(RefusalCode::Mounts, what, io::Error::from(error))
}
