//! Keys: one session per principal and key, for as long as that session is here.

use super::*;

fn by_key(sessions: &Sessions, principal: &str, key: &str) -> Option<SessionId> {
    sessions.by_key(&super::principal(principal), &ExternalKey::new(key).unwrap())
}

fn is_new(tracked: &Tracked<u64>) {
    assert_eq!(*tracked, Tracked::New { evicted: vec![] });
}

#[test]
fn a_key_leads_to_one_session_through_its_whole_life() {
    let mut sessions = Sessions::new(roomy());
    let leads = |sessions: &mut Sessions| {
        assert_eq!(by_key(sessions, "me", "chat"), Some(id(1)));
        assert_eq!(sessions.admit(at(0), id(9), keyed("me", "chat")), Ok(Admission::Existing(id(1))));
        sessions.audit();
    };
    assert_eq!(sessions.admit(at(0), id(1), keyed("me", "chat")), Ok(Admission::Reserved));
    leads(&mut sessions);
    sessions.opened(at(0), id(1), 1).unwrap();
    leads(&mut sessions);
    sessions.begin_suspend(id(1)).unwrap();
    leads(&mut sessions);
    sessions.flushed(at(0), id(1), true);
    leads(&mut sessions);
    sessions.closed(at(0), id(1), 1).unwrap();
    leads(&mut sessions);
    sessions.reopen(at(0), id(1)).unwrap().unwrap();
    leads(&mut sessions);
    assert_eq!(sessions.failed(id(1)).doomed, None);
    leads(&mut sessions);
    sessions.reopen(at(0), id(1)).unwrap().unwrap();
    sessions.opened(at(0), id(1), 2).unwrap();
    leads(&mut sessions);
    sessions.begin_terminate(id(1), TerminationReason::Killed).unwrap();
    leads(&mut sessions);
    assert!(sessions.over(id(1)));
    assert_eq!(by_key(&sessions, "me", "chat"), None);
    assert_eq!(sessions.admit(at(0), id(2), keyed("me", "chat")), Ok(Admission::Reserved));
    assert_eq!(by_key(&sessions, "me", "chat"), Some(id(2)));
    sessions.audit();
}

#[test]
fn a_new_session_that_fails_frees_its_key() {
    let mut sessions = Sessions::new(roomy());
    sessions.admit(at(0), id(1), keyed("me", "chat")).unwrap();
    assert_eq!(sessions.failed(id(1)).doomed, None);
    assert_eq!(by_key(&sessions, "me", "chat"), None);
    assert!(sessions.is_empty());
    sessions.audit();
}

#[test]
fn a_key_is_one_principals_own() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, keyed("me", "chat"));
    sessions.live(at(0), 2, keyed("you", "chat"));
    assert_eq!(by_key(&sessions, "me", "chat"), Some(id(1)));
    assert_eq!(by_key(&sessions, "you", "chat"), Some(id(2)));
    assert_eq!(by_key(&sessions, "me", "ticket"), None);
    sessions.audit();
}

#[test]
fn sessions_without_a_key_are_never_taken_for_each_other() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, owner("me"));
    sessions.live(at(0), 2, owner("me"));
    assert_eq!(sessions.len(), 2);
    is_new(&sessions.track(at(0), id(3), owner("me"), 3, at(MINUTE)));
    sessions.audit();
}

#[test]
fn what_is_tracked_takes_no_key_from_whoever_bears_it() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, keyed("me", "chat"));
    is_new(&sessions.track(at(0), id(2), keyed("me", "chat"), 2, at(MINUTE)));
    assert_eq!(by_key(&sessions, "me", "chat"), Some(id(1)));
    assert_eq!(sessions.get(id(2)).unwrap().owner.key, None);
    sessions.begin_terminate(id(2), TerminationReason::Stopped).unwrap();
    assert!(sessions.over(id(2)));
    assert_eq!(by_key(&sessions, "me", "chat"), Some(id(1)), "the end of the other takes nothing away");
    sessions.audit();

    is_new(&sessions.track(at(0), id(3), keyed("me", "ticket"), 3, at(MINUTE)));
    assert_eq!(by_key(&sessions, "me", "ticket"), Some(id(3)));
    assert_eq!(sessions.track(at(0), id(3), keyed("me", "other"), 4, at(MINUTE)), Tracked::Again(3));
    assert_eq!(sessions.track(at(0), id(1), keyed("me", "other"), 4, at(MINUTE)), Tracked::Known);
    assert_eq!(by_key(&sessions, "me", "other"), None);
    sessions.audit();
}

/// However a suspended session ends, its key is free when that is recorded, and not before.
#[test]
fn a_suspended_session_that_ends_frees_its_key_when_that_is_recorded() {
    let ends: [fn(&mut Sessions); 4] = [
        |sessions| assert_eq!(sessions.due(at(15 * MINUTE), 9), [Due::Expired(id(1), 1)]),
        |sessions| {
            let ended = sessions.begin_terminate(id(1), TerminationReason::Killed);
            assert!(matches!(ended, Ok(Terminating::Record(1))));
        },
        |sessions| {
            sessions.live(at(0), 2, owner("me"));
            assert!(
                matches!(sessions.suspend(at(0), 2), Closed::Suspended { evicted, .. } if evicted == [(id(1), 1)])
            );
        },
        |sessions| {
            sessions.reopen(at(0), id(1)).unwrap().unwrap();
            sessions.begin_terminate(id(1), TerminationReason::Killed).unwrap();
            let doomed = Some(TerminationReason::Killed);
            assert_eq!(sessions.failed(id(1)), Failed { doomed, evicted: vec![] });
        },
    ];
    for end in ends {
        let mut sessions = Sessions::new(Limits { suspended_per_principal_max: Some(1), ..roomy() });
        sessions.track(at(0), id(1), keyed("me", "chat"), 1, at(MINUTE));
        end(&mut sessions);
        assert_eq!(sessions.state(1), "terminated");
        assert_eq!(sessions.admit(at(0), id(9), keyed("me", "chat")), Ok(Admission::Existing(id(1))));
        assert_eq!(sessions.touch(at(0), id(1)), Err(Unusable::Moving));
        assert_eq!(sessions.reopen(at(0), id(1)), Ok(Ok(Reopening::Wait)));
        assert_eq!(sessions.next_deadline().filter(|&at_| at_ < at(MINUTE)), None);
        sessions.audit();
        assert!(sessions.over(id(1)));
        assert_eq!(by_key(&sessions, "me", "chat"), None);
        sessions.audit();
    }
}

#[test]
fn owners_without_a_key_are_kept_once_for_a_principal() {
    let mut sessions = Sessions::new(roomy());
    sessions.live(at(0), 1, keyed("me", "chat"));
    sessions.live(at(0), 2, owner("me"));
    sessions.live(at(0), 3, owner("me"));
    sessions.live(at(0), 4, owner("you"));
    let owner_of = |number| sessions.get(id(number)).unwrap().owner;
    assert!(Arc::ptr_eq(&owner_of(2), &owner_of(3)));
    assert_eq!(*owner_of(2), owner("me"));
    assert_eq!(*owner_of(1), keyed("me", "chat"));
    assert_eq!(*owner_of(4), owner("you"));
}
