//! The wire of a run whose program holds a conversation: what the program says on stdout goes to the host as well as into
//! the log, and what the host says goes to the program's stdin. Whoever is slow makes the other one wait; nothing grows
//! beyond its bound.
//!
//! The host hands it over as the keeper's stderr, one end of a socket pair.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, stderr};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{Shutdown, shutdown};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::dup2_stderr;

use super::pump::{READ_BYTES, set_nonblocking};

/// So much of what the program says is kept for a host that is slow, so that the program's own pipe has room.
const HELD_MAX: usize = 4 << 20;
/// How often the host is read before the others have their turn.
const READS_PER_TURN: usize = 16;

/// Both directions of a conversation, and what is under way in them.
#[derive(Debug)]
pub(super) struct Wire {
    /// `None` when the host takes nothing any more.
    host: Option<File>,
    /// `None` when the program reads nothing any more, or was told that nothing follows.
    program: Option<OwnedFd>,
    /// At most [`READ_BYTES`] that the program has not read yet.
    to_program: Vec<u8>,
    /// At most [`HELD_MAX`] that the host has not taken yet.
    to_host: VecDeque<u8>,
    host_says_more: bool,
}

impl Wire {
    /// Takes the host's socket out of stderr's place, and makes the pipe whose other end becomes the program's stdin.
    pub(super) fn take() -> io::Result<(Self, OwnedFd)> {
        let socket = fcntl_dupfd_cloexec(stderr(), 3)?;
        dup2_stderr(File::options().write(true).open("/dev/null")?)?;
        let (stdin, program) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok((Self::new(socket, program)?, stdin))
    }

    fn new(host: OwnedFd, program: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&host)?;
        set_nonblocking(&program)?;
        Ok(Self {
            host: Some(host.into()),
            program: Some(program),
            to_program: Vec::new(),
            to_host: VecDeque::new(),
            host_says_more: true,
        })
    }

    /// Whether what the program says next can be taken.
    pub(super) fn has_room(&self) -> bool {
        self.to_host.len() + READ_BYTES <= HELD_MAX || self.host.is_none()
    }

    /// Passes on what the program said: at most [`READ_BYTES`], and only when there is room.
    pub(super) fn carry(&mut self, said: &[u8]) {
        if self.host.is_some() {
            self.to_host.extend(said);
            self.send();
        }
    }

    /// Moves what can be moved at this moment.
    pub(super) fn turn(&mut self) {
        self.send();
        self.receive();
        self.feed();
    }

    /// The program says nothing any more, and neither will we.
    pub(super) fn program_is_silent(&mut self) {
        self.send();
        if let (Some(host), true) = (&self.host, self.to_host.is_empty()) {
            // A host that has gone needs no end.
            let _gone = shutdown(host, Shutdown::Write);
        }
    }

    /// What is waited for.
    pub(super) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let mut of_host = PollFlags::empty();
        of_host.set(PollFlags::IN, self.listens());
        of_host.set(PollFlags::OUT, !self.to_host.is_empty());
        let host = self.host.as_ref().filter(|_| !of_host.is_empty());
        let program = self.program.as_ref().filter(|_| !self.to_program.is_empty());
        let host = host.map(|host| PollFd::from_borrowed_fd(host.as_fd(), of_host));
        host.into_iter().chain(program.map(|program| PollFd::new(program, PollFlags::OUT)))
    }

    /// Gives the host a bounded time to take what is left, then lets go of it.
    pub(super) fn finish(&mut self, bound_ms: u64) {
        let bound = Timespec {
            tv_sec: i64::try_from(bound_ms / 1000).unwrap_or_default(),
            tv_nsec: i64::try_from(bound_ms % 1000 * 1_000_000).unwrap_or_default(),
        };
        while let (Some(host), false) = (&self.host, self.to_host.is_empty()) {
            let mut room = [PollFd::new(host, PollFlags::OUT)];
            match poll(&mut room, Some(&bound)) {
                Ok(0) | Err(_) => self.lose_host(),
                Ok(_) => self.send(),
            }
        }
        self.program_is_silent();
        self.lose_host();
    }

    /// Whether something that the host says would be heard.
    fn listens(&self) -> bool {
        self.host_says_more && self.to_program.is_empty()
    }

    fn send(&mut self) {
        while let (Some(host), false) = (&self.host, self.to_host.is_empty()) {
            match rustix::io::write(host, self.to_host.as_slices().0) {
                Ok(written) => drop(self.to_host.drain(..written)),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => self.lose_host(),
            }
        }
    }

    fn receive(&mut self) {
        for _ in 0..READS_PER_TURN {
            if !self.listens() {
                return;
            }
            let Some(host) = &mut self.host else { return };
            let mut buffer = vec![0; READ_BYTES];
            match host.read(&mut buffer) {
                // What it said before still goes to the program, and after that its end.
                Ok(0) => self.host_says_more = false,
                Ok(read) => {
                    buffer.truncate(read);
                    self.to_program = buffer;
                    self.feed();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.lose_host(),
            }
        }
    }

    fn feed(&mut self) {
        while let (Some(program), false) = (&self.program, self.to_program.is_empty()) {
            match rustix::io::write(program, &self.to_program) {
                Ok(written) => drop(self.to_program.drain(..written)),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => self.program = None,
            }
        }
        if self.program.is_none() {
            // It reads no more: what is said to it is not kept.
            self.to_program.clear();
        }
        if !self.host_says_more && self.to_program.is_empty() {
            self.program = None;
        }
    }

    fn lose_host(&mut self) {
        (self.host, self.host_says_more) = (None, false);
        self.to_host.clear();
        self.feed();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    struct Ends {
        wire: Wire,
        host: UnixStream,
        stdin: File,
    }

    fn wire() -> Ends {
        let (host, socket) = UnixStream::pair().unwrap();
        let (stdin, program) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        host.set_nonblocking(true).unwrap();
        Ends { wire: Wire::new(socket.into(), program).unwrap(), host, stdin: stdin.into() }
    }

    #[test]
    fn what_each_says_comes_to_the_other_and_so_does_its_end() {
        let Ends { mut wire, mut host, mut stdin } = wire();
        host.write_all(b"hello").unwrap();
        wire.turn();
        let mut heard = [0; 16];
        assert_eq!(stdin.read(&mut heard).unwrap(), 5);
        host.shutdown(std::net::Shutdown::Write).unwrap();
        wire.turn();
        assert_eq!(stdin.read(&mut heard).unwrap(), 0, "the program is told that nothing follows");
        wire.carry(b"good bye");
        wire.program_is_silent();
        let mut said = String::new();
        host.read_to_string(&mut said).unwrap();
        assert_eq!(said, "good bye");
    }

    #[test]
    fn a_host_that_does_not_read_makes_the_program_wait_and_nothing_grow() {
        let Ends { mut wire, mut host, stdin: _stdin } = wire();
        let mut carried = 0;
        while wire.has_room() {
            wire.carry(&vec![b'x'; READ_BYTES]);
            carried += READ_BYTES;
            assert!(wire.to_host.len() <= HELD_MAX);
        }
        assert_eq!(wire.sources().count(), 1);
        let mut taken = 0;
        let mut buffer = vec![0; READ_BYTES];
        while taken < carried {
            taken += host.read(&mut buffer).unwrap();
            wire.turn();
        }
        assert!(wire.has_room());
    }

    #[test]
    fn a_program_that_does_not_read_makes_the_host_wait_and_nothing_grow() {
        let Ends { mut wire, mut host, mut stdin } = wire();
        let mut said = 0;
        loop {
            match host.write(&vec![b'x'; READ_BYTES]) {
                Ok(written) => said += written,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    if wire.to_program.len() == READ_BYTES || !wire.listens() {
                        break;
                    }
                }
            }
            wire.turn();
            assert!(wire.to_program.len() <= READ_BYTES);
        }
        drop(host);
        let mut heard = 0;
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => heard += read,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            wire.turn();
        }
        assert_eq!(heard, said, "what was said before the end is heard");
    }

    #[test]
    fn who_has_gone_is_not_waited_for() {
        let Ends { mut wire, host, stdin } = wire();
        drop(stdin);
        (&host).write_all(b"to nobody").unwrap();
        wire.turn();
        assert!(wire.program.is_none() && wire.to_program.is_empty());
        drop(host);
        while wire.host.is_some() {
            wire.carry(&vec![b'x'; READ_BYTES]);
        }
        assert!(wire.has_room());
        assert_eq!(wire.sources().count(), 0);
        wire.finish(0);
    }
}
