//! How far the runs of this process are: what those who watch are told between two changes of state.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use session_core::RunId;
use tokio::sync::watch;

/// How far the runs of this process are. Clones share everything; it holds one line for each run in flight.
#[derive(Debug, Clone)]
pub struct Progress {
    // A std mutex: held for a look-up, never across an await.
    lines: Arc<Mutex<HashMap<RunId, Option<String>>>>,
    changed: Arc<watch::Sender<()>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { lines: Arc::default(), changed: Arc::new(watch::Sender::new(())) }
    }
}

impl Progress {
    /// Becomes ready with each change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// How many runs are in flight in this process.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.lock().len()
    }

    /// The last line that a run in flight wrote.
    #[must_use]
    pub fn last_line(&self, run: RunId) -> Option<String> {
        self.lock().get(&run).cloned().flatten()
    }

    /// The last lines of the runs in flight that wrote any.
    #[must_use]
    pub fn lines(&self) -> Vec<(RunId, String)> {
        let lines = self.lock();
        lines.iter().filter_map(|(run, line)| Some((*run, line.clone()?))).collect()
    }

    pub(crate) fn begin(&self, run: RunId) {
        self.lock().insert(run, None);
        self.changed.send_replace(());
    }

    pub(crate) fn line(&self, run: RunId, line: Option<String>) {
        let known = self.lock().get_mut(&run).map(|known| *known = line);
        if known.is_some() {
            self.changed.send_replace(());
        }
    }

    pub(crate) fn end(&self, run: RunId) {
        self.lock().remove(&run);
        self.changed.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Option<String>>> {
        // No change to the map can be left half done by a panic.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_in_flight_have_a_line() {
        let progress = Progress::default();
        let run = session_core::testing::env().0.run_id();
        let mut changes = progress.subscribe();
        progress.line(run, Some("early".into()));
        assert!(!changes.has_changed().unwrap());
        progress.begin(run);
        progress.line(run, Some("hello".into()));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert_eq!(progress.last_line(run).as_deref(), Some("hello"));
        assert_eq!((progress.in_flight(), progress.lines().len()), (1, 1));
        progress.end(run);
        assert_eq!((progress.in_flight(), progress.last_line(run)), (0, None));
    }
}
