//! Who comes in, who gives way, and what whoever is refused is told.

use super::*;
use crate::eviction::{Fate, Victim};
use crate::registry::open::RETRY_WHEN_ALL_ARE_BUSY;

impl Sessions {
    /// The session as it is now, chosen to give way.
    fn victim(&self, number: u64, fate: Fate) -> Victim {
        Victim { session: id(number), fate, version: self.slots[&id(number)].version }
    }

    fn to_suspend(&self, number: u64) -> Admission {
        Admission::After(self.victim(number, Fate::Suspended))
    }

    fn to_terminate(&self, number: u64) -> Admission {
        Admission::After(self.victim(number, Fate::Terminated))
    }
}

fn refused(limit: u64, own: bool, retry_after: Option<SignedDuration>) -> Result<Admission, Refused> {
    Err(Refused { limit, own, retry_after })
}

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

#[test]
fn a_limit_of_nothing_lets_nobody_in_and_gives_no_hope() {
    for strategy in EvictionStrategy::ALL {
        let mut sessions = Sessions::new(with(strategy, 0));
        assert_eq!(sessions.admit(at(0), id(1), owner("me")), refused(0, false, None));
        sessions.track(at(0), id(2), owner("me"), 2, at(MINUTE));
        let error = sessions.reopen(at(0), id(2)).unwrap().unwrap_err();
        assert_eq!(error, Refused { limit: 0, own: false, retry_after: None });
        assert_eq!(error.to_string(), "0 active sessions are allowed, and none of them can give way");

        let own = Limits { active_per_principal_max: Some(0), ..with(strategy, 5) };
        let mut sessions = Sessions::new(own);
        assert_eq!(sessions.admit(at(0), id(1), owner("me")), refused(0, true, None));
        sessions.audit();
    }
}

#[test]
fn the_largest_limit_never_refuses() {
    let limits =
        Limits { active_per_principal_max: Some(u64::MAX), ..with(EvictionStrategy::RejectNew, u64::MAX) };
    let mut sessions = Sessions::new(limits);
    for number in 1..=100 {
        sessions.live(at(0), number, owner("me"));
    }
    assert_eq!((sessions.active(), sessions.len()), (100, 100));
    assert_eq!(sessions.count(&principal("me")), Count { active: 100, suspended: 0 });
    assert_eq!(sessions.count(&principal("you")), Count::default());
    sessions.audit();
}

#[test]
fn at_the_limit_the_oldest_idle_gives_way_and_its_place_is_taken() {
    let mut sessions = Sessions::new(with(EvictionStrategy::SuspendOldestIdle, 2));
    sessions.live(at(0), 1, owner("me"));
    sessions.live(at(1), 2, owner("me"));
    assert_eq!(sessions.admit(at(2), id(3), owner("me")), Ok(sessions.to_suspend(1)), "used longest ago");
    sessions.touch(at(3), id(1)).unwrap();
    assert_eq!(sessions.admit(at(4), id(3), owner("me")), Ok(sessions.to_suspend(2)));
    sessions.begin_use(at(5), id(2)).unwrap();
    assert_eq!(
        sessions.admit(at(6), id(3), owner("me")),
        Ok(sessions.to_suspend(1)),
        "never one with a run in flight"
    );
    sessions.begin_use(at(7), id(1)).unwrap();
    let busy = refused(2, false, Some(RETRY_WHEN_ALL_ARE_BUSY));
    assert_eq!(sessions.admit(at(8), id(3), owner("me")), busy);
    assert_eq!(sessions.len(), 2, "whoever is refused leaves nothing behind");
    sessions.end_use(at(9), id(1), 1);
    sessions.suspend(at(10), 1);
    assert_eq!(sessions.admit(at(11), id(3), owner("me")), Ok(Admission::Reserved));
    sessions.audit();
}

#[test]
fn a_place_is_taken_until_the_engine_is_let_go_of() {
    let mut sessions = Sessions::new(with(EvictionStrategy::SuspendOldestIdle, 1));
    let ask = |sessions: &mut Sessions| sessions.admit(at(1), id(2), owner("me"));
    assert_eq!(sessions.admit(at(0), id(1), owner("me")), Ok(Admission::Reserved));
    assert_eq!(ask(&mut sessions), refused(1, false, Some(RETRY_WHEN_ALL_ARE_BUSY)), "it is being opened");
    sessions.opened(at(0), id(1), 1).unwrap();
    sessions.begin_suspend(id(1)).unwrap();
    assert_eq!(ask(&mut sessions), Ok(Admission::Wait));
    sessions.flushed(at(1), id(1), true);
    assert_eq!(ask(&mut sessions), Ok(Admission::Wait));
    sessions.closed(at(1), id(1), 1).unwrap();
    assert_eq!(ask(&mut sessions), Ok(Admission::Reserved));
    let again = sessions.reopen(at(1), id(1)).unwrap().unwrap_err();
    assert_eq!(again.retry_after, Some(RETRY_WHEN_ALL_ARE_BUSY), "who comes back is admitted like anybody");
    sessions.opened(at(2), id(2), 2).unwrap();
    let victim = sessions.victim(2, Fate::Suspended);
    assert_eq!(sessions.reopen(at(2), id(1)), Ok(Ok(Reopening::After(victim))));
    sessions.begin_terminate(id(2), TerminationReason::Stopped).unwrap();
    assert_eq!(sessions.reopen(at(2), id(1)), Ok(Ok(Reopening::Wait)));
    sessions.audit();
}

#[test]
fn the_own_limit_comes_first_and_concerns_ones_own_alone() {
    let limits = Limits { active_per_principal_max: Some(1), ..with(EvictionStrategy::SuspendOldestIdle, 2) };
    let mut sessions = Sessions::new(limits);
    sessions.live(at(5), 1, owner("me"));
    sessions.live(at(0), 2, owner("you"));
    assert_eq!(
        sessions.admit(at(6), id(3), owner("me")),
        Ok(sessions.to_suspend(1)),
        "though another's was used before"
    );
    assert_eq!(
        sessions.admit(at(6), id(3), owner("they")),
        Ok(sessions.to_suspend(2)),
        "who has none takes the oldest"
    );
    sessions.begin_use(at(7), id(1)).unwrap();
    let error = sessions.admit(at(8), id(3), owner("me")).unwrap_err();
    assert_eq!(Err(error.clone()), refused(1, true, Some(RETRY_WHEN_ALL_ARE_BUSY)));
    let text =
        "1 active sessions of one principal are allowed, and none of them can give way; try again in 5s";
    assert_eq!(error.to_string(), text);
    sessions.audit();
}

#[test]
fn suspended_sessions_take_no_place() {
    let limits = Limits { active_per_principal_max: Some(1), ..with(EvictionStrategy::RejectNew, 1) };
    let mut sessions = Sessions::new(limits);
    for number in 1..=5 {
        sessions.live(at(0), number, owner("me"));
        sessions.suspend(at(0), number);
    }
    assert_eq!(sessions.count(&principal("me")), Count { active: 0, suspended: 5 });
    assert_eq!(sessions.active(), 0);
    sessions.audit();
}

#[test]
fn beyond_their_limit_the_suspended_that_nobody_asked_for_longest_are_over() {
    let limits = Limits { suspended_per_principal_max: Some(2), ..roomy() };
    let mut sessions = Sessions::new(limits);
    sessions.track(at(0), id(9), owner("you"), 9, at(MINUTE));
    for (number, gone) in [(1, vec![]), (2, vec![]), (3, vec![(id(1), 1)])] {
        let tracked = sessions.track(at(0), id(number), owner("me"), number, at(MINUTE));
        assert_eq!(tracked, Tracked::New { evicted: gone });
    }
    // 1 had to make room for 3 when that was told of.
    assert_eq!((sessions.state(1), sessions.count(&principal("me")).suspended), ("terminated", 2));
    sessions.live(at(1), 4, owner("me"));
    let Closed::Suspended { evicted, .. } = sessions.suspend(at(2), 4) else { panic!("suspended") };
    assert_eq!(evicted, [(id(2), 2)]);
    assert_eq!(["terminated", "suspended", "suspended"], [2, 4, 9].map(|number| sessions.state(number)));
    // Who comes back and does not get there makes the others give way.
    sessions.reopen(at(3), id(3)).unwrap().unwrap();
    sessions.live(at(3), 5, owner("me"));
    sessions.suspend(at(3), 5);
    assert_eq!(sessions.failed(id(3)), Failed { doomed: None, evicted: vec![(id(4), 4)] });
    assert_eq!(["terminated", "suspended", "suspended"], [4, 3, 5].map(|number| sessions.state(number)));
    sessions.audit();

    let mut none = Sessions::new(Limits { suspended_per_principal_max: Some(0), ..roomy() });
    none.live(at(0), 1, owner("me"));
    let Closed::Suspended { evicted, .. } = none.suspend(at(0), 1) else { panic!("suspended") };
    assert_eq!(evicted, [(id(1), 1)], "with a limit of nothing, it is the one itself");
    let told = none.track(at(0), id(2), owner("me"), 2, at(MINUTE));
    assert_eq!(told, Tracked::New { evicted: vec![] }, "who is told of comes in, to be resumed");
    assert!(none.over(id(1)) && !none.over(id(2)) && none.len() == 1);
    none.audit();
}

#[test]
fn who_rejects_hints_at_the_first_that_leaves_by_itself() {
    let mut sessions = Sessions::new(with(EvictionStrategy::RejectNew, 2));
    sessions.live(at(0), 1, owner("me"));
    sessions.live(at(5 * MINUTE), 2, owner("you"));
    let ask = |sessions: &mut Sessions, now| sessions.admit(at(now * MINUTE), id(3), owner("me"));
    assert_eq!(ask(&mut sessions, 10), refused(2, false, Some(minutes(35))));
    sessions.begin_use(at(10 * MINUTE), id(1)).unwrap();
    assert_eq!(ask(&mut sessions, 10), refused(2, false, Some(minutes(40))), "the one in use does not leave");
    assert_eq!(sessions.due(at(20 * MINUTE), 9), [Due::Idled(id(2))]);
    assert_eq!(ask(&mut sessions, 25), refused(2, false, Some(minutes(25))), "idle since minute 20");
    sessions.begin_suspend(id(2)).unwrap();
    sessions.flushed(at(50 * MINUTE), id(2), false);
    assert_eq!(ask(&mut sessions, 50), refused(2, false, Some(minutes(1))), "it refused, and is tried again");
    let soonest = Some(SignedDuration::from_millis(1));
    assert_eq!(ask(&mut sessions, 60), refused(2, false, soonest), "overdue");
    assert_eq!(ask(&mut sessions, -9_000), refused(2, false, Some(minutes(24 * 60))), "a day at most");
    sessions.begin_use(at(60 * MINUTE), id(2)).unwrap();
    assert_eq!(ask(&mut sessions, 60), refused(2, false, Some(RETRY_WHEN_ALL_ARE_BUSY)));
    sessions.audit();
}

#[test]
fn without_timeouts_nobody_leaves_by_himself() {
    let limits = Limits { idle_timeout: None, ..with(EvictionStrategy::RejectNew, 1) };
    let mut sessions = Sessions::new(limits);
    sessions.live(at(0), 1, owner("me"));
    let hint = refused(1, false, Some(RETRY_WHEN_ALL_ARE_BUSY));
    assert_eq!(sessions.admit(at(0), id(2), owner("me")), hint);
}

#[test]
fn who_terminates_takes_the_oldest_of_ones_own_once() {
    let mut sessions = Sessions::new(with(EvictionStrategy::TerminateOldest, 3));
    sessions.live(at(0), 1, owner("you"));
    sessions.live(at(1), 2, owner("me"));
    sessions.live(at(2), 3, owner("me"));
    sessions.touch(at(9), id(2)).unwrap();
    let ask = |sessions: &mut Sessions| sessions.admit(at(10), id(4), owner("me"));
    assert_eq!(ask(&mut sessions), Ok(sessions.to_terminate(2)), "opened first, whenever it was used");
    sessions.begin_terminate(id(2), TerminationReason::Evicted).unwrap();
    assert_eq!(ask(&mut sessions), Ok(Admission::Wait), "one ends: no other has to");
    assert!(sessions.over(id(2)));
    assert_eq!(ask(&mut sessions), Ok(Admission::Reserved));
    sessions.audit();
}

#[test]
fn who_terminates_waits_for_ones_own_runs_and_for_the_time_of_others() {
    let mut sessions = Sessions::new(with(EvictionStrategy::TerminateOldest, 1));
    sessions.live(at(0), 1, owner("you"));
    assert_eq!(sessions.admit(at(0), id(2), owner("me")), refused(1, false, Some(minutes(45))));
    sessions.begin_use(at(0), id(1)).unwrap();
    let busy = refused(1, false, Some(RETRY_WHEN_ALL_ARE_BUSY));
    assert_eq!(sessions.admit(at(0), id(2), owner("you")), busy);
}

#[test]
fn one_that_refuses_to_be_suspended_is_left_in_peace_for_a_while() {
    let mut sessions = Sessions::new(with(EvictionStrategy::SuspendOldestIdle, 2));
    sessions.live(at(0), 1, owner("me"));
    sessions.live(at(1), 2, owner("me"));
    let ask = |sessions: &mut Sessions, now| sessions.admit(at(now), id(3), owner("me"));
    assert_eq!(ask(&mut sessions, 2), Ok(sessions.to_suspend(1)));
    sessions.begin_suspend(id(1)).unwrap();
    assert!(matches!(sessions.flushed(at(3), id(1), false), Flushed::Goes));
    assert_eq!(ask(&mut sessions, 4), Ok(sessions.to_suspend(2)), "the next one is asked");
    sessions.begin_use(at(4), id(2)).unwrap();
    let busy = refused(2, false, Some(RETRY_WHEN_ALL_ARE_BUSY));
    assert_eq!(ask(&mut sessions, MINUTE + 2), busy);
    assert_eq!(ask(&mut sessions, MINUTE + 3), Ok(sessions.to_suspend(1)));
    sessions.audit();
}

#[test]
fn what_is_here_is_never_overwritten() {
    let mut sessions = Sessions::new(with(EvictionStrategy::RejectNew, 1));
    sessions.live(at(0), 1, owner("me"));
    let again = sessions.admit(at(1), id(1), keyed("you", "chat"));
    assert_eq!(again, Ok(Admission::Existing(id(1))));
    assert_eq!(sessions.handle(id(1)), Some(1));
    assert_eq!(sessions.iter().count(), 1);
    sessions.audit();
}

#[test]
fn vacancies_are_free_places_and_those_of_whoever_gives_way_to_anybody() {
    let fill = |strategy| {
        let mut sessions = Sessions::new(with(strategy, 4));
        sessions.live(at(0), 1, owner("me"));
        sessions.live(at(0), 2, owner("me"));
        sessions.begin_use(at(0), id(2)).unwrap();
        sessions.live(at(0), 3, owner("you"));
        sessions.begin_suspend(id(3)).unwrap();
        sessions.flushed(at(0), id(3), false);
        sessions
    };
    let suspending = fill(EvictionStrategy::SuspendOldestIdle);
    assert_eq!(suspending.vacancies(at(1)), 2, "one is free, one gives way; one is in use, one refused");
    assert_eq!(suspending.vacancies(at(MINUTE)), 3, "and is asked again");
    assert_eq!(fill(EvictionStrategy::RejectNew).vacancies(at(MINUTE)), 1);
    assert_eq!(fill(EvictionStrategy::TerminateOldest).vacancies(at(MINUTE)), 1, "not to whoever has none");
    assert_eq!(Sessions::new(with(EvictionStrategy::RejectNew, 0)).vacancies(at(0)), 0);
    assert_eq!(*suspending.limits(), with(EvictionStrategy::SuspendOldestIdle, 4));
}
