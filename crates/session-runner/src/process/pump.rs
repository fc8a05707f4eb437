//! Out of the program's pipes and into the log, whatever happens there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::fcntl_setpipe_size;

use super::protocol::LAST_LINE_CHARS;
use super::wire::Wire;
use crate::workspace::log::{LogRotation, LogWriter, Stream};

/// How much is read at once: what a pipe holds.
pub(super) const READ_BYTES: usize = 64 << 10;
/// What a wide pipe holds: as much as anybody may ask for (`/proc/sys/fs/pipe-max-size`). It is taken as it is used.
const WIDE_BYTES: usize = 1 << 20;
/// How often one pipe is read before the others have their turn.
const READS_PER_TURN: usize = 16;
/// How much of the newest output is kept to show its last line.
const TAIL_BYTES: usize = 4 << 10;
/// The longest text of an error that is kept.
const ERROR_CHARS: usize = 200;

/// One of the program's output pipes.
#[derive(Debug)]
pub(super) struct Pump {
    stream: Stream,
    /// `None` at its end.
    pipe: Option<OwnedFd>,
    bytes: u64,
    tail: Vec<u8>,
}

impl Pump {
    /// Takes the pipe over.
    pub(super) fn new(stream: Stream, pipe: Option<OwnedFd>) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            set_nonblocking(pipe)?;
        }
        Ok(Self { stream, pipe, bytes: 0, tail: Vec::new() })
    }

    /// The pipe, until its end.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Which of the two.
    pub(super) fn stream(&self) -> Stream {
        self.stream
    }

    /// How many bytes have come.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The last line that shows anything.
    pub(super) fn last_line(&self) -> Option<String> {
        last_line(&self.tail)
    }

    /// Reads what is there, up to a bound; whether there was anything. What goes over a wire as well is only read when
    /// that has room.
    pub(super) fn turn(
        &mut self,
        at: Timestamp,
        buffer: &mut [u8],
        log: &mut RunLog,
        mut wire: Option<&mut Wire>,
    ) -> bool {
        let before = self.bytes;
        for _ in 0..READS_PER_TURN {
            let Some(pipe) = &self.pipe else { break };
            if wire.as_ref().is_some_and(|wire| !wire.has_room()) {
                break;
            }
            match rustix::io::read(pipe, &mut *buffer) {
                Ok(0) => self.pipe = None,
                Ok(read) => {
                    let bytes = buffer.get(..read).unwrap_or_default();
                    log.write(at, self.stream, bytes);
                    if let Some(wire) = &mut wire {
                        wire.carry(bytes);
                    }
                    self.remember(bytes);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // Not possible with a pipe of ours; without it there is nothing more to come.
                Err(_) => self.pipe = None,
            }
        }
        self.bytes > before
    }

    /// Gives the pipe more room. Some agents leave without waiting until what they said was taken (Gemini CLI 0.61, and its
    /// echo of a long prompt), and what found no room in the pipe until then is lost.
    pub(super) fn widen(&self) {
        let Some(pipe) = &self.pipe else { return };
        // A user who has many such pipes gets no more of them: this one stays as it is.
        let _kept = fcntl_setpipe_size(pipe, WIDE_BYTES);
    }

    /// The pipe itself, for somebody else: here nothing of it is seen any more.
    pub(super) fn take_pipe(&mut self) -> Option<OwnedFd> {
        self.pipe.take()
    }

    /// Gives the pipe up.
    pub(super) fn close(&mut self) {
        self.pipe = None;
    }

    fn remember(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let newest = bytes.get(bytes.len().saturating_sub(TAIL_BYTES)..).unwrap_or_default();
        let too_many = (self.tail.len() + newest.len()).saturating_sub(TAIL_BYTES);
        self.tail.drain(..too_many.min(self.tail.len()));
        self.tail.extend_from_slice(newest);
    }
}

/// The log as the keeper uses it: what cannot be written is counted, and the program goes on.
#[derive(Debug)]
pub(super) struct RunLog {
    path: Utf8PathBuf,
    rotation: LogRotation,
    writer: Option<LogWriter>,
    errors: u64,
    first_error: Option<String>,
}

impl RunLog {
    pub(super) fn new(path: &Utf8Path, rotation: LogRotation) -> Self {
        Self { path: path.to_owned(), rotation, writer: None, errors: 0, first_error: None }
    }

    pub(super) fn write(&mut self, at: Timestamp, stream: Stream, bytes: &[u8]) {
        self.with(|writer| writer.write(at, stream, bytes));
    }

    /// A line of our own.
    pub(super) fn state(&mut self, at: Timestamp, text: &str) {
        self.with(|writer| writer.state(at, text));
    }

    /// Shows the unfinished lines to those who follow.
    pub(super) fn flush(&mut self, at: Timestamp) {
        self.with(|writer| writer.flush(at));
    }

    /// Ends the unfinished lines.
    pub(super) fn finish(&mut self, at: Timestamp) {
        self.with(|writer| writer.finish(at));
    }

    pub(super) fn holds_back(&self) -> bool {
        self.writer.as_ref().is_some_and(LogWriter::holds_back)
    }

    /// How many writes failed, and why the first did.
    pub(super) fn errors(&self) -> (u64, Option<String>) {
        (self.errors, self.first_error.clone())
    }

    fn with(&mut self, write: impl FnOnce(&mut LogWriter) -> io::Result<()>) {
        let writer = match &mut self.writer {
            Some(writer) => Ok(writer),
            None => LogWriter::open(&self.path, self.rotation).map(|writer| self.writer.insert(writer)),
        };
        if let Err(error) = writer.and_then(write) {
            self.errors = self.errors.saturating_add(1);
            let text = || format!("{}: {error}", self.path).chars().take(ERROR_CHARS).collect();
            self.first_error.get_or_insert_with(text);
        }
    }
}

/// Makes reads and writes return at once.
pub(super) fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

/// The last line with anything to show, fit for a line of a terminal.
fn last_line(tail: &[u8]) -> Option<String> {
    // A progress bar draws over its own line.
    tail.split(|byte| matches!(byte, b'\n' | b'\r')).rev().map(shown).find(|line| !line.is_empty())
}

/// Lossy, without escape sequences and control characters, and cut.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut characters = text.chars();
    let mut shown = String::new();
    let mut length = 0;
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            skip_escape(&mut characters);
            continue;
        }
        let character = if character == '\t' { ' ' } else { character };
        if !character.is_control() && length < LAST_LINE_CHARS {
            shown.push(character);
            length += 1;
        }
    }
    shown.trim().into()
}

/// Skips a terminal's control sequence (`ESC [ … letter`), operating system command (`ESC ] … BEL`) or
/// single-character escape.
fn skip_escape(characters: &mut std::str::Chars<'_>) {
    match characters.next() {
        Some('[') => {
            characters.find(|character| ('@'..='~').contains(character));
        }
        Some(']') => {
            characters.find(|character| matches!(character, '\u{7}' | '\u{1b}'));
        }
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_what_a_person_would_see() {
        let check = |tail: &[u8], expect: Option<&str>| {
            assert_eq!(last_line(tail).as_deref(), expect, "{}", tail.escape_ascii());
        };
        check(b"one\ntwo\n", Some("two"));
        check(b"one\ntwo", Some("two"));
        check(b"one\n\n  \n", Some("one"));
        check(b" 10%\r 20%\r", Some("20%"));
        check(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07plain\x07\n", Some("red plain"));
        check(b"\xff\xfe ok", Some("\u{fffd}\u{fffd} ok"));
        check(b"a\tb", Some("a b"));
        check(b"", None);
        check(b"\x1b[", None);
        assert_eq!(last_line(&[b'x'; 5000]).map(|line| line.len()), Some(LAST_LINE_CHARS));
    }
}
