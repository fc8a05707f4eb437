//! The host's side of a run: start a keeper, hear from it, give it orders, and clean up should it die.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;
use std::sync::{Arc, Weak};
use std::time::Duration;

use camino::Utf8PathBuf;
use rustix::process::Signal;
use session_core::RunId;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdout};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::handing::{self, Ends};
use super::identity::ProcessIdentity;
use super::orphans::{self, OrphansEnded};
use super::protocol::{
    KeeperRecord, KeeperReport, KeeperSpec, Order, Progress, RunEnd, RunOutcome, SpawnFailure, SpecError,
    Started, Wiring,
};
use super::pump::set_nonblocking;
use super::record::{KeeperState, keeper_record, recover_keeper};
use super::scope::Applied;
use super::{given_up, spawn};

/// The longest that a keeper may take to start the program: as long as a launcher may take to answer, and time for
/// what comes before it.
pub const START_BOUND: Duration = sandbox::ANSWER_WAIT_MAX.saturating_add(Duration::from_secs(20));
/// The longest that a keeper may take to go after its last report. It is not waited for any longer.
const GO_BOUND: Duration = Duration::from_secs(5);
/// The longest line that is taken from a keeper.
const MAX_REPORT_BYTES: usize = 64 << 10;

/// The program that keepers are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperProgram {
    /// The binary, usually the one that runs.
    pub path: Utf8PathBuf,
    /// What makes it call [`keeper_main`](super::keeper_main), usually the name of a hidden subcommand.
    pub arguments: Vec<String>,
    /// Where its own complaints go; nowhere where it is `None`. It has none unless something is very wrong.
    pub stderr: Option<Utf8PathBuf>,
}

/// Why a run could not be started.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// The spec cannot describe a process. Nothing was made.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The keeper itself could not be started.
    #[error("cannot start the keeper {program}")]
    Keeper {
        /// Its binary.
        program: Utf8PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The keeper did, but the program could not be started.
    #[error(transparent)]
    Program(#[from] SpawnFailure),
    /// The keeper went away, or said what no keeper says.
    #[error("the keeper of {run} failed before it started the program: {message}")]
    Lost {
        /// The run.
        run: RunId,
        /// What is known.
        message: String,
    },
}

/// What a host hears of a run that has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunReport {
    /// There is new output.
    Progress(Progress),
    /// The whole tree has ended. Nothing follows.
    Ended(RunEnd),
    /// The keeper died without a record of the end, and what it left behind was ended. Nothing follows.
    KeeperLost(OrphansEnded),
}

/// A run under a keeper. Dropping it closes the keeper's lifeline: as if the host were gone.
#[derive(Debug)]
pub struct Supervised {
    keeper: Child,
    reports: BufReader<ChildStdout>,
    line: Vec<u8>,
    lifeline: Arc<OwnedFd>,
    wire: Option<UnixStream>,
    ends: Option<Ends>,
    started: Started,
    record: Option<Box<KeeperRecord>>,
    run: RunId,
    state_file: Utf8PathBuf,
    last: Last,
}

/// How far the end of a run is known. Kept here so that a dropped future loses nothing.
#[derive(Debug)]
enum Last {
    /// It is not over.
    No,
    /// This is to be said when the keeper has gone.
    Known(RunEnd),
    /// The keeper died; its tree is being ended.
    Cleaning(JoinHandle<io::Result<OrphansEnded>>),
    /// All was said.
    Said,
}

impl Supervised {
    /// Starts a keeper, and the program under it. Returns when the program runs. After an error nothing of the run is
    /// left: neither the keeper, whatever it would do about a lost host, nor what it has started. Dropping the future is
    /// as if the host were gone.
    pub async fn start(program: &KeeperProgram, spec: &KeeperSpec) -> Result<Self, SpawnError> {
        spec.check()?;
        let failed = |source| SpawnError::Keeper { program: program.path.clone(), source };
        let mut text = serde_json::to_vec(spec).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        let (stderr, socket) = stderr(program, spec.wiring).map_err(failed)?;
        let mut keeper = spawn::keeper(&program.path, &program.arguments, stderr).spawn().map_err(failed)?;
        let Up { reports, line, lifeline, started } = match up(&mut keeper, program, spec.run, &text).await {
            Ok(up) => up,
            Err(error) => return Err(give_up(keeper, spec, error).await),
        };
        let (wire, ends) = match (spec.wiring, socket) {
            (Wiring::HandedOut, Some(socket)) => match handing::receive(&socket) {
                Ok(ends) => (None, Some(ends)),
                Err(error) => {
                    let message = error.to_string();
                    let error = SpawnError::Lost { run: spec.run, message };
                    drop(lifeline);
                    return Err(give_up(keeper, spec, error).await);
                }
            },
            (_, socket) => (socket, None),
        };
        // Written before the program was reported to have started; it is more than a pipe takes in one piece.
        let record = keeper_record(&spec.state_file, spec.run).ok().flatten().map(Box::new);
        Ok(Self {
            keeper,
            reports,
            line,
            lifeline: Arc::new(lifeline),
            wire,
            ends,
            started,
            record,
            run: spec.run,
            state_file: spec.state_file.clone(),
            last: Last::No,
        })
    }

    /// The keeper.
    #[must_use]
    pub fn keeper(&self) -> &ProcessIdentity {
        &self.started.keeper
    }

    /// The program that the keeper has started.
    #[must_use]
    pub fn child(&self) -> &ProcessIdentity {
        &self.started.child
    }

    /// The directories of the tree's cgroup; none where there is no cgroup.
    #[must_use]
    pub fn cgroups(&self) -> &[Utf8PathBuf] {
        self.record.as_ref().map_or(&[], |record| &record.cgroups)
    }

    /// The program's stdout to read and its stdin to write, once, where they are [carried](Wiring::Carried). Whoever does
    /// not read makes the program wait.
    pub fn take_wire(&mut self) -> Option<UnixStream> {
        self.wire.take()
    }

    /// The other ends of the program's stdin and stdout, once, where they are [handed out](Wiring::HandedOut).
    pub fn take_ends(&mut self) -> Option<Ends> {
        self.ends.take()
    }

    /// What was applied to the run, as its keeper recorded it; `None` if it could not write that down.
    #[must_use]
    pub fn applied(&self) -> Option<&Applied> {
        self.record.as_ref()?.applied.as_ref()
    }

    /// Something to give orders with, from anywhere.
    #[must_use]
    pub fn control(&self) -> Control {
        Control { lifeline: Arc::downgrade(&self.lifeline), keeper: self.started.keeper.clone() }
    }

    /// What comes next; `None` after [`RunReport::Ended`] or [`RunReport::KeeperLost`]. Dropping the future
    /// loses nothing.
    pub async fn next_report(&mut self) -> io::Result<Option<RunReport>> {
        loop {
            match &mut self.last {
                Last::Said => return Ok(None),
                Last::Known(_) => {
                    let _gone = timeout(GO_BOUND, self.keeper.wait()).await;
                    let Last::Known(end) = std::mem::replace(&mut self.last, Last::Said) else { continue };
                    return Ok(Some(RunReport::Ended(end)));
                }
                Last::Cleaning(cleaning) => {
                    let ended = cleaning.await.map_err(io::Error::other)?;
                    self.last = Last::Said;
                    return Ok(Some(RunReport::KeeperLost(ended?)));
                }
                Last::No => {}
            }
            match read_line(&mut self.reports, &mut self.line).await? {
                Line::Report(KeeperReport::Progress(progress)) => {
                    return Ok(Some(RunReport::Progress(progress)));
                }
                Line::Report(KeeperReport::Ended(end)) => self.last = Last::Known(end),
                // Said once, at the start; or by a keeper that knows more than we do.
                Line::Report(KeeperReport::Started(_) | KeeperReport::SpawnFailed(_)) | Line::Unknown => {}
                Line::Gone => {
                    self.keeper.wait().await?;
                    self.last = self.look_after_the_dead()?;
                }
            }
        }
    }

    /// The keeper is gone and has not said what became of the run.
    fn look_after_the_dead(&self) -> io::Result<Last> {
        if let KeeperState::Ended(RunOutcome::Ended(end)) = recover_keeper(&self.state_file, self.run)? {
            return Ok(Last::Known(end));
        }
        let run = self.run;
        let cgroups = self.cgroups().to_vec();
        Ok(Last::Cleaning(tokio::task::spawn_blocking(move || orphans::end_run(run, &cgroups))))
    }
}

/// Gives orders to a keeper. Cheap to clone; it does not hold the lifeline.
#[derive(Debug, Clone)]
pub struct Control {
    lifeline: Weak<OwnedFd>,
    keeper: ProcessIdentity,
}

impl Control {
    /// Orders SIGTERM now and SIGKILL after the grace; `None` for the one in the spec. `false` if the run is
    /// over already. The end itself comes as a report.
    pub fn stop(&self, grace: Option<Duration>) -> io::Result<bool> {
        let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        self.order(Order::Stop { grace_ms }, Signal::TERM)
    }

    /// Orders SIGKILL now. `false` if the run is over already.
    pub fn kill(&self) -> io::Result<bool> {
        self.order(Order::Kill {}, Signal::USR1)
    }

    fn order(&self, order: Order, signal: Signal) -> io::Result<bool> {
        let mut line = serde_json::to_vec(&order)?;
        line.push(b'\n');
        // Short enough to be written in one piece or not at all.
        if let Some(lifeline) = self.lifeline.upgrade()
            && rustix::io::write(&lifeline, &line).is_ok()
        {
            return Ok(true);
        }
        // The pipe is full of orders, or the lifeline is gone and the keeper may go on without it.
        self.keeper.signal(signal)
    }
}

/// What a keeper is known by once its program runs.
struct Up {
    reports: BufReader<ChildStdout>,
    line: Vec<u8>,
    lifeline: OwnedFd,
    started: Started,
}

/// What the keeper has as stderr: where its complaints go, or its end of a wire; and our end of that.
fn stderr(program: &KeeperProgram, wiring: Wiring) -> io::Result<(Stdio, Option<UnixStream>)> {
    if wiring == Wiring::Logged {
        return Ok((open_stderr(program)?, None));
    }
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((Stdio::from(OwnedFd::from(theirs)), Some(UnixStream::from_std(ours)?)))
}

/// Tells the keeper what to do, and hears that it is done.
async fn up(keeper: &mut Child, program: &KeeperProgram, run: RunId, text: &[u8]) -> Result<Up, SpawnError> {
    let failed = |source| SpawnError::Keeper { program: program.path.clone(), source };
    let (Some(mut stdin), Some(stdout)) = (keeper.stdin.take(), keeper.stdout.take()) else {
        return Err(failed(io::Error::other("it has no pipes")));
    };
    let mut reports = BufReader::new(stdout);
    let mut line = Vec::new();
    let first = timeout(START_BOUND, async {
        stdin.write_all(text).await?;
        read_line(&mut reports, &mut line).await
    })
    .await;
    let lost = |message: String| SpawnError::Lost { run, message };
    let started = match first {
        Ok(Ok(Line::Report(KeeperReport::Started(started)))) => started,
        Ok(Ok(Line::Report(KeeperReport::SpawnFailed(failure)))) => {
            let _gone = timeout(GO_BOUND, keeper.wait()).await;
            return Err(failure.into());
        }
        Ok(Ok(Line::Report(KeeperReport::Progress(_) | KeeperReport::Ended(_)) | Line::Unknown)) => {
            return Err(lost("it said what no keeper says at its start".into()));
        }
        Ok(Ok(Line::Gone)) => return Err(lost("it has ended".into())),
        Ok(Err(error)) => return Err(lost(error.to_string())),
        Err(_) => return Err(lost(format!("it did not start the program within {START_BOUND:?}"))),
    };
    let lifeline = stdin.into_owned_fd().map_err(failed)?;
    set_nonblocking(&lifeline).map_err(failed)?;
    Ok(Up { reports, line, lifeline, started })
}

/// Ends what there is of a start that has failed, and says so if something could not be ended.
async fn give_up(mut keeper: Child, spec: &KeeperSpec, error: SpawnError) -> SpawnError {
    let (run, state_file) = (spec.run, spec.state_file.clone());
    let ended = tokio::task::spawn_blocking(move || {
        let left = given_up::end_start(&mut keeper, run, &state_file);
        (keeper, left)
    });
    let left = match ended.await {
        Ok((mut keeper, left)) => {
            let _gone = timeout(GO_BOUND, keeper.wait()).await;
            left
        }
        Err(error) => Err(error.into()),
    };
    let left = match left {
        Ok(0) => return error,
        Ok(left) => format!("{left} of its processes hang in the kernel"),
        Err(error) => format!("what it has started could not be looked for: {error}"),
    };
    tracing::warn!(%run, %left, "a start that has failed was not ended as a whole");
    match error {
        SpawnError::Lost { run, message } => SpawnError::Lost { run, message: format!("{message}; {left}") },
        SpawnError::Spec(_) | SpawnError::Keeper { .. } | SpawnError::Program(_) => error,
    }
}

fn open_stderr(program: &KeeperProgram) -> io::Result<Stdio> {
    let Some(path) = &program.stderr else { return Ok(Stdio::null()) };
    let file: File = OpenOptions::new().create(true).append(true).mode(0o600).open(path.as_std_path())?;
    Ok(file.into())
}

/// What came up the pipe.
enum Line {
    Report(KeeperReport),
    /// Nothing that this host knows.
    Unknown,
    /// The end.
    Gone,
}

/// The next line. What was read of it stays in `line` if the future is dropped.
async fn read_line(reports: &mut BufReader<ChildStdout>, line: &mut Vec<u8>) -> io::Result<Line> {
    loop {
        let available = reports.fill_buf().await?;
        if available.is_empty() {
            return Ok(Line::Gone);
        }
        let newline = available.iter().position(|byte| *byte == b'\n');
        let taken = newline.unwrap_or(available.len());
        line.extend_from_slice(available.get(..taken).unwrap_or_default());
        reports.consume(taken + usize::from(newline.is_some()));
        if newline.is_some() {
            let report = serde_json::from_slice(line).map_or(Line::Unknown, Line::Report);
            line.clear();
            return Ok(report);
        }
        if line.len() > MAX_REPORT_BYTES {
            line.clear();
        }
    }
}
