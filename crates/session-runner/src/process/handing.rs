//! The pipes of a run whose program's stdin and stdout are handed out: the keeper makes them, sends the host its ends and
//! keeps none. What goes through them is copied by nobody on the way.
//!
//! They travel over the socket that the keeper has as stderr, before the program is reported to have started.

use std::io::{self, IoSlice, IoSliceMut, stderr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::cmsg_space;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::dup2_stderr;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// What is sent along with the descriptors: a message must not be empty.
const NOTE: &[u8] = b"w";

/// The host's ends of a program's pipes.
#[derive(Debug)]
pub struct Ends {
    /// Where the program reads. It reads the end once this is dropped.
    pub stdin: pipe::Sender,
    /// Where the program writes.
    pub stdout: pipe::Receiver,
}

/// What the keeper is about to hand out.
#[derive(Debug)]
pub(super) struct Handing {
    socket: OwnedFd,
    to_program: OwnedFd,
}

impl Handing {
    /// Takes the host's socket out of stderr's place, and makes the pipe whose other end becomes the program's stdin.
    pub(super) fn take() -> io::Result<(Self, OwnedFd)> {
        let socket = fcntl_dupfd_cloexec(stderr(), 3)?;
        dup2_stderr(std::fs::File::options().write(true).open("/dev/null")?)?;
        let (stdin, to_program) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok((Self { socket, to_program }, stdin))
    }

    /// Sends the host its ends, and lets go of them.
    pub(super) fn give(self, from_program: &OwnedFd) -> io::Result<()> {
        let ends = [self.to_program.as_fd(), from_program.as_fd()];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&ends)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(&self.socket, &[IoSlice::new(NOTE)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// The ends that a keeper has sent, which it did before it said that the program runs.
pub(super) fn receive(socket: &UnixStream) -> io::Result<Ends> {
    let mut note = [0; NOTE.len()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut note)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut ends = Vec::with_capacity(2);
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            ends.extend(descriptors);
        }
    }
    let mut ends = ends.into_iter();
    match (ends.next(), ends.next()) {
        (Some(stdin), Some(stdout)) => Ok(Ends {
            stdin: pipe::Sender::from_owned_fd(stdin)?,
            stdout: pipe::Receiver::from_owned_fd(stdout)?,
        }),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its keeper handed out no pipes")),
    }
}
