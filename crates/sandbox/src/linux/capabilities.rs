//! Gives up every capability, and every way to get one back.

use std::io;

use rustix::io::Errno;
use rustix::process::getuid;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
};

use super::wire::refusal;
use crate::level::{Refusal, RefusalCode};

/// The kernel counts capabilities in 64 bits.
const CAPABILITIES_MAX: u32 = 64;

/// Drops all sets of this thread and of whatever it starts. Root without capabilities is an ordinary user who owns
/// root's files.
pub(super) fn drop_all() -> Result<(), Refusal> {
    attempt().map_err(|error| {
        refusal(RefusalCode::Capabilities, "capabilities cannot be given up", io::Error::from(error))
    })
}

fn attempt() -> rustix::io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    if capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set()?;
        set_capabilities_secure_bits(locked())?;
    } else if getuid().is_root() {
        // Root that cannot lock itself out would get everything back with the next program.
        return Err(Errno::PERM);
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

fn empty_bounding_set() -> rustix::io::Result<()> {
    for number in 0..CAPABILITIES_MAX {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // One past the last that this kernel knows.
            Err(Errno::INVAL) if number > 0 => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Being root means nothing, changing the user means nothing, and neither can be undone.
fn locked() -> CapabilitiesSecureBits {
    CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED
}

/// Whether nothing is left that could be used.
pub(super) fn are_gone() -> bool {
    capabilities(None).is_ok_and(|sets| {
        sets.effective.is_empty() && sets.permitted.is_empty() && sets.inheritable.is_empty()
    }) && rustix::thread::no_new_privs().unwrap_or(false)
}
