//! A runner as the coordinator knows it, and which runners could take a run.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use crate::affinity::{Affinity, Place, RunnerProfile};
use crate::names::ProgramVersion;
use crate::run::{EndKind, Ending, Epoch, ReasonCode};

/// How often at the most it is written down that a runner was seen: every ten seconds.
pub const SEEN_EVERY: SignedDuration = SignedDuration::from_secs(10);

/// How many runners a sentence names.
const NAMED_MAX: usize = 5;

/// A runner that registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerRecord {
    /// What it offers, as it said when it registered last.
    pub profile: RunnerProfile,
    /// Which version of the program it is.
    pub version: ProgramVersion,
    /// How often it registered: of several processes with one id the newest counts.
    pub instance: Epoch,
    /// It gets no more runs. Stays when it registers again.
    pub draining: bool,
    /// When it registered last.
    pub registered_at: Timestamp,
    /// When it was last seen, to within [`SEEN_EVERY`].
    pub seen_at: Timestamp,
}

impl RunnerRecord {
    /// Whether it was seen within this span.
    #[must_use]
    pub fn is_live(&self, now: Timestamp, within: SignedDuration) -> bool {
        now.duration_since(self.seen_at) <= within
    }

    /// Whether it will come for such a run when it has room.
    #[must_use]
    pub fn takes(&self, affinity: &Affinity, now: Timestamp, within: SignedDuration) -> bool {
        !self.draining && self.is_live(now, within) && affinity.admits(&self.profile)
    }
}

/// The end of a run that nobody takes: what it needs, and which runners there are.
#[must_use]
pub fn unmatched(
    affinity: &Affinity,
    runners: &[RunnerRecord],
    now: Timestamp,
    within: SignedDuration,
) -> Ending {
    let mut text = String::from("no runner took it in time. It needs ");
    // Writing to a text cannot fail.
    let _ = match &affinity.place {
        Place::Anywhere => write!(text, "any runner"),
        Place::Runner(id) => write!(text, "the runner {id}, which has its files,"),
        Place::Hostname(name) => write!(text, "a runner on the machine {name}"),
    };
    let _ = write!(text, " with the executor {}", affinity.executor);
    if let Some(directory) = &affinity.project_dir {
        let _ = write!(text, " and the directory {directory}");
    }
    text.push_str("; ");
    if let Place::Runner(id) = &affinity.place {
        // Writing to a text cannot fail.
        let _ = match runners.iter().find(|runner| runner.profile.id == *id) {
            None => write!(
                text,
                "that one is not registered: `roomette resume SESSION --from-history` goes on without its files; "
            ),
            Some(away) if !away.is_live(now, within) => write!(
                text,
                "where its machine is gone for good, `roomette runner rm {id}` and `roomette resume SESSION --from-history` \
                 go on without them; "
            ),
            Some(_) => Ok(()),
        };
    }
    if runners.is_empty() {
        text.push_str("there are no runners: start one with `roomette runner`");
    } else {
        text.push_str("there are ");
        for (place, runner) in runners.iter().take(NAMED_MAX).enumerate() {
            text.push_str(if place == 0 { "" } else { "; " });
            describe(&mut text, runner, now, within);
        }
        if let Some(more) = runners.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
            let _ = write!(text, "; and {more} more");
        }
    }
    Ending::because(EndKind::Failed, ReasonCode::NoMatchingRunner, None, text)
}

fn describe(text: &mut String, runner: &RunnerRecord, now: Timestamp, within: SignedDuration) {
    let RunnerProfile { id, hostname, executors, .. } = &runner.profile;
    let _ = write!(text, "{hostname} ({id}) with ");
    for (place, executor) in executors.iter().take(NAMED_MAX).enumerate() {
        let _ = write!(text, "{}{executor}", if place == 0 { "" } else { ", " });
    }
    if executors.is_empty() {
        text.push_str("no executor");
    }
    if !runner.is_live(now, within) {
        text.push_str(", not seen lately");
    } else if runner.draining {
        text.push_str(", draining");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RunnerId;
    use crate::names::ExecutorType;

    const WITHIN: SignedDuration = SignedDuration::from_secs(60);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn runner(n: u128) -> RunnerRecord {
        let profile = RunnerProfile {
            id: RunnerId::from_uuid(uuid::Uuid::from_u128(n)).unwrap(),
            hostname: format!("box-{n}").parse().unwrap(),
            executors: vec![ExecutorType::command(), "codex".parse().unwrap()],
            project_dirs: None,
        };
        let version = "1.0.0".parse().unwrap();
        let (registered_at, seen_at) = (at(0), at(100));
        RunnerRecord { profile, version, instance: Epoch(1), draining: false, registered_at, seen_at }
    }

    fn wanted(executor: &str) -> Affinity {
        Affinity { place: Place::Anywhere, executor: executor.parse().unwrap(), project_dir: None }
    }

    #[test]
    fn only_a_runner_that_is_there_and_stays_takes_a_run() {
        let fit = runner(1);
        assert!(fit.takes(&wanted("codex"), at(160), WITHIN));
        assert!(!fit.takes(&wanted("codex"), at(161), WITHIN));
        assert!(!fit.takes(&wanted("gemini"), at(160), WITHIN));
        assert!(!RunnerRecord { draining: true, ..fit }.takes(&wanted("codex"), at(160), WITHIN));
    }

    #[test]
    fn a_run_that_nobody_takes_says_what_it_needs_and_what_there_is() {
        let said = |affinity: &Affinity, runners: &[RunnerRecord]| {
            let ending = unmatched(affinity, runners, at(150), WITHIN);
            assert_eq!((ending.kind, ending.reason), (EndKind::Failed, Some(ReasonCode::NoMatchingRunner)));
            ending.message
        };
        assert_eq!(
            said(&wanted("gemini"), &[]),
            "no runner took it in time. It needs any runner with the executor gemini; there are no runners: start one \
             with `roomette runner`"
        );
        let here = Affinity {
            place: Place::Hostname("box-9".parse().unwrap()),
            project_dir: Some("/repo".into()),
            ..wanted("gemini")
        };
        let draining = RunnerRecord { draining: true, ..runner(2) };
        let gone = RunnerRecord { seen_at: at(0), ..runner(3) };
        let first = "box-1 (rnr_00000000000000000000000000000001) with command, codex";
        assert_eq!(
            said(&here, &[runner(1), draining, gone.clone()]),
            format!(
                "no runner took it in time. It needs a runner on the machine box-9 with the executor gemini and the \
                 directory /repo; there are {first}; {}, draining; {}, not seen lately",
                first.replace('1', "2"),
                first.replace('1', "3"),
            )
        );
        let many: Vec<_> = (1..=7).map(runner).collect();
        let bound = |n| Affinity { place: Place::Runner(runner(n).profile.id), ..wanted("codex") };
        let text = said(&bound(9), &many);
        assert!(text.contains("It needs the runner rnr_") && text.ends_with("; and 2 more"), "{text}");
        let anew = "`roomette resume SESSION --from-history`";
        assert!(text.contains("not registered") && text.contains(anew), "{text}");
        let text = said(&bound(3), &[runner(1), gone]);
        let rm = format!("`roomette runner rm {}`", runner(3).profile.id);
        assert!(text.contains(&rm) && text.contains(anew), "{text}");
        assert!(!said(&bound(1), &many).contains(anew));
    }
}
