//! Who gives way when there is no room: a choice among values, and nothing else.

use jiff::Timestamp;
use session_core::SessionId;
use session_core::names::Principal;

use crate::options::EvictionStrategy;

/// A session that could give way: it has an engine, no run in flight, and nothing is being done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'r> {
    /// The session.
    pub session: SessionId,
    /// Whose it is.
    pub principal: &'r Principal,
    /// Since when it is idle; `None` while it is active.
    pub idle_since: Option<Timestamp>,
    /// When it was last used.
    pub last_used: Timestamp,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// Its engine refused to be suspended a short while ago.
    pub refused: bool,
    /// Which of the engines it has, and how often it was used.
    pub version: Version,
}

/// Which of the engines that were ever here a session has, and how often the session was used: tells whether it is still as
/// it was when somebody looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version {
    /// The number of the engine. None is given out twice.
    pub generation: u64,
    /// How often the session was used.
    pub uses: u32,
}

/// The session that gives way, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// The session.
    pub session: SessionId,
    /// What becomes of it.
    pub fate: Fate,
    /// What it was like when it was chosen: if that has changed, it does not give way.
    pub version: Version,
}

/// What becomes of a session that gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It can come back.
    Suspended,
    /// It is over.
    Terminated,
}

impl Candidate<'_> {
    fn victim(self, fate: Fate) -> Victim {
        Victim { session: self.session, fate, version: self.version }
    }
}

/// The session that gives way to one of `principal`, if any may.
///
/// One's own come before another's, idle ones before active ones, and those that were left alone longest before the
/// rest; equal ones are ordered by their ids, so that the same sessions always lead to the same choice. One that refused a
/// short while ago is not asked to be suspended again: another gives way, or nobody.
pub fn pick_victim<'r>(
    strategy: EvictionStrategy,
    principal: &Principal,
    candidates: impl Iterator<Item = Candidate<'r>>,
) -> Option<Victim> {
    match strategy {
        EvictionStrategy::RejectNew => None,
        EvictionStrategy::SuspendOldestIdle => candidates
            .filter(|candidate| !candidate.refused)
            .min_by_key(|candidate| {
                let foreign = candidate.principal != principal;
                let active = candidate.idle_since.is_none();
                let alone_since = candidate.idle_since.unwrap_or(candidate.last_used);
                (foreign, active, alone_since, candidate.session)
            })
            .map(|candidate| candidate.victim(Fate::Suspended)),
        EvictionStrategy::TerminateOldest => candidates
            .filter(|candidate| may_give_way(strategy, principal, candidate.principal))
            .min_by_key(|candidate| (candidate.opened_at, candidate.session))
            .map(|candidate| candidate.victim(Fate::Terminated)),
    }
}

/// A session of `owner` may give way to one of `principal`, once nothing goes on in it.
pub(crate) fn may_give_way(strategy: EvictionStrategy, principal: &Principal, owner: &Principal) -> bool {
    match strategy {
        EvictionStrategy::SuspendOldestIdle => true,
        EvictionStrategy::RejectNew => false,
        EvictionStrategy::TerminateOldest => owner == principal,
    }
}

#[cfg(test)]
mod tests {
    use session_core::Id as _;

    use super::*;

    fn id(number: u128) -> SessionId {
        format!("ses_{number:032x}").parse().unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn active(number: u128, principal: &Principal, used: i64) -> Candidate<'_> {
        Candidate {
            session: id(number),
            principal,
            idle_since: None,
            last_used: at(used),
            opened_at: at(0),
            refused: false,
            version: Version::default(),
        }
    }

    fn idle(number: u128, principal: &Principal, since: i64) -> Candidate<'_> {
        Candidate { idle_since: Some(at(since)), ..active(number, principal, since - 1) }
    }

    fn pick(strategy: EvictionStrategy, principal: &Principal, candidates: &[Candidate<'_>]) -> Option<u128> {
        let forward = pick_victim(strategy, principal, candidates.iter().copied());
        let backward = pick_victim(strategy, principal, candidates.iter().rev().copied());
        assert_eq!(forward, backward, "the order of the candidates decides nothing");
        forward.map(|victim| victim.session.uuid().as_u128())
    }

    #[test]
    fn idle_before_active_and_own_before_foreign() {
        let (me, you) = (Principal::new("me").unwrap(), Principal::new("you").unwrap());
        let suspend = EvictionStrategy::SuspendOldestIdle;
        let all = [active(1, &me, 5), idle(2, &me, 9), idle(3, &me, 8), idle(4, &you, 1), active(5, &you, 1)];
        assert_eq!(pick(suspend, &me, &all), Some(3));
        assert_eq!(pick(suspend, &me, &[all[0], all[3], all[4]]), Some(1), "own, though it is active");
        assert_eq!(pick(suspend, &me, &all[3..]), Some(4), "another's only when there is none of one's own");
        assert_eq!(pick(suspend, &me, &all[4..]), Some(5));
        assert_eq!(pick(suspend, &me, &[]), None);
        let fate = pick_victim(suspend, &me, all.iter().copied()).unwrap().fate;
        assert_eq!(fate, Fate::Suspended);
    }

    #[test]
    fn one_that_refused_is_not_asked_to_be_suspended_but_can_be_ended() {
        let me = Principal::new("me").unwrap();
        let refused = Candidate { refused: true, ..idle(1, &me, 1) };
        assert_eq!(pick(EvictionStrategy::SuspendOldestIdle, &me, &[refused, active(2, &me, 9)]), Some(2));
        assert_eq!(pick(EvictionStrategy::SuspendOldestIdle, &me, &[refused]), None);
        assert_eq!(pick(EvictionStrategy::TerminateOldest, &me, &[refused]), Some(1));
    }

    #[test]
    fn who_may_give_way_to_whom() {
        let (me, you) = (Principal::new("me").unwrap(), Principal::new("you").unwrap());
        let may = |strategy| (may_give_way(strategy, &me, &me), may_give_way(strategy, &me, &you));
        assert_eq!(may(EvictionStrategy::SuspendOldestIdle), (true, true));
        assert_eq!(may(EvictionStrategy::RejectNew), (false, false));
        assert_eq!(may(EvictionStrategy::TerminateOldest), (true, false));
    }

    #[test]
    fn equal_ones_are_told_apart_by_their_ids() {
        let me = Principal::new("me").unwrap();
        let twins = [active(2, &me, 5), active(1, &me, 5)];
        assert_eq!(pick(EvictionStrategy::SuspendOldestIdle, &me, &twins), Some(1));
        assert_eq!(pick(EvictionStrategy::TerminateOldest, &me, &twins), Some(1));
    }

    #[test]
    fn termination_takes_the_oldest_of_ones_own_and_nobody_elses() {
        let (me, you) = (Principal::new("me").unwrap(), Principal::new("you").unwrap());
        let terminate = EvictionStrategy::TerminateOldest;
        let old = Candidate { opened_at: at(-9), ..active(1, &you, 0) };
        let mine = [
            Candidate { opened_at: at(-5), ..active(2, &me, 9) },
            Candidate { opened_at: at(-4), ..idle(3, &me, 1) },
        ];
        assert_eq!(pick(terminate, &me, &[old, mine[0], mine[1]]), Some(2));
        assert_eq!(pick(terminate, &me, &[old]), None);
        assert_eq!(pick_victim(terminate, &me, mine.into_iter()).unwrap().fate, Fate::Terminated);
    }

    #[test]
    fn whoever_comes_is_refused() {
        let me = Principal::new("me").unwrap();
        assert_eq!(pick(EvictionStrategy::RejectNew, &me, &[idle(1, &me, 1)]), None);
    }
}
