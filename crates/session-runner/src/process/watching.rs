//! What a run has planted: the watched names before and after it. How they were is on disk too, so that it can be told
//! after a keeper that was killed.

use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::guard::{Change, Watch};
use serde::{Deserialize, Serialize};
use session_core::RunId;

use super::protocol::{CHANGES_MAX, KeeperSpec};
use crate::workspace::file::{Outlives, replace};

/// The largest file that is read back, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The names as they were before a run.
#[derive(Debug)]
pub(super) struct Watching {
    watch: Watch,
    file: Utf8PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    run: RunId,
    watch: Watch,
}

/// What is not as it was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Told {
    /// At most [`CHANGES_MAX`].
    pub(crate) changes: Vec<Change>,
    /// How many more there are.
    pub(crate) more: u32,
}

impl Watching {
    /// Looks before the start; `None` where nothing is watched. What cannot be kept on disk is told by this keeper alone.
    pub(super) fn before(spec: &KeeperSpec) -> Option<Self> {
        let file = file_beside(&spec.state_file);
        if spec.watch.is_empty() {
            remove(&file);
            return None;
        }
        let watch = Watch::before(&spec.watch);
        if let Ok(text) = serde_json::to_vec(&Kept { run: spec.run, watch: watch.clone() }) {
            let _kept_in_memory_alone = replace(&file, &text, Outlives::Processes);
        }
        Some(Self { watch, file })
    }

    /// Compares, when no process of the run is left, and sets aside what must not stay. `tell` hears of each change.
    pub(super) fn after(&self, tell: impl FnMut(&Change)) -> Told {
        let told = compare(&self.watch, tell);
        remove(&self.file);
        told
    }
}

/// Compares for a keeper that was killed before it could. `None` where nothing was watched, or where it was told.
pub(crate) fn left_untold(state_file: &Utf8Path, run: RunId) -> io::Result<Option<Told>> {
    let file = file_beside(state_file);
    match fs::metadata(&file) {
        Ok(metadata) if metadata.len() <= FILE_BYTES_MAX => {}
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    let kept: Kept = serde_json::from_slice(&fs::read(&file)?)?;
    if kept.run != run {
        return Ok(None);
    }
    let told = compare(&kept.watch, |_| {});
    remove(&file);
    Ok(Some(told))
}

fn compare(watch: &Watch, tell: impl FnMut(&Change)) -> Told {
    let mut changes = watch.set_aside();
    changes.extend(watch.changes());
    changes.iter().for_each(tell);
    let more = changes.len().saturating_sub(CHANGES_MAX);
    changes.truncate(CHANGES_MAX);
    Told { changes, more: u32::try_from(more).unwrap_or(u32::MAX) }
}

/// Beside the record: no session writes there.
fn file_beside(state_file: &Utf8Path) -> Utf8PathBuf {
    state_file.with_file_name("watched.json")
}

fn remove(file: &Utf8Path) {
    // The next run of the session writes it anew.
    let _left_there = fs::remove_file(file);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_keeper_could_not_tell_is_told_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(directory.path()).unwrap().canonicalize_utf8().unwrap();
        let (state_file, work) = (path.join("keeper.json"), path.join("work"));
        fs::create_dir(&work).unwrap();
        let run: RunId = "run_0123456789abcdef0123456789abcdef".parse().unwrap();
        let other: RunId = "run_1123456789abcdef0123456789abcdef".parse().unwrap();
        assert_eq!(left_untold(&state_file, run).unwrap(), None);
        let kept = Kept { run, watch: Watch::before(std::slice::from_ref(&work)) };
        fs::write(file_beside(&state_file), serde_json::to_vec(&kept).unwrap()).unwrap();
        fs::write(work.join(".mcp.json"), "{}").unwrap();
        assert_eq!(left_untold(&state_file, other).unwrap(), None);
        let told = left_untold(&state_file, run).unwrap().unwrap();
        assert_eq!((told.changes.len(), told.more), (1, 0));
        assert_eq!(left_untold(&state_file, run).unwrap(), None);
        fs::write(file_beside(&state_file), "torn").unwrap();
        assert!(left_untold(&state_file, run).is_err());
    }
}
