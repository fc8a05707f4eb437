//! Finding sessions by what a person says, and lists page by page.

use super::{ALL, Fixture, TICK};
use crate::family::Parent;
use crate::ids::{SessionId, SessionRef};
use crate::names::{Label, Principal};
use crate::ports::{Listing, Page, SessionFilter};
use crate::session::{NewSession, SessionSummary};
use crate::state::{TerminationReason, Trigger};

async fn labelled(f: &Fixture, id: &str, label: Option<&str>) -> SessionId {
    f.advance(TICK);
    let new = NewSession {
        id: id.parse().unwrap(),
        label: label.map(|label| label.parse().unwrap()),
        ..f.new_session()
    };
    f.store.create(new, f.now()).await.unwrap().id
}

async fn find(f: &Fixture, text: &str, limit: u32) -> Vec<SessionId> {
    f.store.find(&text.parse().unwrap(), limit).await.unwrap()
}

/// A whole id names its session and nothing else.
pub async fn a_session_is_found_by_its_id(f: &Fixture) {
    let session = f.session().await.id;
    f.session().await;
    assert_eq!(f.store.find(&SessionRef::Id(session), 10).await.unwrap(), [session]);
    assert!(f.store.find(&SessionRef::Id(f.env.session_id()), 10).await.unwrap().is_empty());
    assert!(f.store.find(&SessionRef::Id(session), 0).await.unwrap().is_empty());
}

/// The beginning of an id names every session whose id begins so, the newest first, at most so many.
pub async fn a_prefix_names_every_session_that_begins_so(f: &Fixture) {
    let old = labelled(f, "ses_abcd1000000000000000000000000001", None).await;
    let new = labelled(f, "ses_abcd0000000000000000000000000002", None).await;
    let other = labelled(f, "ses_abce0000000000000000000000000003", None).await;
    assert_eq!(find(f, "abcd", 10).await, [new, old]);
    assert_eq!(find(f, "ses_ABCD", 10).await, [new, old]);
    assert_eq!(find(f, "abcd", 1).await, [new]);
    assert_eq!(find(f, "abcd1", 10).await, [old]);
    assert_eq!(find(f, "ses_abce000000000000000000000000000", 10).await, [other]);
    assert!(find(f, "abcf", 10).await.is_empty());
    assert!(find(f, "bcd1", 10).await.is_empty(), "the middle of an id is not its beginning");
}

/// A text that may be both is the beginning of an id if there is one, and else a label; written with the prefix
/// `ses_` it is never a label.
pub async fn an_id_goes_before_a_label(f: &Fixture) {
    let by_id = labelled(f, "ses_beef0000000000000000000000000001", None).await;
    let by_label = labelled(f, "ses_00000000000000000000000000000002", Some("beef")).await;
    let only_label = labelled(f, "ses_00000000000000000000000000000003", Some("cafe")).await;
    assert_eq!(find(f, "beef", 10).await, [by_id]);
    assert_eq!(find(f, "cafe", 10).await, [only_label]);
    assert!(find(f, "ses_cafe", 10).await.is_empty());
    f.store.relabel(by_label, Some("CAFE".parse().unwrap()), f.now()).await.unwrap();
    assert_eq!(find(f, "cafe", 10).await, [only_label], "a label counts in upper and lower case");
    assert_eq!(find(f, "CAFE", 10).await, [by_label]);
}

/// A label names every session with exactly this label, the newest first; no character in it is a pattern.
pub async fn a_label_names_every_session_with_it(f: &Fixture) {
    let id = |n: u32| format!("ses_{n:032x}");
    let old = labelled(f, &id(1), Some("nightly build")).await;
    let new = labelled(f, &id(2), Some("nightly build")).await;
    let odd = labelled(f, &id(3), Some("100%_'x'")).await;
    labelled(f, &id(4), Some("100 percent 'x'")).await;
    labelled(f, &id(5), None).await;
    let accent = labelled(f, &id(6), Some("café nightly")).await;
    assert_eq!(find(f, "nightly build", 10).await, [new, old]);
    assert_eq!(find(f, "nightly build", 1).await, [new]);
    assert_eq!(find(f, "100%_'x'", 10).await, [odd]);
    assert_eq!(find(f, "cafe\u{301} nightly", 10).await, [accent], "two spellings of one name are one name");
    assert!(find(f, "nightly", 10).await.is_empty());
    assert!(find(f, "%", 10).await.is_empty());
    assert!(find(f, &"x".repeat(300), 10).await.is_empty(), "too long for a label");
    f.store.relabel(old, None, f.now()).await.unwrap();
    assert_eq!(find(f, "nightly build", 10).await, [new]);
}

/// More than any list of these tests holds.
const MOST: usize = 1_000;

/// Reads a whole list in pages of this size.
async fn pages(f: &Fixture, filter: &SessionFilter, size: u32) -> Vec<SessionId> {
    let (mut page, mut all) = (Page::first(size), Vec::new());
    loop {
        let Listing { items, next } = f.store.list(filter, &page).await.unwrap();
        let count = u32::try_from(items.len()).unwrap();
        assert!(count == size || (count < size && next.is_none()), "a page in the middle is short");
        all.extend(items.iter().map(|item| item.session.id));
        assert!(all.len() < MOST, "the list has no end");
        match next {
            Some(cursor) => page = page.after(cursor),
            None => return all,
        }
    }
}

/// Lists show the newest first, and those of one instant by their ids; pages of any size show each once, and the last
/// one says that it is the last.
pub async fn lists_are_in_order_and_paged_without_gaps(f: &Fixture) {
    assert_eq!(f.store.list(&SessionFilter::default(), &Page::first(10)).await.unwrap().items, []);
    let mut expected = Vec::new();
    for together in [1, 4, 1, 2] {
        f.advance(TICK);
        for _ in 0..together {
            let session = f.session().await;
            expected.push((session.created_at, session.id));
        }
    }
    expected.sort();
    let expected: Vec<_> = expected.into_iter().rev().map(|(_, id)| id).collect();
    for size in [1, 2, 3, 7, 8, 9, Page::MAX] {
        assert_eq!(pages(f, &SessionFilter::default(), size).await, expected, "in pages of {size}");
    }
}

/// New sessions that arrive, and old ones that change, move nothing on the pages that come after.
pub async fn pages_are_stable_while_new_sessions_arrive(f: &Fixture) {
    let mut expected = Vec::new();
    for _ in 0..5 {
        f.advance(TICK);
        expected.insert(0, f.session().await.id);
    }
    let first = f.store.list(&SessionFilter::default(), &Page::first(2)).await.unwrap();
    f.advance(TICK);
    f.session().await;
    f.transition(expected[4], Trigger::Activity).await;
    let rest = Page::first(10).after(first.next.unwrap());
    let rest = f.store.list(&SessionFilter::default(), &rest).await.unwrap();
    let seen: Vec<_> = first.items.iter().chain(&rest.items).map(|item| item.session.id).collect();
    assert_eq!(seen, expected);
    assert_eq!(rest.next, None);
}

/// Each filter alone, and all of them together.
pub async fn every_filter_leaves_out_what_it_should(f: &Fixture) {
    let (parent, busy, removed, over, all) = filtered_sessions(f).await;
    let label: Label = "nightly".parse().unwrap();
    let none = SessionFilter::default();
    let labelled = SessionFilter { label: Some(label.clone()), ..none.clone() };
    let checks = [
        (none.clone(), vec![all, over, removed, busy, parent]),
        (SessionFilter { principal: Some("bob".parse().unwrap()), ..none.clone() }, vec![all, over, parent]),
        (SessionFilter { principal: Some("nobody".parse().unwrap()), ..none.clone() }, vec![]),
        (labelled, vec![all, removed]),
        (SessionFilter { key: Some("ticket 7".parse().unwrap()), ..none.clone() }, vec![all]),
        (SessionFilter { key: Some("ticket".parse().unwrap()), ..none.clone() }, vec![]),
        (SessionFilter { parent: Some(parent), ..none.clone() }, vec![all, over]),
        (SessionFilter { parent: Some(busy), ..none.clone() }, vec![]),
        (SessionFilter { busy: true, ..none.clone() }, vec![all, busy]),
        (SessionFilter { with_workspace: true, ..none.clone() }, vec![all, over, busy, parent]),
        (SessionFilter { live: true, ..none.clone() }, vec![all, removed, busy, parent]),
    ];
    for (filter, expected) in checks {
        for size in [1, ALL.min(Page::MAX)] {
            assert_eq!(pages(f, &filter, size).await, expected, "{filter:?} in pages of {size}");
        }
    }
    let every = SessionFilter {
        principal: Some("bob".parse().unwrap()),
        key: Some("ticket 7".parse().unwrap()),
        label: Some(label),
        parent: Some(parent),
        busy: true,
        with_workspace: true,
        live: true,
    };
    assert_eq!(f.list(&every).await, [all]);
    assert!(f.list(&SessionFilter { parent: Some(over), ..every }).await.is_empty());
}

/// Five sessions, in the order of their creation; the last one is left by every filter.
async fn filtered_sessions(f: &Fixture) -> (SessionId, SessionId, SessionId, SessionId, SessionId) {
    let create = async |new: NewSession| {
        f.advance(TICK);
        f.store.create(new, f.now()).await.unwrap().id
    };
    let label = Some("nightly".parse().unwrap());
    let bob: Principal = "bob".parse().unwrap();
    let parent = create(NewSession { principal: bob.clone(), ..f.new_session() }).await;
    let busy = create(f.new_session()).await;
    let removed = create(NewSession { label: label.clone(), ..f.new_session() }).await;
    let child = NewSession { principal: bob, parent: Some(Parent::new(parent)), ..f.new_session() };
    let over = create(child.clone()).await;
    let key = Some("ticket 7".parse().unwrap());
    let all = create(NewSession { id: f.env.session_id(), key, label, ..child }).await;

    // One that is pending and one in flight are busy; one whose run is over is not.
    let runner = f.new_runner();
    for session in [over, all] {
        f.enqueue([f.resume(session)]).await;
        let fence = f.claim(&runner).await.unwrap().run.fence();
        f.start(fence).await;
        if session == over {
            f.complete(fence).await;
        }
    }
    f.enqueue([f.resume(busy)]).await;
    f.store.workspace_removed(removed, f.now()).await.unwrap();
    f.transition(over, Trigger::Terminate(TerminationReason::Stopped)).await;
    (parent, busy, removed, over, all)
}

/// Each session is shown with its last run, as both are in the store; one without a run, without.
pub async fn lists_show_the_last_run(f: &Fixture) {
    let bare = f.session().await;
    f.advance(TICK);
    let runner = f.new_runner();
    let first = f.running(&runner).await;
    f.complete(first.fence()).await;
    // Of one instant: the order of enqueueing decides, not the time.
    let [second] = f.enqueue([f.resume(first.session)]).await;
    let listing = f.store.list(&SessionFilter::default(), &Page::first(10)).await.unwrap();
    let session = f.store.session(first.session).await.unwrap().unwrap();
    let expected = [
        SessionSummary { session, last_run: Some(second) },
        SessionSummary { session: bare, last_run: None },
    ];
    assert_eq!(listing.items, expected);
    assert_eq!(expected[0].status(), "pending");
}
