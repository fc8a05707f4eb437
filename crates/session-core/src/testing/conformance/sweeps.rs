//! What rests for long enough is moved on, by whoever sweeps, and nothing else is.

use std::collections::HashSet;

use futures_util::future::join_all;
use jiff::SignedDuration;

use super::{Fixture, TICK};
use crate::event::Event;
use crate::ids::SessionId;
use crate::ports::{Sweep, Swept};
use crate::record;
use crate::state::{SessionState, TerminationReason, Trigger};

const TIMEOUT: SignedDuration = SignedDuration::from_mins(15);
const TTL: SignedDuration = SignedDuration::from_hours(24);

fn ordinary(f: &Fixture) -> Sweep {
    Sweep {
        runner: f.env.runner_id(),
        idle_timeout: Some(TIMEOUT),
        suspended_ttl: Some(TTL),
        except: Vec::new(),
        limit: 100,
    }
}

async fn sweep(f: &Fixture, sweep: &Sweep) -> Vec<Swept> {
    f.store.sweep(sweep, f.now()).await.unwrap()
}

async fn sessions(f: &Fixture, swept: &Sweep) -> Vec<SessionId> {
    sweep(f, swept).await.into_iter().map(|swept| swept.session).collect()
}

/// Each step comes at its millisecond and not before, with its event; an idle session is idle since its deadline.
pub async fn each_step_comes_at_its_time(f: &Fixture) {
    let (ordinary, id) = (ordinary(f), f.session().await.id);
    let mut expected = f.snapshot(id).await;
    let deadline = f.now() + TIMEOUT;
    let late = SignedDuration::from_secs(7);
    let steps: [(SignedDuration, &dyn Fn() -> SessionState); 3] = [
        (TIMEOUT, &|| SessionState::Idle { since: deadline }),
        (TIMEOUT * 2 - late, &|| SessionState::Suspended { since: f.now(), expires_at: f.now() + TTL }),
        (TTL, &|| SessionState::Terminated { at: f.now(), reason: TerminationReason::TtlExpired }),
    ];
    for (step, (wait, to)) in steps.into_iter().enumerate() {
        f.advance(wait - TICK);
        assert_eq!(sweep(f, &ordinary).await, []);
        assert_eq!(f.snapshot(id).await, expected);
        // The first sweep comes late, which the second step does not wait for.
        f.advance(if step == 0 { TICK + late } else { TICK });
        let session = expected.session.as_mut().unwrap();
        let (from, to) = (session.state, to());
        session.state = to;
        let (seq, body) = (expected.log.last().unwrap().seq.next(), record::session_state(from, to));
        expected.log.push(Event { session: id, seq, at: f.now(), body });
        assert_eq!(sweep(f, &ordinary).await, [Swept { session: id, state: to }]);
        assert_eq!(f.snapshot(id).await, expected);
    }
    f.advance(TTL * 9);
    assert_eq!(sweep(f, &ordinary).await, []);
}

/// What was not swept for long enough goes through all that was due, one step after the other.
pub async fn a_session_goes_through_several_steps_at_once(f: &Fixture) {
    let id = f.session().await.id;
    let idle = SessionState::Idle { since: f.now() + TIMEOUT };
    f.advance(TIMEOUT * 3);
    let suspended = SessionState::Suspended { since: f.now(), expires_at: f.now() + TTL };
    assert_eq!(sweep(f, &ordinary(f)).await, [Swept { session: id, state: suspended }]);
    let steps = [record::session_state(SessionState::Active, idle), record::session_state(idle, suspended)];
    assert_eq!(f.records(id).await[1..], steps);

    let other = f.session().await.id;
    f.advance(TIMEOUT * 3);
    let at_once = Sweep { suspended_ttl: Some(SignedDuration::ZERO), ..ordinary(f) };
    let over = SessionState::Terminated { at: f.now(), reason: TerminationReason::TtlExpired };
    assert_eq!(sweep(f, &at_once).await, [Swept { session: other, state: over }]);
    assert_eq!(f.log(other).await.len(), 4);
}

/// Without an idle timeout nothing goes idle; without a time to live nothing that is suspended then ends.
pub async fn times_of_none_never_come(f: &Fixture) {
    let id = f.session().await.id;
    let suspended = f.session().await.id;
    f.transition(suspended, Trigger::Suspend { ttl: TTL }).await;
    let never = Sweep { idle_timeout: None, suspended_ttl: None, ..ordinary(f) };
    f.advance(TTL);
    let ended = sweep(f, &never).await;
    let over = SessionState::Terminated { at: f.now(), reason: TerminationReason::TtlExpired };
    assert_eq!(ended, [Swept { session: suspended, state: over }], "it was given a day");
    f.transition(id, Trigger::IdleTimeout).await;
    f.advance(TTL * 365);
    assert_eq!(sweep(f, &never).await, []);
    let endless = Sweep { suspended_ttl: None, ..ordinary(f) };
    let state = SessionState::Suspended { since: f.now(), expires_at: jiff::Timestamp::MAX };
    assert_eq!(sweep(f, &endless).await, [Swept { session: id, state }]);
    assert_eq!(f.state(id).await, state);
    f.advance(TTL * 365);
    assert_eq!(sweep(f, &endless).await, []);
    let longest = Sweep { idle_timeout: Some(SignedDuration::MAX), ..endless };
    f.session().await;
    f.advance(TTL);
    assert_eq!(sweep(f, &longest).await, []);
}

/// A session with a run that is not over is never due; when it is over its rest begins.
pub async fn a_busy_session_is_never_swept(f: &Fixture) {
    let (runner, ordinary) = (f.new_runner(), ordinary(f));
    let ordinary = Sweep { runner: runner.id, ..ordinary };
    let running = f.running(&runner).await;
    let [pending] = f.enqueue([f.new_run()]).await;
    let suspended = f.session().await.id;
    f.transition(suspended, Trigger::Suspend { ttl: TTL }).await;
    f.enqueue([f.resume(suspended)]).await;
    f.advance(TTL);
    assert_eq!(sweep(f, &ordinary).await, []);
    f.complete(running.fence()).await;
    f.store.request_stop(pending.id, crate::run::StopMode::Kill, f.now()).await.unwrap();
    f.advance(TIMEOUT - TICK);
    assert_eq!(sweep(f, &ordinary).await, []);
    f.advance(TICK);
    let swept: HashSet<_> = sessions(f, &ordinary).await.into_iter().collect();
    assert_eq!(swept, HashSet::from([running.session, pending.session]));
    assert_eq!(f.state(running.session).await, SessionState::Idle { since: f.now() });
}

/// A session whose workspace lies on another runner is that runner's to sweep; one without is anybody's.
pub async fn only_what_rests_here_is_swept(f: &Fixture) {
    let (here, elsewhere) = (f.new_runner(), f.new_runner());
    let mut there = Vec::new();
    for runner in [&here, &elsewhere] {
        let run = f.running(runner).await;
        f.complete(run.fence()).await;
        there.push(run.session);
    }
    let nowhere = f.session().await.id;
    for state in ["idle", "suspended", "terminated"] {
        f.advance(TTL);
        for (runner, expected) in
            [(&here, HashSet::from([there[0], nowhere])), (&elsewhere, HashSet::from([there[1]]))]
        {
            // One step at a time: the deadline of the next one is a day ahead.
            let ttl = Some(TTL);
            let timeout = Some(if state == "idle" { TTL } else { TTL / 2 });
            let sweep = Sweep { runner: runner.id, idle_timeout: timeout, suspended_ttl: ttl, ..ordinary(f) };
            let swept: HashSet<_> = sessions(f, &sweep).await.into_iter().collect();
            assert_eq!(swept, expected, "{state}");
        }
        assert_eq!(f.state(nowhere).await.name(), state);
    }
}

/// The sessions that are left out stay as they are, however long they rest.
pub async fn those_that_are_left_out_stay(f: &Fixture) {
    let (one, two, three) = (f.session().await.id, f.session().await.id, f.session().await.id);
    f.advance(TIMEOUT);
    let except = vec![one, f.env.session_id(), three];
    assert_eq!(sessions(f, &Sweep { except, ..ordinary(f) }).await, [two]);
    assert_eq!(f.state(one).await, SessionState::Active);
    let swept: HashSet<_> = sessions(f, &ordinary(f)).await.into_iter().collect();
    assert_eq!(swept, HashSet::from([one, three]));
}

/// Sessions of all states, those first that are due for longest, in portions; fewer than asked for means none is left.
pub async fn sweeps_take_what_is_due_for_longest_first(f: &Fixture) {
    let mut expected = Vec::new();
    let none = Sweep { limit: 0, ..ordinary(f) };
    let ttl = SignedDuration::from_hours(1);
    for n in 0..9 {
        f.advance(TICK);
        let id = f.session().await.id;
        match n % 3 {
            // Due in an hour, too: idle since half an hour before, or suspended for an hour.
            1 => drop(f.transition(id, Trigger::IdleTimeout).await),
            2 => drop(f.transition(id, Trigger::Suspend { ttl }).await),
            _ => {}
        }
        expected.push(id);
    }
    let in_an_hour = |n: usize| match n % 3 {
        0 => SignedDuration::from_mins(30),
        1 => SignedDuration::from_mins(60),
        _ => ttl,
    };
    // Active ones are due after half an hour, idle and suspended ones after an hour.
    let mut order: Vec<_> = (0..9).collect();
    order.sort_by_key(|n| (in_an_hour(*n), *n));
    let expected: Vec<_> = order.into_iter().map(|n| expected[n]).collect();
    f.advance(ttl);
    let portion = Sweep { idle_timeout: Some(SignedDuration::from_mins(30)), limit: 4, ..ordinary(f) };
    assert_eq!(sweep(f, &none).await, []);
    assert_eq!(sessions(f, &portion).await, expected[..4]);
    assert_eq!(sessions(f, &portion).await, expected[4..8]);
    assert_eq!(sessions(f, &portion).await, expected[8..]);
    assert_eq!(sweep(f, &portion).await, []);
}

/// Many who sweep at once move each session on once, and leave none.
pub async fn concurrent_sweeps_take_each_session_once(f: &Fixture) {
    let mut expected = HashSet::new();
    for _ in 0..20 {
        expected.insert(f.session().await.id);
    }
    f.advance(TIMEOUT);
    let portion = Sweep { limit: 6, ..ordinary(f) };
    let work = async || {
        let mut swept = Vec::new();
        loop {
            let portion = sessions(f, &portion).await;
            swept.extend_from_slice(&portion);
            if portion.len() < 6 {
                return swept;
            }
        }
    };
    let swept = join_all((0..5).map(|_| work())).await.concat();
    assert_eq!(swept.len(), expected.len());
    assert_eq!(swept.into_iter().collect::<HashSet<_>>(), expected);
    for id in expected {
        assert_eq!(f.log(id).await.len(), 2);
    }
}

/// A suspended session to which a live identity leads is in use by whoever comes back: it stays until that expires.
pub async fn a_session_of_a_live_identity_stays(f: &Fixture) {
    let born = f.now();
    let opened = f.store.open(f.open("/repo", "run-1", "one"), born).await.unwrap();
    let short = Sweep { suspended_ttl: Some(TICK), ..ordinary(f) };
    f.advance(TIMEOUT * 3);
    let since = f.now();
    let state = SessionState::Suspended { since, expires_at: since + TICK };
    assert_eq!(sweep(f, &short).await, [Swept { session: opened.session, state }]);
    f.advance(TICK);
    assert_eq!(sweep(f, &short).await, []);
    let state = SessionState::Suspended { since, expires_at: opened.expires_at };
    assert_eq!(f.state(opened.session).await, state);
    // Used once more, it has longer to live.
    let found = f.store.open(f.open("/repo", "run-1", "one"), f.now()).await.unwrap();
    assert_eq!(found.session, opened.session);
    f.clock.set(opened.expires_at);
    assert_eq!(sweep(f, &short).await, []);
    assert_eq!(
        f.state(opened.session).await,
        SessionState::Suspended { since, expires_at: found.expires_at }
    );
    f.clock.set(found.expires_at);
    let reason = TerminationReason::TtlExpired;
    let state = SessionState::Terminated { at: f.now(), reason };
    assert_eq!(sweep(f, &short).await, [Swept { session: opened.session, state }]);
}
