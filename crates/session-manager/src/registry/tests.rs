//! The registry against what it promises.

mod keys;
mod machine;
mod model;
mod phases;
mod room;
mod time;

use std::collections::{BTreeSet, HashMap, HashSet};

use session_core::state::TerminationReason;

use super::slot::Next;
use super::*;
use crate::options::EvictionStrategy;

/// Handles and records are numbers, so that a mixed-up one is seen.
type Sessions = Registry<u64, u64>;

const MINUTE: i64 = 60_000;

fn id(number: u64) -> SessionId {
    format!("ses_{number:032x}").parse().unwrap()
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_790_000_000_000 + millis).unwrap()
}

fn owner(principal: &str) -> Owner {
    Owner { principal: Principal::new(principal).unwrap(), key: None }
}

fn keyed(principal: &str, key: &str) -> Owner {
    Owner { key: Some(ExternalKey::new(key).unwrap()), ..owner(principal) }
}

fn principal(name: &str) -> Principal {
    Principal::new(name).unwrap()
}

/// Room for everybody; idle after 15 minutes, suspended after 45, over after a day more.
fn roomy() -> Limits {
    Limits { active_max: u64::MAX, active_per_principal_max: None, ..Limits::default() }
}

fn with(strategy: EvictionStrategy, active_max: u64) -> Limits {
    Limits { active_max, eviction: strategy, ..roomy() }
}

impl Registry<u64, u64> {
    /// A session of its own that can be used, with its number as handle.
    fn live(&mut self, now: Timestamp, number: u64, owner: Owner) {
        assert_eq!(self.admit(now, id(number), owner), Ok(Admission::Reserved));
        assert_eq!(self.opened(now, id(number), number), Ok(()));
    }

    /// Suspends a session that can be, with its number as record.
    fn suspend(&mut self, now: Timestamp, number: u64) -> Closed<u64> {
        assert!(matches!(self.begin_suspend(id(number)), Ok(Suspending::Flush(_))));
        assert!(matches!(self.flushed(now, id(number), true), Flushed::Close(_)));
        self.closed(now, id(number), number).unwrap()
    }

    fn state(&self, number: u64) -> &'static str {
        self.get(id(number)).map_or("gone", |entry| entry.state.name())
    }

    /// Everything that is kept twice agrees.
    fn audit(&self) {
        let mut counts: HashMap<&Principal, Count> = HashMap::new();
        let (mut resident, mut keys, mut armed) = (HashSet::new(), 0, BTreeSet::new());
        for (&session, slot) in &self.slots {
            match slot.standing() {
                Some(books::Standing::Active) => {
                    counts.entry(&slot.owner.principal).or_default().active += 1;
                    resident.insert(session);
                }
                Some(books::Standing::Suspended) => {
                    counts.entry(&slot.owner.principal).or_default().suspended += 1;
                }
                None => {}
            }
            if slot.owner.key.is_some() {
                assert_eq!(self.keys.get(&slot.owner), Some(&session), "its key leads elsewhere");
                keys += 1;
            }
            armed.extend(slot.armed.map(|at| (at, session)));
            if let Some(deadline) = slot.deadline(&self.limits) {
                assert!(slot.armed.is_some_and(|armed| armed <= deadline), "{session} is missed: {slot:?}");
            }
            self.audit_use(session, slot);
        }
        assert_eq!(keys, self.keys.len(), "a key leads to a session that is gone");
        assert_eq!(armed, self.deadlines.0);
        assert_eq!(resident.len() as u64, self.active());
        assert_eq!(self.books.resident(None).collect::<HashSet<_>>(), resident);
        let counted = counts.values().map(|count| count.active + count.suspended).sum::<u64>();
        assert_eq!(self.books.lengths(), (counts.len(), usize::try_from(counted).unwrap()));
        assert_eq!(counted, self.active() + self.suspended());
        for (principal, count) in counts {
            assert_eq!(self.count(principal), count);
            let own = |session: &SessionId| self.slots[session].owner.principal == *principal;
            assert!(self.books.resident(Some(principal)).all(|session| own(&session)));
            assert_eq!(self.books.resident(Some(principal)).count() as u64, count.active);
            assert!(self.limits.active_per_principal_max.is_none_or(|max| count.active <= max));
        }
        assert!(self.active() <= self.limits.active_max);
    }

    /// What has runs in flight is neither idle nor on its way to being suspended.
    fn audit_use(&self, session: SessionId, slot: &Slot<u64, u64>) {
        match &slot.phase {
            _ if slot.in_flight == 0 => {}
            Phase::Live { idle_since, .. } => {
                assert_eq!(*idle_since, None);
                assert_eq!(slot.deadline(&self.limits), None);
            }
            Phase::Flushing { uses, idle_since, .. } => {
                assert_eq!(*idle_since, None);
                assert_ne!(*uses, slot.version.uses, "the suspension must be called off");
            }
            Phase::Closing { next, .. } => assert_ne!(*next, Next::Suspended),
            // A run may outlast its engine.
            Phase::Ending { .. } => {}
            Phase::Opening { .. } | Phase::Suspended(_) => panic!("{session} is used without an engine"),
        }
    }
}
