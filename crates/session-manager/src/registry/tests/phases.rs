//! Each phase with each method: what is answered, and where the session is then. `phases.txt` is the whole table.

use std::fmt::{self, Write as _};

use super::*;
use crate::eviction::{Fate, Version, Victim};

const NOW: i64 = 20 * MINUTE;

type Way = fn(&mut Sessions);
type Method = fn(&mut Sessions) -> Box<dyn fmt::Debug>;

/// How a session comes to be in each phase, on the way from the beginning to `NOW`.
const PHASES: &[(&str, Way)] = &[
    ("none", |_| {}),
    ("opening", |sessions| {
        sessions.admit(at(0), id(1), keyed("me", "key")).unwrap();
    }),
    ("opening, doomed", |sessions| {
        sessions.admit(at(0), id(1), keyed("me", "key")).unwrap();
        sessions.begin_terminate(id(1), TerminationReason::BudgetExhausted).unwrap();
    }),
    ("opening again", |sessions| {
        sessions.track(at(0), id(1), keyed("me", "key"), 70, at(60 * MINUTE));
        sessions.reopen(at(0), id(1)).unwrap().unwrap();
    }),
    ("opening again, doomed", |sessions| {
        sessions.track(at(0), id(1), keyed("me", "key"), 70, at(60 * MINUTE));
        sessions.reopen(at(0), id(1)).unwrap().unwrap();
        sessions.begin_terminate(id(1), TerminationReason::BudgetExhausted).unwrap();
    }),
    ("live", |sessions| sessions.live(at(0), 1, keyed("me", "key"))),
    ("live, idle", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.due(at(NOW), 1);
    }),
    ("live, run", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.begin_use(at(0), id(1)).unwrap();
    }),
    ("flushing", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.begin_suspend(id(1)).unwrap();
    }),
    ("flushing, idle", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.due(at(NOW), 1);
        sessions.begin_suspend(id(1)).unwrap();
    }),
    ("flushing, used", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.begin_suspend(id(1)).unwrap();
        sessions.touch(at(1), id(1)).unwrap();
    }),
    ("flushing, run", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.begin_suspend(id(1)).unwrap();
        sessions.begin_use(at(1), id(1)).unwrap();
    }),
    ("closing to be suspended", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.begin_suspend(id(1)).unwrap();
        sessions.flushed(at(1), id(1), true);
    }),
    ("closing to be suspended, idle", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.due(at(NOW), 1);
        sessions.begin_suspend(id(1)).unwrap();
        sessions.flushed(at(NOW), id(1), true);
    }),
    ("closing for good", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.begin_terminate(id(1), TerminationReason::BudgetExhausted).unwrap();
    }),
    ("closing for good, run", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.begin_use(at(0), id(1)).unwrap();
        sessions.begin_terminate(id(1), TerminationReason::BudgetExhausted).unwrap();
    }),
    ("suspended", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.suspend(at(5 * MINUTE), 1);
    }),
    ("ending", |sessions| {
        sessions.live(at(0), 1, keyed("me", "key"));
        sessions.suspend(at(5 * MINUTE), 1);
        sessions.begin_terminate(id(1), TerminationReason::BudgetExhausted).unwrap();
    }),
];

const METHODS: &[(&str, Method)] = &[
    ("admit", |sessions| Box::new(sessions.admit(at(NOW), id(1), owner("you")))),
    ("admit its key", |sessions| Box::new(sessions.admit(at(NOW), id(2), keyed("me", "key")))),
    ("track", |sessions| Box::new(sessions.track(at(NOW), id(1), owner("you"), 71, at(90 * MINUTE)))),
    ("reopen", |sessions| Box::new(sessions.reopen(at(NOW), id(1)))),
    ("opened", |sessions| Box::new(sessions.opened(at(NOW), id(1), 8))),
    ("failed", |sessions| Box::new(sessions.failed(id(1)))),
    ("touch", |sessions| Box::new(sessions.touch(at(NOW), id(1)))),
    ("begin_use", |sessions| Box::new(sessions.begin_use(at(NOW), id(1)))),
    ("end_use", |sessions| {
        sessions.end_use(at(NOW), id(1), 1);
        Box::new(format_args!("-"))
    }),
    ("end_use, another engine", |sessions| {
        sessions.end_use(at(NOW), id(1), 2);
        Box::new(format_args!("-"))
    }),
    ("begin_evict, to be suspended", |sessions| Box::new(sessions.evict(Fate::Suspended))),
    ("begin_evict, to be terminated", |sessions| Box::new(sessions.evict(Fate::Terminated))),
    ("begin_evict, used since", |sessions| {
        let version = Version { uses: u32::MAX, ..sessions.version() };
        Box::new(sessions.begin_evict(Victim { session: id(1), fate: Fate::Terminated, version }))
    }),
    ("begin_suspend", |sessions| Box::new(sessions.begin_suspend(id(1)))),
    ("flushed", |sessions| Box::new(sessions.flushed(at(NOW), id(1), true))),
    ("flushed, refused", |sessions| Box::new(sessions.flushed(at(NOW), id(1), false))),
    ("stays", |sessions| Box::new(sessions.stays(at(NOW), id(1), true))),
    ("begin_terminate", |sessions| Box::new(sessions.begin_terminate(id(1), TerminationReason::Stopped))),
    ("closed", |sessions| Box::new(sessions.closed(at(NOW), id(1), 72))),
    ("over", |sessions| Box::new(sessions.over(id(1)))),
    ("due", |sessions| Box::new(sessions.due(at(NOW), 1))),
    ("handle", |sessions| Box::new(sessions.handle(id(1)))),
    ("handles", |sessions| Box::new(sessions.handles().map(|(_, handle)| handle).collect::<Vec<_>>())),
    ("in_flight", |sessions| Box::new(sessions.in_flight(id(1)))),
    ("part", |sessions| Box::new(format!("{:?}", sessions.part(id(1))))),
    ("doomed", |sessions| Box::new(sessions.doomed(id(1)))),
    ("is_resident", |sessions| Box::new(sessions.is_resident(id(1)))),
    ("len", |sessions| Box::new((sessions.len(), sessions.is_empty()))),
    ("u64::MAX less vacancies", |sessions| Box::new(u64::MAX - sessions.vacancies(at(NOW)))),
    ("by_key", |sessions| {
        Box::new(sessions.by_key(&principal("me"), &ExternalKey::new("key").unwrap()).map(|_| ()))
    }),
];

impl Sessions {
    fn version(&self) -> Version {
        self.slots.get(&id(1)).map_or_else(Version::default, |slot| slot.version)
    }

    /// Has the session give way as it is now.
    fn evict(&mut self, fate: Fate) -> Evicting<u64> {
        self.begin_evict(Victim { session: id(1), fate, version: self.version() })
    }
}

/// Where the session is, beside its public state.
fn whereabouts(sessions: &Sessions) -> String {
    let Some(slot) = sessions.slots.get(&id(1)) else { return "none".into() };
    let phase = match &slot.phase {
        Phase::Opening { from, doomed } => {
            let again = if from.is_some() { " again" } else { "" };
            doomed.map_or_else(|| format!("opening{again}"), |reason| format!("opening{again}, {reason:?}"))
        }
        Phase::Live { handle, .. } => format!("live {handle}"),
        Phase::Flushing { handle, uses, .. } => {
            format!("flushing {handle}{}", if *uses == slot.version.uses { "" } else { ", used" })
        }
        Phase::Closing { handle, next, .. } => format!("closing {handle}, {next:?}"),
        Phase::Suspended(dormant) => format!("suspended {}", dormant.record),
        Phase::Ending { record, reason } => format!("ending {record}, {reason:?}"),
    };
    let runs = if slot.in_flight > 0 { format!(", {} in flight", slot.in_flight) } else { String::new() };
    format!("{phase}{runs} ({})", slot.state())
}

#[test]
fn every_phase_answers_every_method_as_the_table_says() {
    let mut table = String::new();
    for (phase, reach) in PHASES {
        let prepared = || {
            let mut sessions = Sessions::new(roomy());
            reach(&mut sessions);
            sessions.audit();
            sessions
        };
        writeln!(table, "{phase}: {}", whereabouts(&prepared())).unwrap();
        for (method, call) in METHODS {
            let mut sessions = prepared();
            let before = whereabouts(&sessions);
            let answer = format!("{:?}", call(&mut sessions)).replace(&id(1).to_string(), "ses_1");
            let answer = answer.replace(&id(2).to_string(), "ses_2");
            sessions.audit();
            let after = whereabouts(&sessions);
            let moved = if after == before { String::new() } else { format!(" -> {after}") };
            writeln!(table, "  {method}: {answer}{moved}").unwrap();
        }
    }
    let expected = include_str!("phases.txt");
    let differs = table.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    assert!(table == expected, "differs from phases.txt in line {differs:?}, found:\n{table}");
}
