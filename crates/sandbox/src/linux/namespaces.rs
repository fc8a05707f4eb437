//! Namespaces: the outer launcher goes into new ones, and what it starts next is the first process in them.

use std::fs;
use std::io;

use rustix::process::{getgid, getuid};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

use super::wire::refusal;
use crate::level::{Refusal, RefusalCode};
use crate::policy::Network;

/// What the first process inside needs to build the session's view, before it gives everything up.
const BUILDER: CapabilitySet = CapabilitySet::from_bits_retain(
    CapabilitySet::SYS_ADMIN.bits() | CapabilitySet::NET_ADMIN.bits() | CapabilitySet::SETPCAP.bits(),
);

/// The flags for a policy's network.
fn flags(network: &Network) -> UnshareFlags {
    let always = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    match network {
        Network::Open => always,
        Network::None | Network::Loopback | Network::Proxy { .. } => always | UnshareFlags::NEWNET,
    }
}

/// The names of the namespaces that a session with this network gets.
pub(super) fn names(network: &Network) -> Vec<String> {
    let all = ["user", "mount", "pid", "ipc", "uts", "cgroup", "net"];
    let count = if *network == Network::Open { all.len() - 1 } else { all.len() };
    all.iter().take(count).map(|name| (*name).to_owned()).collect()
}

/// Goes into new namespaces. The user keeps its number there; nobody else exists in them.
pub(super) fn enter(network: &Network) -> Result<(), Refusal> {
    let failed = |what: &str, error: io::Error| refusal(RefusalCode::Namespaces, what, error);
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(flags(network)).map_err(|error| failed("namespaces cannot be made", error.into()))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("gid_map", format!("{group} {group} 1")),
        ("uid_map", format!("{user} {user} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|error| failed(&format!("the user namespace cannot be given its {file}"), error))?;
    }
    hand_on(BUILDER)
        .map_err(|error| failed("capabilities inside the namespaces cannot be handed on", error.into()))
}

#[expect(
    deprecated,
    reason = "its replacement is unsafe for the sake of CLONE_FILES, which is never asked for here"
)]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

/// An ordinary user's program loses its capabilities when it is started, unless they are ambient.
fn hand_on(wanted: CapabilitySet) -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable = wanted;
    set_capabilities(None, sets)?;
    for capability in wanted.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}
