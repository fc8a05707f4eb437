//! The order of a launch, for both processes of it.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Access, FileType, access, stat};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, getppid, pidfd_open, set_dumpable_behavior,
    set_parent_process_death_signal, wait,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::self_test::{Canary, Target, stream_socket};
use super::wire::{Answer, Request, VERSION, receive, refusal, refuse, send_descriptor, write_line};
use super::{capabilities, loopback, mounts, namespaces, outer, relay, resources, rules, seccomp, self_test};
use crate::gap::gaps;
use crate::launcher::REFUSED;
use crate::level::{Level, Refusal, RefusalCode};
use crate::policy::{Network, Policy, is_inside};
use crate::report::{Holder, Report};
use crate::seal::scope_digest;

/// What the exit code of a program that a signal ended is made of, as in shells.
const SIGNAL_BASE: i32 = 128;
/// The name that every session's machine has inside.
const HOSTNAME: &str = "session";

/// What a launcher was given.
pub(super) struct Given {
    pub(super) request: Request,
    /// The roots, those that may be written first, and the directory of the proxy's socket.
    pub(super) roots: Vec<OwnedFd>,
}

/// Reads the request and does what it says. Returns the exit code of this process, of which there are two at full.
pub(crate) fn run() -> i32 {
    // Whatever was inherited by accident ends with the next start of a program.
    close_fds::set_fds_cloexec(3, &[]);
    let Ok(host) = io::stdin().as_fd().try_clone_to_owned() else { return REFUSED };
    let done = take(&host).and_then(|given| match given.request.level {
        Level::Floor => floor(given, &host),
        Level::Full => outer::run(given, &host),
    });
    done.unwrap_or_else(|refusal| {
        refuse(&host, refusal);
        REFUSED
    })
}

/// Takes the request from the socket, and gives the program's stdin its place.
fn take(socket: &OwnedFd) -> Result<Given, Refusal> {
    let failed =
        |error: &dyn std::fmt::Display| refusal(RefusalCode::Request, "the request cannot be read", error);
    let parcel = receive(socket).map_err(|error| failed(&error))?;
    let request: Request = serde_json::from_slice(&parcel.text).map_err(|error| failed(&error))?;
    if request.version != VERSION {
        let message = format!("the request is of version {}, the launcher of {VERSION}", request.version);
        return Err(Refusal::new(RefusalCode::Request, message));
    }
    if scope_digest(&request.policy) != request.digest {
        return Err(failed(&"the policy is not the one that was sealed"));
    }
    if let Some(missing) = request.policy.refused_at(request.level) {
        return Err(Refusal::new(RefusalCode::Request, missing));
    }
    single_threaded()?;
    let mut descriptors = parcel.descriptors.into_iter();
    let stdin = descriptors.next().ok_or_else(|| failed(&"a descriptor is missing"))?;
    let roots: Vec<_> = descriptors.collect();
    if roots.len() != request.policy.open_directories() {
        return Err(failed(&"there are not as many open directories as the policy names"));
    }
    dup2_stdin(&stdin).map_err(|error| failed(&io::Error::from(error)))?;
    Ok(Given { request, roots })
}

/// Landlock and namespaces are taken on by one thread; others would stay outside.
fn single_threaded() -> Result<(), Refusal> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or_default();
    if threads == 1 {
        return Ok(());
    }
    let message = format!("the launcher must be the only thread of its process, and there are {threads}");
    Err(Refusal::new(RefusalCode::Threads, message))
}

/// Floor: confines this process and becomes the program.
fn floor(given: Given, host: &OwnedFd) -> Result<i32, Refusal> {
    let Given { request, roots } = given;
    let policy = &request.policy;
    let canary = Canary::listening()?;
    // A session of its own: no controlling terminal. It fails only for a group's leader, which the host made it.
    let _leads_already = rustix::process::setsid();
    let outside = getppid();
    let spare = spare_socket()?;
    let holder = resources::hold_processes(Level::Floor, &policy.limits);
    let mut read_write = roots;
    let read_only = read_write.split_off(policy.read_write.len().min(read_write.len()));
    let roots = rules::Roots { read_write, read_only };
    let target =
        Target { level: Level::Floor, network: &policy.network, canary: &canary.name, spare, outside };
    let mut report = confine(&request, &roots, holder, &target)?;
    let readable = policy.read_only.iter().filter(|root| is_inside(root, &policy.read_write));
    let open = policy.protected.iter().chain(readable).chain(&policy.unguarded);
    report.unprotected = open.map(ToString::to_string).collect();
    drop(target);
    drop(canary);
    resources::limit_open_files(&policy.limits)?;
    if request.argv.is_empty() {
        answer(host, report)?;
        return Ok(0);
    }
    enter(&policy.directory)?;
    let mut command = program(policy, &request.argv)?;
    answer(host, report)?;
    // The host reads on until the socket ends, which it does when this succeeds.
    let error = command.exec();
    Err(not_started(&request.argv, error))
}

/// Full: the first process inside the namespaces. Builds the view, confines itself, starts the program, buries
/// orphans, and takes everything along when the program ends. `canary` is the name of a socket that must not be
/// reachable from inside, `outer` the launcher's number outside, and `link` leads to it.
pub(super) fn init(
    given: Given,
    host: &OwnedFd,
    canary: &str,
    outer: Pid,
    link: &OwnedFd,
) -> Result<i32, Refusal> {
    let Given { request, roots } = given;
    let policy = &request.policy;
    // A session of its own: no controlling terminal, and a signal to the launcher's group comes once.
    rustix::process::setsid()
        .map_err(|error| refusal(RefusalCode::Namespaces, "a session of its own", io::Error::from(error)))?;
    // Opened while it can be: later nobody may look into this process, and its `/proc` is another.
    let account = std::fs::File::open("/proc/self/io").ok();
    let view = mounts::build(policy, &roots)?;
    drop(roots);
    let holder = resources::hold_processes(Level::Full, &policy.limits);
    view.close()?;
    let failed = |error: Errno| refusal(RefusalCode::Namespaces, "the host name", io::Error::from(error));
    rustix::system::sethostname(HOSTNAME.as_bytes()).map_err(failed)?;
    let listener = network(&policy.network, link)?;
    let opened = |path: &Utf8PathBuf| {
        mounts::open_root(path)
            .map_err(|error| refusal(RefusalCode::Mounts, format!("the root {path}"), io::Error::from(error)))
    };
    let roots = rules::Roots {
        read_write: policy.read_write.iter().map(opened).collect::<Result<_, _>>()?,
        read_only: policy.read_only.iter().map(opened).collect::<Result<_, _>>()?,
    };
    let spare = spare_socket()?;
    let target = Target { level: Level::Full, network: &policy.network, canary, spare, outside: Some(outer) };
    let mut report = confine(&request, &roots, holder, &target)?;
    report.unprotected = view.unprotected;
    report.unprotected.extend(policy.unguarded.iter().map(ToString::to_string));
    drop((target, roots));
    resources::limit_open_files(&policy.limits)?;
    lifeline(link)?;
    if request.argv.is_empty() {
        answer(host, report)?;
        return Ok(0);
    }
    if let Some(listener) = listener {
        relay::serve(listener, mounts::proxy_inside(policy), policy.limits.open_files)?;
    }
    enter(&policy.directory)?;
    let mut child = start(policy, &request.argv)?;
    outer_may_signal(&child, link);
    release_output();
    if let Some(account) = account {
        send_descriptor(host, account).map_err(|error| {
            refusal(RefusalCode::Request, "the host cannot be given an account of the session", error)
        })?;
    }
    answer(host, report)?;
    Ok(bury(&mut child, link))
}

/// All layers that both levels share, and the proof that they hold.
fn confine(
    request: &Request,
    roots: &rules::Roots,
    holder: Holder,
    target: &Target<'_>,
) -> Result<Report, Refusal> {
    let (level, policy) = (request.level, &request.policy);
    let program = seccomp::program(level, &policy.network);
    resources::limit(level, &policy.limits, holder)?;
    capabilities::drop_all()?;
    let landlock_abi = rules::restrict(level, policy, roots)?;
    if level == Level::Full {
        // Nobody inside may look into the process that all others descend from.
        let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        hidden.map_err(|error| refusal(RefusalCode::Capabilities, "not dumpable", io::Error::from(error)))?;
    }
    seccomp::install(&program)?;
    let verified = self_test::run(target)?;
    Ok(Report {
        level,
        policy: request.digest.clone(),
        landlock_abi,
        seccomp_instructions: program.len(),
        namespaces: if level == Level::Full { namespaces::names(&policy.network) } else { vec![] },
        network: policy.network.clone(),
        processes_held_by: holder,
        verified,
        unprotected: vec![],
        gaps: gaps(level, holder),
    })
}

fn spare_socket() -> Result<OwnedFd, Refusal> {
    stream_socket()
        .map_err(|error| refusal(RefusalCode::SelfTest, "a socket for the self-test", io::Error::from(error)))
}

/// The network inside: a namespace, the loopback interface, and the relay's port.
fn network(network: &Network, link: &OwnedFd) -> Result<Option<TcpListener>, Refusal> {
    if namespaces::separates(network) {
        namespaces::follow(link)?;
    }
    match network {
        Network::Open | Network::None => Ok(None),
        Network::Loopback => loopback::switch_on().map(|()| None),
        Network::Proxy { .. } => {
            loopback::switch_on()?;
            relay::listen().map(Some)
        }
    }
}

/// Dies with the outer launcher, which is single-threaded, so the kernel's signal means its process.
fn lifeline(link: &OwnedFd) -> Result<(), Refusal> {
    let failed = |error: Errno| refusal(RefusalCode::Namespaces, "the lifeline", io::Error::from(error));
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    // If it died before that, the socket to it has ended.
    let mut poll = [rustix::event::PollFd::new(link, rustix::event::PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut poll, Some(&now)).map_err(failed)?;
    let ended = poll.iter().any(|poll| poll.revents().contains(rustix::event::PollFlags::HUP));
    if ended { Err(failed(Errno::PIPE)) } else { Ok(()) }
}

fn enter(directory: &Utf8Path) -> Result<(), Refusal> {
    std::env::set_current_dir(directory).map_err(|error| {
        refusal(RefusalCode::Directory, format!("the session cannot enter its directory {directory}"), error)
    })
}

fn start(policy: &Policy, argv: &[String]) -> Result<Child, Refusal> {
    program(policy, argv)?.spawn().map_err(|error| not_started(argv, error))
}

fn not_started(argv: &[String], error: io::Error) -> Refusal {
    let name = argv.first().map_or("", String::as_str);
    refusal(RefusalCode::Program, format!("the program {name:?} cannot be started"), error)
}

/// The command, with the policy's environment and nothing else.
#[expect(clippy::disallowed_methods, reason = "the program of a session, after everything is confined")]
fn program(policy: &Policy, argv: &[String]) -> Result<Command, Refusal> {
    let (name, arguments) = argv
        .split_first()
        .ok_or_else(|| Refusal::new(RefusalCode::Request, "there is no program on the command line"))?;
    let mut command = Command::new(find(policy, name)?);
    command.arg0(name).args(arguments).env_clear();
    if matches!(policy.network, Network::Proxy { .. }) {
        command.envs(relay::VARIABLES.map(|variable| (variable, relay::URL)));
    }
    command.envs(&policy.environment);
    Ok(command)
}

/// The file that a name means, along the policy's `PATH`, as seen from inside.
fn find(policy: &Policy, name: &str) -> Result<Utf8PathBuf, Refusal> {
    let path = policy.environment.get("PATH").map_or("", String::as_str);
    let candidates: Vec<Utf8PathBuf> = if name.contains('/') {
        vec![name.into()]
    } else {
        path.split(':')
            .filter(|place| !place.is_empty())
            .map(|place| Utf8Path::new(place).join(name))
            .collect()
    };
    let runs = |file: &Utf8PathBuf| {
        let is_file = stat(file.as_str()).is_ok_and(|data| FileType::from_raw_mode(data.st_mode).is_file());
        is_file && access(file.as_str(), Access::EXEC_OK).is_ok()
    };
    candidates.into_iter().find(runs).ok_or_else(|| {
        let message = format!("there is no program {name:?} that the session can run (its PATH is {path:?})");
        Refusal::new(RefusalCode::ProgramNotFound, message)
    })
}

fn answer(host: &OwnedFd, report: Report) -> Result<(), Refusal> {
    // A host that does not listen has ended, and the program must not start without it.
    write_line(host, &Answer::Confined(report))
        .map_err(|error| refusal(RefusalCode::Request, "the host cannot be told", error))
}

/// Sends the outer launcher a handle on the program, so that it can pass signals on.
fn outer_may_signal(child: &Child, link: &OwnedFd) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(handle) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
        // Without it signals are not passed on; the end still comes by the lifeline.
        let _not_sent = send_descriptor(link, handle);
    }
}

/// Lets go of the program's output, so that its readers see the end when the program closes it.
pub(super) fn release_output() {
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _kept = dup2_stdin(&null);
        let _kept = dup2_stdout(&null);
        let _kept = dup2_stderr(&null);
    }
}

/// Waits for the program, and for all orphans on the way. The kernel ends whatever is left when this process ends.
fn bury(child: &mut Child, link: &OwnedFd) -> i32 {
    let program = i32::try_from(child.id()).unwrap_or_default();
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == program => {
                let signal = status.terminating_signal();
                let code =
                    status.exit_status().or(signal.map(|signal| SIGNAL_BASE + signal)).unwrap_or(REFUSED);
                // The first process of a namespace cannot end by a signal, so the number is passed on.
                let _outer_is_gone = write_line(link, &signal);
                return code;
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return REFUSED,
        }
    }
}
