//! The filter of system calls: what the kernel offers and no program of a session needs.
//!
//! Two programs run for every call. The first says "no such call" (`ENOSYS`) to what programs try first and have
//! another way for, and to everything newer than this list. The second says "not permitted" (`EPERM`).

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, sock_filter,
};

use super::system_calls::{ALWAYS, AT_FLOOR, HIGHEST_KNOWN, WITH_MODE, WITH_OTHERS};
use super::wire::refusal;
use crate::level::{Level, Refusal, RefusalCode};
use crate::policy::Network;

/// Calls with this bit are of the x32 kind: the same architecture to a filter, and other numbers.
const X32_BIT: u32 = 0x4000_0000;
/// Set-user-id and set-group-id.
const SET_ID_BITS: [u64; 2] = [0o4000, 0o2000];
/// Flags of `open` that create a file, so that the mode counts.
const CREATING_FLAGS: [u64; 2] = [libc::O_CREAT as u64, 0o20_000_000];
/// The flags of `clone` and `unshare` that make namespaces: mount, cgroup, uts, ipc, user, pid, net, time.
const NAMESPACE_FLAGS: [u64; 8] =
    [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000, 0x0000_0080];
/// Terminal commands that write into somebody's input, take over a console or change the line discipline.
const TERMINAL_COMMANDS: [u64; 4] = [0x5412, 0x541c, 0x541d, 0x5423];
/// An old name of packet sockets; libc marks its own as deprecated.
const SOCK_PACKET: u64 = 10;
const SOCKET_TYPE_MASK: u64 = 0xf;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The programs for this level and network, in the order in which they are installed.
pub(super) fn programs(level: Level, network: &Network) -> Result<Vec<BpfProgram>, Refusal> {
    let failed =
        |error| refusal(RefusalCode::Seccomp, "the filter of system calls cannot be compiled", error);
    let denied = compile(level, network).map_err(failed)?;
    Ok(vec![denied, unknown()])
}

/// Installs them on this thread, and on whatever it starts, for good.
pub(super) fn install(programs: &[BpfProgram]) -> Result<(), Refusal> {
    for program in programs {
        apply_filter(program).map_err(|error| {
            refusal(RefusalCode::Seccomp, "the filter of system calls cannot be installed", error)
        })?;
    }
    Ok(())
}

/// `ENOSYS` for these calls, for x32 and for whatever is newer than the list; another architecture ends the process.
fn unknown() -> BpfProgram {
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_GREATER: u16 = 0x25;
    const RETURN: u16 = 0x06;
    let missing = [
        libc::SYS_clone3,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        // Its mode lies in memory, where a filter cannot read it: it could make set-user-id files.
        libc::SYS_openat2,
    ];
    let step = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let mut program = vec![
        step(LOAD, 4, 0, 0),
        step(JUMP_EQUAL, audit_arch(), 1, 0),
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        step(LOAD, 0, 0, 0),
    ];
    // Each jump skips what is left of the comparisons and the permission.
    let mut left = u8::try_from(missing.len()).unwrap_or(u8::MAX);
    program.push(step(JUMP_GREATER, HIGHEST_KNOWN.min(X32_BIT - 1), left + 1, 0));
    for call in missing {
        program.push(step(JUMP_EQUAL, u32::try_from(call).unwrap_or(u32::MAX), left, 0));
        left -= 1;
    }
    program.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    program.push(step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs(), 0, 0));
    program
}

fn compile(level: Level, network: &Network) -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::new();
    for call in ALWAYS {
        rules.insert(*call, vec![]);
    }
    if level == Level::Floor {
        for call in AT_FLOOR {
            rules.insert(*call, vec![]);
        }
        // On others: a process may still ask and set its own.
        for (call, argument, own) in WITH_OTHERS {
            add(&mut rules, *call, &[(*argument, SeccompCmpOp::Ne, *own)])?;
        }
    }
    for flag in NAMESPACE_FLAGS {
        for call in [libc::SYS_clone, libc::SYS_unshare] {
            add(&mut rules, call, &[(0, SeccompCmpOp::MaskedEq(flag), flag)])?;
        }
    }
    for command in TERMINAL_COMMANDS {
        add(&mut rules, libc::SYS_ioctl, &[(1, SeccompCmpOp::Eq, command)])?;
    }
    set_id_files(&mut rules)?;
    sockets(&mut rules, level, network)?;
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        target(),
    )?;
    filter.try_into()
}

/// No call makes or turns a file into one that runs as its owner.
fn set_id_files(rules: &mut Rules) -> Result<(), BackendError> {
    for bit in SET_ID_BITS {
        for (call, argument) in WITH_MODE {
            add(rules, *call, &[(*argument, SeccompCmpOp::MaskedEq(bit), bit)])?;
        }
        for creating in CREATING_FLAGS {
            let both = |flags, mode| {
                [
                    (flags, SeccompCmpOp::MaskedEq(creating), creating),
                    (mode, SeccompCmpOp::MaskedEq(bit), bit),
                ]
            };
            #[cfg(target_arch = "x86_64")]
            add(rules, libc::SYS_open, &both(1, 2))?;
            add(rules, libc::SYS_openat, &both(2, 3))?;
        }
    }
    Ok(())
}

/// Sockets of the kinds that a program of this level and network may have.
fn sockets(rules: &mut Rules, level: Level, network: &Network) -> Result<(), BackendError> {
    let (unix, inet, inet6, netlink) =
        (libc::AF_UNIX as u64, libc::AF_INET as u64, libc::AF_INET6 as u64, libc::AF_NETLINK as u64);
    let families: &[u64] = match (level, network) {
        (Level::Full, _) => &[unix, inet, inet6, netlink],
        (Level::Floor, Network::Open) => &[inet, inet6],
        (Level::Floor, Network::None | Network::Loopback | Network::Proxy { .. }) => &[],
    };
    let others: Vec<_> = families.iter().map(|family| (0, SeccompCmpOp::Ne, *family)).collect();
    if others.is_empty() {
        rules.insert(libc::SYS_socket, vec![]);
    } else {
        add(rules, libc::SYS_socket, &others)?;
    }
    for family in [inet, inet6].into_iter().filter(|family| families.contains(family)) {
        for kind in [libc::SOCK_RAW as u64, SOCK_PACKET] {
            let kind = (1, SeccompCmpOp::MaskedEq(SOCKET_TYPE_MASK), kind);
            add(rules, libc::SYS_socket, &[(0, SeccompCmpOp::Eq, family), kind])?;
        }
    }
    if families.contains(&netlink) {
        // NETLINK_ROUTE lists interfaces; the other protocols reach deep into the kernel.
        add(rules, libc::SYS_socket, &[(0, SeccompCmpOp::Eq, netlink), (2, SeccompCmpOp::Ne, 0)])?;
    }
    match level {
        Level::Full => add(rules, libc::SYS_socketpair, &[(0, SeccompCmpOp::Ne, unix)]),
        Level::Floor => {
            add(rules, libc::SYS_socketpair, &[(0, SeccompCmpOp::Ne, unix)])?;
            // One of a pair of datagram sockets can send to any path; connected streams cannot.
            let datagram = libc::SOCK_DGRAM as u64;
            add(rules, libc::SYS_socketpair, &[(1, SeccompCmpOp::MaskedEq(SOCKET_TYPE_MASK), datagram)])
        }
    }
}

/// Adds a rule: the call is denied where all conditions hold. Each compares the lower 32 bits of an argument, which
/// is all that the kernel reads of these.
fn add(rules: &mut Rules, call: c_long, conditions: &[(u8, SeccompCmpOp, u64)]) -> Result<(), BackendError> {
    let conditions = conditions
        .iter()
        .map(|(argument, operator, value)| {
            SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), *value)
        })
        .collect::<Result<Vec<_>, _>>()?;
    rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
    Ok(())
}

#[cfg(target_arch = "x86_64")]
const fn target() -> TargetArch {
    TargetArch::x86_64
}

#[cfg(target_arch = "aarch64")]
const fn target() -> TargetArch {
    TargetArch::aarch64
}

/// As the kernel's audit names it: the machine, 64 bits, little-endian.
const fn audit_arch() -> u32 {
    let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    machine | 0x8000_0000 | 0x4000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_and_network_compiles() {
        let proxy = Network::Proxy { socket: "/run/p".into() };
        for level in [Level::Floor, Level::Full] {
            for network in [&Network::Open, &Network::None, &Network::Loopback, &proxy] {
                let programs = programs(level, network).unwrap();
                let instructions: usize = programs.iter().map(Vec::len).sum();
                assert!((100..4096).contains(&instructions), "{level} {network:?}: {instructions}");
            }
        }
    }

    #[test]
    fn the_jumps_of_the_first_program_land_on_its_last_instruction() {
        let program = unknown();
        let last = program.len() - 1;
        for (index, step) in program.iter().enumerate().skip(4).take(6) {
            assert_eq!(index + 1 + usize::from(step.jt), last, "instruction {index}");
        }
    }
}
