//! The host's side: starts the launcher, hands it the policy, and hears what was applied.

use std::io::{self, BufRead, BufReader, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::level::{Level, Offer, Refusal, RefusalCode, Report, Support};
use crate::policy::{Network, Policy, PolicyError};
use crate::seal::SealedPolicy;
use crate::wire::{ANSWER_BYTES_MAX, Answer, Request, Stage, VERSION, send, write_line};

/// How long a launcher may take to answer. It takes milliseconds; a machine under load takes longer.
pub const ANSWER_WAIT_MAX: Duration = Duration::from_secs(20);

/// A program that runs confined.
#[derive(Debug)]
pub struct Confined {
    /// The launcher: at floor it has become the program, at full it stands for it. Its end is that of the program
    /// (the same exit code or signal), and at full also the end of everything that the program started.
    pub child: Child,
    /// What was applied.
    pub report: Report,
}

/// Why no program was started. Nothing of it ran, and no process is left.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The launcher refused.
    #[error("the sandbox refused to start {program:?}: {refusal}; {}", refusal.code.advice())]
    Refused {
        /// The first word of the command line.
        program: String,
        /// The step and the reason.
        refusal: Refusal,
    },
    /// The launcher itself could not be started.
    #[error("cannot start the sandbox launcher {program:?}")]
    Start {
        /// The launcher's program.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The launcher ended, or said nothing in time, or something that is no answer.
    #[error("the sandbox launcher gave no answer: use a launcher and a host of the same version")]
    Silent(#[source] io::Error),
    /// The policy of a probe was refused.
    #[error(transparent)]
    Policy(#[from] PolicyError),
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
        let (mut child, answer) = self.start(launcher, level, argv, stdin)?;
        match answer {
            Ok(Answer::Confined(report)) => Ok(Confined { child, report }),
            Ok(Answer::Refused(refusal)) => {
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
    ) -> Result<(Child, io::Result<Answer>), LaunchError> {
        let program = launcher.get_program().to_string_lossy().into_owned();
        let failed = |source| LaunchError::Start { program: program.clone(), source };
        let (here, there) = UnixStream::pair().map_err(&failed)?;
        let stdin =
            stdin.map_or_else(|| std::fs::File::open("/dev/null").map(OwnedFd::from), Ok).map_err(&failed)?;
        let request = Request {
            version: VERSION,
            stage: Stage::Outer,
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
        Ok((child, answer(here, level)))
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
            let (mut child, answer) = sealed.start(command, level, &[], None)?;
            end(&mut child);
            Ok(match answer.map_err(LaunchError::Silent)? {
                Answer::Confined(report) => Offer::Works { report },
                Answer::Refused(refusal) => Offer::Missing { refusal },
            })
        };
        Ok(Self { full: attempt(Level::Full)?, floor: attempt(Level::Floor)? })
    }
}

/// The launcher's last word. At full it speaks once, when the program runs. At floor it becomes the program, which ends
/// the socket; if that fails it speaks again.
fn answer(socket: UnixStream, level: Level) -> io::Result<Answer> {
    socket.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
    let mut reader = BufReader::new(socket.take(ANSWER_BYTES_MAX));
    let first = line(&mut reader)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without a word"))?;
    let second = if level == Level::Floor { line(&mut reader)? } else { None };
    Ok(second.unwrap_or(first))
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

/// Tells the host that the program will not be started. The host may be gone.
pub(crate) fn refuse(socket: &OwnedFd, refusal: Refusal) {
    let _host_is_gone = write_line(socket, &Answer::Refused(refusal));
}

/// Turns what the system said into a refusal of this step.
pub(crate) fn refusal(
    code: RefusalCode,
    what: impl std::fmt::Display,
    error: impl std::fmt::Display,
) -> Refusal {
    Refusal::new(code, format!("{what}: {error}"))
}
