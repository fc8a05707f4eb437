//! The keeper's end of the two pipes to its host.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::protocol::{KeeperReport, KeeperSpec, MAX_SPEC_BYTES, Order};
use super::pump::set_nonblocking;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;
/// The longest order. A longer line is not one.
const MAX_ORDER_BYTES: usize = 4096;

/// What came down the pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// An order.
    Order(Order),
    /// A line that is no order that this keeper knows.
    Unknown,
    /// The end: the host is gone.
    Gone,
}

/// Orders come in on stdin, reports go out on stdout.
#[derive(Debug)]
pub(super) struct HostLink {
    stdin: io::Stdin,
    stdout: io::Stdout,
    is_open: bool,
    incoming: Vec<u8>,
}

impl HostLink {
    pub(super) fn new() -> Self {
        Self { stdin: io::stdin(), stdout: io::stdout(), is_open: true, incoming: Vec::new() }
    }

    /// Reads the first line, waiting for it.
    pub(super) fn read_spec(&mut self) -> io::Result<KeeperSpec> {
        loop {
            if let Some(line) = take_line(&mut self.incoming) {
                return serde_json::from_slice(&line).map_err(io::Error::other);
            }
            if self.incoming.len() > MAX_SPEC_BYTES {
                return Err(io::Error::other(format!("the spec is longer than {MAX_SPEC_BYTES} bytes")));
            }
            if !self.read_more()? {
                return Err(io::Error::other("the host was gone before it sent a spec"));
            }
        }
    }

    /// From here on neither pipe makes us wait.
    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        set_nonblocking(&self.stdin)?;
        set_nonblocking(&self.stdout)
    }

    /// The pipe that orders come from, until its end.
    pub(super) fn orders(&self) -> Option<BorrowedFd<'_>> {
        self.is_open.then(|| self.stdin.as_fd())
    }

    /// What has come since the last time.
    pub(super) fn hear(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        while self.is_open {
            // First what came in one piece with the spec.
            while let Some(line) = take_line(&mut self.incoming) {
                heard.push(serde_json::from_slice(&line).map_or(Heard::Unknown, Heard::Order));
            }
            if self.incoming.len() > MAX_ORDER_BYTES {
                self.incoming.clear();
                heard.push(Heard::Unknown);
            }
            match self.read_more() {
                Ok(true) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(false) | Err(_) => self.is_open = false,
            }
        }
        if !self.is_open {
            heard.push(Heard::Gone);
        }
        heard
    }

    /// Reports, if the host has room for it at this moment. `false` if the report was dropped.
    pub(super) fn report(&self, report: &KeeperReport) -> bool {
        let Ok(mut line) = serde_json::to_vec(report) else { return false };
        line.push(b'\n');
        // Shorter than what a pipe takes in one piece, so there is never half a line.
        loop {
            match rustix::io::write(&self.stdout, &line) {
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Reports, and waits for a host that is slow, up to a bound.
    pub(super) fn report_finally(&mut self, report: &KeeperReport, bound_ms: u64) {
        let bound = Timespec {
            tv_sec: i64::try_from(bound_ms / 1000).unwrap_or_default(),
            tv_nsec: i64::try_from(bound_ms % 1000 * 1_000_000).unwrap_or_default(),
        };
        if !self.report(report) {
            let mut room = [PollFd::new(&self.stdout, PollFlags::OUT)];
            if poll(&mut room, Some(&bound)).is_ok() {
                self.report(report);
            }
        }
    }

    /// Reads once; `false` at the end.
    fn read_more(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match rustix::io::read(&self.stdin, &mut buffer) {
                Ok(read) => {
                    self.incoming.extend_from_slice(buffer.get(..read).unwrap_or_default());
                    return Ok(read > 0);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Takes the first whole line off.
fn take_line(incoming: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = incoming.iter().position(|byte| *byte == b'\n')?;
    let mut line: Vec<u8> = incoming.drain(..=end).collect();
    line.pop();
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::protocol::{EndCause, Exit, Progress, RunEnd, SpawnFailure, SpawnFailureKind};
    use crate::process::scope::LimitHit;

    #[test]
    fn the_longest_report_fits_a_pipe_in_one_piece() {
        let worst = "\u{10ffff}".repeat(200);
        let end = RunEnd {
            exit: Some(Exit::Code(i32::MIN)),
            cause: EndCause::HostLost,
            limit: Some(LimitHit::Memory),
            output: Progress {
                stdout_bytes: u64::MAX,
                stderr_bytes: u64::MAX,
                last_line: Some(worst.clone()),
            },
            leftover_killed: u32::MAX,
            survivors: u32::MAX,
            log_errors: u64::MAX,
            // Every one of its characters is written as an escape of six.
            log_error: Some("\u{1}".repeat(200)),
            changes: u32::MAX,
            ended_at: jiff::Timestamp::MAX,
        };
        let failure = SpawnFailure { kind: SpawnFailureKind::WorkingDirectory, message: "\u{1}".repeat(500) };
        for report in [KeeperReport::Ended(end), KeeperReport::SpawnFailed(failure)] {
            let length = serde_json::to_vec(&report).unwrap().len();
            assert!(length < 4096, "{length}");
        }
    }

    #[test]
    fn orders_are_what_the_documentation_says() {
        let order = |text| serde_json::from_str::<Order>(text).unwrap();
        assert_eq!(order(r#"{"stop":{"grace_ms":250}}"#), Order::Stop { grace_ms: Some(250) });
        assert_eq!(order(r#"{"stop":{}}"#), Order::Stop { grace_ms: None });
        assert_eq!(order(r#"{"kill":{}}"#), Order::Kill {});
    }
}
