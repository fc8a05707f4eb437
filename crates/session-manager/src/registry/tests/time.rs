//! What time does, to the millisecond, and what it must not do.

use super::*;

const IDLE: i64 = 15 * MINUTE;
const SUSPENDED: i64 = 45 * MINUTE;
const DAY: i64 = 24 * 60 * MINUTE;

fn suspend(number: u64) -> Due<u64, u64> {
    Due::Suspend(id(number), number)
}

#[test]
fn idle_suspended_and_over_to_the_millisecond() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    assert_eq!(sessions.next_deadline(), Some(at(IDLE)));
    assert_eq!(sessions.due(at(IDLE - 1), 9), []);
    assert_eq!(sessions.due(at(IDLE), 9), [Due::Idled(id(1))]);
    assert_eq!(sessions.get(id(1)).unwrap().state, SessionState::Idle { since: at(IDLE) });
    assert_eq!(sessions.next_deadline(), Some(at(SUSPENDED)));
    assert_eq!(sessions.due(at(SUSPENDED - 1), 9), []);
    assert_eq!(sessions.due(at(SUSPENDED), 9), [suspend(1)]);
    assert_eq!(sessions.next_deadline(), None, "its engine is at it");
    assert!(matches!(sessions.flushed(at(SUSPENDED + 5), id(1), true), Flushed::Close(1)));
    assert_eq!(sessions.get(id(1)).unwrap().state, SessionState::Idle { since: at(IDLE) });
    let expires_at = at(SUSPENDED + 7 + DAY);
    let closed = sessions.closed(at(SUSPENDED + 7), id(1), 70);
    assert_eq!(closed, Some(Closed::Suspended { expires_at, evicted: vec![] }));
    let state = SessionState::Suspended { since: at(SUSPENDED + 7), expires_at };
    assert_eq!(sessions.get(id(1)).unwrap().state, state);
    assert_eq!(sessions.due(at(SUSPENDED + 6 + DAY), 9), []);
    assert_eq!(sessions.due(at(SUSPENDED + 7 + DAY), 9), [Due::Expired(id(1), 70)]);
    assert_eq!((sessions.state(1), sessions.next_deadline()), ("terminated", None));
    assert!(sessions.over(id(1)) && sessions.is_empty());
    sessions.audit();
}

#[test]
fn a_late_sweep_catches_up_in_one_go_and_in_order() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    sessions.live(at(MINUTE), 2, owner("me"));
    sessions.live(at(2 * MINUTE), 3, owner("me"));
    sessions.touch(at(3 * MINUTE), id(1)).unwrap();
    let late = at(DAY);
    let idled = |number| Due::Idled(id(number));
    assert_eq!(
        sessions.due(late, 2),
        [idled(2), idled(3)],
        "the oldest deadline first, not the oldest entry"
    );
    assert_eq!(sessions.due(late, 0), []);
    assert_eq!(sessions.due(late, 2), [idled(1), suspend(2)]);
    assert_eq!(sessions.due(late, 9), [suspend(3), suspend(1)]);
    assert_eq!(sessions.due(late, 9), []);
    sessions.audit();
}

#[test]
fn a_use_at_the_last_millisecond_counts() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    assert_eq!(sessions.touch(at(IDLE - 1), id(1)), Ok(Used::Stayed));
    assert_eq!(sessions.due(at(IDLE), 9), []);
    assert_eq!(sessions.next_deadline(), Some(at(2 * IDLE - 1)));
    assert_eq!(sessions.due(at(2 * IDLE - 1), 9), [Due::Idled(id(1))]);
    assert_eq!(sessions.touch(at(2 * IDLE - 1 + 2 * IDLE - 1), id(1)), Ok(Used::Woke));
    assert_eq!(sessions.due(at(4 * IDLE), 9), []);
    assert_eq!(sessions.state(1), "active");
    sessions.audit();
}

/// The grace that an idle session has ends later than the idle timeout of one that was used a moment ago.
#[test]
fn a_session_that_woke_is_idle_again_on_time() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    sessions.due(at(IDLE), 9);
    assert_eq!(sessions.touch(at(IDLE + 1), id(1)), Ok(Used::Woke));
    assert_eq!(sessions.next_deadline(), Some(at(2 * IDLE + 1)));
    assert_eq!(sessions.due(at(2 * IDLE), 9), []);
    assert_eq!(sessions.due(at(2 * IDLE + 1), 9), [Due::Idled(id(1))]);
    assert_eq!(
        sessions.begin_use(at(2 * IDLE + 2), id(1)),
        Ok(Begun { used: Used::Woke, handle: 1, generation: 1 })
    );
    sessions.end_use(at(2 * IDLE + 3), id(1), 1);
    assert_eq!(sessions.next_deadline(), Some(at(3 * IDLE + 3)));
    sessions.audit();
}

#[test]
fn a_run_in_flight_keeps_its_session_and_its_end_begins_the_idle_time() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    assert_eq!(sessions.begin_use(at(0), id(1)), Ok(Begun { used: Used::Stayed, handle: 1, generation: 1 }));
    assert_eq!(sessions.begin_use(at(0), id(1)), Ok(Begun { used: Used::Stayed, handle: 1, generation: 1 }));
    assert_eq!(sessions.due(at(DAY), 9), []);
    assert_eq!(sessions.next_deadline(), None);
    assert!(matches!(sessions.begin_suspend(id(1)), Ok(Suspending::InUse)));
    sessions.end_use(at(DAY), id(1), 1);
    assert_eq!(sessions.in_flight(id(1)), 1);
    assert_eq!(sessions.due(at(2 * DAY), 9), [], "the other goes on");
    sessions.end_use(at(2 * DAY), id(1), 1);
    assert_eq!(sessions.next_deadline(), Some(at(2 * DAY + IDLE)));
    assert_eq!(sessions.due(at(2 * DAY + IDLE - 1), 9), []);
    assert_eq!(sessions.due(at(2 * DAY + IDLE), 9), [Due::Idled(id(1))]);
    sessions.end_use(at(2 * DAY + IDLE), id(1), 1);
    assert_eq!(sessions.state(1), "idle", "where no run is, none ends");
    sessions.end_use(at(0), id(9), 1);
    sessions.audit();
}

#[test]
fn a_use_calls_a_suspension_off_until_everything_is_written() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    assert_eq!(sessions.due(at(SUSPENDED), 9), [Due::Idled(id(1)), suspend(1)]);
    assert_eq!(sessions.touch(at(SUSPENDED), id(1)), Ok(Used::Woke));
    assert_eq!(sessions.touch(at(SUSPENDED), id(1)), Ok(Used::Stayed));
    assert!(matches!(sessions.flushed(at(SUSPENDED + 1), id(1), true), Flushed::Goes));
    assert_eq!(sessions.state(1), "active");
    assert_eq!(sessions.next_deadline(), Some(at(SUSPENDED + IDLE)));

    assert!(matches!(sessions.begin_suspend(id(1)), Ok(Suspending::Flush(1))));
    assert_eq!(
        sessions.begin_use(at(SUSPENDED + 2), id(1)),
        Ok(Begun { used: Used::Stayed, handle: 1, generation: 1 })
    );
    sessions.end_use(at(SUSPENDED + 3), id(1), 1);
    assert!(matches!(sessions.flushed(at(SUSPENDED + 4), id(1), true), Flushed::Goes), "used, and done");
    assert_eq!(
        sessions.next_deadline(),
        Some(at(SUSPENDED + IDLE)),
        "the old entry, not behind the true one"
    );
    sessions.audit();
}

#[test]
fn a_refused_suspension_is_tried_again_after_a_minute_and_not_before() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    assert_eq!(sessions.due(at(SUSPENDED), 9).len(), 2);
    assert!(matches!(sessions.flushed(at(SUSPENDED), id(1), false), Flushed::Goes));
    assert_eq!(sessions.get(id(1)).unwrap().state, SessionState::Idle { since: at(IDLE) });
    assert_eq!(sessions.next_deadline(), Some(at(SUSPENDED + MINUTE)));
    assert_eq!(sessions.due(at(SUSPENDED + MINUTE - 1), 9), []);
    assert_eq!(sessions.due(at(SUSPENDED + MINUTE), 9), [suspend(1)]);
    sessions.audit();

    let hasty = Limits { idle_timeout: Some(SignedDuration::from_secs(1)), ..roomy() };
    let mut sessions = Sessions::new(hasty);
    sessions.live(at(0), 1, owner("me"));
    assert_eq!(sessions.due(at(3_000), 9).len(), 2);
    sessions.flushed(at(3_000), id(1), false);
    assert_eq!(sessions.next_deadline(), Some(at(4_000)), "no longer than the idle timeout");

    let timeless = Limits { idle_timeout: None, ..roomy() };
    let mut sessions = Sessions::new(timeless);
    sessions.live(at(0), 1, owner("me"));
    sessions.begin_suspend(id(1)).unwrap();
    sessions.flushed(at(0), id(1), false);
    assert_eq!((sessions.state(1), sessions.next_deadline()), ("active", None));
}

#[test]
fn an_ending_session_has_no_deadline() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    assert!(matches!(sessions.begin_terminate(id(1), TerminationReason::Killed), Ok(Terminating::Close(1))));
    assert_eq!(sessions.next_deadline(), None);
    assert_eq!(sessions.due(at(DAY), 9), []);
    sessions.audit();
}

#[test]
fn a_failed_resume_changes_no_expiry() {
    let mut sessions = Sessions::new(roomy());
    sessions.track(at(0), id(1), owner("me"), 70, at(DAY));
    assert_eq!(sessions.reopen(at(DAY - 1), id(1)), Ok(Ok(Reopening::Reserved(70))));
    assert_eq!(sessions.next_deadline(), None);
    assert_eq!(sessions.due(at(DAY + 1), 9), [], "what is being opened does not expire");
    assert_eq!(sessions.failed(id(1)).doomed, None);
    let state = SessionState::Suspended { since: at(0), expires_at: at(DAY) };
    assert_eq!(sessions.get(id(1)).unwrap().state, state);
    assert_eq!(sessions.due(at(DAY + 1), 9), [Due::Expired(id(1), 70)]);
    sessions.audit();
}

#[test]
fn what_is_told_of_too_late_can_still_be_resumed() {
    for (timeout, grace) in [(Some(SignedDuration::from_mins(15)), IDLE), (None, MINUTE)] {
        let mut sessions = Sessions::new(Limits { idle_timeout: timeout, ..roomy() });
        sessions.track(at(DAY), id(1), owner("me"), 70, at(0));
        assert_eq!(sessions.due(at(DAY + grace - 1), 9), []);
        // Told of again, it has as long again.
        assert_eq!(sessions.track(at(DAY + 1), id(1), owner("me"), 71, at(1)), Tracked::Again(70));
        let state = SessionState::Suspended { since: at(DAY), expires_at: at(1) };
        assert_eq!(sessions.get(id(1)).unwrap().state, state);
        assert_eq!(sessions.due(at(DAY + grace), 9), []);
        sessions.audit();
        assert_eq!(sessions.due(at(DAY + grace + 1), 9), [Due::Expired(id(1), 70)]);
    }
}

#[test]
fn absurd_durations_mean_never_or_at_once() {
    for endless in [Some(SignedDuration::MAX), None] {
        let mut sessions = Sessions::new(Limits { idle_timeout: endless, suspended_ttl: endless, ..roomy() });
        sessions.live(at(0), 1, owner("me"));
        sessions.live(at(0), 2, owner("me"));
        let closed = sessions.suspend(at(0), 2);
        assert_eq!(closed, Closed::Suspended { expires_at: Timestamp::MAX, evicted: vec![] });
        assert_eq!(sessions.next_deadline(), None);
        assert_eq!(sessions.due(Timestamp::MAX, 9), [], "the last time in the calendar never comes");
        sessions.audit();
    }

    // Refused by the check of the options; harmless all the same.
    for nothing in [SignedDuration::ZERO, SignedDuration::from_secs(-1), SignedDuration::MIN] {
        let limits = Limits { idle_timeout: Some(nothing), suspended_ttl: Some(nothing), ..roomy() };
        let mut sessions = Sessions::new(limits);
        sessions.live(at(0), 1, owner("me"));
        let due = sessions.due(at(0), 9);
        assert!(due.contains(&Due::Idled(id(1))) && due.len() <= 2, "{nothing}: {due:?}");
        sessions.audit();
    }

    let mut sessions = Sessions::new(roomy());
    sessions.live(Timestamp::MAX, 1, owner("me"));
    sessions.live(Timestamp::MIN, 2, owner("me"));
    assert_eq!(sessions.due(Timestamp::MAX, 9), [Due::Idled(id(2)), suspend(2)]);
    sessions.audit();
}

#[test]
fn a_clock_that_goes_back_takes_no_use_away() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(IDLE), 1, owner("me"));
    assert_eq!(sessions.touch(at(0), id(1)), Ok(Used::Stayed));
    assert_eq!(sessions.get(id(1)).unwrap().last_used, at(IDLE));
    assert_eq!(sessions.due(at(2 * IDLE - 1), 9), []);
    assert_eq!(sessions.due(at(2 * IDLE), 9), [Due::Idled(id(1))]);
    assert_eq!(sessions.due(at(-DAY), 9), []);
    assert_eq!(sessions.touch(at(-DAY), id(1)), Ok(Used::Woke));
    assert_eq!(sessions.next_deadline(), Some(at(2 * IDLE)), "as long idle as it was, once time is back");
    sessions.audit();
}

#[test]
fn what_is_due_is_suspended_though_nobody_is_told_when_it_ends_meanwhile() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    sessions.due(at(SUSPENDED), 9);
    let ended = sessions.begin_terminate(id(1), TerminationReason::Killed);
    assert!(matches!(ended, Ok(Terminating::Close(1))), "whoever ends it lets go of the engine");
    assert!(matches!(sessions.flushed(at(SUSPENDED), id(1), true), Flushed::Ended));
    assert_eq!(sessions.closed(at(SUSPENDED), id(1), 0), Some(Closed::Terminated(TerminationReason::Killed)));
    assert!(matches!(sessions.flushed(at(SUSPENDED), id(1), true), Flushed::Ended), "nor is it known now");
    sessions.audit();
}

#[test]
fn an_end_during_a_suspension_or_an_opening_wins() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    sessions.begin_suspend(id(1)).unwrap();
    sessions.flushed(at(0), id(1), true);
    let reason = TerminationReason::Killed;
    assert!(matches!(sessions.begin_terminate(id(1), reason), Ok(Terminating::Later)));
    let second = sessions.begin_terminate(id(1), TerminationReason::Stopped);
    assert!(matches!(second, Ok(Terminating::Later)), "the first reason stays");
    assert_eq!(sessions.closed(at(0), id(1), 0), Some(Closed::Terminated(reason)));
    assert!(sessions.over(id(1)), "its end is recorded");

    sessions.admit(at(0), id(2), owner("me")).unwrap();
    assert!(matches!(sessions.begin_terminate(id(2), reason), Ok(Terminating::Later)));
    assert_eq!(sessions.opened(at(0), id(2), 2), Err(reason));
    assert_eq!(sessions.handles().collect::<Vec<_>>(), [(id(2), 2)], "there is an engine to let go of");
    assert!(sessions.over(id(2)) && sessions.is_empty());
    sessions.audit();
}
