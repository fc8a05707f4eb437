//! Namespaces: the outer launcher goes into new ones, and its next child is the first process in them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat, stat};
use rustix::process::{getgid, getuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, UnshareFlags, move_into_link_name_space,
    set_capabilities,
};

use super::wire::{receive_descriptors, refusal, send_descriptor};
use crate::level::{Refusal, RefusalCode};
use crate::policy::Network;

/// What the first process inside needs to build the session's view, before it gives everything up.
const BUILDER: CapabilitySet = CapabilitySet::from_bits_retain(
    CapabilitySet::SYS_ADMIN.bits() | CapabilitySet::NET_ADMIN.bits() | CapabilitySet::SETPCAP.bits(),
);

/// What every session gets of its own.
const ALWAYS: UnshareFlags = UnshareFlags::NEWUSER
    .union(UnshareFlags::NEWNS)
    .union(UnshareFlags::NEWPID)
    .union(UnshareFlags::NEWIPC)
    .union(UnshareFlags::NEWUTS)
    .union(UnshareFlags::NEWCGROUP);
/// Where the namespaces of a process are named.
const OWN: &str = "/proc/self/ns";

/// Whether a session with this network has a network namespace of its own.
pub(super) fn separates(network: &Network) -> bool {
    match network {
        Network::Open => false,
        Network::None | Network::Loopback | Network::Proxy { .. } => true,
    }
}

/// The names of the namespaces that a session with this network gets.
pub(super) fn names(network: &Network) -> Vec<String> {
    let all = ["user", "mount", "pid", "ipc", "uts", "cgroup", "net"];
    let count = if separates(network) { all.len() } else { all.len() - 1 };
    all.iter().take(count).map(|name| (*name).to_owned()).collect()
}

/// Goes into new namespaces, all but that of the network, with no more capabilities there than the first process inside needs. The user keeps its
/// number; nobody else exists in them.
pub(super) fn enter() -> Result<(), Refusal> {
    let failed = |what: &str, error: io::Error| refusal(RefusalCode::Namespaces, what, error);
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(ALWAYS).map_err(|error| failed("namespaces cannot be made", error.into()))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("gid_map", format!("{group} {group} 1")),
        ("uid_map", format!("{user} {user} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|error| failed(&format!("the user namespace cannot be given its {file}"), error))?;
    }
    let builder =
        CapabilitySets { effective: BUILDER, permitted: BUILDER, inheritable: CapabilitySet::empty() };
    set_capabilities(None, builder)
        .map_err(|error| failed("capabilities inside the namespaces cannot be given up", error.into()))
}

#[expect(
    deprecated,
    reason = "its replacement is unsafe for the sake of CLONE_FILES, which is never asked for here"
)]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

/// The outer launcher's part of a network namespace: it makes one while the first process inside builds the view, for
/// the kernel takes as long for the one as for the other.
pub(super) struct NetworkMaker {
    /// Held open, because `/proc` is another one by then.
    own: OwnedFd,
}

impl NetworkMaker {
    /// To be called before there is a first process inside.
    pub(super) fn new() -> Result<Self, Refusal> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = openat(CWD, OWN, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        Ok(Self { own })
    }

    /// Makes the namespace, goes into it, and sends it to the first process inside. If that one has given up meanwhile,
    /// it says itself why.
    pub(super) fn make(&self, link: impl AsFd) -> Result<(), Refusal> {
        let made = unshare(UnshareFlags::NEWNET)
            .and_then(|()| openat(&self.own, "net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()));
        match made.map_err(io::Error::from).and_then(|made| send_descriptor(link, made)) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(failed),
        }
    }
}

/// Goes into the network namespace that the outer launcher has made.
pub(super) fn follow(link: &OwnedFd) -> Result<(), Refusal> {
    let own = || stat(format!("{OWN}/net")).map(|stat| (stat.st_dev, stat.st_ino));
    let before = own().map_err(|error| failed(error.into()))?;
    let made = receive_descriptors(link).map_err(failed)?.pop();
    let made = made.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
    move_into_link_name_space(made.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| failed(error.into()))?;
    // A filter around this process may say that a call was made which never was.
    if own().map_err(|error| failed(error.into()))? == before {
        return Err(failed(io::Error::other(
            "the process is where it was, although the system says otherwise",
        )));
    }
    Ok(())
}

fn failed(error: io::Error) -> Refusal {
    refusal(RefusalCode::Namespaces, "a network namespace cannot be made", error)
}
