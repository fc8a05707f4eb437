//! Poorer machines than this one, simulated: the right refusal, in words that help, and nothing ran.

use std::fs;
use std::process::Output;

use libc::c_long;
use sandbox::{Offer, RefusalCode, Support};

use crate::room::{Guard, Room, Who, confine_program, said, skipped};

/// What the machine says when it refuses: not permitted, not there, not valid. Nought: that it was done.
const NOT_PERMITTED: i32 = libc::EPERM;
const NOT_THERE: i32 = libc::ENOSYS;
const DONE: i32 = 0;

/// A system call that ends with this error.
fn lacks(call: c_long, error: i32) -> String {
    format!("{call}={error}")
}

/// The same where the argument has one of these bits.
fn lacks_with_bits(call: c_long, argument: u8, bits: u32, error: i32) -> String {
    format!("{call}&{argument}:{bits:#x}={error}")
}

/// The same where the argument is this value.
fn lacks_with_value(call: c_long, argument: u8, value: u32, error: i32) -> String {
    format!("{call}@{argument}:{value:#x}={error}")
}

/// A room on a machine that lacks what the words say.
struct Poor<'a> {
    room: Room,
    lacking: &'a [String],
}

impl<'a> Poor<'a> {
    fn new(room: Room, lacking: &'a [String]) -> Self {
        room.put("degrade", include_str!("degrade.c"), "outside/degrade");
        Self { room, lacking }
    }

    fn run(&self, confine: &[String]) -> Output {
        let mut command = self.room.outside(&self.room.text("outside/degrade"));
        command.args(self.lacking).arg("--").arg(confine_program()).args(confine).output().unwrap()
    }

    fn probe(&self) -> Support {
        let output = self.run(&["--probe".to_owned()]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(&output)))
    }

    /// Starts a program that leaves a file. Returns what was said about why it was not started.
    fn launch(&self, options: &[&str]) -> Option<String> {
        // The last `--level` counts.
        let room = self.room.with(options);
        let output = self.run(&room.options_for(&["/bin/sh", "-c", "echo x > ran"]));
        let ran = room.path("scope/ran").exists();
        if output.status.success() {
            assert!(ran, "{options:?} without {:?}: {}", self.lacking, said(&output));
            fs::remove_file(room.path("scope/ran")).unwrap();
            return None;
        }
        assert_eq!(output.status.code(), Some(125), "{}", said(&output));
        assert!(!ran, "{options:?} without {:?}: refused, and the program ran", self.lacking);
        Some(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Asks for a level, and expects that the program runs, or is refused in the words of the probe.
    fn launch_at(&self, level: &str, offer: &Offer) {
        let said = self.launch(&["--level", level]);
        match (offer, said) {
            (Offer::Works { .. }, None) => {}
            (Offer::Missing { refusal }, Some(text)) => {
                for part in ["no sandbox at level", &refusal.message, refusal.code.advice()] {
                    assert!(text.contains(part), "{level} without {:?}: {part:?} in {text}", self.lacking);
                }
            }
            (offer, said) => panic!("{level} without {:?}: {offer:?}, and {said:?}", self.lacking),
        }
    }
}

fn code(offer: &Offer) -> Option<RefusalCode> {
    match offer {
        Offer::Works { .. } => None,
        Offer::Missing { refusal } => Some(refusal.code),
    }
}

/// For every user: a machine that lacks this offers exactly that.
#[track_caller]
fn offers(lacking: &[String], full: Option<RefusalCode>, floor: Option<RefusalCode>) {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let poor = Poor::new(Room::new(Guard::Full, who), lacking);
        let support = poor.probe();
        let codes = [&support.full, &support.floor].map(code);
        assert_eq!(codes, [full, floor], "{who:?} without {lacking:?}: {support:?}");
        poor.launch_at("full", &support.full);
        poor.launch_at("floor", &support.floor);
        // The best there is: floor where full cannot be had, and nothing below it.
        poor.launch_at("best", if support.full.works() { &support.full } else { &support.floor });
    }
}

#[track_caller]
fn refuses(lacking: &[String], code: RefusalCode) {
    offers(lacking, Some(code), Some(code));
}

#[test]
fn a_machine_that_lacks_nothing_offers_all() {
    offers(&[], None, None);
}

#[test]
fn no_landlock_no_start() {
    for call in
        [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self]
    {
        refuses(&[lacks(call, NOT_THERE)], RefusalCode::Landlock);
    }
    // Built in and switched off.
    refuses(&[lacks(libc::SYS_landlock_create_ruleset, libc::EOPNOTSUPP)], RefusalCode::Landlock);
}

/// Before ABI 6 signals and abstract sockets are not held, before 5 devices, before 4 ports, before 3 truncation.
#[test]
fn an_old_landlock_is_as_good_as_none() {
    for abi in 1..=5 {
        refuses(&[format!("landlock-abi={abi}")], RefusalCode::Landlock);
    }
}

#[test]
fn landlock_of_abi_6_is_enough() {
    offers(&["landlock-abi=6".to_owned()], None, None);
}

#[test]
fn no_namespaces_is_floor() {
    let unshare = |flags, error| [lacks_with_bits(libc::SYS_unshare, 0, flags, error)];
    // By a container, by `user.max_user_namespaces`, by a kernel without them; and single kinds of them.
    for error in [NOT_PERMITTED, libc::ENOSPC, libc::EINVAL] {
        offers(&unshare(0x1000_0000, error), Some(RefusalCode::Namespaces), None);
    }
    for (flag, error) in [(0x2000_0000, libc::EINVAL), (0x4000_0000, NOT_PERMITTED)] {
        offers(&unshare(flag, error), Some(RefusalCode::Namespaces), None);
    }
    // The network's is made by one process, and the other one follows.
    offers(&[lacks(libc::SYS_setns, NOT_PERMITTED)], Some(RefusalCode::Namespaces), None);
}

/// As where `AppArmor` lets a namespace be made and takes its capabilities.
#[test]
fn no_mounts_is_floor() {
    for call in [
        libc::SYS_mount,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_pivot_root,
        libc::SYS_umount2,
    ] {
        offers(&[lacks(call, NOT_PERMITTED)], Some(RefusalCode::Mounts), None);
    }
    // An old kernel, or one of a container that knows the old calls alone.
    offers(&[lacks(libc::SYS_open_tree, NOT_THERE)], Some(RefusalCode::Mounts), None);
}

#[test]
fn no_filter_of_system_calls_no_start() {
    for error in [NOT_THERE, libc::EINVAL] {
        refuses(&[lacks(libc::SYS_seccomp, error)], RefusalCode::Seccomp);
    }
}

#[test]
fn limits_that_cannot_be_set_no_start() {
    // The new limit: its address, where there is one.
    let set = lacks_with_bits(libc::SYS_prlimit64, 2, 0xffff_f000, NOT_PERMITTED);
    refuses(&[set], RefusalCode::Limits);
}

#[test]
fn capabilities_that_cannot_be_given_up_no_start() {
    let no_new_privileges = lacks_with_value(libc::SYS_prctl, 0, 38, NOT_PERMITTED);
    refuses(&[no_new_privileges], RefusalCode::Capabilities);
}

/// The machine says yes and does nothing: the attempts from inside tell.
#[test]
fn a_machine_that_lies_is_found_out() {
    refuses(&[lacks(libc::SYS_landlock_restrict_self, DONE)], RefusalCode::SelfTest);
    refuses(&[lacks(libc::SYS_seccomp, DONE)], RefusalCode::SelfTest);
    offers(&[lacks(libc::SYS_unshare, DONE)], Some(RefusalCode::Namespaces), None);
    offers(&[lacks_with_bits(libc::SYS_unshare, 0, 0x4000_0000, DONE)], Some(RefusalCode::Namespaces), None);
    offers(&[lacks(libc::SYS_setns, DONE)], Some(RefusalCode::Namespaces), None);
    for call in [libc::SYS_move_mount, libc::SYS_pivot_root, libc::SYS_umount2] {
        offers(&[lacks(call, DONE)], Some(RefusalCode::Mounts), None);
    }
}

/// What only some users have to give up.
#[test]
fn roots_capabilities_that_stay_are_found_out() {
    if skipped() || !rustix::process::getuid().is_root() {
        return;
    }
    let lacking = [lacks(libc::SYS_capset, DONE)];
    let poor = Poor::new(Room::new(Guard::Full, Who::Root), &lacking);
    let support = poor.probe();
    assert_eq!(code(&support.floor), Some(RefusalCode::SelfTest), "{support:?}");
    assert!(!support.full.works(), "{support:?}");
    poor.launch_at("floor", &support.floor);
    poor.launch_at("best", &support.floor);
}

#[test]
fn a_network_that_cannot_be_built_no_start() {
    if skipped() {
        return;
    }
    let netlink = libc::AF_NETLINK.unsigned_abs();
    for (lacking, parts) in [
        // The level can be had, and the network that was asked for cannot.
        (
            lacks_with_value(libc::SYS_socket, 0, netlink, libc::EAFNOSUPPORT),
            ["loopback interface", RefusalCode::Network.advice()],
        ),
        // Without namespaces there is none of its own, and floor does not stand in for it.
        (
            lacks_with_bits(libc::SYS_unshare, 0, 0x1000_0000, NOT_PERMITTED),
            ["want level full", "namespaces cannot be made"],
        ),
    ] {
        for who in Who::all() {
            let lacking = std::slice::from_ref(&lacking);
            let poor = Poor::new(Room::new(Guard::Full, who), lacking);
            let text = poor.launch(&["--level", "best", "--net", "loopback"]).expect("a refusal");
            assert!(parts.iter().all(|part| text.contains(part)), "{who:?} without {lacking:?}: {text}");
        }
    }
}
