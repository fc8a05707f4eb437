//! The attempts, one row each: what is promised, what sees to it, and how it is found out.

use super::inside::{Aim, Trouble};
use super::judge::Judge::{self, Changed, Ended, Made, Port, Removed, Says, Secret, Seen, Tcp, Told, Works};
use super::outside::Place;
use super::{files, kernel, network, others, workspace};
use crate::gap::Gap;

/// What an attempt got.
pub(super) type Got = Result<String, Trouble>;
/// Makes an attempt.
type Make = fn(&Aim) -> Got;

/// One attempt.
pub(super) struct Attempt {
    pub(super) name: &'static str,
    pub(super) promise: &'static str,
    /// The layers at floor, and those that full adds.
    pub(super) enforced_by: [&'static str; 2],
    /// What the report names where it is not held.
    pub(super) gap: Option<Gap>,
    pub(super) judge: Judge,
    pub(super) make: Make,
}

const fn row(
    name: &'static str,
    promise: &'static str,
    enforced_by: [&'static str; 2],
    judge: Judge,
    make: Make,
) -> Attempt {
    Attempt { name, promise, enforced_by, gap: None, judge, make }
}

/// A row that a report may name as a gap.
const fn open(
    gap: Gap,
    name: &'static str,
    promise: &'static str,
    enforced_by: [&'static str; 2],
    judge: Judge,
    make: Make,
) -> Attempt {
    Attempt { name, promise, enforced_by, gap: Some(gap), judge, make }
}

const FILES: [&str; 2] = ["Landlock", "mount namespace"];
const NAMES: [&str; 2] = ["nothing", "mount namespace"];
const CALLS: [&str; 2] = ["system calls", ""];
const PROCESSES: [&str; 2] = ["Landlock", "pid namespace"];
const LOOKING: [&str; 2] = ["system calls, Landlock", "pid namespace"];
const PORTS: [&str; 2] = ["system calls, Landlock", "net namespace"];
const WORKSPACE: [&str; 2] = ["nothing", "read-only mounts"];
const SOCKETS: [&str; 2] = ["system calls", "mount namespace"];

/// All of them, in the order in which they are made: what might spoil others comes late.
pub(super) const ALL: &[Attempt] = &[
    row("F01", "a file outside cannot be read", FILES, Secret, files::read),
    row("F02", "a directory outside cannot be listed", FILES, Says("kept"), files::list),
    row("F03", "a file outside cannot be appended to", FILES, Changed, files::append),
    row("F04", "a file outside cannot be emptied", FILES, Changed, files::cut),
    row("F06", "nothing can be made outside", FILES, Made, files::create),
    row("F08", "a file outside cannot be removed", FILES, Removed, files::remove),
    row("F09", "a file outside cannot be moved into the workspace", FILES, Removed, files::rename),
    row("F11", "a file outside cannot be written through a hard link", FILES, Changed, files::link),
    row("F12", "a link in the workspace leads to nothing outside", FILES, Secret, files::read_through_link),
    row("F13", "nothing outside is written through a link", FILES, Changed, files::write_through_link),
    row("F14", "paths through /proc/self lead to nothing outside", FILES, Secret, files::read_through_proc),
    row("F20", "/etc/shadow cannot be read", FILES, Told, files::shadow),
    open(
        Gap::MetadataChange,
        "F21",
        "modes of files outside cannot be changed",
        NAMES,
        Seen(Place::has_mode),
        files::mode,
    ),
    open(
        Gap::MetadataChange,
        "F24",
        "times of files outside cannot be changed",
        NAMES,
        Seen(Place::has_old_time),
        files::times,
    ),
    open(
        Gap::MetadataRead,
        "F25",
        "size and times of files outside cannot be asked for",
        NAMES,
        Told,
        files::size,
    ),
    open(
        Gap::MetadataRead,
        "F26",
        "the existence of files outside cannot be asked for",
        NAMES,
        Told,
        files::existence,
    ),
    open(Gap::Watch, "F28", "activity in directories outside cannot be watched", NAMES, Told, files::watch),
    row(
        "F35",
        "/dev/shm is not shared with others",
        FILES,
        Seen(Place::shares_memory),
        files::shared_memory_file,
    ),
    row("F36", "/tmp is not shared with others", FILES, Seen(Place::shares_tmp), files::temporary_file),
    row(
        "F37",
        "files by which the kernel starts programs cannot be opened for writing",
        FILES,
        Told,
        files::kernel_hooks,
    ),
    row("F39", "nothing can be mounted into the workspace", CALLS, Secret, files::bind),
    row("F40", "own namespaces do not help to mount what is outside", CALLS, Secret, |aim| {
        super::inside::make_apart(aim, "F40")
    }),
    row("F41", "changing the root does not lead outside", CALLS, Secret, |aim| {
        super::inside::make_apart(aim, "F41")
    }),
    row("F43", "a detached mount does not lead outside", CALLS, Secret, files::detached_mount),
    row("F44", "no file that runs as its owner can be made", CALLS, Seen(Place::has_set_id), files::set_id),
    row("I04", "the memory of other processes cannot be opened", LOOKING, Told, others::memory),
    row("I06", "the environment of other processes cannot be read", LOOKING, Secret, others::environment),
    row(
        "I07",
        "the command line of other processes cannot be read",
        LOOKING,
        Says("wait"),
        others::command_line,
    ),
    row("I08", "other processes cannot be listed", LOOKING, Told, others::listed),
    row("I03", "other processes cannot be traced", CALLS, Told, others::trace),
    row("I05", "the memory of other processes cannot be read by a call", CALLS, Told, others::read_memory),
    row("I15", "descriptors of other processes cannot be taken", CALLS, Told, others::take_descriptor),
    row("I17", "the priority of other processes cannot be changed", CALLS, Told, others::priority),
    row(
        "I09",
        "abstract Unix sockets of others cannot be reached",
        PROCESSES,
        Seen(Place::hears_abstract),
        others::abstract_socket,
    ),
    row(
        "I10",
        "Unix sockets outside cannot be connected to",
        SOCKETS,
        Seen(Place::hears_stream),
        others::stream_socket,
    ),
    row(
        "I11",
        "Unix sockets outside cannot be sent to",
        SOCKETS,
        Seen(Place::hears_datagram),
        others::datagram_socket,
    ),
    row("I18", "nothing can be typed into the caller's terminal", CALLS, Told, others::terminal),
    row(
        "I19",
        "no descriptor of the host is inherited",
        ["descriptors closed", ""],
        Secret,
        others::inherited,
    ),
    row(
        "I20",
        "the environment of the launcher is not visible",
        ["environment cleared", ""],
        Told,
        others::own_environment,
    ),
    row("I22", "no core dumps are written", ["limits", ""], Told, others::core_dumps),
    row(
        "I27",
        "no capability is held or can be had",
        ["capabilities dropped", ""],
        Told,
        others::capabilities,
    ),
    row("I30", "sockets of the host are not listed", FILES, Told, network::listed),
    row("N01", "nothing on this machine can be connected to by TCP", PORTS, Tcp(0), network::tcp),
    row("N10", "nor over IPv6", PORTS, Seen(Place::hears_tcp6), network::tcp6),
    row("N11", "nor by MPTCP", PORTS, Tcp(1), network::mptcp),
    row("N12", "nor by TCP Fast Open", PORTS, Tcp(2), network::fast_open),
    row("N03", "nothing on this machine can be sent to by UDP", PORTS, Seen(Place::hears_udp), network::udp),
    row("N02", "a listener inside cannot be reached from the host", PORTS, Port, network::bind_and_listen),
    row("N14", "nor one on a port that the kernel chooses", PORTS, Port, network::listen),
    row("N04", "raw and packet sockets cannot be made", CALLS, Told, network::raw),
    row("N07", "sockets to the hypervisor cannot be made", CALLS, Told, network::hypervisor),
    row(
        "K08",
        "sockets into the kernel's ciphers and packet filter cannot be made",
        CALLS,
        Told,
        network::into_kernel,
    ),
    row("K02", "performance events cannot be opened", CALLS, Told, kernel::performance_events),
    row("K03", "page faults cannot be handled", CALLS, Told, kernel::page_faults),
    row("K04", "kernel keys cannot be used", CALLS, Told, kernel::keys),
    row("K05", "io_uring is not there", CALLS, Told, kernel::io_uring),
    row("K06", "no user namespace can be made", CALLS, Told, |aim| super::inside::make_apart(aim, "K06")),
    row("K11", "no program can be loaded into the kernel", CALLS, Told, kernel::bpf),
    row("K12", "the kernel's log cannot be read", CALLS, Told, kernel::log),
    row("K14", "calls by their x32 numbers are not there", CALLS, Told, kernel::x32),
    row(
        "R03",
        "no file grows beyond the limit",
        ["limits", ""],
        Seen(Place::is_too_large),
        kernel::large_file,
    ),
    row(
        "W05",
        "git commit works",
        ["nothing is in its way", ""],
        Works(Place::has_commit),
        workspace::commit,
    ),
    open(
        Gap::ProtectedPaths,
        "W01",
        "no git hook can be planted",
        WORKSPACE,
        Seen(Place::has_hook),
        workspace::hook,
    ),
    open(
        Gap::ProtectedPaths,
        "W02",
        "the configuration of git cannot be changed",
        WORKSPACE,
        Seen(Place::has_other_configuration),
        workspace::configuration,
    ),
    open(
        Gap::NewProtectedPaths,
        "W03",
        "no file that editors act on can be created",
        ["nothing; it is told afterwards", ""],
        Seen(Place::has_editor_file),
        workspace::editor_file,
    ),
    open(
        Gap::ProtectedPaths,
        "W04",
        "the repository cannot be replaced",
        WORKSPACE,
        Seen(Place::has_other_repository),
        workspace::replace,
    ),
    row("I01", "other processes cannot be signalled", PROCESSES, Ended(1), others::kill),
    row("I02", "nor by another way to signal", PROCESSES, Ended(2), others::signal_by_descriptor),
];

/// A process that has left its session, when the process that the host started is killed.
pub(super) const KILLED_LAUNCHER: Attempt = open(
    Gap::Orphans,
    "R05",
    "nothing outlives a launcher that is killed",
    ["nothing", "pid namespace"],
    Told,
    |_| Ok(String::new()),
);

/// The attempts that change the process that makes them.
pub(super) const APART: &[(&str, Make)] =
    &[("F40", files::bind_in_namespace), ("F41", files::change_root), ("K06", kernel::user_namespace)];
