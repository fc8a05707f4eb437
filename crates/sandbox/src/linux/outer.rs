//! The process that stands for a session at full: it makes the first process inside, passes signals on, ends as the
//! program ends, and ends the session when its host has ended.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fork::{Fork, fork};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, pidfd_send_signal, waitpid};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::low_level::{pipe, unregister};

use super::namespaces::{self, NetworkMaker};
use super::self_test::Canary;
use super::stages::{self, Given};
use super::wire::{receive_descriptors, refusal};
use crate::launcher::REFUSED;
use crate::level::{Refusal, RefusalCode};

/// The signals that are passed on to the program.
const PASSED_ON: [i32; 6] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Goes into new namespaces, makes the first process in them, and waits for its end. Both processes return from here.
pub(super) fn run(given: Given, host: &OwnedFd) -> Result<i32, Refusal> {
    let canary = Canary::listening()?;
    let signals = Signals::catch()
        .map_err(|error| refusal(RefusalCode::Namespaces, "signals cannot be caught", error))?;
    let outer = getpid();
    namespaces::enter()?;
    let separate = namespaces::separates(&given.request.policy.network);
    let network = separate.then(NetworkMaker::new).transpose()?;
    let failed = |error: io::Error| {
        refusal(RefusalCode::Namespaces, "the first process inside cannot be started", error)
    };
    let (here, there) = UnixStream::pair().map_err(failed)?;
    // There is one thread, as was checked: whatever the child goes on with is whole.
    let first = match fork().map_err(failed)? {
        Fork::Child => {
            signals.let_go();
            drop(here);
            let Canary { name, socket } = canary;
            drop(socket);
            return stages::init(given, host, &name, outer, &there.into());
        }
        Fork::Parent(first) => Pid::from_raw(first),
    };
    drop((there, given));
    if let Some(refusal) = network.and_then(|network| network.make(&here).err()) {
        // Before the link ends, so that one of the two processes speaks.
        end(first);
        return Err(refusal);
    }
    stages::release_output();
    let ending = stand_by(&here, host, &signals);
    let code = match ending {
        Ending::Told(_) => buried(first),
        Ending::Abandoned => end(first),
    };
    drop(canary);
    Ok(match ending {
        Ending::Told(signal) => end_as(signal, code),
        Ending::Abandoned => end_as(Some(Signal::KILL), None),
    })
}

/// Ends the first process inside, with which the kernel ends everything that is in its namespace.
fn end(first: Option<Pid>) -> Option<i32> {
    if let Some(first) = first {
        // It may have ended by itself.
        let _ended = kill_process(first, Signal::KILL);
    }
    buried(first)
}

/// Waits for the end of the first process inside. Its exit code, unless a signal ended it.
fn buried(first: Option<Pid>) -> Option<i32> {
    loop {
        match waitpid(first, WaitOptions::empty()) {
            Ok(ended) => return ended.and_then(|(_, status)| status.exit_status()),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Why there is nothing more to wait for.
enum Ending {
    /// The first process inside has said which signal ended the program, if one did, or is gone.
    Told(Option<Signal>),
    /// Nobody holds the lifeline any more.
    Abandoned,
}

/// Signals that came, and a pipe that tells of each.
struct Signals {
    caught: Vec<Caught>,
    pipe: UnixStream,
}

struct Caught {
    signal: Signal,
    came: Arc<AtomicBool>,
    actions: [SigId; 2],
}

impl Signals {
    fn catch() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        let catch = |number: i32| {
            let signal = Signal::from_named_raw(number).ok_or(io::ErrorKind::InvalidInput)?;
            let came = Arc::new(AtomicBool::new(false));
            // In this order: what the pipe tells of is there.
            let actions =
                [flag::register(number, Arc::clone(&came))?, pipe::register(number, write.try_clone()?)?];
            Ok(Caught { signal, came, actions })
        };
        let caught = PASSED_ON.into_iter().map(catch).collect::<io::Result<_>>()?;
        Ok(Self { caught, pipe: read })
    }

    /// In the first process inside: what is sent to it is not for the program.
    fn let_go(self) {
        for action in self.caught.into_iter().flat_map(|caught| caught.actions) {
            unregister(action);
        }
    }

    /// Those that have come since.
    fn take(&self) -> impl Iterator<Item = Signal> {
        // Before the flags are looked at: what comes after that tells again.
        let _nothing_more = (&self.pipe).read(&mut [0; 64]);
        let came = self.caught.iter().filter(|caught| caught.came.swap(false, Ordering::SeqCst));
        came.map(|caught| caught.signal)
    }
}

/// Passes signals on until the first process inside has said how the program ended, or is gone, or nobody holds the
/// host's end of the socket `host` any more.
fn stand_by(link: &UnixStream, host: &OwnedFd, signals: &Signals) -> Ending {
    let mut program: Option<OwnedFd> = None;
    // What comes before the program is there is passed on when it is.
    let mut waiting = Vec::new();
    loop {
        let mut ready = [
            PollFd::new(&signals.pipe, PollFlags::IN),
            PollFd::new(link, PollFlags::IN),
            // Asked for nothing, the kernel tells of the end alone.
            PollFd::new(host, PollFlags::empty()),
        ];
        match poll(&mut ready, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // A lifeline that is not watched is none.
            Err(_) => return Ending::Abandoned,
        }
        let [signals_came, link_is_ready, host_has_ended] = ready.map(|poll| !poll.revents().is_empty());
        if host_has_ended {
            return Ending::Abandoned;
        }
        if signals_came {
            waiting.extend(signals.take());
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
