//! What becomes of a run whose host went away (SPEC section 4): decided from what its runner finds on the machine.
//!
//! No run stays `running` for ever: each that was in flight is ended as what it really came to, adopted by the
//! next host, or `lost` and resumable.

use session_core::run::{EndKind, Ending, Exit, ReasonCode, RunPhase, StopMode};

/// What a runner finds on its machine of a run that was in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Its keeper lives.
    Alive,
    /// Its keeper recorded how it ended.
    Ended(KeeperEnding),
    /// Its keeper is gone without a record, or there never was one.
    Nothing,
}

/// How a run's processes ended, as its keeper recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperEnding {
    /// Why the keeper ended them, if it did.
    pub cause: EndCause,
    /// What the main process left with.
    pub exit: Option<Exit>,
}

/// Why the processes of a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// The main process left by itself.
    Exited,
    /// It was asked to stop, and forced after a grace.
    Stopped,
    /// It was killed at once.
    Killed,
    /// It ran for as long as it may.
    TimedOut,
    /// The host went away.
    HostLost,
}

/// What is done about living processes of a host that went away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnHostLoss {
    /// They are ended, and the run is `lost`.
    #[default]
    End,
    /// They go on, and the next host takes them over.
    Adopt,
}

/// What to do about a run that was in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Take it over as it is.
    Adopt,
    /// End what is left of its processes, then end the run so.
    EndThen(Ending),
    /// Nothing of it is alive: end the run so.
    End(Ending),
    /// It had not begun: it goes back to the queue.
    Requeue,
}

/// What becomes of a run that its host left in `phase`, with an order to stop or without.
#[must_use]
pub fn decide(phase: RunPhase, stop: Option<StopMode>, found: &Found, policy: OnHostLoss) -> Decision {
    let lost = || match stop {
        Some(_) => stopped(None),
        None => self::lost(HOST_WENT_AWAY),
    };
    match (phase, found) {
        // Somebody had asked for the end before the host went away: that is how it came.
        (_, Found::Ended(ended)) if stop.is_some() && ended.cause == EndCause::HostLost => {
            Decision::End(stopped(ended.exit))
        }
        (_, Found::Ended(ended)) => Decision::End(ending(*ended)),
        (_, Found::Alive) if policy == OnHostLoss::Adopt && stop.is_none() => Decision::Adopt,
        (RunPhase::Claimed, Found::Nothing) if stop.is_none() => Decision::Requeue,
        (_, Found::Alive | Found::Nothing) => Decision::EndThen(lost()),
    }
}

const HOST_WENT_AWAY: &str = "its host went away";

/// The ending of a run of which nobody knows what it came to.
#[must_use]
pub fn lost(what: &str) -> Ending {
    let message = format!("{what}; `roomette resume` runs it again in the same session");
    Ending::because(EndKind::Lost, ReasonCode::HostLost, None, message)
}

/// The ending of a run that somebody stopped.
#[must_use]
pub fn stopped(exit: Option<Exit>) -> Ending {
    Ending::because(EndKind::Stopped, ReasonCode::StoppedByUser, exit, "stopped on request")
}

/// The ending of a run whose processes ended so.
#[must_use]
pub fn ending(ended: KeeperEnding) -> Ending {
    let exit = ended.exit;
    match (ended.cause, exit) {
        (EndCause::Stopped | EndCause::Killed, _) => stopped(exit),
        (EndCause::TimedOut, _) => Ending::because(
            EndKind::Stopped,
            ReasonCode::Timeout,
            exit,
            "ran for longer than its timeout; `--timeout` sets another",
        ),
        (EndCause::HostLost, _) => Ending { exit, ..lost(HOST_WENT_AWAY) },
        (EndCause::Exited, Some(Exit::Code(0))) => Ending::completed(exit),
        (EndCause::Exited, Some(Exit::Code(code))) => Ending::because(
            EndKind::Failed,
            ReasonCode::ExitNonzero,
            exit,
            format!("left with exit code {code}; `roomette logs` shows what it said"),
        ),
        (EndCause::Exited, Some(Exit::Signal(signal))) => Ending::because(
            EndKind::Failed,
            ReasonCode::Signalled,
            exit,
            format!("was ended by signal {signal}, which roomette did not send"),
        ),
        (EndCause::Exited, None) => lost("its exit was not seen"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(cause: EndCause, exit: Option<Exit>) -> Found {
        Found::Ended(KeeperEnding { cause, exit })
    }

    #[test]
    fn what_the_keeper_recorded_is_what_happened() {
        use EndKind::{Completed, Failed, Lost, Stopped};

        let check = |found: Found, kind: EndKind, reason: Option<ReasonCode>| {
            for phase in [RunPhase::Starting, RunPhase::Running] {
                let Decision::End(ending) = decide(phase, None, &found, OnHostLoss::End) else {
                    panic!("{found:?} in {phase}")
                };
                assert_eq!((ending.kind, ending.reason), (kind, reason), "{found:?}");
                assert_eq!(ending.message.is_empty(), kind == EndKind::Completed);
            }
        };
        check(ended(EndCause::Exited, Some(Exit::Code(0))), Completed, None);
        check(ended(EndCause::Exited, Some(Exit::Code(7))), Failed, Some(ReasonCode::ExitNonzero));
        check(ended(EndCause::Exited, Some(Exit::Signal(11))), Failed, Some(ReasonCode::Signalled));
        check(ended(EndCause::Stopped, Some(Exit::Code(0))), Stopped, Some(ReasonCode::StoppedByUser));
        check(ended(EndCause::TimedOut, Some(Exit::Signal(9))), Stopped, Some(ReasonCode::Timeout));
        check(ended(EndCause::HostLost, Some(Exit::Signal(15))), Lost, Some(ReasonCode::HostLost));
        check(ended(EndCause::Exited, None), Lost, Some(ReasonCode::HostLost));
    }

    #[test]
    fn who_was_stopped_is_not_lost() {
        let found = ended(EndCause::HostLost, Some(Exit::Signal(15)));
        let decision = decide(RunPhase::Running, Some(StopMode::Graceful), &found, OnHostLoss::End);
        let Decision::End(ending) = decision else { panic!("{decision:?}") };
        assert_eq!((ending.kind, ending.reason), (EndKind::Stopped, Some(ReasonCode::StoppedByUser)));
    }

    #[test]
    fn nothing_stays_in_flight() {
        for phase in [RunPhase::Claimed, RunPhase::Starting, RunPhase::Running] {
            for stop in [None, Some(StopMode::Graceful), Some(StopMode::Kill)] {
                for policy in [OnHostLoss::End, OnHostLoss::Adopt] {
                    let decision = decide(phase, stop, &Found::Alive, policy);
                    let adopted = policy == OnHostLoss::Adopt && stop.is_none();
                    assert_eq!(decision == Decision::Adopt, adopted, "{phase} {stop:?} {policy:?}");
                    let gone = decide(phase, stop, &Found::Nothing, policy);
                    let requeued = phase == RunPhase::Claimed && stop.is_none();
                    assert_eq!(gone == Decision::Requeue, requeued, "{phase} {stop:?}");
                    if let Decision::EndThen(ending) = gone {
                        let kind = if stop.is_some() { EndKind::Stopped } else { EndKind::Lost };
                        assert_eq!(ending.kind, kind);
                    }
                }
            }
        }
    }
}
