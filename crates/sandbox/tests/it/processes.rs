//! Other processes, and what a session inherits from its own launcher.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use crate::escape::escapes;
use crate::room::{Guard, Room, Who, confine_program, said};

escapes! {
    i01_kill: Leaks, Held, Held => kill;
    i02_other_ways_to_signal: Leaks, Held, Held => other_ways_to_signal;
    i36_signal_by_input: Leaks, Held, Held => signal_by_input;
    i03_ptrace: Leaks, Held, Held => ptrace;
    i04_memory: Leaks, Held, Held => memory;
    i05_read_memory: Leaks, Held, Held => read_memory;
    i06_environment: Leaks, Held, Held => environment;
    i07_command_line: Leaks, Held, Held => command_line;
    i08_list_of_processes: Leaks, Held, Held => list_of_processes;
    i15_take_a_descriptor: Leaks, Held, Held => take_a_descriptor;
    i17_limits_and_priority: Leaks, Held, Held => limits_and_priority;
    i17_priority_of_all_processes: Leaks, Held, Unjudged => priority_of_all;
    i18_terminal_input: Leaks, Held, Held => terminal_input;
    i18_typing_into_the_callers_terminal: LeaksForRoot, Held, Held => typing_into_the_callers_terminal;
    i19_inherited_descriptors: Leaks, Held, Held => inherited_descriptors;
    i19_output_opened_again: Leaks, Held, Held => output_opened_again;
    i20_environment_of_the_launcher: Leaks, Held, Held => environment_of_the_launcher;
    i22_core_dumps: Unjudged, Held, Held => core_dumps;
    i26_set_user_id_program: LeaksForUser, Held, Held => set_user_id_program;
    i27_capabilities: Leaks, Held, Held => capabilities;
    i37_environment_of_the_outer_launcher: Leaks, Held, Held => look_into_the_launcher;
}

/// Whether a signal reaches a process outside, as that process tells it.
fn signalled(room: &Room, attempts: &[&str]) -> bool {
    let victim = room.victim();
    for attempt in attempts {
        room.attempt(&[attempt, &victim.pid()]);
    }
    victim.end();
    room.path("outside/signals").exists()
}

/// Whether the attempt on a process outside succeeds.
fn on_a_victim(room: &Room, attempts: &[&str]) -> bool {
    let victim = room.victim();
    let done = attempts.iter().any(|attempt| room.attempt(&[attempt, &victim.pid()]));
    victim.end();
    done
}

fn reads_of_a_victim(room: &Room, file: &str) -> bool {
    let victim = room.victim();
    let path = format!("/proc/{}/{file}", victim.pid());
    let read = room.attempt(&["read", &path]);
    victim.end();
    read
}

fn kill(room: &Room) -> bool {
    signalled(room, &["kill"])
}

fn other_ways_to_signal(room: &Room) -> bool {
    signalled(room, &["tgkill", "pidfd-signal"])
}

fn signal_by_input(room: &Room) -> bool {
    signalled(room, &["sigio"])
}

fn ptrace(room: &Room) -> bool {
    on_a_victim(room, &["ptrace"])
}

fn memory(room: &Room) -> bool {
    on_a_victim(room, &["memory"])
}

fn read_memory(room: &Room) -> bool {
    on_a_victim(room, &["vm-read"])
}

fn environment(room: &Room) -> bool {
    reads_of_a_victim(room, "environ")
}

fn command_line(room: &Room) -> bool {
    reads_of_a_victim(room, "cmdline")
}

fn list_of_processes(room: &Room) -> bool {
    let victim = room.victim();
    let listed = String::from_utf8_lossy(&room.shell("ls /proc; true").stdout).into_owned();
    let pid = victim.pid();
    victim.end();
    listed.lines().any(|line| line == pid)
}

fn take_a_descriptor(room: &Room) -> bool {
    on_a_victim(room, &["pidfd-getfd"])
}

fn limits_and_priority(room: &Room) -> bool {
    on_a_victim(room, &["prlimit", "setpriority"])
}

/// By naming nobody in particular, all processes of the user are meant: outside there are some, in a namespace none.
fn priority_of_all(room: &Room) -> bool {
    room.attempt(&["setpriority-of-user"]) || room.attempt(&["ioprio-of-user"])
}

fn terminal_input(room: &Room) -> bool {
    room.attempt(&["terminal-input"]) || room.attempt(&["terminal-input-high-bits"])
}

/// The terminal shows what was typed, so the effect is seen in what the terminal prints.
fn typing_into_the_callers_terminal(room: &Room) -> bool {
    if room.guard == Guard::Off && room.who == Who::User {
        // The kernel may keep it from all but root.
        return false;
    }
    let program = room.text("readable/attempt");
    let words = room.options_for(&[&program, "type-into-terminal", "typed"]);
    let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
    let line = format!("{} {} > /dev/null; true", confine_program().display(), quoted.join(" "));
    let output = room.outside("script").args(["-qec", &line, "/dev/null"]).output().unwrap();
    assert!(output.status.success(), "script (of util-linux) makes the terminal: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).contains("typed")
}

fn inherited_descriptors(room: &Room) -> bool {
    let script = "exec 9<\"$1\" 10<\"$2\"; shift 2; exec \"$@\"";
    let inside = "cat <&9; cat /proc/self/fd/9 /dev/fd/9; cat /proc/self/fd/10/secret; ls -l /proc/self/fd";
    let mut command = room.outside("bash");
    command.args(["-c", script, "bash", &room.text("outside/secret"), &room.text("outside")]);
    command.arg(confine_program()).args(room.options_for(&["/bin/sh", "-c", inside]));
    String::from_utf8_lossy(&command.output().unwrap().stdout).contains("secret")
}

/// What the program may append to is not cut or read by opening it a second time.
fn output_opened_again(room: &Room) -> bool {
    let log = fs::File::options().create(true).append(true).open(room.path("outside/log")).unwrap();
    room.give("outside/log");
    (&log).write_all(b"secret\n").unwrap();
    let script = "exec 3>&1; cat /proc/self/fd/3 /dev/fd/3 >&2; echo cut > /proc/self/fd/1; echo cut > /dev/stdout; true";
    let mut command = room.inside(&["/bin/sh", "-c", script]);
    let output = command.stdout(log).stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success());
    let read = String::from_utf8_lossy(&output.stderr).contains("secret");
    read || !fs::read_to_string(room.path("outside/log")).unwrap().starts_with("secret\n")
}

fn environment_of_the_launcher(room: &Room) -> bool {
    let mut command = room.inside(&["/bin/sh", "-c", "env; cat /proc/*/environ; true"]);
    command.env("LAUNCHER_TOKEN", "launcher-secret");
    String::from_utf8_lossy(&command.output().unwrap().stdout).contains("launcher-secret")
}

fn core_dumps(room: &Room) -> bool {
    let output = room.shell("ulimit -Hc");
    String::from_utf8_lossy(&output.stdout).trim() != "0"
}

/// Only root can make such a program, and only others gain from it. Where the tests are not root they ask the kernel
/// whether any program could.
fn set_user_id_program(room: &Room) -> bool {
    if room.who == Who::Root {
        return false;
    }
    if !rustix::process::getuid().is_root() {
        return room.attempt(&["programs-may-gain"]);
    }
    let program = room.path("readable/attempt");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    room.attempt(&["effective-root"])
}

fn capabilities(room: &Room) -> bool {
    room.attempt(&["capabilities"])
}

/// The processes of the launcher belong to the same user, and are no way out. At full the first process is ours.
fn look_into_the_launcher(room: &Room) -> bool {
    let script = "p=$PPID
        cat /proc/$p/environ >/dev/null 2>&1 && echo environ; ls /proc/$p/root/ >/dev/null 2>&1 && echo root
        readlink /proc/$p/fd/0 /proc/$p/exe /proc/$p/cwd && echo fd; (exec 9</proc/$p/mem) 2>/dev/null && echo mem
        test $p = 1 && kill -9 1; true";
    let output = room.shell(script);
    assert!(output.status.success(), "the launcher was ended from inside");
    !output.stdout.is_empty()
}
