//! The registry beside its model: the same calls in any order, the same answers and the same sessions after each.

use std::fmt::Debug;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::model::{KEYS, Model, PRINCIPALS};
use super::*;
use crate::eviction::{Fate, Version, Victim};

/// What happens next. Which session is meant is a position among those that are there, counted round; one beyond them is
/// a session that nobody knows.
#[derive(Debug, Clone, Copy)]
enum Step {
    Admit {
        who: u8,
        key: u8,
    },
    Track {
        who: u8,
        key: u8,
        again: u8,
    },
    Reopen(u8),
    Opened(u8),
    Failed(u8),
    Touch(u8),
    BeginUse(u8),
    EndUse(u8, bool),
    BeginEvict(u8, bool, bool),
    BeginSuspend(u8),
    Flushed(u8, bool),
    Stays(u8, bool),
    BeginTerminate(u8, u8),
    Closed(u8),
    Over(u8),
    /// The engine of one that is being opened, suspended or ended answers, well or badly.
    Answer(u8, bool),
    Due(usize),
    Pass(Time),
}

#[derive(Debug, Clone, Copy)]
enum Time {
    Millis(i64),
    /// Up to a deadline, so many milliseconds before it or after.
    Deadline(u8, i64),
    Back(i64),
}

/// A call with everything in it.
#[derive(Debug, Clone, Copy)]
enum Call {
    Admit(u64, &'static str, Option<&'static str>),
    Track(u64, &'static str, Option<&'static str>, u64, Timestamp),
    Reopen(u64),
    Opened(u64, u64),
    Failed(u64),
    Touch(u64),
    BeginUse(u64),
    EndUse(u64, u64),
    BeginEvict(u64, Version, Fate),
    BeginSuspend(u64),
    Flushed(u64, bool),
    Stays(u64, bool),
    BeginTerminate(u64, TerminationReason),
    Closed(u64, u64),
    Over(u64),
    Due(usize),
    Nothing,
}

/// The model, and what was called last with what answer.
#[derive(Debug, Clone)]
struct World {
    model: Model,
    /// Numbers drawn so far, for sessions, handles and records.
    drawn: u64,
    call: Call,
    answer: String,
}

/// A session that nobody knows.
const UNKNOWN: u64 = u64::MAX;
const REASONS: [TerminationReason; 2] = [TerminationReason::Killed, TerminationReason::Stopped];

impl World {
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn number(&self, pick: u8) -> u64 {
        let sessions = &self.model.sessions;
        sessions.get(usize::from(pick) % (sessions.len() + 1)).map_or(UNKNOWN, |session| session.number)
    }

    fn key(pick: u8) -> Option<&'static str> {
        KEYS.get(usize::from(pick) % (KEYS.len() + 2)).copied()
    }

    fn call_of(&mut self, step: Step) -> Call {
        let who = |pick: u8| PRINCIPALS[usize::from(pick) % PRINCIPALS.len()];
        match step {
            Step::Admit { who: pick, key } => Call::Admit(self.draw(), who(pick), Self::key(key)),
            Step::Track { who: pick, key, again } => {
                // Mostly one that is new here.
                let number = if again < 32 { self.number(again) } else { self.draw() };
                let ends = [at(0), at(90 * MINUTE), Timestamp::MAX][usize::from(again) % 3];
                Call::Track(number, who(pick), Self::key(key), self.draw(), ends)
            }
            Step::Reopen(pick) => Call::Reopen(self.number(pick)),
            Step::Opened(pick) => Call::Opened(self.number(pick), self.draw()),
            Step::Failed(pick) => Call::Failed(self.number(pick)),
            Step::Touch(pick) => Call::Touch(self.number(pick)),
            Step::BeginUse(pick) => Call::BeginUse(self.number(pick)),
            Step::EndUse(pick, current) => {
                let number = self.number(pick);
                let generation = self.model.as_victim(number, Fate::Suspended).version.generation;
                Call::EndUse(number, if current { generation } else { generation.saturating_sub(1) })
            }
            Step::BeginEvict(pick, current, ends) => {
                let number = self.number(pick);
                let fate = if ends { Fate::Terminated } else { Fate::Suspended };
                let version = self.model.as_victim(number, fate).version;
                let before = Version { uses: version.uses.saturating_sub(1), ..version };
                Call::BeginEvict(number, if current { version } else { before }, fate)
            }
            Step::BeginSuspend(pick) => Call::BeginSuspend(self.number(pick)),
            Step::Stays(pick, by_time) => Call::Stays(self.number(pick), by_time),
            Step::Flushed(pick, written) => Call::Flushed(self.number(pick), written),
            Step::BeginTerminate(pick, why) => {
                Call::BeginTerminate(self.number(pick), REASONS[usize::from(why) % REASONS.len()])
            }
            Step::Over(pick) => Call::Over(self.number(pick)),
            Step::Closed(pick) => Call::Closed(self.number(pick), self.draw()),
            Step::Answer(pick, well) => self.answer_of_an_engine(pick, well),
            Step::Due(limit) => Call::Due(limit),
            Step::Pass(time) => {
                self.pass(time);
                Call::Nothing
            }
        }
    }

    fn answer_of_an_engine(&mut self, pick: u8, well: bool) -> Call {
        let moving: Vec<_> = self.model.sessions.iter().filter(|session| session.is_moving()).collect();
        let Some(session) = moving.get(usize::from(pick) % moving.len().max(1)) else { return Call::Nothing };
        let number = session.number;
        match session.stage {
            model::Stage::Opening { .. } if well => Call::Opened(number, self.draw()),
            model::Stage::Opening { .. } => Call::Failed(number),
            model::Stage::Flushing { .. } => Call::Flushed(number, well),
            model::Stage::Ending { .. } | model::Stage::Closing { end: Some(_), .. } if well => {
                Call::Over(number)
            }
            model::Stage::Closing { .. } if !well => Call::Stays(number, pick.is_multiple_of(2)),
            model::Stage::Live { .. }
            | model::Stage::Closing { .. }
            | model::Stage::Suspended(_)
            | model::Stage::Ending { .. } => Call::Closed(number, self.draw()),
        }
    }

    fn pass(&mut self, time: Time) {
        let model = &mut self.model;
        let millis = SignedDuration::from_millis;
        model.now = match time {
            Time::Millis(millis_more) => model.now + millis(millis_more),
            Time::Back(millis_less) => model.now - millis(millis_less),
            Time::Deadline(pick, off) => {
                let mut deadlines: Vec<_> =
                    model.sessions.iter().filter_map(|session| model.deadline(session)).collect();
                deadlines.sort();
                let deadline = deadlines.get(usize::from(pick) % deadlines.len().max(1));
                deadline.map_or(model.now, |&deadline| model.now.max(deadline + millis(off)))
            }
        };
    }
}

fn on_model(model: &mut Model, call: Call) -> Box<dyn Debug> {
    match call {
        Call::Admit(number, who, key) => Box::new(model.admit(number, who, key)),
        Call::Track(number, who, key, record, ends) => Box::new(model.track(number, who, key, record, ends)),
        Call::Reopen(number) => Box::new(model.reopen(number)),
        Call::Opened(number, handle) => Box::new(model.opened(number, handle)),
        Call::Failed(number) => Box::new(model.failed(number)),
        Call::Touch(number) => Box::new(model.touch(number)),
        Call::BeginUse(number) => Box::new(model.begin_use(number)),
        Call::EndUse(number, generation) => {
            model.end_use(number, generation);
            Box::new(())
        }
        Call::BeginEvict(number, version, fate) => Box::new(model.begin_evict(number, version, fate)),
        Call::BeginSuspend(number) => Box::new(model.begin_suspend(number)),
        Call::Stays(number, by_time) => Box::new(model.stays(number, by_time)),
        Call::Flushed(number, written) => Box::new(model.flushed(number, written)),
        Call::BeginTerminate(number, reason) => Box::new(model.begin_terminate(number, reason)),
        Call::Over(number) => Box::new(model.over(number)),
        Call::Closed(number, record) => Box::new(model.closed(number, record)),
        Call::Due(limit) => Box::new(model.due(limit)),
        Call::Nothing => Box::new(()),
    }
}

fn on_registry(sessions: &mut Sessions, now: Timestamp, call: Call) -> Box<dyn Debug> {
    match call {
        Call::Admit(number, who, key) => Box::new(sessions.admit(now, id(number), owned(who, key))),
        Call::Track(number, who, key, record, ends) => {
            Box::new(sessions.track(now, id(number), owned(who, key), record, ends))
        }
        Call::Reopen(number) => Box::new(sessions.reopen(now, id(number))),
        Call::Opened(number, handle) => Box::new(sessions.opened(now, id(number), handle)),
        Call::Failed(number) => Box::new(sessions.failed(id(number))),
        Call::Touch(number) => Box::new(sessions.touch(now, id(number))),
        Call::BeginUse(number) => Box::new(sessions.begin_use(now, id(number))),
        Call::EndUse(number, generation) => {
            sessions.end_use(now, id(number), generation);
            Box::new(())
        }
        Call::BeginEvict(number, version, fate) => {
            Box::new(sessions.begin_evict(Victim { session: id(number), fate, version }))
        }
        Call::BeginSuspend(number) => Box::new(sessions.begin_suspend(id(number))),
        Call::Stays(number, by_time) => Box::new(sessions.stays(now, id(number), by_time)),
        Call::Flushed(number, written) => Box::new(sessions.flushed(now, id(number), written)),
        Call::BeginTerminate(number, reason) => Box::new(sessions.begin_terminate(id(number), reason)),
        Call::Over(number) => Box::new(sessions.over(id(number))),
        Call::Closed(number, record) => Box::new(sessions.closed(now, id(number), record)),
        Call::Due(limit) => Box::new(sessions.due(now, limit)),
        Call::Nothing => Box::new(()),
    }
}

fn owned(who: &str, key: Option<&str>) -> Owner {
    key.map_or_else(|| owner(who), |key| keyed(who, key))
}

fn step() -> impl Strategy<Value = Step> {
    (0_u8..100, any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(kind, a, b, c)| match kind {
        0..18 => Step::Admit { who: a, key: b },
        18..22 => Step::Track { who: a, key: b, again: c },
        22..30 => Step::Reopen(a),
        30..31 => Step::Opened(a),
        31..32 => Step::Failed(a),
        32..38 => Step::Touch(a),
        38..45 => Step::BeginUse(a),
        45..50 => Step::EndUse(a, b % 8 > 0),
        50..53 => Step::BeginEvict(a, b % 4 > 0, c % 2 > 0),
        53..56 => Step::BeginSuspend(a),
        56..57 => Step::Stays(a, b % 2 == 0),
        57..58 => Step::Flushed(a, b % 2 == 0),
        58..63 => Step::BeginTerminate(a, b),
        63..64 => Step::Closed(a),
        64..65 => Step::Over(a),
        65..82 => Step::Answer(a, b % 4 > 0),
        82..90 => Step::Due(usize::from(b % 5)),
        90..96 => Step::Pass(Time::Deadline(a, i64::from(b % 3) - 1)),
        96..98 => Step::Pass(Time::Millis(i64::from(b % 2))),
        98..99 => Step::Pass(Time::Millis(i64::from(b) * 24 * 60 * MINUTE)),
        _ => Step::Pass(Time::Back(i64::from(b) * 100)),
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let few = || prop::sample::select(vec![None, None, Some(0), Some(1), Some(2), Some(u64::MAX)]);
    let durations = vec![
        None,
        Some(SignedDuration::from_millis(1)),
        Some(SignedDuration::from_secs(90)),
        Some(SignedDuration::from_mins(15)),
        Some(SignedDuration::MAX),
    ];
    (
        prop::sample::select(vec![0, 1, 2, 3, 5, u64::MAX]),
        few(),
        few(),
        prop::sample::select(durations.clone()),
        prop::sample::select(durations),
        prop::sample::select(EvictionStrategy::ALL.to_vec()),
    )
        .prop_map(|(active_max, own, suspended, idle_timeout, suspended_ttl, eviction)| Limits {
            active_max,
            active_per_principal_max: own,
            suspended_per_principal_max: suspended,
            idle_timeout,
            suspended_ttl,
            eviction,
        })
}

impl ReferenceStateMachine for World {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        let new = |limits| {
            let model = Model { limits, now: at(0), sessions: Vec::new(), engines: 0 };
            Self { model, drawn: 0, call: Call::Nothing, answer: "()".into() }
        };
        limits().prop_map(new).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn apply(mut world: Self, step: &Step) -> Self {
        world.call = world.call_of(*step);
        world.answer = format!("{:?}", on_model(&mut world.model, world.call));
        world
    }
}

struct Twin;

impl StateMachineTest for Twin {
    type SystemUnderTest = Sessions;
    type Reference = World;

    fn init_test(world: &World) -> Sessions {
        Sessions::new(world.model.limits)
    }

    fn apply(mut sessions: Sessions, world: &World, _: Step) -> Sessions {
        let answer = format!("{:?}", on_registry(&mut sessions, world.model.now, world.call));
        assert_eq!(answer, world.answer, "{:?} at {}", world.call, world.model.now);
        sessions
    }

    fn check_invariants(sessions: &Sessions, world: &World) {
        sessions.audit();
        let model = &world.model;
        assert_eq!(sessions.len(), model.sessions.len());
        assert_eq!(sessions.iter().map(|entry| entry.session).collect::<HashSet<_>>().len(), sessions.len());
        for expected in &model.sessions {
            let found = sessions.get(id(expected.number)).unwrap();
            assert_eq!(*found.owner, owned(expected.who, expected.key));
            assert_eq!(found.state, expected.state());
            assert_eq!((found.last_used, found.in_flight), (expected.last_used, expected.runs));
            assert_eq!(sessions.handle(id(expected.number)), expected.handle());
            let record = match sessions.part(id(expected.number)) {
                Some(Part::Kept(record)) => Some(*record),
                Some(Part::Live(_)) | None => None,
            };
            assert_eq!(record, expected.record());
            let slot = &sessions.slots[&id(expected.number)];
            assert_eq!(slot.deadline(&sessions.limits), model.deadline(expected));
        }
        let engines = model.sessions.iter().filter(|session| session.has_engine()).count();
        assert_eq!(sessions.handles().count(), engines);
        for who in PRINCIPALS {
            assert_eq!(sessions.count(&principal(who)), model.count(who));
            for key in KEYS {
                let bearer = model.bearer(who, key).map(id);
                assert_eq!(sessions.by_key(&principal(who), &ExternalKey::new(key).unwrap()), bearer);
            }
        }
        // Never later than the true one; where there is none it may be left over from one that was.
        if let Some((deadline, _)) = model.first_deadline() {
            assert!(sessions.next_deadline().is_some_and(|next| next <= deadline));
        }
    }

    /// After all time is over, nothing is due any more.
    fn teardown(mut sessions: Sessions, mut world: World) {
        world.model.now = Timestamp::MAX;
        let (found, expected) = (sessions.due(Timestamp::MAX, 1_000), world.model.due(1_000));
        assert_eq!(found, expected);
        assert_eq!(sessions.next_deadline(), None);
        sessions.audit();
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    /// `PROPTEST_CASES` sets another number of sequences.
    #[test]
    fn the_registry_and_its_model_agree(sequential 1..40 => Twin);
}
