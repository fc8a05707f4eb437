//! The escapes by name: each has its tests at every level, and none of them can be lost.

use std::collections::BTreeSet;
use std::process::Command;

use crate::room::skipped;

/// The levels that every name is tried at.
const LEVELS: [&str; 3] = ["off", "floor", "full"];

/// F files, W what is planted in the workspace, I processes and what they share, N network, K kernel, R resources and
/// orphans, T races. W05 is a control: what must go on working.
const NAMES: &[(&str, &str)] = &[
    ("F01", "read file outside scope"),
    ("F02", "list directory outside scope"),
    ("F12", "read through a symlink planted in scope"),
    ("F14", "read via /proc/self/root and /proc/self/cwd/.."),
    ("F18", "read another session's SQLite database"),
    ("F20", "read /etc/shadow"),
    ("F25", "stat() file outside (existence, size, times)"),
    ("F26", "readlink()/access() of names outside"),
    ("F27", "getxattr() outside"),
    ("F28", "inotify watch outside (activity leak)"),
    ("F29", "fanotify: fds of files others open (root)"),
    ("F30", "open_by_handle_at root inode (root)"),
    ("F31", "io_uring OPENAT outside scope"),
    ("F33", "raw block device: open /dev/… or mknod in scope (root)"),
    ("F39", "bind-mount outside into scope (root caps)"),
    ("F40", "new user+mount namespace, then bind mount"),
    ("F41", "chroot + fchdir breakout"),
    ("F43", "open_tree(CLONE) detached mount read"),
    ("F03", "append to file outside"),
    ("F04", "open(O_TRUNC) outside"),
    ("F05", "truncate(2) outside"),
    ("F06", "create file / dir / symlink / fifo outside"),
    ("F08", "unlink outside"),
    ("F09", "rename outside file into scope, or over outside file"),
    ("F11", "hard link outside file into scope, then write"),
    ("F13", "write through symlink planted in scope"),
    ("F19", "write another session's SQLite database"),
    ("F21", "chmod outside"),
    ("F22", "chown outside (root)"),
    ("F23", "setxattr outside"),
    ("F24", "utimes outside"),
    ("F37", "open for writing: core_pattern, sysrq-trigger, cgroup.procs, uevent_helper (root)"),
    ("F35", "/dev/shm shared with other sessions"),
    ("F36", "/tmp shared with other sessions"),
    ("F44", "make a setuid file in scope (root: usable by all users)"),
    ("W01", "plant a git hook in the workspace (runs outside later)"),
    ("W02", "change .git/config (fsmonitor, sshCommand run outside)"),
    ("W03", "create .vscode/tasks.json / .mcp.json that was not there"),
    ("W04", "rename .git away, put an own .git with hooks in place"),
    ("W05", "control: git commit in the workspace still works (FAIL = broken work)"),
    ("I19", "use inherited file descriptors"),
    ("I20", "launcher's secret environment visible"),
    ("I22", "core dumps enabled (RLIMIT_CORE hard > 0)"),
    ("I01", "kill(): signal another process"),
    ("I02", "pidfd_send_signal / tgkill"),
    ("I36", "SIGIO via F_SETOWN to another process"),
    ("I03", "ptrace attach to another process"),
    ("I04", "/proc/PID/mem of another process"),
    ("I05", "process_vm_readv"),
    ("I06", "/proc/PID/environ of another process / the supervisor"),
    ("I07", "/proc/PID/cmdline of another process (tokens in argv)"),
    ("I08", "process list of the host"),
    ("I15", "pidfd_getfd: steal an fd of another process"),
    ("I17", "setpriority / prlimit on another process"),
    ("I09", "abstract unix socket of another session"),
    ("I10", "pathname unix socket outside scope (agent, docker.sock)"),
    ("I11", "pathname unix datagram outside scope"),
    ("I12", "SysV shared memory of another session"),
    ("I13", "POSIX message queue of another session"),
    ("I14", "kernel keyring: user key of another session"),
    ("I30", "/proc/net: sockets of the host listed"),
    ("I26", "setuid program gains root"),
    ("I27", "capabilities held (CapEff or CapBnd usable)"),
    ("N01", "TCP connect 127.0.0.1"),
    ("N02", "TCP bind+listen reachable from the host"),
    ("N03", "UDP to 127.0.0.1"),
    ("N10", "TCP connect ::1"),
    ("N11", "MPTCP connect (not a TCP socket for Landlock)"),
    ("N12", "TCP Fast Open: sendto(MSG_FASTOPEN) connects without connect()"),
    ("N14", "listen() without bind (ephemeral port)"),
    ("N08", "io_uring SOCKET+CONNECT"),
    ("N15", "int 0x80 socket+connect (32-bit syscalls)"),
    ("N04", "raw / packet socket (root)"),
    ("N06", "netlink route dump shows host interfaces"),
    ("N07", "AF_VSOCK socket (host bridge) can be made"),
    ("K02", "perf_event_open"),
    ("K03", "userfaultfd"),
    ("K04", "keyctl"),
    ("K05", "io_uring_setup"),
    ("K06", "nested user namespace"),
    ("K08", "AF_ALG / netfilter netlink sockets"),
    ("K11", "bpf / init_module / kexec reach the kernel (root)"),
    ("K12", "kernel log (syslog)"),
    ("K13", "sethostname in the host's UTS namespace (root)"),
    ("K14", "x32 syscall numbers get past the filter"),
    ("I18", "TIOCSTI into the caller's terminal"),
    ("R01", "fork bomb: 400 processes at once"),
    ("R02", "memory bomb: 1 GiB touched"),
    ("R03", "disk fill: one file of 200 MiB in scope"),
    ("R04", "disk fill: 8 files of 32 MiB in scope + tmp"),
    ("R05", "daemon survives SIGKILL of the launcher"),
    ("R06", "daemon survives normal end of the command"),
    ("T01", "scope name swapped to a symlink after approval"),
    // Found later.
    ("F45", "entering another mount namespace (setns)"),
    ("F46", "writing in a root that may only be read"),
    ("F47", "chmod of a device that everybody uses"),
    ("F48", "tables of the kernel in /proc: symbols, keys, pages"),
    ("F49", "flags (chattr) of a file that may only be read"),
    ("W06", "rename .git/hooks away, put own hooks in place"),
    ("W07", "plant .git/commondir: hooks and configuration from elsewhere"),
    ("W08", "plant a hook in a repository inside the workspace"),
    ("W09", "change the configuration of a repository inside the workspace"),
    ("W10", "rename the .git of a repository inside the workspace away"),
    ("W11", "redirect a submodule by its pointer file"),
    ("W12", "open a read-only root by the guard of a repository in it"),
    // As W05 a control: commits in a repository inside the workspace.
    ("W13", "git works in a repository inside the workspace"),
    ("I37", "environment, root and descriptors of the session's own launcher"),
    ("K15", "system calls newer than the filter"),
];

/// The names of all tests of this binary, as the test harness lists them.
#[expect(clippy::disallowed_methods, reason = "the tests ask their own binary")]
fn tests() -> BTreeSet<String> {
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(["--list", "--format", "terse"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Name and level of a test such as `files::f01_read_a_file::off`.
fn name_and_level(test: &str) -> Option<(String, &str)> {
    let mut parts = test.split("::").skip(1);
    let (name, level) = (parts.next()?.split_once('_')?.0, parts.next()?);
    let (group, number) = name.split_at_checked(1)?;
    let is_name = number.len() == 2 && number.bytes().all(|digit| digit.is_ascii_digit());
    is_name.then(|| (format!("{}{number}", group.to_uppercase()), level))
}

#[test]
fn every_name_has_its_tests_and_every_test_its_name() {
    if skipped() {
        return;
    }
    let tests = tests();
    let tried: BTreeSet<_> = tests.iter().filter_map(|test| name_and_level(test)).collect();
    let named: BTreeSet<_> = NAMES.iter().map(|(name, _)| *name).collect();
    assert_eq!(named.len(), NAMES.len(), "a name stands twice in the list");
    let untried = NAMES.iter().flat_map(|(name, what)| {
        let missing = |level: &&str| !tried.contains(&((*name).to_owned(), *level));
        LEVELS.into_iter().filter(missing).map(move |level| format!("{name} at {level}: {what}"))
    });
    assert_eq!(untried.collect::<Vec<_>>(), [] as [String; 0], "names without a test");
    let unknown = tried.iter().map(|(name, _)| name.as_str()).filter(|name| !named.contains(name));
    assert_eq!(unknown.collect::<Vec<_>>(), [] as [&str; 0], "tests whose name is not in the list");
}
