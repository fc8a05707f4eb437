//! The registry once more, so plain that it can be seen to be right: a list of sessions, and everything else looked up in
//! it anew each time.

mod leaving;

use super::*;
use crate::eviction::{Fate, Version, Victim};
use crate::registry::open::RETRY_WHEN_ALL_ARE_BUSY;

pub(super) const PRINCIPALS: [&str; 3] = ["me", "you", "they"];
pub(super) const KEYS: [&str; 2] = ["chat", "ticket"];

/// All sessions, in the order in which they came to where they are.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) limits: Limits,
    pub(super) now: Timestamp,
    pub(super) sessions: Vec<Session>,
    /// Engines so far.
    pub(super) engines: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) who: &'static str,
    pub(super) key: Option<&'static str>,
    pub(super) stage: Stage,
    pub(super) last_used: Timestamp,
    pub(super) runs: u32,
    opened_at: Timestamp,
    peace_until: Option<Timestamp>,
    pub(super) version: Version,
}

#[derive(Debug, Clone)]
pub(super) enum Stage {
    Opening { back: Option<Kept>, doomed: Option<TerminationReason> },
    Live { handle: u64, idle: Option<Timestamp> },
    Flushing { handle: u64, idle: Option<Timestamp>, used: bool },
    Closing { handle: u64, idle: Option<Timestamp>, end: Option<TerminationReason> },
    Suspended(Kept),
    Ending { record: u64, reason: TerminationReason },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    record: u64,
    since: Timestamp,
    expires_at: Timestamp,
    not_before: Timestamp,
}

fn plus(at: Timestamp, by: Option<SignedDuration>) -> Timestamp {
    by.and_then(|by| at.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}

impl Session {
    pub(super) fn state(&self) -> SessionState {
        match &self.stage {
            Stage::Suspended(kept) | Stage::Opening { back: Some(kept), .. } => {
                SessionState::Suspended { since: kept.since, expires_at: kept.expires_at }
            }
            Stage::Closing { end: Some(reason), .. } | Stage::Ending { reason, .. } => {
                SessionState::Terminated { at: self.last_used, reason: *reason }
            }
            Stage::Live { idle: Some(since), .. }
            | Stage::Flushing { idle: Some(since), .. }
            | Stage::Closing { idle: Some(since), .. } => SessionState::Idle { since: *since },
            Stage::Opening { .. } | Stage::Live { .. } | Stage::Flushing { .. } | Stage::Closing { .. } => {
                SessionState::Active
            }
        }
    }

    pub(super) fn takes_a_place(&self) -> bool {
        !matches!(self.stage, Stage::Suspended(_) | Stage::Ending { .. })
    }

    pub(super) fn is_moving(&self) -> bool {
        !matches!(self.stage, Stage::Live { .. } | Stage::Suspended(_))
    }

    pub(super) fn handle(&self) -> Option<u64> {
        match self.stage {
            Stage::Live { handle, .. } | Stage::Flushing { handle, .. } => Some(handle),
            Stage::Opening { .. } | Stage::Closing { .. } | Stage::Suspended(_) | Stage::Ending { .. } => {
                None
            }
        }
    }

    /// What is kept of it without an engine.
    pub(super) fn record(&self) -> Option<u64> {
        match self.stage {
            Stage::Suspended(kept) | Stage::Opening { back: Some(kept), .. } => Some(kept.record),
            Stage::Ending { record, .. } => Some(record),
            Stage::Opening { back: None, .. }
            | Stage::Live { .. }
            | Stage::Flushing { .. }
            | Stage::Closing { .. } => None,
        }
    }

    pub(super) fn has_engine(&self) -> bool {
        self.handle().is_some() || matches!(self.stage, Stage::Closing { .. })
    }

    fn use_it(&mut self, now: Timestamp) {
        self.last_used = self.last_used.max(now);
        self.version.uses += 1;
    }

    fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing { .. })
    }

    pub(super) fn is_suspended(&self) -> bool {
        matches!(self.stage, Stage::Suspended(_))
    }

    fn is_flushing(&self) -> bool {
        matches!(self.stage, Stage::Flushing { .. })
    }
}

impl Model {
    pub(super) fn index(&self, number: u64) -> Option<usize> {
        self.sessions.iter().position(|session| session.number == number)
    }

    fn find(&mut self, number: u64) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.number == number)
    }

    pub(super) fn bearer(&self, who: &str, key: &str) -> Option<u64> {
        let bears = |session: &&Session| session.who == who && session.key == Some(key);
        self.sessions.iter().find(bears).map(|session| session.number)
    }

    pub(super) fn count(&self, who: &str) -> Count {
        let own = || self.sessions.iter().filter(|session| session.who == who);
        Count {
            active: own().filter(|session| session.takes_a_place()).count() as u64,
            suspended: own().filter(|session| session.is_suspended()).count() as u64,
        }
    }

    /// When time does the next thing to a session.
    pub(super) fn deadline(&self, session: &Session) -> Option<Timestamp> {
        let at = match &session.stage {
            Stage::Live { .. } if session.runs > 0 => Timestamp::MAX,
            Stage::Live { idle: None, .. } => plus(session.last_used, self.limits.idle_timeout),
            Stage::Live { idle: Some(since), .. } => {
                let twice = plus(plus(*since, self.limits.idle_timeout), self.limits.idle_timeout);
                session.peace_until.map_or(twice, |until| until.max(twice))
            }
            Stage::Suspended(kept) => kept.expires_at.max(kept.not_before),
            Stage::Opening { .. } | Stage::Flushing { .. } | Stage::Closing { .. } | Stage::Ending { .. } => {
                Timestamp::MAX
            }
        };
        Some(at).filter(|&at| at != Timestamp::MAX)
    }

    pub(super) fn first_deadline(&self) -> Option<(Timestamp, u64)> {
        self.sessions.iter().filter_map(|session| Some((self.deadline(session)?, session.number))).min()
    }

    pub(super) fn admit(
        &mut self,
        number: u64,
        who: &'static str,
        key: Option<&'static str>,
    ) -> Result<Admission, Refused> {
        if let Some(bearer) = key.and_then(|key| self.bearer(who, key)) {
            return Ok(Admission::Existing(id(bearer)));
        }
        match self.room(who) {
            Ok(None) => {
                let stage = Stage::Opening { back: None, doomed: None };
                self.sessions.push(self.newcomer(number, who, key, stage));
                Ok(Admission::Reserved)
            }
            Ok(Some(other)) => Ok(other),
            Err(refused) => Err(refused),
        }
    }

    fn newcomer(&self, number: u64, who: &'static str, key: Option<&'static str>, stage: Stage) -> Session {
        let now = self.now;
        let version = Version::default();
        Session {
            number,
            who,
            key,
            stage,
            last_used: now,
            runs: 0,
            opened_at: now,
            peace_until: None,
            version,
        }
    }

    pub(super) fn track(
        &mut self,
        number: u64,
        who: &'static str,
        key: Option<&'static str>,
        record: u64,
        expires_at: Timestamp,
    ) -> Tracked<u64> {
        let minute = SignedDuration::from_mins(1);
        let not_before = plus(self.now, Some(self.limits.idle_timeout.unwrap_or(minute)));
        if let Some(session) = self.find(number) {
            let Stage::Suspended(kept) = &mut session.stage else { return Tracked::Known };
            *kept = Kept { expires_at, not_before, ..*kept };
            return Tracked::Again(kept.record);
        }
        let key = key.filter(|key| self.bearer(who, key).is_none());
        let stage = Stage::Suspended(Kept { record, since: self.now, expires_at, not_before });
        self.sessions.push(self.newcomer(number, who, key, stage));
        Tracked::New { evicted: self.crowd_out(who, Some(number)) }
    }

    /// Nothing if there is room, else what is to be done for it.
    fn room(&self, who: &str) -> Result<Option<Admission>, Refused> {
        let residents: Vec<&Session> =
            self.sessions.iter().filter(|session| session.takes_a_place()).collect();
        let own: Vec<&Session> = residents.iter().copied().filter(|session| session.who == who).collect();
        let (limit, is_own, in_the_way) = match self.limits.active_per_principal_max {
            Some(max) if own.len() as u64 >= max => (max, true, own),
            _ if residents.len() as u64 >= self.limits.active_max => {
                (self.limits.active_max, false, residents)
            }
            _ => return Ok(None),
        };
        if limit == 0 {
            return Err(Refused { limit, own: is_own, retry_after: None });
        }
        let terminates = self.limits.eviction == EvictionStrategy::TerminateOldest;
        let any_closing = in_the_way.iter().any(|session| session.is_closing());
        if let Some(victim) = self.victim(who, &in_the_way)
            && !(terminates && any_closing)
        {
            return Ok(Some(Admission::After(victim)));
        }
        if any_closing || in_the_way.iter().any(|session| session.is_flushing()) {
            return Ok(Some(Admission::Wait));
        }
        Err(Refused { limit, own: is_own, retry_after: Some(self.hint(who, &in_the_way)) })
    }

    fn victim(&self, who: &str, in_the_way: &[&Session]) -> Option<Victim> {
        let mut choices = Vec::new();
        for session in in_the_way {
            let Stage::Live { idle, .. } = session.stage else { continue };
            let foreign = session.who != who;
            let refused = session.peace_until.is_some_and(|until| self.now < until);
            match self.limits.eviction {
                EvictionStrategy::SuspendOldestIdle if session.runs == 0 && !refused => {
                    let since = idle.unwrap_or(session.last_used);
                    choices.push((foreign, idle.is_none(), since, session.number, Fate::Suspended));
                }
                EvictionStrategy::TerminateOldest if session.runs == 0 && !foreign => {
                    choices.push((false, false, session.opened_at, session.number, Fate::Terminated));
                }
                EvictionStrategy::SuspendOldestIdle
                | EvictionStrategy::TerminateOldest
                | EvictionStrategy::RejectNew => {}
            }
        }
        choices.sort_by_key(|&(foreign, active, since, number, _)| (foreign, active, since, number));
        choices.first().map(|&(.., number, fate)| self.as_victim(number, fate))
    }

    pub(super) fn as_victim(&self, number: u64, fate: Fate) -> Victim {
        let session = self.index(number).map(|index| &self.sessions[index]);
        let version = session.map_or_else(Version::default, |session| session.version);
        Victim { session: id(number), fate, version }
    }

    fn hint(&self, who: &str, in_the_way: &[&Session]) -> SignedDuration {
        let waits_for_a_run = match self.limits.eviction {
            EvictionStrategy::SuspendOldestIdle => true,
            EvictionStrategy::RejectNew => false,
            EvictionStrategy::TerminateOldest => in_the_way.iter().any(|session| session.who == who),
        };
        let leaves = |session: &&Session| {
            let Stage::Live { idle, .. } = session.stage else { return None };
            let timeout = self.limits.idle_timeout;
            let since = idle.unwrap_or(plus(session.last_used, timeout));
            let at = plus(plus(since, timeout), timeout);
            let at = session.peace_until.map_or(at, |until| until.max(at));
            (session.runs == 0 && timeout.is_some()).then_some(at)
        };
        match in_the_way.iter().filter_map(leaves).min() {
            Some(at) if !waits_for_a_run => {
                let wait = at.duration_since(self.now);
                wait.max(SignedDuration::from_millis(1)).min(SignedDuration::from_hours(24))
            }
            _ => RETRY_WHEN_ALL_ARE_BUSY,
        }
    }

    pub(super) fn reopen(&mut self, number: u64) -> Result<Result<Reopening<u64>, Refused>, Unusable> {
        let index = self.index(number).ok_or(Unusable::Unknown)?;
        let kept = match self.sessions[index].stage {
            Stage::Suspended(kept) => kept,
            Stage::Live { .. } | Stage::Flushing { .. } => return Ok(Ok(Reopening::Live)),
            Stage::Opening { .. } | Stage::Closing { .. } | Stage::Ending { .. } => {
                return Ok(Ok(Reopening::Wait));
            }
        };
        Ok(self.room(self.sessions[index].who).map(|room| match room {
            None => {
                self.sessions[index].stage = Stage::Opening { back: Some(kept), doomed: None };
                Reopening::Reserved(kept.record)
            }
            Some(Admission::After(victim)) => Reopening::After(victim),
            Some(_) => Reopening::Wait,
        }))
    }

    pub(super) fn opened(&mut self, number: u64, handle: u64) -> Result<(), TerminationReason> {
        let (now, engine) = (self.now, self.engines + 1);
        let session = self.find(number).ok_or(TerminationReason::Killed)?;
        match session.stage {
            Stage::Opening { doomed: Some(reason), .. } => {
                session.stage = Stage::Closing { handle, idle: None, end: Some(reason) };
                Err(reason)
            }
            Stage::Opening { .. } => {
                session.stage = Stage::Live { handle, idle: None };
                session.version.generation = engine;
                session.use_it(now);
                self.engines = engine;
                Ok(())
            }
            Stage::Live { .. }
            | Stage::Flushing { .. }
            | Stage::Closing { .. }
            | Stage::Suspended(_)
            | Stage::Ending { .. } => Err(TerminationReason::Killed),
        }
    }

    pub(super) fn failed(&mut self, number: u64) -> Failed<u64> {
        let nothing = Failed { doomed: None, evicted: Vec::new() };
        let Some(index) = self.index(number) else { return nothing };
        let Stage::Opening { back, doomed } = self.sessions[index].stage else { return nothing };
        let session = self.sessions.remove(index);
        let (who, record) = (session.who, back.map(|kept| kept.record));
        match (back, doomed) {
            (None, _) => Failed { doomed, ..nothing },
            (Some(_), Some(reason)) => {
                let stage = Stage::Ending { record: record.unwrap(), reason };
                self.sessions.push(Session { stage, ..session });
                Failed { doomed, ..nothing }
            }
            (Some(kept), None) => {
                self.sessions.push(Session { stage: Stage::Suspended(kept), ..session });
                Failed { evicted: self.crowd_out(who, None), ..nothing }
            }
        }
    }

    pub(super) fn touch(&mut self, number: u64) -> Result<Used, Unusable> {
        let now = self.now;
        let session = self.find(number).ok_or(Unusable::Unknown)?;
        let was_idle = match &mut session.stage {
            Stage::Live { idle, .. } => idle.take().is_some(),
            Stage::Flushing { idle, used, .. } => {
                *used = true;
                idle.take().is_some()
            }
            Stage::Opening { .. } | Stage::Closing { .. } | Stage::Ending { .. } => {
                return Err(Unusable::Moving);
            }
            Stage::Suspended(_) => return Err(Unusable::Suspended),
        };
        session.use_it(now);
        Ok(if was_idle { Used::Woke } else { Used::Stayed })
    }

    pub(super) fn begin_use(&mut self, number: u64) -> Result<Begun<u64>, Unusable> {
        let used = self.touch(number)?;
        let session = self.find(number).unwrap();
        session.runs += 1;
        let handle = session.handle().unwrap();
        Ok(Begun { used, handle, generation: session.version.generation })
    }

    pub(super) fn end_use(&mut self, number: u64, generation: u64) {
        let now = self.now;
        if let Some(session) = self.find(number)
            && session.runs > 0
            && session.version.generation == generation
        {
            session.runs -= 1;
            session.use_it(now);
        }
    }

    pub(super) fn due(&mut self, limit: usize) -> Vec<Due<u64, u64>> {
        let mut due = Vec::new();
        while let Some((deadline, number)) = self.first_deadline()
            && deadline <= self.now
            && due.len() < limit
        {
            let index = self.index(number).unwrap();
            let session = &mut self.sessions[index];
            match session.stage {
                Stage::Live { handle, idle: None } => {
                    session.stage = Stage::Live { handle, idle: Some(deadline) };
                    due.push(Due::Idled(id(number)));
                }
                Stage::Live { handle, idle } => {
                    session.stage = Stage::Flushing { handle, idle, used: false };
                    due.push(Due::Suspend(id(number), handle));
                }
                Stage::Suspended(kept) => {
                    let reason = TerminationReason::TtlExpired;
                    session.stage = Stage::Ending { record: kept.record, reason };
                    due.push(Due::Expired(id(number), kept.record));
                }
                Stage::Opening { .. }
                | Stage::Flushing { .. }
                | Stage::Closing { .. }
                | Stage::Ending { .. } => {
                    panic!("nothing else has a deadline")
                }
            }
        }
        due
    }
}
