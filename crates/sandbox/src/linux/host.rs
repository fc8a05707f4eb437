//! The host's side: starts the launcher, hands it the policy, and hears what was applied.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::wire::{ANSWER_BYTES_MAX, Answer, Request, VERSION, receive_byte, send};
use crate::launch::{ANSWER_WAIT_MAX, Confined, LaunchError, Lifeline};
use crate::level::{Level, Offer, Support};
use crate::policy::{Network, Policy};
use crate::seal::SealedPolicy;

/// A launcher that was told what to do.
struct Started {
    child: Child,
    /// Where it answers.
    socket: UnixStream,
}

impl SealedPolicy {
    /// Starts `argv` under this policy at `level`, and returns once every layer is on and checked from inside.
    ///
    /// `launcher` is a command that calls [`launcher::main`](crate::launcher::main) before anything else. The caller
    /// has set its stdout, stderr and process group; its environment is cleared here, and its stdin is used for the
    /// request. `stdin` becomes that of the program; without it the program reads nothing. Blocks for the few
    /// milliseconds that it takes, and no longer than [`ANSWER_WAIT_MAX`].
    pub fn launch(
        &self,
        launcher: Command,
        level: Level,
        argv: &[String],
        stdin: Option<OwnedFd>,
    ) -> Result<Confined, LaunchError> {
        let Started { mut child, socket } = self.start(launcher, level, argv, stdin)?;
        match answer(&socket, level, monotonic().saturating_add(ANSWER_WAIT_MAX)) {
            // The socket on which it was told is the lifeline from now on: nothing more is said on it.
            Ok((Answer::Confined(report), account)) => {
                Ok(Confined { child, report, lifeline: Lifeline::new(socket.into()), account })
            }
            Ok((Answer::Refused(refusal), _)) => {
                end(&mut child);
                Err(LaunchError::Refused { program: argv.first().cloned().unwrap_or_default(), refusal })
            }
            Err(error) => {
                end(&mut child);
                Err(LaunchError::Silent(error))
            }
        }
    }

    fn start(
        &self,
        mut launcher: Command,
        level: Level,
        argv: &[String],
        stdin: Option<OwnedFd>,
    ) -> Result<Started, LaunchError> {
        let program = launcher.get_program().to_string_lossy().into_owned();
        let failed = |source| LaunchError::Start { program: program.clone(), source };
        let (here, there) = UnixStream::pair().map_err(&failed)?;
        let stdin = stdin.map_or_else(|| File::open("/dev/null").map(OwnedFd::from), Ok).map_err(&failed)?;
        let request = Request {
            version: VERSION,
            level,
            digest: self.digest().to_owned(),
            policy: self.policy().clone(),
            argv: argv.to_vec(),
        };
        let text = serde_json::to_vec(&request).map_err(|error| failed(error.into()))?;
        let mut descriptors = vec![stdin.as_fd()];
        descriptors.extend(self.roots().iter().map(OwnedFd::as_fd));
        send(&here, &text, &descriptors).map_err(&failed)?;
        let child = launcher.env_clear().stdin(Stdio::from(OwnedFd::from(there))).spawn().map_err(&failed)?;
        // The command holds the launcher's end of the socket; without it the end of the launcher is heard at once.
        drop(launcher);
        Ok(Started { child, socket: here })
    }
}

impl Support {
    /// Finds out what this machine offers by trying: a throw-away session at full and one at floor, each checked from
    /// inside. `launcher` makes the launcher's command. Takes a few milliseconds; the answer holds as long as the
    /// machine's settings do.
    pub fn probe(mut launcher: impl FnMut() -> Command) -> Result<Self, LaunchError> {
        let sealed = Policy::new("/").with_network(Network::None).seal()?;
        let mut attempt = |level| -> Result<Offer, LaunchError> {
            let mut command = launcher();
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let Started { mut child, socket } = sealed.start(command, level, &[], None)?;
            let answer = answer(&socket, level, monotonic().saturating_add(ANSWER_WAIT_MAX));
            end(&mut child);
            Ok(match answer.map_err(LaunchError::Silent)?.0 {
                Answer::Confined(report) => Offer::Works { report },
                Answer::Refused(refusal) => Offer::Missing { refusal },
            })
        };
        Ok(Self { full: attempt(Level::Full)?, floor: attempt(Level::Floor)? })
    }
}

/// The launcher's last word. At full it speaks once, when the program runs, and hands over the account of the first
/// process inside before that. At floor it becomes the program, which ends the socket; if that fails it speaks again.
/// All of it has come by `until`, as [`monotonic`] counts, or it is an error.
fn answer(socket: &UnixStream, level: Level, until: Duration) -> io::Result<(Answer, Option<File>)> {
    let answering = Answering { socket, until };
    answering.wait()?;
    let (byte, mut descriptors) = receive_byte(socket)?;
    let account = descriptors.pop().map(File::from);
    let begun: Vec<u8> = byte.into_iter().filter(|_| account.is_none()).collect();
    let mut reader = BufReader::new(begun.as_slice().chain(answering).take(ANSWER_BYTES_MAX));
    let first = line(&mut reader)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without a word"))?;
    let second = if level == Level::Floor { line(&mut reader)? } else { None };
    Ok((second.unwrap_or(first), account))
}

/// A launcher's end of the socket, read until one moment: each read gets what time the ones before it have left.
struct Answering<'s> {
    socket: &'s UnixStream,
    until: Duration,
}

impl Answering<'_> {
    /// Until there is something to read, or the end.
    fn wait(&self) -> io::Result<()> {
        loop {
            let left = self.until.saturating_sub(monotonic());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(self.socket, PollFlags::IN)], Some(&left)) {
                Ok(0) => {
                    let message = format!("its whole answer takes longer than {ANSWER_WAIT_MAX:?}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl io::Read for Answering<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        let mut socket = self.socket;
        socket.read(buffer)
    }
}

/// The clock that only goes forward.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

/// One line, or `None` at the end.
fn line(reader: &mut impl BufRead) -> io::Result<Option<Answer>> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

/// Ends a launcher that will start nothing, and buries it.
fn end(child: &mut Child) {
    // It may have ended by itself, and then both say so.
    let _ended = child.kill();
    let _buried = child.wait();
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::level::{Refusal, RefusalCode};

    #[test]
    fn one_moment_bounds_the_whole_answer() {
        let said = Answer::Refused(Refusal::new(RefusalCode::System, "said".to_owned()));
        let line = serde_json::to_string(&said).unwrap() + "\n";
        let past = Duration::ZERO;
        let (here, mut there) = UnixStream::pair().unwrap();
        let nothing = answer(&here, Level::Full, past).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::TimedOut, "{nothing}");
        // At floor the end of the socket belongs to the answer, and gets no time of its own.
        there.write_all(line.as_bytes()).unwrap();
        assert_eq!(answer(&here, Level::Floor, past).unwrap_err().kind(), io::ErrorKind::TimedOut);
        there.write_all(b"{").unwrap();
        assert_eq!(answer(&here, Level::Full, past).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(line.as_bytes()).unwrap();
        drop(there);
        assert_eq!(answer(&here, Level::Floor, past).unwrap().0, said, "what has come in time is taken");
    }
}
