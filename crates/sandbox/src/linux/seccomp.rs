//! The filter of system calls: what the kernel offers and no program of a session needs.
//!
//! "No such call" (`ENOSYS`) is the answer to what programs try first and have another way for, and to everything newer
//! than this list. To all else it is "not permitted" (`EPERM`).

use seccompiler::{BpfProgram, apply_filter};

use super::filter::{Calls, Condition, Treatment};
use super::system_calls::{ALWAYS, AT_FLOOR, HIGHEST_KNOWN, MISSING, WITH_MODE, WITH_OTHERS};
use super::wire::refusal;
use crate::level::{Level, Refusal, RefusalCode};
use crate::policy::Network;

/// Calls with this bit are of the x32 kind: the same architecture to a filter, and other numbers.
const X32_BIT: u32 = 0x4000_0000;
/// Set-user-id and set-group-id.
const SET_ID_BITS: u32 = 0o6000;
/// Flags of `open` that create a file, so that the mode counts.
const CREATING_FLAGS: u32 = libc::O_CREAT.unsigned_abs() | 0o20_000_000;
/// The flags of `clone` and `unshare` that make namespaces: mount, cgroup, uts, ipc, user, pid, net, time.
const NAMESPACE_FLAGS: u32 = 0x0002_0000
    | 0x0200_0000
    | 0x0400_0000
    | 0x0800_0000
    | 0x1000_0000
    | 0x2000_0000
    | 0x4000_0000
    | 0x0000_0080;
/// Terminal commands that write into somebody's input, take over a console or change the line discipline.
const TERMINAL_COMMANDS: [u32; 4] = [0x5412, 0x541c, 0x541d, 0x5423];
/// An old name of packet sockets; libc marks its own as deprecated.
const SOCK_PACKET: u32 = 10;
const SOCKET_TYPE_MASK: u32 = 0xf;
/// `PR_SET_MM`: what others are told of where a process has its arguments and its environment, and how much there is.
const SET_MEMORY_MAP: u32 = 35;
const UNIX: u32 = libc::AF_UNIX.unsigned_abs();
const INET: u32 = libc::AF_INET.unsigned_abs();
const INET6: u32 = libc::AF_INET6.unsigned_abs();
const NETLINK: u32 = libc::AF_NETLINK.unsigned_abs();

/// The program for this level and network.
pub(super) fn program(level: Level, network: &Network) -> BpfProgram {
    calls(level, network).program(audit_arch(), newest())
}

/// Installs it on this thread, and on whatever it starts, for good.
pub(super) fn install(program: &BpfProgram) -> Result<(), Refusal> {
    apply_filter(program).map_err(|error| {
        refusal(RefusalCode::Seccomp, "the filter of system calls cannot be installed", error)
    })
}

/// No number of the x32 kind is among those that exist.
fn newest() -> u32 {
    HIGHEST_KNOWN.min(X32_BIT - 1)
}

fn calls(level: Level, network: &Network) -> Calls {
    let mut calls = Calls::default();
    for call in ALWAYS {
        calls.set(*call, Treatment::Refused);
    }
    for call in MISSING {
        calls.set(*call, Treatment::Missing);
    }
    if level == Level::Floor {
        for call in AT_FLOOR {
            calls.set(*call, Treatment::Refused);
        }
        // On others: a process may still ask and set its own.
        for (call, argument, own) in WITH_OTHERS {
            calls.refuse_if(*call, vec![(*argument, Condition::IsNot(*own))]);
        }
    }
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        calls.refuse_if(call, vec![(0, Condition::Has(NAMESPACE_FLAGS))]);
    }
    for command in TERMINAL_COMMANDS {
        calls.refuse_if(libc::SYS_ioctl, vec![(1, Condition::Is(command))]);
    }
    calls.refuse_if(libc::SYS_prctl, vec![(0, Condition::Is(SET_MEMORY_MAP))]);
    set_id_files(&mut calls);
    sockets(&mut calls, level, network);
    calls
}

/// No call makes or turns a file into one that runs as its owner.
fn set_id_files(calls: &mut Calls) {
    for (call, argument) in WITH_MODE {
        calls.refuse_if(*call, vec![(*argument, Condition::Has(SET_ID_BITS))]);
    }
    let both =
        |flags, mode| vec![(flags, Condition::Has(CREATING_FLAGS)), (mode, Condition::Has(SET_ID_BITS))];
    #[cfg(target_arch = "x86_64")]
    calls.refuse_if(libc::SYS_open, both(1, 2));
    calls.refuse_if(libc::SYS_openat, both(2, 3));
}

/// Sockets of the kinds that a program of this level and network may have.
fn sockets(calls: &mut Calls, level: Level, network: &Network) {
    let families: &[u32] = match (level, network) {
        (Level::Full, _) => &[UNIX, INET, INET6, NETLINK],
        (Level::Floor, Network::Open) => &[INET, INET6],
        (Level::Floor, Network::None | Network::Loopback | Network::Proxy { .. }) => &[],
    };
    let is_kind = |kind| (1, Condition::Masked { mask: SOCKET_TYPE_MASK, value: kind });
    // Without a family that is allowed the rule has no condition, and always holds.
    let others = families.iter().map(|family| (0, Condition::IsNot(*family))).collect();
    calls.refuse_if(libc::SYS_socket, others);
    for family in [INET, INET6] {
        for kind in [libc::SOCK_RAW.unsigned_abs(), SOCK_PACKET] {
            calls.refuse_if(libc::SYS_socket, vec![(0, Condition::Is(family)), is_kind(kind)]);
        }
    }
    // NETLINK_ROUTE lists interfaces; the other protocols reach deep into the kernel.
    calls.refuse_if(libc::SYS_socket, vec![(0, Condition::Is(NETLINK)), (2, Condition::IsNot(0))]);
    calls.refuse_if(libc::SYS_socketpair, vec![(0, Condition::IsNot(UNIX))]);
    if level == Level::Floor {
        // One of a pair of datagram sockets can send to any path; connected streams cannot.
        calls.refuse_if(libc::SYS_socketpair, vec![is_kind(libc::SOCK_DGRAM.unsigned_abs())]);
    }
}

/// As the kernel's audit names it: the machine, 64 bits, little-endian.
const fn audit_arch() -> u32 {
    let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    machine | 0x8000_0000 | 0x4000_0000
}

#[cfg(test)]
mod tests {
    use super::super::filter::tests::check;
    use super::*;

    fn every() -> Vec<(Level, Network)> {
        let proxy = Network::Proxy { socket: "/run/proxy/socket".into() };
        let networks = [Network::Open, Network::None, Network::Loopback, proxy];
        let with = |level| networks.iter().map(move |network| (level, network.clone()));
        with(Level::Floor).chain(with(Level::Full)).collect()
    }

    #[test]
    fn every_level_and_network_compiles() {
        for (level, network) in every() {
            let instructions = program(level, &network).len();
            assert!((100..4096).contains(&instructions), "{level} {network:?}: {instructions}");
        }
    }

    /// Every number, with arguments around those that rules are about.
    #[test]
    fn every_call_is_treated_as_the_rules_say() {
        let values =
            [0, 1, 2, 3, 10, 16, 35, 40, 0x5412, 0x0802_0000, 0o4755, 0o100, u64::MAX, 1 << 32 | 0x5412];
        for (level, network) in every() {
            let numbers = (0..=newest() + 3).chain([X32_BIT, X32_BIT + 101, u32::MAX]);
            let asked = numbers.flat_map(|number| {
                values.iter().enumerate().flat_map(move |(index, one)| {
                    let other = values[(index + 3) % values.len()];
                    let arguments = [[*one, other, *one, other, 0, 0], [2, *one, other, *one, 0, 0]];
                    arguments.map(|arguments| (number, arguments))
                })
            });
            check(&calls(level, &network), newest(), asked);
        }
    }
}
