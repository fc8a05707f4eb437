//! The state file of a keeper: written by it, read by whichever host comes next.

use std::fs;
use std::io::{self, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::Signal;
use session_core::RunId;
use tokio::net::unix::pipe::Receiver;

use super::identity::ProcessIdentity;
use super::protocol::{KeeperRecord, RunOutcome};
use crate::workspace::file::{Outlives, replace};

/// What a host finds of the keeper of a run that it did not start itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeeperState {
    /// No keeper of this run ever began: nothing was started.
    Never,
    /// It is at work.
    Alive(LivingKeeper),
    /// The run is over, and this is what it came to.
    Ended(RunOutcome),
    /// The keeper died without a record of the end; its tree may live on, see
    /// [`end_run`](super::orphans::end_run). The record is `None` if a crash of the machine has torn it.
    Gone(Option<Box<KeeperRecord>>),
}

/// Looks up what became of the keeper of this run.
pub fn recover_keeper(state_file: &Utf8Path, run: RunId) -> io::Result<KeeperState> {
    let record = match read(state_file)? {
        Read::Missing => return Ok(KeeperState::Never),
        Read::Torn => return Ok(KeeperState::Gone(None)),
        Read::Whole(record) if record.run != run => return Ok(KeeperState::Never),
        Read::Whole(record) => record,
    };
    if record.outcome.is_none() && record.keeper.is_alive()? {
        return Ok(KeeperState::Alive(LivingKeeper { record, state_file: state_file.to_owned() }));
    }
    // It may have written the end and gone after the file was read.
    if let Read::Whole(later) = read(state_file)?
        && later.run == run
        && let Some(outcome) = later.outcome
    {
        return Ok(KeeperState::Ended(outcome));
    }
    Ok(KeeperState::Gone(Some(record)))
}

/// The keeper of this run, if it is at work.
pub fn living_keeper(state_file: &Utf8Path, run: RunId) -> io::Result<Option<LivingKeeper>> {
    Ok(match recover_keeper(state_file, run)? {
        KeeperState::Alive(keeper) => Some(keeper),
        KeeperState::Never | KeeperState::Ended(_) | KeeperState::Gone(_) => None,
    })
}

/// The keeper that has recorded itself here, if it is at work, whichever run it keeps.
pub fn any_living_keeper(state_file: &Utf8Path) -> io::Result<Option<LivingKeeper>> {
    match read(state_file)? {
        Read::Whole(record) => living_keeper(state_file, record.run),
        Read::Missing | Read::Torn => Ok(None),
    }
}

/// What the keeper of this run has recorded so far: what was applied to it, and after the end what has changed. `None`
/// if it has recorded nothing, or if a crash of the machine has torn it.
pub fn keeper_record(state_file: &Utf8Path, run: RunId) -> io::Result<Option<KeeperRecord>> {
    Ok(match read(state_file)? {
        Read::Whole(record) if record.run == run => Some(*record),
        Read::Whole(_) | Read::Missing | Read::Torn => None,
    })
}

/// A keeper that another process started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivingKeeper {
    record: Box<KeeperRecord>,
    state_file: Utf8PathBuf,
}

impl LivingKeeper {
    /// What it has recorded so far.
    #[must_use]
    pub fn record(&self) -> &KeeperRecord {
        &self.record
    }

    /// The keeper.
    #[must_use]
    pub fn identity(&self) -> &ProcessIdentity {
        &self.record.keeper
    }

    /// Orders it to stop its tree: SIGTERM, the grace of its spec, SIGKILL. `false` if it has ended already.
    pub fn stop(&self) -> io::Result<bool> {
        self.record.keeper.signal(Signal::TERM)
    }

    /// Orders it to kill its tree. `false` if it has ended already.
    pub fn kill(&self) -> io::Result<bool> {
        self.record.keeper.signal(Signal::USR1)
    }

    /// Waits until it has ended and says what it left: [`KeeperState::Ended`] or [`KeeperState::Gone`].
    pub async fn wait(&self) -> io::Result<KeeperState> {
        if let Some(pidfd) = self.record.keeper.pidfd()? {
            // A pidfd is no pipe, but all that is asked of tokio is when it becomes readable.
            Receiver::from_owned_fd_unchecked(pidfd)?.readable().await?;
        }
        recover_keeper(&self.state_file, self.record.run)
    }
}

/// Writes the record. Before the program is started it must be there for whoever looks for the keeper; the end
/// must outlive the machine.
pub(super) fn write(state_file: &Utf8Path, record: &KeeperRecord) -> io::Result<()> {
    let bytes = serde_json::to_vec(record)?;
    let outlives = if record.outcome.is_some() { Outlives::TheMachine } else { Outlives::Processes };
    replace(state_file, &bytes, outlives).or_else(|error| {
        if record.outcome.is_none() {
            return Err(error);
        }
        // The disk is full, perhaps. The file of the beginning has its block already, and the end fits into it.
        let mut file = fs::OpenOptions::new().write(true).open(state_file)?;
        file.write_all(&bytes)?;
        file.set_len(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
        file.sync_all()
    })
}

enum Read {
    Missing,
    Torn,
    Whole(Box<KeeperRecord>),
}

fn read(state_file: &Utf8Path) -> io::Result<Read> {
    match fs::read(state_file) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).map_or(Read::Torn, Read::Whole)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Read::Missing),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use session_core::Env;

    use super::*;

    #[test]
    fn a_record_of_version_1_is_read() {
        let env = Env::system();
        let (session, run) = (env.session_id(), env.run_id());
        let keeper = ProcessIdentity { pid: 7, start_time: 8, boot_id: "9".into() };
        for (cgroup, expect) in [(json!(null), vec![]), (json!("/sys/fs/cgroup/x"), vec!["/sys/fs/cgroup/x"])]
        {
            let old = json!({
                "v": 1, "session": session, "run": run, "keeper": keeper, "child": keeper, "cgroup": cgroup, "outcome": {
                    "ended": {
                        "exit": {"code": 0}, "cause": "exited", "leftover_killed": 0, "survivors": 0,
                        "log_errors": 0, "log_error": null, "ended_at": "2026-01-01T00:00:00Z",
                    },
                },
            });
            let record: KeeperRecord = serde_json::from_value(old).unwrap();
            assert_eq!(record.cgroups, expect);
            assert_eq!((record.applied.clone(), record.changes.len()), (None, 0));
            let again: KeeperRecord = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
            assert_eq!(again, record);
        }
    }
}
