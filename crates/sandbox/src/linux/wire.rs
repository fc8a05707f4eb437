//! What host and launcher say to each other, over the socket that the launcher has as its stdin.
//!
//! The request is one byte with descriptors: a sealed memory file that holds the text, and whatever else goes along.
//! Nothing is inherited by number, so a host with many threads leaks none of it into its other children.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::level::{Level, Refusal, RefusalCode};
use crate::policy::{PATHS_MAX, Policy};
use crate::report::Report;

/// Both sides are one build; the number catches a launcher that was replaced under a running host.
pub(super) const VERSION: u32 = 2;
/// The largest request, in bytes: the longest argument list that Linux takes, and the environment once more.
pub(super) const REQUEST_BYTES_MAX: usize = 8 << 20;
/// The longest answer, in bytes.
pub(super) const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// The roots, the directory of the proxy's socket, the text and stdin.
const DESCRIPTORS_MAX: usize = 2 * PATHS_MAX + 3;
const SEALS: SealFlags = SealFlags::from_bits_retain(
    SealFlags::SEAL.bits() | SealFlags::SHRINK.bits() | SealFlags::GROW.bits() | SealFlags::WRITE.bits(),
);

/// What the launcher is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) version: u32,
    pub(super) level: Level,
    pub(super) digest: String,
    pub(super) policy: Policy,
    /// The program and its arguments. Empty: confine, check, report, and start nothing.
    pub(super) argv: Vec<String>,
}

/// What the launcher answers, in one line, before the program starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// Everything that the report lists is on.
    Confined(Report),
    /// The program was not started and never will be.
    Refused(Refusal),
}

/// A text and descriptors, as they came.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) text: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Sends the text in a sealed memory file, and the descriptors after it.
pub(super) fn send(socket: impl AsFd, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if text.len() > REQUEST_BYTES_MAX || descriptors.len() >= DESCRIPTORS_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the request is larger than a launcher takes",
        ));
    }
    let memory = memfd_create("sandbox-request", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    file.write_all(text)?;
    fcntl_add_seals(&file, SEALS)?;
    let mut all = vec![file.as_fd()];
    all.extend_from_slice(descriptors);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&all)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more descriptors than one message takes"));
    }
    sendmsg(socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives what [`send`] sent. A text that could still change is refused.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Parcel> {
    let mut descriptors = receive_descriptors(socket)?;
    if descriptors.is_empty() {
        return Err(invalid("the message came without a text"));
    }
    let memory = descriptors.remove(0);
    if !fcntl_get_seals(&memory)?.contains(SEALS) {
        return Err(invalid("the text is not sealed"));
    }
    let mut file = File::from(memory);
    file.rewind()?;
    let mut text = Vec::new();
    file.take(REQUEST_BYTES_MAX as u64).read_to_end(&mut text)?;
    Ok(Parcel { text, descriptors })
}

/// Receives the descriptors of one message; none at the end of the stream.
pub(super) fn receive_descriptors(socket: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    receive_byte(socket).map(|(_, descriptors)| descriptors)
}

/// Receives one byte and the descriptors that came with it; no byte at the end of the stream.
pub(super) fn receive_byte(socket: impl AsFd) -> io::Result<(Option<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let came = loop {
        let buffer = &mut [IoSliceMut::new(&mut byte)];
        match recvmsg(&socket, buffer, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => break message.bytes > 0,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let [byte] = byte;
    Ok((came.then_some(byte), descriptors))
}

/// Sends one descriptor by itself.
pub(super) fn send_descriptor(socket: impl AsFd, descriptor: impl AsFd) -> io::Result<()> {
    let one = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&one)) {
        return Err(invalid("the descriptor does not fit"));
    }
    sendmsg(socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Writes one line of JSON.
pub(super) fn write_line(socket: &OwnedFd, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        let sent = rustix::net::send(socket, rest, SendFlags::NOSIGNAL)?;
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Tells the host that the program will not be started. The host may be gone.
pub(super) fn refuse(socket: &OwnedFd, refusal: Refusal) {
    let _host_is_gone = write_line(socket, &Answer::Refused(refusal));
}

/// Turns what the system said into a refusal of this step.
pub(super) fn refusal(
    code: RefusalCode,
    what: impl std::fmt::Display,
    error: impl std::fmt::Display,
) -> Refusal {
    Refusal::new(code, format!("{what}: {error}"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_parcel_arrives_as_it_was_sent() {
        let (here, there) = UnixStream::pair().unwrap();
        let text = vec![7; 300_000];
        send(&here, &text, &[here.as_fd(), there.as_fd()]).unwrap();
        let parcel = receive(&there).unwrap();
        assert_eq!(parcel.text, text);
        assert_eq!(parcel.descriptors.len(), 2);
    }

    #[test]
    fn what_can_still_change_is_not_taken() {
        let (here, there) = UnixStream::pair().unwrap();
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        send_descriptor(&here, &open).unwrap();
        assert_eq!(receive(&there).unwrap_err().to_string(), "the text is not sealed");
        drop(here);
        assert_eq!(receive(&there).unwrap_err().to_string(), "the message came without a text");
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_is_sent() {
        let (here, _there) = UnixStream::pair().unwrap();
        assert!(send(&here, &vec![0; REQUEST_BYTES_MAX + 1], &[]).is_err());
    }
}
