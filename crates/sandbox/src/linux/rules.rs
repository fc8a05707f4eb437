//! Landlock: which files, which sockets, which processes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use camino::Utf8Path;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, Erratum, LandlockStatus,
    PathBeneath, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::process::getpid;

use super::system;
use super::wire::refusal;
use crate::level::{Level, Refusal, RefusalCode};
use crate::machine::Landlock;
use crate::policy::{Network, Policy};

/// The least that a session wants: file rights including truncation and device ioctls, TCP ports, signals and
/// abstract sockets. Linux 6.12.
const LEAST: ABI = ABI::V6;

/// What the roots are, in the order of the policy: those that may be written, then those that may be read.
pub(super) struct Roots {
    pub(super) read_write: Vec<OwnedFd>,
    pub(super) read_only: Vec<OwnedFd>,
}

/// Restricts this thread, and whatever it starts, for good. Returns the kernel's ABI.
pub(super) fn restrict(level: Level, policy: &Policy, roots: &Roots) -> Result<i32, Refusal> {
    let failed =
        |error: &dyn std::fmt::Display| Refusal::new(RefusalCode::Landlock, missing(look().0, error));
    let mut rules = create(policy).map_err(|error| failed(&error))?;
    for place in places(level, policy) {
        rules = match open(Utf8Path::new(&place.path)) {
            Ok(descriptor) => add(rules, descriptor, place.rights)?,
            // A system without this file, or one that does not let its user read it, is not less safe.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP) => rules,
            Err(error) => return Err(refusal(RefusalCode::Landlock, place.path, io::Error::from(error))),
        };
    }
    for (descriptors, rights) in [(&roots.read_write, changing()), (&roots.read_only, reading())] {
        for descriptor in descriptors {
            rules = add(rules, descriptor, rights)?;
        }
    }
    let status = rules.restrict_self().map_err(|error| failed(&error))?;
    let LandlockStatus::Available { effective_abi, kernel_abi } = status.landlock else {
        return Err(failed(&"it is switched off"));
    };
    if status.ruleset != RulesetStatus::FullyEnforced || !status.no_new_privs {
        return Err(failed(&"it is enforced in part only"));
    }
    Ok(kernel_abi.unwrap_or(effective_abi as i32))
}

/// Why a session cannot be restricted, for people.
fn missing(landlock: Landlock, error: &dyn std::fmt::Display) -> String {
    let least = LEAST as i32;
    match landlock {
        Landlock::Missing => format!("this kernel has no Landlock, and a session wants ABI {least} of it"),
        Landlock::Disabled => "Landlock is switched off on this kernel".to_owned(),
        Landlock::Available { abi } if abi < least => {
            format!("this kernel has ABI {abi} of Landlock, and a session wants {least}")
        }
        Landlock::Available { abi } => {
            format!("Landlock (ABI {abi}) cannot be applied as a session wants it: {error}")
        }
    }
}

/// What the kernel has of Landlock, and which of its known faults are repaired.
///
/// The kernel's answer is to be had from a restriction only, so a thread takes one on and ends.
pub(crate) fn look() -> (Landlock, Vec<String>) {
    let restricted = std::thread::Builder::new().spawn(|| {
        let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let rules = rules.handle_access(AccessFs::Execute).and_then(Ruleset::create);
        rules.and_then(RulesetCreated::restrict_self).map(|status| status.landlock).ok()
    });
    let status = restricted.ok().and_then(|thread| thread.join().ok().flatten());
    let landlock = match status {
        Some(LandlockStatus::Available { effective_abi, kernel_abi }) => {
            Landlock::Available { abi: kernel_abi.unwrap_or(effective_abi as i32) }
        }
        Some(LandlockStatus::NotEnabled) => Landlock::Disabled,
        Some(LandlockStatus::NotImplemented) | None => Landlock::Missing,
    };
    let repaired = Erratum::current();
    let repairs = [
        (Erratum::TcpSocketIdentification, "tcp_socket_identification"),
        (Erratum::ScopedSignalHandling, "scoped_signal_handling"),
        (Erratum::DisconnectedDirectoryHandling, "disconnected_directory_handling"),
    ];
    let repairs = repairs.into_iter().filter(|(erratum, _)| repaired.contains(*erratum));
    (landlock, repairs.map(|(_, name)| name.to_owned()).collect())
}

fn create(policy: &Policy) -> Result<RulesetCreated, landlock::RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))?
        .scope(Scope::from_all(LEAST))?;
    if policy.network == Network::None {
        // No rule follows: no port can be bound or connected to.
        rules = rules.handle_access(AccessNet::from_all(LEAST))?;
    }
    rules.create()
}

/// A path of the system, and what may be done below it.
struct Place {
    path: String,
    rights: BitFlags<AccessFs>,
}

/// All that a session may use beside its roots.
fn places(level: Level, policy: &Policy) -> Vec<Place> {
    let mut places = Vec::new();
    let mut put = |path: String, rights| places.push(Place { path, rights });
    for path in system::PROGRAMS {
        put((*path).to_owned(), reading());
    }
    for path in system::etc().chain(system::resolver_elsewhere()) {
        put(path.into_string(), looking());
    }
    put("/sys/devices/system/cpu".to_owned(), looking());
    for name in system::DEVICES {
        put(format!("/dev/{name}"), using());
    }
    for path in &policy.devices {
        put(path.to_string(), using());
    }
    match level {
        Level::Full => {
            for path in ["/tmp", "/dev/shm"] {
                put(path.to_owned(), changing());
            }
            for path in ["/dev/pts", "/dev/tty"] {
                put(path.to_owned(), using() | AccessFs::ReadDir);
            }
            for path in ["/proc", "/run"] {
                put(path.to_owned(), looking());
            }
        }
        Level::Floor => {
            let process = getpid().as_raw_nonzero();
            for name in system::PROC_OF_MACHINE {
                put(format!("/proc/{name}"), looking());
            }
            for name in system::PROC_OF_SELF {
                put(format!("/proc/{process}/{name}"), looking());
            }
            // Which threads there are, and nothing of what lies below each: that has the table of sockets again.
            put(format!("/proc/{process}/task"), AccessFs::ReadDir.into());
        }
    }
    places
}

fn add<F: AsFd>(
    rules: RulesetCreated,
    place: F,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, Refusal> {
    let failed =
        |error: &dyn std::fmt::Display| refusal(RefusalCode::Landlock, "a rule cannot be added", error);
    let stat = fstat(&place).map_err(|error| failed(&io::Error::from(error)))?;
    let directory = FileType::from_raw_mode(stat.st_mode).is_dir();
    let rights = if directory { rights } else { rights & AccessFs::from_file(LEAST) };
    rules.add_rule(PathBeneath::new(place, rights)).map_err(|error| failed(&error))
}

fn open(path: &Utf8Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Read files and directories.
fn looking() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Read, and run what is there.
fn reading() -> BitFlags<AccessFs> {
    looking() | AccessFs::Execute
}

/// Use a device.
fn using() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::Truncate
}

/// Everything but devices.
fn changing() -> BitFlags<AccessFs> {
    AccessFs::from_all(LEAST) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_in_words() {
        for (landlock, expected) in [
            (Landlock::Missing, "this kernel has no Landlock, and a session wants ABI 6 of it"),
            (Landlock::Disabled, "Landlock is switched off on this kernel"),
            (Landlock::Available { abi: 5 }, "this kernel has ABI 5 of Landlock, and a session wants 6"),
            (
                Landlock::Available { abi: 7 },
                "Landlock (ABI 7) cannot be applied as a session wants it: no room",
            ),
        ] {
            assert_eq!(missing(landlock, &"no room"), expected);
        }
    }
}
