//! Reports that could not be delivered: one file a claim, one line a report, on disk before they count as made.
//!
//! A claim's reports are delivered in their order, from the beginning of its file again after a restart: whoever takes them
//! knows those that came before. A last line without an end was never acknowledged, and is not sent.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use session_api::runners::RunnerReport;
use session_core::Fence;
use session_core::run::Epoch;

use crate::private;

/// How large the file of one claim may become before its run is held up, in bytes. Its end has room all the same.
const FILE_MAX: u64 = 64 * 1024 * 1024;
/// What the end of a run may take beyond that.
const END_ROOM: u64 = 4 * 1024 * 1024;

/// The reports of one claim that wait on disk.
#[derive(Debug)]
pub(super) struct Spooled {
    path: Utf8PathBuf,
    /// How many bytes of complete lines there are, and how many of them were delivered.
    written: u64,
    delivered: u64,
}

/// The file of a claim.
fn file_name(fence: Fence) -> String {
    format!("{}.{}.jsonl", fence.run, fence.epoch)
}

fn claim_of(name: &str) -> Option<Fence> {
    let mut parts = name.strip_suffix(".jsonl")?.split('.');
    let (run, epoch) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(Fence { run, epoch: Epoch(epoch) })
}

/// What an earlier process left in this directory, which is made if it is not there.
pub(super) fn left_in(directory: &Utf8Path) -> io::Result<Vec<(Fence, Spooled)>> {
    private::make_directory(directory)?;
    let mut left = Vec::new();
    for entry in directory.read_dir_utf8()? {
        let entry = entry?;
        let Some(fence) = claim_of(entry.file_name()) else { continue };
        let bytes = std::fs::read(entry.path())?;
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let written = u64::try_from(end).unwrap_or(u64::MAX);
        let file = File::options().write(true).open(entry.path())?;
        file.set_len(written)?;
        file.sync_all()?;
        left.push((fence, Spooled { path: entry.path().to_owned(), written, delivered: 0 }));
    }
    left.sort_by_key(|(fence, _)| (fence.run, fence.epoch));
    Ok(left)
}

impl Spooled {
    /// Nothing yet, of this claim.
    pub(super) fn new(directory: &Utf8Path, fence: Fence) -> Self {
        Self { path: directory.join(file_name(fence)), written: 0, delivered: 0 }
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.delivered >= self.written
    }

    /// Puts a report behind the others. It is on disk when this returns.
    pub(super) fn push(&mut self, report: &RunnerReport, is_end: bool) -> io::Result<()> {
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let room = if is_end { FILE_MAX + END_ROOM } else { FILE_MAX };
        if self.written.saturating_add(length) > room {
            let message = format!("{} holds all that may wait for a coordinator", self.path);
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        let new = !self.path.exists();
        let mut file = private::options().create(true).append(true).open(&self.path)?;
        let done = file.write_all(&line).and_then(|()| file.sync_all());
        if let Err(error) = done {
            // Half a line is none.
            file.set_len(self.written)?;
            return Err(error);
        }
        if let (true, Some(directory)) = (new, self.path.parent()) {
            private::sync_directory(directory)?;
        }
        self.written += length;
        Ok(())
    }

    /// The reports that wait, in order, each with its length.
    pub(super) fn waiting(&self) -> io::Result<Vec<(RunnerReport, u64)>> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::new();
        File::open(&self.path)?.take(self.written).read_to_end(&mut bytes)?;
        let from = usize::try_from(self.delivered).unwrap_or(usize::MAX);
        let rest = bytes.get(from..).unwrap_or_default();
        let lines = rest.split_inclusive(|byte| *byte == b'\n');
        let read = lines.map(|line| {
            let report = serde_json::from_slice(line).map_err(io::Error::from)?;
            Ok((report, u64::try_from(line.len()).unwrap_or(u64::MAX)))
        });
        read.collect()
    }

    /// The first of those that wait was delivered. With the last one the file goes.
    pub(super) fn delivered(&mut self, length: u64) -> io::Result<()> {
        self.delivered += length;
        if self.is_empty() { self.clear() } else { Ok(()) }
    }

    /// Forgets what waits.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        (self.written, self.delivered) = (0, 0);
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use session_api::runners::Report;
    use session_core::testing;

    use super::*;

    fn report(fence: Fence, what: Report) -> RunnerReport {
        RunnerReport { run_id: fence.run.to_string(), epoch: fence.epoch.0, what }
    }

    #[test]
    fn what_waits_survives_a_restart_in_order_and_without_a_torn_end() {
        let directory = tempfile::tempdir().unwrap();
        let directory = Utf8Path::from_path(directory.path()).unwrap().join("spool");
        private::make_directory(&directory).unwrap();
        let fence = Fence { run: testing::env().0.run_id(), epoch: Epoch(3) };
        let mut spooled = Spooled::new(&directory, fence);
        assert!(spooled.is_empty());
        spooled.push(&report(fence, Report::Starting), false).unwrap();
        spooled.push(&report(fence, Report::Resumable), false).unwrap();
        let path = directory.join(file_name(fence));
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend_from_slice(b"{\"run_id\":");
        std::fs::write(&path, torn).unwrap();
        std::fs::write(directory.join("notes.txt"), "somebody else's").unwrap();
        let [(found, mut left)]: [_; 1] = left_in(&directory).unwrap().try_into().unwrap();
        assert_eq!(found, fence);
        let waiting = left.waiting().unwrap();
        let whats: Vec<_> = waiting.iter().map(|(report, _)| format!("{:?}", report.what)).collect();
        assert_eq!(whats, ["Starting", "Resumable"]);
        left.push(&report(fence, Report::GivenBack), true).unwrap();
        left.delivered(waiting[0].1).unwrap();
        assert_eq!(left.waiting().unwrap().len(), 2);
        for (_, length) in left.waiting().unwrap() {
            left.delivered(length).unwrap();
        }
        assert!(left.is_empty() && !path.exists());
        assert!(left_in(&directory).unwrap().is_empty());
    }

    #[test]
    fn what_waits_is_bounded_and_an_end_has_room() {
        let directory = tempfile::tempdir().unwrap();
        let directory = Utf8Path::from_path(directory.path()).unwrap();
        let fence = Fence { run: testing::env().0.run_id(), epoch: Epoch(1) };
        let mut spooled = Spooled { written: FILE_MAX, ..Spooled::new(directory, fence) };
        let full = spooled.push(&report(fence, Report::Resumable), false).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        spooled.push(&report(fence, Report::GivenBack), true).unwrap();
    }
}
