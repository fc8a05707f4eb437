//! The event log: dense, idempotent, all or nothing.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::fixture::assert_refused;
use super::{ALL, Fixture, TICK};
use crate::error::{Conflict, StoreError};
use crate::event::{Event, EventKind, NewEvent, Note, Payload, Seq};
use crate::ports::{Appended, Author, NotePart};
use crate::run::RunPhase;
use crate::state::{TerminationReason, Trigger};

/// Events get the next numbers and the time of the append, and are read back to the byte.
pub async fn a_batch_gets_the_next_numbers(f: &Fixture) {
    let session = f.session().await.id;
    let payload = |text: &str| Payload::parse(text).unwrap();
    let kinds =
        ["message", "thought", "tool_call", "tool_result", "plan", "usage", "permission", "error", "warning"];
    let mut batch: Vec<_> = kinds
        .into_iter()
        .map(|kind| NewEvent { kind: kind.parse().unwrap(), ..Fixture::message(kind) })
        .collect();
    batch.push(NewEvent { kind: "vendor.thing 'ü'".parse().unwrap(), ..Fixture::message("") });
    batch.push(NewEvent {
        payload: payload("{ \"b\" : 1.0 , \"a\":\"\\u0000 \\ud83d\\ude00 ü\"}"),
        ..Fixture::message("")
    });
    batch.push(NewEvent { payload: payload("null"), ..Fixture::message("") });
    f.advance(TICK);
    let author = Author::Session(session);
    let appended = f.store.append(author, batch.clone(), f.now()).await.unwrap();
    let seqs: Vec<_> = (2..).map(Seq).take(batch.len()).collect();
    assert_eq!(appended, Appended { session, seqs: seqs.clone() });
    let at = f.now();
    let expected = seqs.into_iter().zip(batch).map(|(seq, body)| Event { session, seq, at, body });
    let log = f.log(session).await;
    assert_eq!(log[1..], expected.collect::<Vec<_>>());
    assert_eq!(log[0].seq, Seq(1));
}

/// An event of the largest size is kept.
pub async fn a_payload_of_the_largest_size_is_kept(f: &Fixture) {
    let session = f.session().await.id;
    let text = |size: usize| format!("\"{}\"", "x".repeat(size - 2));
    let payload = Payload::parse(&text(Payload::MAX)).unwrap();
    let message = NewEvent { payload, ..Fixture::message("") };
    let payload = Payload::of(&EventKind::Entry, &text(Payload::ENTRY_MAX)).unwrap();
    let entry = NewEvent { payload, kind: EventKind::Entry, ..Fixture::message("") };
    f.append(session, vec![message.clone(), entry.clone()]).await;
    assert_eq!(f.records(session).await[1..], [message, entry]);
}

/// An empty batch is nothing, and no error.
pub async fn an_empty_batch_appends_nothing(f: &Fixture) {
    let session = f.session().await.id;
    let before = f.snapshot(session).await;
    assert!(f.append(session, Vec::new()).await.is_empty());
    assert_eq!(f.snapshot(session).await, before);
}

/// The events of a run are that run's, and go into its session's log, whatever they say; they count in every phase in
/// which the claim holds the run.
pub async fn events_of_a_run_are_its_own(f: &Fixture) {
    let runner = f.new_runner();
    let run = f.claimed(&runner).await;
    let author = Author::Run(run.fence());
    let foreign = NewEvent { run: Some(f.env.run_id()), ..Fixture::message("foreign") };
    let mut seqs = Vec::new();
    for step in 0..3 {
        let batch = vec![Fixture::message("own"), foreign.clone()];
        let appended = f.store.append(author, batch, f.now()).await.unwrap();
        assert_eq!(appended.session, run.session);
        seqs.extend(appended.seqs);
        if step == 0 {
            f.start(run.fence()).await;
        }
    }
    let log = f.log(run.session).await;
    for seq in seqs {
        let event = log.iter().find(|event| event.seq == seq).unwrap();
        assert_eq!(event.body.run, Some(run.id));
    }
    assert_eq!(f.phase(run.id).await, RunPhase::Running);
}

/// What only the program can know, no run says of itself: the whole batch is refused. Whoever writes for the program
/// may say it.
pub async fn a_run_says_nothing_that_only_the_program_says(f: &Fixture) {
    let runner = f.new_runner();
    let run = f.running(&runner).await;
    let before = f.snapshot(run.session).await;
    let reserved = "session.created session.state session.label session.budget session.forked session.resume \
                    session.imported session.thing run.state bound usage warning grant permission \
                    permission.answered permission.withdrawn";
    for kind in reserved.split_whitespace() {
        let event =
            NewEvent { kind: kind.parse().unwrap(), ..Fixture::message_from("agent", 1, "of itself") };
        let batch = vec![Fixture::message("before"), event.clone()];
        let refused = f.store.append(Author::Run(run.fence()), batch, f.now());
        assert_refused!(refused, StoreError::Conflict(Conflict::Reserved(told)) if *told == event.kind);
        assert_eq!(f.snapshot(run.session).await, before, "{kind}");
    }
    let stale = crate::run::Fence { epoch: crate::run::Epoch(7), ..run.fence() };
    let grant = NewEvent { kind: EventKind::Grant, ..Fixture::message("") };
    let refused = f.store.append(Author::Run(stale), vec![grant.clone()], f.now());
    assert_refused!(refused, StoreError::Fenced { .. });
    f.append(run.session, vec![grant]).await;
}

/// A retry of a batch is a no-op that gets the first answer; one with more behind it appends only that.
pub async fn a_retry_gets_the_first_answer(f: &Fixture) {
    let session = f.session().await.id;
    let batch: Vec<_> = (1..=3).map(|n| Fixture::message_from("agent", n, &format!("line {n}"))).collect();
    let first = f.append(session, batch.clone()).await;
    f.advance(TICK);
    let before = f.snapshot(session).await;
    assert_eq!(f.append(session, batch.clone()).await, first);
    assert_eq!(f.append(session, batch[1..2].to_vec()).await, first[1..2]);
    assert_eq!(f.snapshot(session).await, before);
    let longer = vec![batch[2].clone(), Fixture::message_from("agent", 4, "line 4"), batch[0].clone()];
    assert_eq!(f.append(session, longer).await, [Seq(4), Seq(5), Seq(2)]);
    assert_eq!(f.log(session).await.len(), 5);
}

/// The same for the events of a run, over several claims of it.
pub async fn a_retry_of_a_run_gets_the_first_answer(f: &Fixture) {
    let runner = f.new_runner();
    let run = f.running(&runner).await;
    let batch = vec![Fixture::message_from("executor", 1, "one")];
    let append = async |fence| f.store.append(Author::Run(fence), batch.clone(), f.now()).await.unwrap();
    let first = append(run.fence()).await;
    assert_eq!(append(run.fence()).await, first);
    let taken = f.store.take_over(run.id, runner.id, super::LEASE, f.now()).await.unwrap();
    assert_eq!(append(taken.fence()).await, first);
    f.complete(taken.fence()).await;
    // Another run, so another event under the same origin.
    f.enqueue([f.resume(run.session)]).await;
    let next = f.claim(&runner).await.unwrap().run;
    let before = f.snapshot(run.session).await;
    assert_refused!(
        f.store.append(Author::Run(next.fence()), batch, f.now()),
        StoreError::Conflict(Conflict::Origin { .. })
    );
    assert_eq!(f.snapshot(run.session).await, before);
}

/// The same origin with another payload, kind or run is a conflict that names it, and nothing of the batch is appended.
pub async fn another_content_under_one_origin_is_a_conflict(f: &Fixture) {
    let session = f.session().await.id;
    let original = Fixture::message_from("agent \"ü\"", 7, "one");
    f.append(session, vec![original.clone()]).await;
    let before = f.snapshot(session).await;
    let others = [
        Fixture::message_from("agent \"ü\"", 7, "two"),
        NewEvent { kind: EventKind::Thought, ..original.clone() },
        NewEvent { run: Some(f.env.run_id()), ..original.clone() },
        NewEvent {
            payload: Payload::parse(&format!("{} ", original.payload.as_str())).unwrap(),
            ..original.clone()
        },
    ];
    for other in others {
        let batch = vec![Fixture::message("before"), Fixture::message_from("agent", 8, "new"), other];
        assert_refused!(
            f.store.append(Author::Session(session), batch, f.now()),
            StoreError::Conflict(Conflict::Origin { session: named, producer, seq: 7 })
                if *named == session && producer == "agent \"ü\""
        );
        assert_eq!(f.snapshot(session).await, before);
    }
}

/// The same rules hold within one batch.
pub async fn origins_count_within_a_batch(f: &Fixture) {
    let session = f.session().await.id;
    let one = || Fixture::message_from("agent", 1, "one");
    let batch =
        vec![one(), Fixture::message("between"), one(), Fixture::message_from("agent", 2, "two"), one()];
    assert_eq!(f.append(session, batch).await, [2, 3, 2, 4, 2].map(Seq));
    assert_eq!(f.log(session).await.len(), 4);
    let before = f.snapshot(session).await;
    let batch = vec![Fixture::message_from("agent", 3, "three"), Fixture::message_from("agent", 3, "drei")];
    assert_refused!(
        f.store.append(Author::Session(session), batch, f.now()),
        StoreError::Conflict(Conflict::Origin { seq: 3, .. })
    );
    assert_eq!(f.snapshot(session).await, before);
}

/// An origin is one producer's in one session; numbers need not be dense or rising, and may be as large as 63 bits
/// hold.
pub async fn origins_are_per_session_and_producer(f: &Fixture) {
    let (one, two) = (f.session().await.id, f.session().await.id);
    let largest = u64::try_from(i64::MAX).unwrap();
    for session in [one, two] {
        let batch = vec![
            Fixture::message_from("a", largest, "large"),
            Fixture::message_from("a", 0, "zero"),
            Fixture::message_from("b", 0, "other producer"),
            Fixture::message_from("A", 0, "upper case"),
            Fixture::message("none"),
            Fixture::message("none"),
        ];
        assert_eq!(f.append(session, batch.clone()).await, [2, 3, 4, 5, 6, 7].map(Seq));
        assert_eq!(
            f.append(session, batch).await,
            [2, 3, 4, 5, 8, 9].map(Seq),
            "without an origin, no retry"
        );
        assert_eq!(f.records(session).await[1].origin.as_ref().unwrap().seq, largest);
    }
}

/// Many who append at once: every number is given once and none is left out, and each batch stays together and in
/// its order.
pub async fn concurrent_appends_are_dense(f: &Fixture) {
    const TASKS: u64 = 16;
    const BATCHES: u64 = 8;
    let session = f.session().await.id;
    let work = async |task: u64| {
        let mut seqs = Vec::new();
        for batch in 0..BATCHES {
            let origin = |n| Fixture::message_from(&format!("task {task}"), batch * 3 + n, "x");
            let appended = f.append(session, (0..3).map(origin).collect()).await;
            assert!(appended.is_sorted_by(|a, b| a.next() == *b), "{appended:?} is torn apart");
            seqs.extend(appended);
        }
        assert!(seqs.is_sorted());
        seqs
    };
    let seqs: BTreeSet<_> = join_all((0..TASKS).map(work)).await.concat().into_iter().collect();
    let expected: Vec<_> = (2..2 + TASKS * BATCHES * 3).map(Seq).collect();
    assert_eq!(seqs.into_iter().collect::<Vec<_>>(), expected);
    let log = f.log(session).await;
    assert_eq!(log.iter().map(|event| event.seq).skip(1).collect::<Vec<_>>(), expected);
}

/// Many who retry one batch at once: it is appended once, and all get the same answer.
pub async fn concurrent_retries_append_once(f: &Fixture) {
    let session = f.session().await.id;
    let batch = || vec![Fixture::message_from("agent", 1, "one"), Fixture::message_from("agent", 2, "two")];
    let answers = join_all((0..16).map(|_| f.append(session, batch()))).await;
    assert!(answers.iter().all(|seqs| *seqs == [Seq(2), Seq(3)]), "{answers:?}");
    assert_eq!(f.log(session).await.len(), 3);
}

/// Sessions that append at once do not see each other's numbers or events.
pub async fn logs_are_apart(f: &Fixture) {
    let mut sessions = Vec::new();
    for _ in 0..8 {
        sessions.push(f.session().await.id);
    }
    let text = |n: usize| format!("of {n}");
    let work = async |(n, session)| {
        for _ in 0..5 {
            f.append(session, vec![Fixture::message(&text(n))]).await;
        }
    };
    join_all(sessions.iter().copied().enumerate().map(work)).await;
    for (n, session) in sessions.into_iter().enumerate() {
        let log = f.log(session).await;
        assert!(log.iter().all(|event| event.session == session));
        assert_eq!(log.iter().map(|event| event.seq.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert!(log[1..].iter().all(|event| event.body == Fixture::message(&text(n))));
    }
}

/// A log is read from any place on, in portions of any size, and from its end.
pub async fn a_log_is_read_in_portions_and_from_its_end(f: &Fixture) {
    let session = f.session().await.id;
    f.append(session, (0..9).map(|n| Fixture::message(&n.to_string())).collect()).await;
    let log = f.log(session).await;
    assert_eq!(log.len(), 10);
    for size in [1, 3, 5, 10, 11] {
        let (mut read, mut after) = (Vec::new(), Seq::START);
        loop {
            let portion = f.store.read(session, after, size).await.unwrap();
            assert!(portion.len() <= usize::try_from(size).unwrap());
            let Some(last) = portion.last() else { break };
            after = last.seq;
            read.extend(portion);
            assert!(read.len() <= log.len(), "the log has no end");
        }
        assert_eq!(read, log, "in portions of {size}");
        let tail = f.store.tail(session, size).await.unwrap();
        assert_eq!(tail, log[10_usize.saturating_sub(usize::try_from(size).unwrap())..]);
    }
    assert_eq!(f.store.read(session, Seq(7), ALL).await.unwrap(), log[7..]);
    for beyond in [Seq(10), Seq(11), Seq(1 << 40)] {
        assert!(f.store.read(session, beyond, ALL).await.unwrap().is_empty());
    }
    assert!(f.store.read(session, Seq::START, 0).await.unwrap().is_empty());
    assert!(f.store.tail(session, 0).await.unwrap().is_empty());
}

/// Notes of one kind are read from the end of the log, whatever else is in it: before a place, since a time, so many.
pub async fn notes_are_read_from_the_end(f: &Fixture) {
    let (session, other) = (f.session().await.id, f.session().await.id);
    let mut times = Vec::new();
    for n in 0..10 {
        times.push(f.now());
        let entry = NewEvent { kind: EventKind::Entry, ..Fixture::message(&n.to_string()) };
        let project = NewEvent { kind: EventKind::Project, ..Fixture::message(&n.to_string()) };
        f.append(session, vec![Fixture::message("between"), entry, project]).await;
        f.advance(TICK);
    }
    f.append(other, vec![NewEvent { kind: EventKind::Entry, ..Fixture::message("elsewhere") }]).await;
    let log = f.log(session).await;
    let of =
        |kind: EventKind| log.iter().filter(|event| event.body.kind == kind).cloned().collect::<Vec<_>>();
    let entries = of(EventKind::Entry);
    let read = async |note, part| f.store.notes(session, note, part).await.unwrap();
    assert_eq!(read(Note::Entry, NotePart::last(ALL)).await, entries);
    assert_eq!(read(Note::Entry, NotePart::last(3)).await, entries[7..]);
    assert_eq!(read(Note::Project, NotePart::last(1)).await, of(EventKind::Project)[9..]);
    assert!(read(Note::Entry, NotePart::last(0)).await.is_empty());
    let since = NotePart { since: Some(times[6]), ..NotePart::last(ALL) };
    assert_eq!(read(Note::Entry, since).await, entries[6..]);
    let later = NotePart { since: Some(f.now()), ..NotePart::last(ALL) };
    assert!(read(Note::Entry, later).await.is_empty());
    let (mut paged, mut before) = (Vec::new(), None);
    loop {
        let page = read(Note::Entry, NotePart { before, ..NotePart::last(4) }).await;
        let Some(first) = page.first() else { break };
        before = Some(first.seq);
        paged.splice(0..0, page);
        assert!(paged.len() <= entries.len(), "the log has no beginning");
    }
    assert_eq!(paged, entries);
    let unknown = f.env.session_id();
    assert!(f.store.notes(unknown, Note::Entry, NotePart::last(ALL)).await.unwrap().is_empty());
}

/// Whoever was led to a session appends as long as it lives, and not a moment longer.
pub async fn who_was_led_to_a_session_writes_while_it_lives(f: &Fixture) {
    let session = f.session().await.id;
    let author = Author::Live(session);
    let batch = || vec![Fixture::message_from("agent", 1, "one")];
    let appended = f.store.append(author, batch(), f.now()).await.unwrap();
    assert_eq!(appended, f.store.append(author, batch(), f.now()).await.unwrap());
    f.transition(session, Trigger::Suspend { ttl: TICK }).await;
    f.store.append(author, vec![Fixture::message("two")], f.now()).await.unwrap();
    f.transition(session, Trigger::Terminate(TerminationReason::Killed)).await;
    let before = f.snapshot(session).await;
    for batch in [batch(), vec![Fixture::message("three")]] {
        assert_refused!(f.store.append(author, batch, f.now()), StoreError::Transition(_));
    }
    assert_eq!(f.snapshot(session).await, before);
    let unknown = Author::Live(f.env.session_id());
    assert_refused!(f.store.append(unknown, batch(), f.now()), StoreError::UnknownSession(_));
}
