//! The process that stands for a session at full: it starts the first process inside, passes signals on, ends as the
//! program ends, and ends the session when its host has ended.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::pipe;

use super::namespaces;
use super::self_test::Canary;
use super::stages::{Given, release_output};
use super::wire::{Request, Stage, receive_descriptors, refusal, send};
use crate::launcher::REFUSED;
use crate::level::{Refusal, RefusalCode};

/// The signals that are passed on to the program.
const PASSED_ON: [i32; 6] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Goes into new namespaces, starts the first process in them, and waits for its end.
pub(super) fn run(given: Given) -> Result<i32, Refusal> {
    let Given { request, stdin, roots, host } = given;
    let canary = Canary::listening()?;
    let signals = Signals::catch()
        .map_err(|error| refusal(RefusalCode::Namespaces, "signals cannot be caught", error))?;
    let outer = getpid().as_raw_nonzero().get();
    namespaces::enter(&request.policy.network)?;
    let request = Request { stage: Stage::Init { canary: canary.name.clone(), outer }, ..request };
    let (mut first, link) = start(&request, &stdin, &roots, &host).map_err(|error| {
        refusal(RefusalCode::Namespaces, "the first process inside cannot be started", error)
    })?;
    drop((stdin, roots, request));
    release_output();
    let ending = stand_by(&link, &host, &signals);
    if matches!(ending, Ending::Abandoned) {
        // The kernel takes everything along that is in the namespace. It may have ended by itself.
        let _ended = first.kill();
    }
    let code = first.wait().ok().and_then(|status| status.code());
    drop(canary);
    Ok(match ending {
        Ending::Told(signal) => end_as(signal, code),
        Ending::Abandoned => end_as(Some(Signal::KILL), None),
    })
}

/// Why there is nothing more to wait for.
enum Ending {
    /// The first process inside has said which signal ended the program, if one did, or is gone.
    Told(Option<Signal>),
    /// Nobody holds the lifeline any more.
    Abandoned,
}

/// The same program again, as the first process of the namespaces: a fork without a new program would want unsafe code.
#[expect(clippy::disallowed_methods, reason = "the launcher starts itself, inside the namespaces")]
fn start(
    request: &Request,
    stdin: &OwnedFd,
    roots: &[OwnedFd],
    host: &OwnedFd,
) -> io::Result<(Child, UnixStream)> {
    let (here, there) = UnixStream::pair()?;
    let mut descriptors = vec![stdin.as_fd(), host.as_fd()];
    descriptors.extend(roots.iter().map(OwnedFd::as_fd));
    send(&here, &serde_json::to_vec(request)?, &descriptors)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1)).env_clear().stdin(Stdio::from(OwnedFd::from(there)));
    Ok((command.spawn()?, here))
}

/// Signals that came, each on a pipe of its own.
struct Signals(Vec<(Signal, UnixStream)>);

impl Signals {
    fn catch() -> io::Result<Self> {
        let catch = |number: i32| {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            pipe::register(number, write)?;
            let signal = Signal::from_named_raw(number).ok_or(io::ErrorKind::InvalidInput)?;
            Ok((signal, read))
        };
        PASSED_ON.into_iter().map(catch).collect::<io::Result<_>>().map(Self)
    }
}

/// Passes signals on until the first process inside has said how the program ended, or is gone, or nobody holds the
/// host's end of the socket `host` any more.
fn stand_by(link: &UnixStream, host: &OwnedFd, signals: &Signals) -> Ending {
    let mut program: Option<OwnedFd> = None;
    // What comes before the program is there is passed on when it is.
    let mut waiting = Vec::new();
    loop {
        let mut ready: Vec<_> = signals.0.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)).collect();
        ready.push(PollFd::new(link, PollFlags::IN));
        // Asked for nothing, the kernel tells of the end alone.
        ready.push(PollFd::new(host, PollFlags::empty()));
        match poll(&mut ready, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // A lifeline that is not watched is none.
            Err(_) => return Ending::Abandoned,
        }
        let mut is_ready = || ready.pop().is_some_and(|poll| !poll.revents().is_empty());
        let (host_has_ended, link_is_ready) = (is_ready(), is_ready());
        if host_has_ended {
            return Ending::Abandoned;
        }
        for ((signal, pipe), ready) in signals.0.iter().zip(&ready) {
            if !ready.revents().is_empty()
                && matches!((&mut &*pipe).read(&mut [0; 64]), Ok(count) if count > 0)
            {
                waiting.push(*signal);
            }
        }
        if link_is_ready {
            match program {
                Some(_) => return Ending::Told(last_word(link)),
                None => match receive_descriptors(link).ok().and_then(|mut handles| handles.pop()) {
                    Some(handle) => program = Some(handle),
                    None => return Ending::Told(None),
                },
            }
        }
        if let Some(program) = &program {
            for signal in waiting.drain(..) {
                // It may have ended in this moment.
                let _gone = pidfd_send_signal(program, signal);
            }
        }
    }
}

/// The signal's number, or `null`.
fn last_word(mut link: &UnixStream) -> Option<Signal> {
    let mut text = String::new();
    link.read_to_string(&mut text).ok()?;
    serde_json::from_str::<Option<i32>>(&text).ok().flatten().and_then(Signal::from_named_raw)
}

/// Ends as the program did: by the same signal, or with the same code.
fn end_as(signal: Option<Signal>, code: Option<i32>) -> i32 {
    if let Some(signal) = signal {
        if PASSED_ON.contains(&signal.as_raw()) {
            // Back to what it does to a process that does not catch it.
            let _not_restored = signal_hook::low_level::emulate_default_handler(signal.as_raw());
        }
        // Twice: the standard library catches a few, and lets go of them when the first one comes.
        for _ in 0..2 {
            let _not_possible = kill_process(getpid(), signal);
        }
    }
    code.unwrap_or(REFUSED)
}
