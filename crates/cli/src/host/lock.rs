//! One host a data directory: a file lock that the system releases with the process, whatever ends it.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::time::Duration;

use camino::Utf8Path;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use session_runner::private;

use crate::failure::{Failure, Kind, Outcome};
use crate::paths::Paths;

/// Who holds a data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// Since when.
    pub since: Timestamp,
    /// What it is doing there.
    pub purpose: String,
}

/// The lock of a data directory, held until it is dropped.
#[derive(Debug)]
pub struct HostLock {
    _file: File,
}

impl HostLock {
    /// Becomes the host, or says who is. A holder that is just leaving is waited for, for as long as `patience`.
    pub async fn acquire(paths: &Paths, purpose: &str, now: Timestamp, patience: Duration) -> Outcome<Self> {
        let path = paths.lock();
        let mut file = open(&path)?;
        if !try_lock(&file, &path)? {
            let waiting = file.try_clone().map_err(|error| failed(&path, &error))?;
            // Both descriptors are one open file, so what the thread locks is held by `file`.
            let locked = tokio::task::spawn_blocking(move || waiting.lock());
            match tokio::time::timeout(patience, locked).await {
                Ok(Ok(result)) => result.map_err(|error| failed(&path, &error))?,
                Ok(Err(error)) => {
                    return Err(Failure::caused(Kind::Error, "waiting for the lock failed", &error));
                }
                Err(_elapsed) => {
                    let mut text = String::new();
                    file.read_to_string(&mut text).map_err(|error| failed(&path, &error))?;
                    return Err(held_by(paths, serde_json::from_str(&text).ok().as_ref()));
                }
            }
        }
        let holder = Holder { pid: std::process::id(), since: now, purpose: purpose.into() };
        let text = serde_json::to_string(&holder)
            .map_err(|error| Failure::caused(Kind::Error, "the holder cannot be written", &error))?;
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(text.as_bytes())
        };
        write(&mut file).map_err(|error| failed(&path, &error))?;
        Ok(Self { _file: file })
    }
}

fn try_lock(file: &File, path: &Utf8Path) -> Outcome<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(failed(path, &error)),
    }
}

fn failed(path: &Utf8Path, error: &std::io::Error) -> Failure {
    Failure::caused(Kind::Error, format!("{path} cannot be locked"), error)
}

/// Takes the lock under which hosts are started, waiting for whoever starts one now.
#[cfg(target_os = "linux")]
pub fn starting(paths: &Paths) -> Outcome<File> {
    let path = paths.start_lock();
    let file = open(&path)?;
    file.lock().map_err(|error| Failure::caused(Kind::Error, format!("{path} cannot be locked"), &error))?;
    Ok(file)
}

/// The sentence that says who holds a directory.
fn held_by(paths: &Paths, holder: Option<&Holder>) -> Failure {
    let who = holder.map_or_else(
        || "another process that is just starting".into(),
        |holder| format!("process {} ({}, since {})", holder.pid, holder.purpose, holder.since),
    );
    Failure::new(Kind::Conflict, format!("the data directory {} is held by {who}", paths.data))
}

fn open(path: &Utf8Path) -> Outcome<File> {
    let opened = private::options().read(true).write(true).create(true).truncate(false).open(path);
    opened.map_err(|error| {
        Failure::caused(Kind::Error, format!("{path} cannot be opened"), &error)
            .hint("the data directory must be writable; ROOMETTE_HOME names another one")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_wins_and_the_other_learns_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::find(Utf8Path::from_path(dir.path()), |_| None).unwrap();
        let acquire = async |purpose, patience| {
            HostLock::acquire(&paths, purpose, Timestamp::UNIX_EPOCH, Duration::from_secs(patience)).await
        };
        let lock = acquire("a test", 0).await.unwrap();
        let failure = acquire("another", 0).await.unwrap_err();
        assert_eq!(failure.kind, Kind::Conflict);
        let me = format!("process {} (a test, since 1970-01-01T00:00:00Z)", std::process::id());
        assert!(failure.message.contains(&me), "{failure}");
        let (waited, ()) = tokio::join!(acquire("a patient one", 60), async { drop(lock) });
        waited.unwrap();
    }
}
