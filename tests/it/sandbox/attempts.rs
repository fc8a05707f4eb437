//! The attempts of the list of escapes, as lines of a script: what each does, where its effect is seen, and at which level it
//! succeeds.

/// Where the effect of an attempt is seen.
#[derive(Debug, Clone, Copy)]
pub(super) enum Seen {
    /// Nowhere outside: the kernel lets it happen or not, and the exit code says which.
    Inside,
    /// One of these files is no longer as it was, or gone.
    Changed(&'static [&'static str]),
    /// One of these names is there.
    Made(&'static [&'static str]),
    /// The mode, the owner or the times of this file, or its attributes, are others.
    Metadata(&'static str),
    /// Another session's database says something else.
    Database,
    /// A file that is run as its owner lies in the workspace.
    SetId,
    /// A listener of this name was reached.
    Reached(&'static str),
}

/// Who succeeds where nothing confines a session: the proof that an attempt bites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Off {
    Both,
    Root,
    User,
    /// It depends on the machine, or would do harm: it is not made at all.
    Skip,
}

/// One attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    /// The name in the list, and a letter where there are several ways.
    pub(super) name: &'static str,
    /// What the shell does.
    pub(super) line: &'static str,
    pub(super) seen: Seen,
    pub(super) off: Off,
    /// The gap that lets it succeed at floor; nothing where it is held there, too.
    pub(super) gap: Option<&'static str>,
    /// The gap is one for root alone.
    pub(super) root_alone: bool,
}

const fn held(name: &'static str, line: &'static str, seen: Seen, off: Off) -> Attempt {
    Attempt { name, line, seen, off, gap: None, root_alone: false }
}

const fn open(name: &'static str, line: &'static str, seen: Seen, gap: &'static str) -> Attempt {
    Attempt { name, line, seen, off: Off::Both, gap: Some(gap), root_alone: false }
}

const READS: &str = "metadata_read";
const CHANGES: &str = "metadata_change";

use Off::{Both, Root, Skip, User};
use Seen::{Changed, Database, Inside, Made, Metadata, Reached, SetId};

/// Files: `$O` is outside, `$R` may be read, `$W` is the session's own, `$S` another session's, `$D` the data directory.
pub(super) const FILES: &[Attempt] = &[
    held("F01", "$A read $O/f01", Inside, Both),
    held("F02", "ls $O", Inside, Both),
    held("F12", "ln -s $O/f01 l12; $A read l12", Inside, Both),
    held("F14a", "$A read /proc/self/root$O/f01 || $A read /proc/1/root$O/f01", Inside, Both),
    held("F14b", "$A read /proc/self/cwd/../../../../outside/f01", Inside, Both),
    held("F18", "sqlite3 $S/work/other.db 'select word from t' | grep -q secret", Inside, Both),
    held("F20", "$A read /etc/shadow", Inside, Root),
    open("F25", "$A stat $O/f01", Inside, READS),
    open("F26", "$A readlink $O/link || $A access $O/f01", Inside, READS),
    open("F27", "$A getxattr $O/f27", Inside, READS),
    open("F28", "$A inotify $O", Inside, "watch"),
    held("F29", "$A fanotify", Inside, Root),
    held("F30", "$A handle $O/f01", Inside, Root),
    held("F31", "$A ring-open $O/f01", Inside, Both),
    held("F33", "$A mknod $W/device $DISK", Inside, Skip),
    held("F39", "mkdir place; $A bind $O $W/place", Inside, Skip),
    held("F40", "mkdir bound; $A user-namespace-and-bind $O $W/bound f01", Inside, Both),
    held("F41", "$A chroot $O/f01", Inside, Root),
    held("F43", "$A open-tree $O f01", Inside, Root),
    held("F45", "$A setns", Inside, Root),
    held("F03", "$A append $O/f03", Changed(&["outside/f03"]), Both),
    held("F04", "$A open-and-cut $O/f04", Changed(&["outside/f04"]), Both),
    held("F05", "$A truncate $O/f05", Changed(&["outside/f05"]), Both),
    held("F06a", "$A create $O/n1", Made(&["outside/n1"]), Both),
    held("F06b", "$A mkdir $O/n2", Made(&["outside/n2"]), Both),
    held("F06c", "$A symlink $O/n3", Made(&["outside/n3"]), Both),
    held("F06d", "$A mkfifo $O/n4", Made(&["outside/n4"]), Both),
    held("F08", "$A unlink $O/f08", Changed(&["outside/f08"]), Both),
    held("F09a", "$A rename $O/f09a taken", Changed(&["outside/f09a"]), Both),
    held("F09b", "echo mine > mine; $A rename mine $O/f09b", Changed(&["outside/f09b"]), Both),
    held("F09c", "echo mine > mine; $A exchange mine $O/f09c", Changed(&["outside/f09c"]), Both),
    held("F11", "$A link $O/f11 l11 && $A append l11", Changed(&["outside/f11"]), Both),
    held("F13", "ln -s $O/f13 l13; echo x >> l13", Changed(&["outside/f13"]), Both),
    held("F19", "sqlite3 $S/work/other.db \"update t set word = 'changed'\"", Database, Both),
    open("F21a", "$A chmod $O/f21a 0777", Metadata("outside/f21a"), CHANGES),
    open("F21b", "$A fchmodat2 $O/f21b 0777", Metadata("outside/f21b"), CHANGES),
    open("F21c", "$A chmod $R/f21c 0777", Metadata("readable/f21c"), CHANGES),
    held("F22", "$A chown $O/f22 1", Metadata("outside/f22"), Root),
    open("F23", "$A setxattr $O/f23", Metadata("outside/f23"), CHANGES),
    open("F24", "$A utimes $O/f24", Metadata("outside/f24"), CHANGES),
    held("F37a", "$A open-for-writing /proc/sys/kernel/core_pattern", Inside, Root),
    held("F37b", "$A open-for-writing /proc/sysrq-trigger", Inside, Skip),
    held(
        "F37c",
        "$A open-for-writing $(ls /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs | head -1)",
        Inside,
        Root,
    ),
    held("F35", "$A create /dev/shm/$M", Made(&["/dev/shm/$M"]), Both),
    held("F36", "$A create /tmp/$M", Made(&["/tmp/$M"]), Both),
    held(
        "F44",
        "touch s1 s2; $A chmod s1 04755; $A fchmodat2 s2 04755; $A set-id-by-open s3; $A set-id-by-openat2 s4; \
         $A set-id-by-mknod s5",
        SetId,
        Both,
    ),
    held("F46", "$A append $R/text; $A create $R/new", Changed(&["readable/text"]), Both),
    Attempt { root_alone: true, off: Root, ..open("F47", "$A chmod /dev/null 0666", Inside, CHANGES) },
    held(
        "F48",
        "for n in kallsyms kcore keys kmsg kpagecount; do $A read /proc/$n && exit 0; done; false",
        Inside,
        Skip,
    ),
    open("F49", "$A flags $R/f49", Inside, CHANGES),
];

/// Processes: `$V1`, `$V2` and `$V3` are another session's, `$H` is the host, `$K` and `$L` are keepers.
pub(super) const PROCESSES: &[Attempt] = &[
    held("I01", "$A kill $V1", Made(&["$S/work/signals-1"]), Both),
    held("I02", "$A tgkill $V2; $A pidfd-signal $V2", Made(&["$S/work/signals-2"]), Both),
    held("I36", "$A sigio $V3", Made(&["$S/work/signals-3"]), Both),
    held("I03", "$A ptrace $V1", Inside, Both),
    held("I04", "$A memory $V1", Inside, Both),
    held("I05", "$A vm-read $V1", Inside, Both),
    held("I06", "$A read /proc/$V1/environ", Inside, Both),
    held("I07", "$A read /proc/$V1/cmdline", Inside, Both),
    held("I08", "ls /proc | grep -qx $V1", Inside, Both),
    held("I15", "$A pidfd-getfd $V1", Inside, Both),
    held("I17", "$A prlimit $V1; $A setpriority $V1", Inside, Both),
    held("I18", "$A terminal-input || $A terminal-input-high-bits", Inside, Both),
    held("I19", "readlink /proc/$$/fd/* | grep -v -e '^/dev/null$' -e '^pipe:'", Inside, Skip),
    held("I20a", "env | grep host-secret", Inside, Skip),
    held("I20b", "cat /proc/[0-9]*/environ | grep -a host-secret", Inside, Skip),
    held("I22", "test \"$(ulimit -Hc)\" != 0", Inside, Skip),
    held("I26", "$R/set-id effective-root", Inside, User),
    held("I27", "$A capabilities", Inside, Both),
    held(
        "I37",
        "p=$PPID; $A read /proc/$p/environ || ls /proc/$p/root/ || readlink /proc/$p/exe || $A memory $p",
        Inside,
        Skip,
    ),
    held("I09", "$A abstract $M", Reached("abstract"), Both),
    held("I10", "$A unix-stream $O/stream", Reached("stream"), Both),
    held("I11", "$A unix-datagram $O/datagram; $A unix-datagram-pair $O/datagram", Reached("datagram"), Both),
    held("I12", "$A shared-memory $SHM", Inside, Both),
    held("I13", "$A message-queue $M", Inside, Both),
    held("I14", "$A read-key $M", Inside, Both),
    held("N04", "$A raw || $A packet", Inside, Root),
    held("N07", "$A vsock", Inside, Skip),
    held("K08", "$A alg || $A netfilter", Inside, Skip),
    held("K02", "$A perf", Inside, Skip),
    held("K03", "$A userfaultfd", Inside, Both),
    held("K04", "$A keyctl || $A add-key $M-new", Inside, Both),
    held("K05", "$A io-uring", Inside, Both),
    held("K06", "$A user-namespace || $A clone-namespace || $A clone3-namespace", Inside, Both),
    held("K11", "$A bpf || $A module || $A kexec", Inside, Skip),
    held("K12", "$A syslog", Inside, Root),
    held("K13", "$A set-host-name", Inside, Root),
    held("K14", "$A x32", Inside, Skip),
    held("K15", "$A newer-than-known", Inside, Skip),
];

/// The host itself, and what it keeps.
pub(super) const HOST: &[Attempt] = &[
    held(
        "H01",
        "for p in $H $K $L; do $A kill $p || $A tgkill $p || $A pidfd-signal $p && exit 0; done; false",
        Inside,
        Skip,
    ),
    // Whether the signal is delivered is seen in the host, which goes on.
    held("H18", "for p in $H $K $L; do $A sigio $p; done; false", Inside, Skip),
    held("H02", "$A ptrace $H || $A ptrace $K || $A ptrace $L", Inside, Skip),
    held(
        "H03",
        "$A memory $H || $A memory $K || $A memory $L || $A vm-read $H || $A vm-read $K",
        Inside,
        Skip,
    ),
    held(
        "H04",
        "$A read /proc/$H/environ || $A read /proc/$K/environ || $A read /proc/$L/environ",
        Inside,
        Skip,
    ),
    held("H05", "$A pidfd-getfd $H || $A pidfd-getfd $K || $A pidfd-getfd $L", Inside, Skip),
    held("H06", "$A prlimit $H || $A setpriority $H || $A prlimit $K || $A setpriority $K", Inside, Skip),
    held("H07", "$A read /proc/$H/cmdline || ls /proc/$H/fd/ || ls /proc/$H/root/", Inside, Skip),
    held("H08", "$A unix-stream $D/host.sock", Inside, Both),
    held("H09", "$A read $D/roomette.db", Inside, Both),
    held("H10", "$A open-for-writing $D/roomette.db", Inside, Both),
    held("H11", "ls $D $D/sessions $D/output | grep -e host -e roomette -e ${S##*/}", Inside, Both),
    held("H12", "$A read $D/host.lock || $A open-for-writing $D/host.lock", Inside, Both),
    held("H13", "ls $S || ls $S/work || $A read $S/session.json", Inside, Both),
    held("H14a", "$A create $D/made", Made(&["data/made"]), Both),
    held("H14b", "$A create $W/../made", Made(&["$T/made"]), Both),
    held("H14c", "$A create $S/made", Made(&["$S/made"]), Both),
    held(
        "H15",
        "$A open-for-writing $W/../keeper.json || $A open-for-writing $W/../session.json",
        Inside,
        Both,
    ),
    held("H16", "$A rename $W $W/../gone; test ! -d $W", Inside, Skip),
    held("H17", "$A create $W/../context/made", Inside, Skip),
];

/// Without a network: `$PORT_…` are those of listeners of the host.
pub(super) const NETWORK: &[Attempt] = &[
    held("N01", "$A tcp $PORT_N01", Reached("N01"), Both),
    held("N03", "$A udp $PORT_UDP", Reached("UDP"), Both),
    held("N10", "$A tcp6 $PORT_N10", Reached("N10"), Skip),
    held("N11", "$A mptcp $PORT_N11", Reached("N11"), Skip),
    held("N12", "$A fast-open $PORT_N12", Reached("N12"), Skip),
    held("N08", "$A ring-connect $PORT_N08", Reached("N08"), Both),
    held("N15", "$A int80 $PORT_N15", Reached("N15"), Skip),
    held("N06", "$A interfaces | grep -vx -e lo -e '[-0-9].*'", Inside, Skip),
    held(
        "I30",
        "grep -i \":$HEX_N01 \" /proc/net/tcp || grep -i \":$HEX_N01 \" /proc/self/net/tcp",
        Inside,
        Both,
    ),
    held("N02", "mkfifo release-2; $A bind-and-listen <> release-2 > port-2", Reached("port-2"), Both),
    held("N14", "mkfifo release-14; $A listen <> release-14 > port-14", Reached("port-14"), Both),
];
