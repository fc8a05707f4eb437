//! A machine: its clock, whether it is up, and what is on it whatever becomes of its host: the processes of runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use session_core::affinity::RunnerProfile;
use session_core::names::ExecutorType;
use session_core::run::{Exit, Fence};
use session_core::testing::{ManualClock, SequentialIds};
use session_core::{Env, RunId, SessionId};
use session_manager::recovery::{EndCause, Found, KeeperEnding, OnHostLoss};

use crate::world::Moment;

/// What a machine is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Deals with what was left behind, and delivers callbacks.
    Coordinator,
    /// Executes runs.
    Runner,
    /// Wants things.
    Client,
}

/// How long a process has to end when it is asked to, in milliseconds.
pub(crate) const GRACE: u64 = 5_000;

/// One machine.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) clock: Arc<ManualClock>,
    /// What it offers, if it is a runner.
    pub(crate) profile: RunnerProfile,
    /// What it does about processes whose host went away.
    pub(crate) on_host_loss: OnHostLoss,
    pub(crate) life: Mutex<Life>,
    processes: Mutex<BTreeMap<RunId, Process>>,
}

/// Whether a machine works.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Life {
    /// When its host starts; `None` while it is up.
    pub(crate) starts_at: Option<Moment>,
    /// It does nothing until then, and does not know it.
    pub(crate) halted_until: Option<Moment>,
}

/// A run's processes under their keeper, and the record that it leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) session: SessionId,
    /// When they end, unless somebody ends them before.
    pub(crate) ends_at: Moment,
    ending: KeeperEnding,
    /// The machine went down with them: nothing says how they ended.
    forgotten: bool,
}

impl Machine {
    pub(crate) fn new(place: usize, role: Role, ids: &Arc<SequentialIds>) -> Self {
        let clock = Arc::new(ManualClock::default());
        let env = Env { clock: Arc::clone(&clock) as _, ids: Arc::clone(ids) as _ };
        let title = match role {
            Role::Coordinator => "coord",
            Role::Runner => "runner",
            Role::Client => "client",
        };
        let name = format!("{title}-{place}");
        // No two are alike: one cannot speak with agents, one serves a single project.
        let mut executors = vec![ExecutorType::command()];
        if place != 2 {
            executors.push("codex".parse().unwrap());
        }
        let profile = RunnerProfile {
            id: env.runner_id(),
            hostname: name.parse().unwrap(),
            executors,
            project_dirs: (place == 4).then(|| vec!["/repo".into()]),
        };
        let on_host_loss = if place == 3 { OnHostLoss::Adopt } else { OnHostLoss::End };
        let life = Mutex::new(Life { starts_at: Some(0), halted_until: None });
        Self { name, role, clock, profile, on_host_loss, life, processes: Mutex::default() }
    }

    pub(crate) fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn processes(&self) -> MutexGuard<'_, BTreeMap<RunId, Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the processes of a run.
    pub(crate) fn start(&self, fence: Fence, session: SessionId, ends_at: Moment, exit: Exit) {
        let ending = KeeperEnding { cause: EndCause::Exited, exit: Some(exit) };
        let process = Process { session, ends_at, ending, forgotten: false };
        self.processes().insert(fence.run, process);
    }

    /// What somebody finds who looks for a run's processes now.
    pub(crate) fn look(&self, run: RunId, now: Moment) -> Found {
        match self.processes().get(&run) {
            Some(process) if now < process.ends_at => Found::Alive,
            Some(process) if !process.forgotten => Found::Ended(process.ending),
            Some(_) | None => Found::Nothing,
        }
    }

    /// When the processes of a run end, as things stand.
    pub(crate) fn ends_at(&self, run: RunId) -> Moment {
        self.processes().get(&run).map_or(0, |process| process.ends_at)
    }

    /// Ends the processes of a run: at once, or when they had time to end by themselves.
    pub(crate) fn end(&self, run: RunId, cause: EndCause, now: Moment) {
        if let Some(process) = self.processes().get_mut(&run) {
            process.end(cause, now);
        }
    }

    /// The host is gone; its keepers notice.
    pub(crate) fn lose_host(&self, now: Moment) {
        if self.on_host_loss == OnHostLoss::End {
            self.processes().values_mut().for_each(|process| process.end(EndCause::HostLost, now));
        }
    }

    /// The machine goes down with all that is on it.
    pub(crate) fn lose_power(&self, now: Moment) {
        for process in self.processes().values_mut().filter(|process| now < process.ends_at) {
            (process.ends_at, process.forgotten) = (now, true);
        }
    }

    /// The runs whose processes live now.
    pub(crate) fn living(&self, now: Moment) -> Vec<(RunId, SessionId)> {
        let processes = self.processes();
        let living = processes.iter().filter(|(_, process)| now < process.ends_at);
        living.map(|(run, process)| (*run, process.session)).collect()
    }
}

impl Process {
    fn end(&mut self, cause: EndCause, now: Moment) {
        let by = match cause {
            EndCause::Killed | EndCause::TimedOut => now + 10,
            EndCause::Stopped | EndCause::HostLost | EndCause::Exited => now + GRACE,
        };
        if by < self.ends_at {
            self.ends_at = by;
            self.ending = KeeperEnding { cause, exit: Some(Exit::Signal(15)) };
        }
    }
}
