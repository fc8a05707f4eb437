//! When a run ends: a pure machine that is told what happened and says what to do. The keeper does it.

use super::protocol::{EndCause, OnHostLoss};

/// How long what is left of a tree has after SIGTERM when the program itself has ended, in milliseconds.
pub(super) const LEFTOVER_GRACE_MS: u64 = 500;
/// How often SIGKILL is repeated while a tree still has processes, in milliseconds.
pub(super) const KILL_AGAIN_MS: u64 = 50;
/// After this long with SIGKILL what is left is taken to hang in the kernel, in milliseconds.
pub(super) const KILL_BOUND_MS: u64 = 30_000;
/// How long pipes are read on when the tree is gone: only a process outside it can hold them open, in milliseconds.
pub(super) const DRAIN_BOUND_MS: u64 = 2_000;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// The host wants it stopped.
    Stop { grace_ms: u64 },
    /// The host wants it killed.
    Kill,
    /// The host is gone.
    HostLost,
    /// The tree has written more than it may.
    OverBudget,
    /// The program has ended.
    ChildEnded,
    /// No process of the tree is left, the program's own included.
    TreeGone,
    /// Both output pipes are at their end.
    PipesClosed,
    /// Nothing but time.
    Tick,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// SIGTERM to the tree.
    Terminate,
    /// SIGKILL to the tree, whatever it takes.
    Kill,
    /// Write down the end and go.
    Finish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The program runs.
    Running,
    /// SIGTERM was sent.
    Terminating { kill_at: u64 },
    /// SIGKILL was sent.
    Killing { again_at: u64, give_up_at: u64 },
    /// The tree is gone, or given up.
    Draining { until: u64 },
    /// All is done.
    Over,
}

/// How a run comes to its end. Times are milliseconds of one monotonic clock.
#[derive(Debug)]
pub(super) struct Ending {
    phase: Phase,
    cause: Option<EndCause>,
    child_ended: bool,
    pipes_closed: bool,
    time_out_at: Option<u64>,
    grace_ms: u64,
    on_host_loss: OnHostLoss,
}

impl Ending {
    /// A run that starts now.
    pub(super) fn new(now: u64, timeout_ms: Option<u64>, grace_ms: u64, on_host_loss: OnHostLoss) -> Self {
        Self {
            phase: Phase::Running,
            cause: None,
            child_ended: false,
            pipes_closed: false,
            time_out_at: timeout_ms.map(|timeout| now.saturating_add(timeout)),
            grace_ms,
            on_host_loss,
        }
    }

    /// Takes in what happened and says what to do, if anything.
    pub(super) fn on(&mut self, input: Input, now: u64) -> Option<Action> {
        match input {
            Input::Stop { grace_ms } => self.terminate(EndCause::Stopped, grace_ms, now),
            Input::HostLost if self.on_host_loss == OnHostLoss::Adopt => None,
            Input::HostLost => self.terminate(EndCause::HostLost, self.grace_ms, now),
            Input::Kill => self.kill_ordered(now),
            Input::OverBudget => self.kill_for_budget(now),
            Input::ChildEnded => self.child_ended(now),
            Input::TreeGone => self.tree_gone(now),
            Input::PipesClosed => {
                self.pipes_closed = true;
                self.finish_when_drained()
            }
            Input::Tick => self.tick(now),
        }
    }

    /// When to come back with a [`Input::Tick`] at the latest.
    pub(super) fn deadline(&self) -> Option<u64> {
        match self.phase {
            Phase::Running => self.time_out_at,
            Phase::Terminating { kill_at } => Some(kill_at),
            Phase::Killing { again_at, give_up_at } => Some(again_at.min(give_up_at)),
            Phase::Draining { until } => Some(until),
            Phase::Over => None,
        }
    }

    /// Who or what is ending it, if anything is.
    pub(super) fn cause_so_far(&self) -> Option<EndCause> {
        self.cause
    }

    /// Who or what ended it.
    pub(super) fn cause(&self) -> EndCause {
        self.cause.unwrap_or(EndCause::Exited)
    }

    /// Whether it is still to be seen to that the tree does not write too much.
    pub(super) fn may_still_write(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Terminating { .. })
    }

    /// Whether the program has ended and its tree is to follow.
    pub(super) fn wants_the_tree_gone(&self) -> bool {
        self.child_ended && matches!(self.phase, Phase::Terminating { .. } | Phase::Killing { .. })
    }

    fn terminate(&mut self, cause: EndCause, grace_ms: u64, now: u64) -> Option<Action> {
        let kill_at = now.saturating_add(grace_ms);
        match self.phase {
            Phase::Running => {
                self.cause = Some(cause);
                self.phase = Phase::Terminating { kill_at };
                Some(Action::Terminate)
            }
            // A second order may only bring the end nearer.
            Phase::Terminating { kill_at: before } => {
                self.phase = Phase::Terminating { kill_at: before.min(kill_at) };
                None
            }
            Phase::Killing { .. } | Phase::Draining { .. } | Phase::Over => None,
        }
    }

    fn kill_ordered(&mut self, now: u64) -> Option<Action> {
        match self.phase {
            Phase::Running | Phase::Terminating { .. } => {
                if !self.child_ended {
                    self.cause = Some(EndCause::Killed);
                }
                Some(self.kill(now))
            }
            Phase::Killing { .. } | Phase::Draining { .. } | Phase::Over => None,
        }
    }

    /// Whoever was ending it already goes on being the cause.
    fn kill_for_budget(&mut self, now: u64) -> Option<Action> {
        match self.phase {
            Phase::Running | Phase::Terminating { .. } => {
                self.cause.get_or_insert(EndCause::Limit);
                Some(self.kill(now))
            }
            Phase::Killing { .. } | Phase::Draining { .. } | Phase::Over => None,
        }
    }

    fn kill(&mut self, now: u64) -> Action {
        let again_at = now.saturating_add(KILL_AGAIN_MS);
        self.phase = match self.phase {
            Phase::Killing { give_up_at, .. } => Phase::Killing { again_at, give_up_at },
            Phase::Running | Phase::Terminating { .. } | Phase::Draining { .. } | Phase::Over => {
                Phase::Killing { again_at, give_up_at: now.saturating_add(KILL_BOUND_MS) }
            }
        };
        Action::Kill
    }

    fn child_ended(&mut self, now: u64) -> Option<Action> {
        if std::mem::replace(&mut self.child_ended, true) {
            return None;
        }
        let bound = now.saturating_add(LEFTOVER_GRACE_MS);
        match self.phase {
            Phase::Running => {
                self.cause = Some(EndCause::Exited);
                self.phase = Phase::Terminating { kill_at: bound };
                Some(Action::Terminate)
            }
            Phase::Terminating { kill_at } => {
                self.phase = Phase::Terminating { kill_at: kill_at.min(bound) };
                None
            }
            Phase::Killing { .. } | Phase::Draining { .. } | Phase::Over => None,
        }
    }

    fn tree_gone(&mut self, now: u64) -> Option<Action> {
        match self.phase {
            Phase::Draining { .. } | Phase::Over => None,
            Phase::Running | Phase::Terminating { .. } | Phase::Killing { .. } => {
                self.child_ended = true;
                self.phase = Phase::Draining { until: now.saturating_add(DRAIN_BOUND_MS) };
                self.finish_when_drained()
            }
        }
    }

    fn finish_when_drained(&mut self) -> Option<Action> {
        if self.pipes_closed && matches!(self.phase, Phase::Draining { .. }) {
            self.phase = Phase::Over;
            return Some(Action::Finish);
        }
        None
    }

    fn tick(&mut self, now: u64) -> Option<Action> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        match self.phase {
            Phase::Running => self.terminate(EndCause::TimedOut, self.grace_ms, now),
            Phase::Killing { give_up_at, .. } if now >= give_up_at => {
                self.phase = Phase::Draining { until: now.saturating_add(DRAIN_BOUND_MS) };
                self.finish_when_drained()
            }
            Phase::Terminating { .. } | Phase::Killing { .. } => Some(self.kill(now)),
            Phase::Draining { .. } => {
                self.phase = Phase::Over;
                Some(Action::Finish)
            }
            Phase::Over => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays inputs at their times; `expect` is what was done, and the cause at the end.
    #[track_caller]
    fn check(timeout_ms: Option<u64>, inputs: &[(u64, Input)], expect: &[Action], cause: EndCause) {
        let mut ending = Ending::new(0, timeout_ms, 10_000, OnHostLoss::End);
        let done: Vec<Action> = inputs.iter().filter_map(|(at, input)| ending.on(*input, *at)).collect();
        assert_eq!(done, expect);
        assert_eq!(ending.cause(), cause);
    }

    #[test]
    fn every_way_to_end_ends() {
        use Action::{Finish, Kill, Terminate};
        use Input::{ChildEnded, HostLost, OverBudget, PipesClosed, Stop, Tick, TreeGone};
        let orderly = [(5, ChildEnded), (5, TreeGone), (5, PipesClosed)];
        check(None, &orderly, &[Terminate, Finish], EndCause::Exited);
        let leftovers = [(5, ChildEnded), (504, Tick), (505, Tick), (560, TreeGone), (561, PipesClosed)];
        check(None, &leftovers, &[Terminate, Kill, Finish], EndCause::Exited);
        let stopped = [(1, Stop { grace_ms: 100 }), (50, ChildEnded), (51, PipesClosed), (60, TreeGone)];
        check(None, &stopped, &[Terminate, Finish], EndCause::Stopped);
        let deaf =
            [(1, Stop { grace_ms: 100 }), (100, Tick), (101, Tick), (110, TreeGone), (111, PipesClosed)];
        check(None, &deaf, &[Terminate, Kill, Finish], EndCause::Stopped);
        let hurried = [(1, Stop { grace_ms: 9000 }), (2, Stop { grace_ms: 10 }), (12, Tick)];
        check(None, &hurried, &[Terminate, Kill], EndCause::Stopped);
        let late = [(4_999, Tick), (5_000, Tick), (15_000, Tick)];
        check(Some(5_000), &late, &[Terminate, Kill], EndCause::TimedOut);
        let alone = [(1, HostLost), (10_001, Tick)];
        check(None, &alone, &[Terminate, Kill], EndCause::HostLost);
        let killed =
            [(1, Stop { grace_ms: 9000 }), (2, Input::Kill), (52, Tick), (60, ChildEnded), (60, TreeGone)];
        check(None, &killed, &[Terminate, Kill, Kill], EndCause::Killed);
        let spendthrift = [(1, OverBudget), (51, Tick), (60, ChildEnded), (60, TreeGone), (60, PipesClosed)];
        check(None, &spendthrift, &[Kill, Kill, Finish], EndCause::Limit);
        let stopped_spendthrift = [(1, Stop { grace_ms: 9000 }), (2, OverBudget), (3, OverBudget)];
        check(None, &stopped_spendthrift, &[Terminate, Kill], EndCause::Stopped);
        let too_late_to_kill = [(1, ChildEnded), (2, Input::Kill)];
        check(None, &too_late_to_kill, &[Terminate, Kill], EndCause::Exited);
    }

    #[test]
    fn what_hangs_in_the_kernel_or_holds_the_pipes_does_not_hold_the_keeper() {
        let mut ending = Ending::new(0, None, 10, OnHostLoss::End);
        let mut now = 1;
        ending.on(Input::Kill, now);
        let mut kills = 0;
        loop {
            now = ending.deadline().expect("there is always a next step until it is over");
            match ending.on(Input::Tick, now) {
                Some(Action::Kill) => kills += 1,
                Some(Action::Finish) => break,
                Some(Action::Terminate) => panic!("no SIGTERM after SIGKILL"),
                None => {}
            }
        }
        assert!(kills > 100, "{kills}");
        assert_eq!(now, 1 + KILL_BOUND_MS + DRAIN_BOUND_MS);
        assert_eq!(ending.deadline(), None);
    }

    #[test]
    fn an_adopting_keeper_outlives_its_host() {
        let mut ending = Ending::new(0, None, 10, OnHostLoss::Adopt);
        assert_eq!(ending.on(Input::HostLost, 1), None);
        assert_eq!(ending.deadline(), None);
        assert_eq!(ending.on(Input::Stop { grace_ms: 5 }, 2), Some(Action::Terminate));
    }
}
