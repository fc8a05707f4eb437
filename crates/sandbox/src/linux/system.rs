//! What the system itself consists of, as far as every session may read it.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};

/// Programs and libraries. Where one is a symbolic link, so it is in the session.
pub(super) const PROGRAMS: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// The files of `/etc` that programs need to find names, certificates, libraries and the time. No keys, no shadow.
const ETC: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "environment",
    "fonts",
    "gai.conf",
    "gitconfig",
    "group",
    "host.conf",
    "hostname",
    "hosts",
    "inputrc",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "mailcap",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "perl",
    "pki/ca-trust",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "resolv.conf",
    "rpc",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vimrc",
    "xattr.conf",
];

/// Devices without a memory of who used them.
pub(super) const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom"];

/// What of `/proc` concerns the machine and nobody in particular; at floor nothing else of it can be read.
pub(super) const PROC_OF_MACHINE: &[&str] = &[
    "cpuinfo",
    "filesystems",
    "loadavg",
    "meminfo",
    "stat",
    "sys/fs/file-max",
    "sys/fs/pipe-max-size",
    "sys/kernel/cap_last_cap",
    "sys/kernel/ngroups_max",
    "sys/kernel/osrelease",
    "sys/kernel/ostype",
    "sys/kernel/pid_max",
    "sys/kernel/random/boot_id",
    "sys/kernel/random/uuid",
    "sys/kernel/threads-max",
    "sys/net/core/somaxconn",
    "sys/vm/max_map_count",
    "sys/vm/mmap_min_addr",
    "sys/vm/overcommit_memory",
    "uptime",
    "version",
];

/// What a program may read of itself under `/proc/<pid>` at floor: no environment, no mounts, no table of sockets.
pub(super) const PROC_OF_SELF: &[&str] = &[
    "auxv",
    "cgroup",
    "cmdline",
    "comm",
    "fd",
    "fdinfo",
    "limits",
    "loginuid",
    "maps",
    "oom_score",
    "smaps_rollup",
    "stat",
    "statm",
    "status",
];

/// What of `/proc` tells about the kernel or about others in any pid namespace; empty inside at full.
pub(super) const PROC_MASKED: &[&str] = &[
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "sched_debug",
    "slabinfo",
    "sysrq-trigger",
    "timer_list",
    "vmallocinfo",
];

/// The files of `/etc` that there are.
pub(super) fn etc() -> impl Iterator<Item = Utf8PathBuf> {
    ETC.iter().map(|name| Utf8Path::new("/etc").join(name))
}

/// Where the resolver's configuration really lies, if that is outside `/etc` and `/usr`.
pub(super) fn resolver_elsewhere() -> Option<Utf8PathBuf> {
    let real = Utf8PathBuf::from_path_buf(fs::canonicalize("/etc/resolv.conf").ok()?).ok()?;
    let elsewhere = !real.starts_with("/etc") && !real.starts_with("/usr") && !real.starts_with("/proc");
    elsewhere.then_some(real)
}
