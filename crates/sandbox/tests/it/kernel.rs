//! Doors into the kernel that no program of a session needs.

use crate::escape::escapes;
use crate::room::Room;

escapes! {
    k02_perf_events: Unjudged, Held, Held => perf_events;
    k03_userfaultfd: Leaks, Held, Held => userfaultfd;
    k04_keyctl: Leaks, Held, Held => keyctl;
    k05_io_uring: Leaks, Held, Held => io_uring;
    k06_nested_user_namespace: Leaks, Held, Held => nested_user_namespace;
    k11_programs_and_modules: Leaks, Held, Held => programs_and_modules;
    k12_kernel_log: LeaksForRoot, Held, Held => kernel_log;
    k13_host_name: LeaksForRoot, Held, Held => host_name;
    k14_calls_of_x32: Unjudged, Held, Held => calls_of_x32;
    k15_calls_newer_than_the_filter: Unjudged, Held, Held => calls_newer_than_the_filter;
}

fn perf_events(room: &Room) -> bool {
    room.attempt(&["perf"])
}

fn userfaultfd(room: &Room) -> bool {
    room.attempt(&["userfaultfd"])
}

fn keyctl(room: &Room) -> bool {
    room.attempt(&["keyctl"])
}

fn io_uring(room: &Room) -> bool {
    room.attempt(&["io-uring"])
}

fn nested_user_namespace(room: &Room) -> bool {
    ["user-namespace", "clone-namespace", "clone3-namespace"].iter().any(|way| room.attempt(&[way]))
}

fn programs_and_modules(room: &Room) -> bool {
    ["bpf", "module", "kexec"].iter().any(|door| room.attempt(&[door]))
}

fn kernel_log(room: &Room) -> bool {
    room.attempt(&["syslog"])
}

fn host_name(room: &Room) -> bool {
    room.attempt(&["set-host-name"])
}

fn calls_of_x32(room: &Room) -> bool {
    cfg!(target_arch = "x86_64") && room.attempt(&["x32"])
}

fn calls_newer_than_the_filter(room: &Room) -> bool {
    room.attempt(&["newer-than-known"])
}
