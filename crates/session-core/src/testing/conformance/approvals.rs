//! The questions of agents: asked by a run, closed by one answer or one withdrawal, and never open once their run is
//! over.

use futures_util::future::{join, join_all};

use super::fixture::assert_refused;
use super::{ALL, Fixture, LEASE, TICK};
use crate::affinity::RunnerProfile;
use crate::approval::{
    Approval, ApprovalPhase, ApprovalState, NewApproval, OPEN_MAX, Question, Reply, Withdrawal,
};
use crate::approvals::{CommandSignature, Grant, Verdict};
use crate::context::Restored;
use crate::error::{Conflict, StoreError};
use crate::event::Payload;
use crate::ids::ApprovalId;
use crate::ports::{ApprovalFilter, RunProgress};
use crate::record;
use crate::run::{EndKind, Ending, ReasonCode, Run, RunPhase, StopMode};
use crate::session::NewSession;
use crate::state::{TerminationReason, Trigger};

const MEETINGS: usize = 12;

/// A question with everything that one can have.
fn full(f: &Fixture) -> NewApproval {
    let argv = vec!["sh".into(), "-c".into(), "rm -rf \"$x\" '\n' ü".into(), String::new()];
    let question = Question {
        tool: "mcp__files__write \"ü\"".parse().unwrap(),
        title: "write 'a b'\nand more \\".into(),
        command: Some(CommandSignature::new(argv, "/a b/ü".into())),
        input: Payload::parse("{ \"b\" : 1.0 , \"a\":\"\\u00e9\"}").unwrap(),
        deadline: Some(f.now() + LEASE),
    };
    NewApproval { question, ..f.new_approval() }
}

/// The approval as it is in the store.
async fn approval(f: &Fixture, id: ApprovalId) -> Approval {
    f.store.approval(id).await.unwrap().unwrap()
}

async fn phase(f: &Fixture, id: ApprovalId) -> ApprovalPhase {
    approval(f, id).await.state.phase()
}

/// A question is in the store as it was asked, in every phase in which the run is held, and recorded.
pub async fn a_question_is_there_as_it_was_asked(f: &Fixture) {
    let run = f.claimed(&f.new_runner()).await;
    for step in [None, Some(RunProgress::Starting), Some(RunProgress::RUNNING)] {
        if let Some(step) = step {
            f.store.advance(run.fence(), step, f.now()).await.unwrap();
        }
        for new in [f.new_approval(), full(f)] {
            f.advance(TICK);
            let asked = f.store.ask(run.fence(), new.clone(), f.now()).await.unwrap();
            let expected = Approval {
                id: new.id,
                session: run.session,
                principal: "alice".parse().unwrap(),
                run: run.id,
                question: new.question,
                asked_at: f.now(),
                state: ApprovalState::Open,
            };
            assert_eq!(asked, expected);
            assert_eq!(approval(f, asked.id).await, expected);
            assert_eq!(f.records(run.session).await.last(), Some(&record::permission(&expected)));
        }
    }
    assert_eq!(f.store.approval(f.env.approval_id()).await.unwrap(), None);
}

/// The same question again is no second one, however it was answered meanwhile; another under its id is refused, also
/// that of another run.
pub async fn a_question_that_is_asked_again_is_the_same(f: &Fixture) {
    let runner = f.new_runner();
    let (run, other) = (f.running(&runner).await, f.running(&runner).await);
    let new = full(f);
    let asked = f.store.ask(run.fence(), new.clone(), f.now()).await.unwrap();
    f.advance(TICK);
    let later = Question { deadline: Some(f.now() + LEASE), ..new.question.clone() };
    let again = NewApproval { question: later, ..new.clone() };
    let before = (f.snapshot(run.session).await, f.snapshot(other.session).await);
    assert_eq!(f.store.ask(run.fence(), again.clone(), f.now()).await.unwrap(), asked);
    let title = Question { title: "something else".into(), ..new.question.clone() };
    let different = NewApproval { question: title, ..new.clone() };
    for (fence, new) in [(run.fence(), different), (other.fence(), new.clone())] {
        assert_refused!(f.store.ask(fence, new, f.now()), StoreError::Conflict(Conflict::Exists(_)));
    }
    assert_eq!((f.snapshot(run.session).await, f.snapshot(other.session).await), before);
    let answered = f.store.answer(new.id, Fixture::reply(Verdict::Allow, false), f.now()).await.unwrap();
    assert_eq!(f.store.ask(run.fence(), again, f.now()).await.unwrap(), answered);
}

/// A session has so many open questions and no more; each that is closed makes room. Another session has its own.
pub async fn a_session_has_so_many_open_questions_at_once(f: &Fixture) {
    let runner = f.new_runner();
    let (run, other) = (f.running(&runner).await, f.running(&runner).await);
    let mut asked = Vec::new();
    for _ in 0..OPEN_MAX {
        asked.push(f.ask(run.fence()).await);
    }
    let before = f.snapshot(run.session).await;
    assert_refused!(
        f.store.ask(run.fence(), f.new_approval(), f.now()),
        StoreError::Conflict(Conflict::ApprovalsFull(session)) if *session == run.session
    );
    let known = NewApproval { id: asked[0].id, question: asked[0].question.clone() };
    assert_eq!(f.store.ask(run.fence(), known, f.now()).await.unwrap(), asked[0]);
    assert_eq!(f.snapshot(run.session).await, before);
    f.ask(other.fence()).await;
    f.store.answer(asked[7].id, Fixture::reply(Verdict::Deny, false), f.now()).await.unwrap();
    f.store.withdraw(run.fence(), asked[8].id, Withdrawal::Withdrawn, f.now()).await.unwrap();
    f.ask(run.fence()).await;
    f.ask(run.fence()).await;
    let refused = f.store.ask(run.fence(), f.new_approval(), f.now());
    assert_refused!(refused, StoreError::Conflict(Conflict::ApprovalsFull(_)));
}

/// Many that are asked at once keep to the limit together.
pub async fn concurrent_questions_keep_to_the_limit(f: &Fixture) {
    let run = f.running(&f.new_runner()).await;
    for _ in 0..OPEN_MAX - 3 {
        f.ask(run.fence()).await;
    }
    let news: Vec<_> = (0..12).map(|_| f.new_approval()).collect();
    let outcomes = join_all(news.into_iter().map(|new| f.store.ask(run.fence(), new, f.now()))).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    let full =
        |outcome: &&Result<_, _>| matches!(outcome, Err(StoreError::Conflict(Conflict::ApprovalsFull(_))));
    assert_eq!(outcomes.iter().filter(full).count(), 9, "{outcomes:?}");
    let open = ApprovalFilter { open: true, ..ApprovalFilter::default() };
    assert_eq!(f.approvals(&open).await.len(), OPEN_MAX);
}

/// The first answer counts and is recorded; the same again, whoever gives it, changes nothing, and any other is refused.
pub async fn the_first_answer_counts(f: &Fixture) {
    let run = f.running(&f.new_runner()).await;
    let says = |verdict, lasting| Reply {
        message: Some("because \"ü\"\n'--".into()),
        ..Fixture::reply(verdict, lasting)
    };
    let all =
        [(Verdict::Allow, false), (Verdict::Allow, true), (Verdict::Deny, false), (Verdict::Deny, true)];
    for (verdict, lasting) in all {
        let asked = f.store.ask(run.fence(), full(f), f.now()).await.unwrap();
        f.advance(TICK);
        let reply = says(verdict, lasting);
        let recorded = f.log(run.session).await.len();
        let answered = f.store.answer(asked.id, reply.clone(), f.now()).await.unwrap();
        let state = ApprovalState::Answered { at: f.now(), reply: reply.clone() };
        assert_eq!(answered, Approval { state, ..asked.clone() });
        assert_eq!(approval(f, asked.id).await, answered);
        let events = record::permission_answered(&asked, &reply);
        assert_eq!(events.len(), 1 + usize::from(lasting));
        assert_eq!(f.records(run.session).await[recorded..], events);
        f.advance(TICK);
        let before = f.snapshot(run.session).await;
        let by_another = Reply { by: "bob".parse().unwrap(), message: None, ..reply.clone() };
        for same in [reply, by_another] {
            assert_eq!(f.store.answer(asked.id, same, f.now()).await.unwrap(), answered);
        }
        for (other, long) in all.into_iter().filter(|other| *other != (verdict, lasting)) {
            assert_refused!(
                f.store.answer(asked.id, says(other, long), f.now()),
                StoreError::Conflict(Conflict::Answered { approval, phase })
                    if (*approval, *phase) == (asked.id, answered.state.phase())
            );
        }
        assert_eq!(f.snapshot(run.session).await, before);
    }
    let nobody = f.env.approval_id();
    assert_refused!(
        f.store.answer(nobody, says(Verdict::Allow, false), f.now()),
        StoreError::UnknownApproval(id) if *id == nobody
    );
}

/// A lasting answer is read back from the log as a grant of the session: of the command, or else of the tool. Any other
/// grants nothing.
pub async fn a_lasting_answer_is_granted_to_the_session(f: &Fixture) {
    let run = f.running(&f.new_runner()).await;
    let answer = async |new: NewApproval, reply: Reply| {
        let asked = f.store.ask(run.fence(), new, f.now()).await.unwrap();
        f.store.answer(asked.id, reply, f.now()).await.unwrap();
    };
    answer(full(f), Fixture::reply(Verdict::Allow, false)).await;
    answer(f.new_approval(), Fixture::reply(Verdict::Deny, false)).await;
    answer(full(f), Fixture::reply(Verdict::Allow, true)).await;
    answer(f.new_approval(), Fixture::reply(Verdict::Deny, true)).await;
    let expected = [
        Grant::Command { signature: full(f).question.command.unwrap(), verdict: Verdict::Allow },
        Grant::Tool { name: f.new_approval().question.tool, verdict: Verdict::Deny },
    ];
    assert_eq!(Restored::from_log(&f.log(run.session).await).grants, expected);
}

/// A withdrawal closes what is open, and is recorded; what was closed stays as it is and is returned. Only the run that
/// asked withdraws.
pub async fn a_withdrawal_leaves_what_was_answered(f: &Fixture) {
    let runner = f.new_runner();
    let (run, other) = (f.running(&runner).await, f.running(&runner).await);
    for &why in Withdrawal::ALL {
        let asked = f.store.ask(run.fence(), full(f), f.now()).await.unwrap();
        f.advance(TICK);
        let foreign = f.store.withdraw(other.fence(), asked.id, why, f.now());
        assert_refused!(foreign, StoreError::UnknownApproval(id) if *id == asked.id);
        let withdrawn = f.store.withdraw(run.fence(), asked.id, why, f.now()).await.unwrap();
        assert_eq!(
            withdrawn,
            Approval { state: ApprovalState::Withdrawn { at: f.now(), why }, ..asked.clone() }
        );
        assert_eq!(approval(f, asked.id).await, withdrawn);
        let event = record::permission_withdrawn(run.id, asked.id, why);
        assert_eq!(f.records(run.session).await.last(), Some(&event));
        f.advance(TICK);
        let before = f.snapshot(run.session).await;
        for &again in Withdrawal::ALL {
            assert_eq!(f.store.withdraw(run.fence(), asked.id, again, f.now()).await.unwrap(), withdrawn);
        }
        assert_refused!(
            f.store.answer(asked.id, Fixture::reply(Verdict::Allow, true), f.now()),
            StoreError::Conflict(Conflict::Answered { phase, .. }) if *phase == withdrawn.state.phase()
        );
        assert_eq!(f.snapshot(run.session).await, before);
    }
    let asked = f.ask(run.fence()).await;
    let answered = f.store.answer(asked.id, Fixture::reply(Verdict::Allow, false), f.now()).await.unwrap();
    let before = f.snapshot(run.session).await;
    let late = f.store.withdraw(run.fence(), asked.id, Withdrawal::Expired, f.now()).await.unwrap();
    assert_eq!(late, answered);
    assert_eq!(f.snapshot(run.session).await, before);
}

/// Two questions of a running run and one that was answered.
async fn with_questions(f: &Fixture, run: &Run) -> [Approval; 3] {
    let asked = [f.ask(run.fence()).await, f.ask(run.fence()).await, f.ask(run.fence()).await];
    let reply = Fixture::reply(Verdict::Allow, false);
    let answered = f.store.answer(asked[1].id, reply, f.now()).await.unwrap();
    let [first, _, last] = asked;
    [first, answered, last]
}

/// Both open questions are withdrawn, in order and just before the run's last event; the answered one stays.
async fn assert_withdrawn(f: &Fixture, run: &Run, [first, answered, last]: &[Approval; 3], way: &str) {
    let why = Withdrawal::Withdrawn;
    for asked in [first, last] {
        let state = ApprovalState::Withdrawn { at: f.now(), why };
        assert_eq!(approval(f, asked.id).await, Approval { state, ..asked.clone() }, "{way}");
    }
    assert_eq!(approval(f, answered.id).await, *answered, "{way}");
    let records = f.records(run.session).await;
    let [.., one, two, end] = records.as_slice() else { panic!("{way}: {records:?}") };
    let withdrawn = [first, last].map(|asked| record::permission_withdrawn(run.id, asked.id, why));
    assert_eq!([one, two], withdrawn.each_ref(), "{way}");
    assert_eq!(end.kind.as_str(), "run.state", "{way}");
}

/// However a run ends, nobody waits any more for what it asked. The order to stop it is no end yet.
pub async fn the_end_of_a_run_withdraws_what_it_asked(f: &Fixture) {
    let runner = f.new_runner();
    for way in ["completed", "failed", "stopped", "lost", "silent", "silent after a stop", "terminated"] {
        let run = f.running(&runner).await;
        let asked = with_questions(f, &run).await;
        f.advance(TICK);
        let because = |kind| Ending::because(kind, ReasonCode::ExecutorError, None, "no");
        let ending = match way {
            "completed" => Some(Ending::completed(None)),
            "failed" => Some(because(EndKind::Failed)),
            "stopped" => Some(because(EndKind::Stopped)),
            "lost" => Some(because(EndKind::Lost)),
            "silent after a stop" => {
                f.store.request_stop(run.id, StopMode::Graceful, f.now()).await.unwrap();
                None
            }
            "terminated" => {
                f.transition(run.session, Trigger::Terminate(TerminationReason::Killed)).await;
                None
            }
            _ => None,
        };
        assert_eq!(phase(f, asked[0].id).await, ApprovalPhase::Open, "{way}: it is not over yet");
        if let Some(ending) = ending {
            f.store.finish(run.fence(), ending, None, f.now()).await.unwrap();
        } else {
            f.advance(LEASE + TICK);
            assert_eq!(f.store.reap(f.now(), 10).await.unwrap().len(), 1, "{way}");
        }
        assert!(f.phase(run.id).await.is_ended(), "{way}");
        assert_withdrawn(f, &run, &asked, way).await;
    }
    let open = ApprovalFilter { open: true, ..ApprovalFilter::default() };
    assert!(f.approvals(&open).await.is_empty());
}

/// A run that goes back to the queue will ask again: nobody waits for what it asked before.
pub async fn a_run_that_goes_back_withdraws_what_it_asked(f: &Fixture) {
    let runner = f.new_runner();
    for way in ["given back", "given back to end", "silent"] {
        let run = f.claimed(&runner).await;
        let asked = with_questions(f, &run).await;
        let expected = if way == "given back to end" {
            f.store.request_stop(run.id, StopMode::Graceful, f.now()).await.unwrap();
            RunPhase::Stopped
        } else {
            RunPhase::Pending
        };
        if way == "silent" {
            f.advance(LEASE + TICK);
            f.store.reap(f.now(), 10).await.unwrap();
        } else {
            f.advance(TICK);
            f.store.requeue(run.fence(), f.now()).await.unwrap();
        }
        assert_eq!(f.phase(run.id).await, expected, "{way}");
        assert_withdrawn(f, &run, &asked, way).await;
        if expected == RunPhase::Pending {
            f.store.request_stop(run.id, StopMode::Kill, f.now()).await.unwrap();
        }
    }
}

/// The new host of a run that goes on finds what the old one asked, and withdraws it or waits for the answer.
pub async fn a_takeover_leaves_what_was_asked(f: &Fixture) {
    let runner = f.new_runner();
    let run = f.running(&runner).await;
    let [first, _, last] = with_questions(f, &run).await;
    let taken = f.store.take_over(run.id, runner.id, LEASE, f.now()).await.unwrap();
    assert_refused!(
        f.store.withdraw(run.fence(), first.id, Withdrawal::Expired, f.now()),
        StoreError::Fenced { .. }
    );
    assert_eq!(
        (phase(f, first.id).await, phase(f, last.id).await),
        (ApprovalPhase::Open, ApprovalPhase::Open)
    );
    f.store.withdraw(taken.fence(), first.id, Withdrawal::Expired, f.now()).await.unwrap();
    f.store.answer(last.id, Fixture::reply(Verdict::Deny, false), f.now()).await.unwrap();
    assert_eq!(
        (phase(f, first.id).await, phase(f, last.id).await),
        (ApprovalPhase::Expired, ApprovalPhase::Denied)
    );
}

/// Approvals by session, by owner and by whether they are open, newest first and page by page without a gap.
pub async fn approvals_are_listed_newest_first(f: &Fixture) {
    let runner = f.new_runner();
    let mut asked = Vec::new();
    for principal in ["alice", "bob", "alice"] {
        let new = NewSession { principal: principal.parse().unwrap(), ..f.new_session() };
        let new = crate::ports::NewRun { of: crate::ports::RunOf::New(Box::new(new)), ..f.new_run() };
        f.enqueue([new]).await;
        let run = f.claim(&runner).await.unwrap().run;
        f.start(run.fence()).await;
        asked.extend(with_questions(f, &run).await);
        f.advance(TICK);
    }
    asked.reverse();
    let (session, alice) = (asked[4].session, Some("alice".parse().unwrap()));
    let all = ApprovalFilter::default;
    let filters = [
        all(),
        ApprovalFilter { open: true, ..all() },
        ApprovalFilter { session: Some(session), ..all() },
        ApprovalFilter { session: Some(session), open: true, ..all() },
        ApprovalFilter { principal: alice.clone(), ..all() },
        ApprovalFilter { principal: alice.clone(), open: true, ..all() },
        ApprovalFilter { principal: alice, session: Some(session), ..all() },
    ];
    for (filter, count) in filters.into_iter().zip([9, 6, 3, 2, 6, 4, 0]) {
        let shows = |approval: &&Approval| {
            filter.session.is_none_or(|session| approval.session == session)
                && filter.principal.as_ref().is_none_or(|principal| approval.principal == *principal)
                && (!filter.open || approval.is_open())
        };
        let expected: Vec<_> = asked.iter().filter(shows).cloned().collect();
        assert_eq!(expected.len(), count, "{filter:?}");
        assert_eq!(f.approvals(&filter).await, expected, "{filter:?}");
        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let page = f.store.approvals(&filter, after, 2).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            paged.extend(page);
        }
        assert_eq!(paged, expected, "{filter:?}");
    }
    assert!(f.store.approvals(&all(), None, 0).await.unwrap().is_empty());
    assert!(f.store.approvals(&all(), Some(asked[8].id), ALL).await.unwrap().is_empty());
}

/// Of many different answers at once one wins, and is recorded once.
pub async fn one_of_many_concurrent_answers_wins(f: &Fixture) {
    let run = f.running(&f.new_runner()).await;
    for _ in 0..MEETINGS {
        let asked = f.ask(run.fence()).await;
        let recorded = f.log(run.session).await.len();
        let replies = [Fixture::reply(Verdict::Allow, false), Fixture::reply(Verdict::Deny, false)];
        let many = replies.iter().cycle().take(8);
        let outcomes = join_all(many.map(|reply| f.store.answer(asked.id, reply.clone(), f.now()))).await;
        let won: Vec<_> = outcomes.iter().flatten().collect();
        let stored = approval(f, asked.id).await;
        assert_eq!(won.len(), 4, "those who say the same: {outcomes:?}");
        assert!(won.iter().all(|answered| **answered == stored), "{outcomes:?}");
        assert_eq!(f.log(run.session).await.len(), recorded + 1);
    }
}

/// An answer and a withdrawal at one instant: whoever comes first counts, and the other learns of it.
pub async fn an_answer_and_a_withdrawal_agree(f: &Fixture) {
    let run = f.running(&f.new_runner()).await;
    for _ in 0..MEETINGS {
        let asked = f.ask(run.fence()).await;
        let answer = f.store.answer(asked.id, Fixture::reply(Verdict::Allow, false), f.now());
        let withdraw = f.store.withdraw(run.fence(), asked.id, Withdrawal::Expired, f.now());
        let (answered, withdrawn) = join(answer, withdraw).await;
        let stored = approval(f, asked.id).await;
        assert_eq!(withdrawn.unwrap(), stored);
        match answered {
            Ok(answered) => assert_eq!(answered, stored),
            Err(StoreError::Conflict(Conflict::Answered { phase, .. })) => {
                assert_eq!((phase, stored.state.phase()), (ApprovalPhase::Expired, ApprovalPhase::Expired));
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// An answer and the end of the run at one instant: it is answered before, or withdrawn by the end; and what is asked
/// then is withdrawn too or refused.
pub async fn an_answer_and_the_end_of_its_run_agree(f: &Fixture) {
    let runner: RunnerProfile = f.new_runner();
    for _ in 0..MEETINGS {
        let run = f.running(&runner).await;
        let asked = f.ask(run.fence()).await;
        let answer = f.store.answer(asked.id, Fixture::reply(Verdict::Allow, true), f.now());
        let ask = f.store.ask(run.fence(), f.new_approval(), f.now());
        let ((answered, late), _) = join(join(answer, ask), f.complete(run.fence())).await;
        let stored = approval(f, asked.id).await.state.phase();
        match answered {
            Ok(_) => assert_eq!(stored, ApprovalPhase::Allowed),
            Err(StoreError::Conflict(Conflict::Answered { phase, .. })) => {
                assert_eq!((phase, stored), (ApprovalPhase::Withdrawn, ApprovalPhase::Withdrawn));
            }
            Err(error) => panic!("{error:?}"),
        }
        match late {
            Ok(late) => assert_eq!(phase(f, late.id).await, ApprovalPhase::Withdrawn),
            Err(error) => assert!(matches!(error, StoreError::Transition(_)), "{error:?}"),
        }
        assert_eq!(f.log(run.session).await.last().unwrap().body.kind.as_str(), "run.state");
    }
}
