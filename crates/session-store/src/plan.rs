//! Which event gets which number, what was there before, and what contradicts it: decided over plain values.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use session_core::event::{NewEvent, Origin, Seq};
use session_core::ids::{RunId, SessionId};
use session_core::ports::{Appended, Author};
use session_core::run::{Epoch, Fence, RunPhase};
use session_core::state::InvalidTransition;
use session_core::{Conflict, StoreError, StoreResult};

/// A batch that somebody wants appended.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) author: Author,
    pub(crate) events: Vec<NewEvent>,
    pub(crate) at: Timestamp,
}

/// An event that belongs to a change: it is appended whatever else is.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) session: SessionId,
    pub(crate) body: NewEvent,
    pub(crate) at: Timestamp,
}

/// An event with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbered<'a> {
    pub(crate) session: SessionId,
    pub(crate) seq: Seq,
    pub(crate) at: Timestamp,
    /// The run that it is of: the author's, where a run is the author.
    pub(crate) run: Option<RunId>,
    pub(crate) body: &'a NewEvent,
}

/// What the database holds of the sessions and runs in question.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The last number of each session that is there.
    pub(crate) heads: HashMap<SessionId, Seq>,
    /// Those of them that are terminated.
    pub(crate) ended: HashSet<SessionId>,
    /// The claims on runs.
    pub(crate) claims: HashMap<RunId, Claim>,
    /// The first events of origins that may be repeated.
    pub(crate) origins: HashMap<(SessionId, Origin), (Seq, NewEvent)>,
}

/// What holds a run at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    pub(crate) phase: RunPhase,
}

impl Claim {
    /// Whether a write that speaks for `given` may change anything of this run.
    pub(crate) fn admits(self, fence: Fence, step: &'static str) -> StoreResult<()> {
        if self.epoch != fence.epoch {
            return Err(StoreError::Fenced { run: fence.run, held: self.epoch, given: fence.epoch });
        }
        if !self.phase.is_in_flight() {
            return Err(no_step(self.phase, step));
        }
        Ok(())
    }
}

/// The refusal of a step that a run in this phase does not take.
pub(crate) fn no_step(from: RunPhase, trigger: &'static str) -> StoreError {
    InvalidTransition { machine: "run", from: from.code(), trigger }.into()
}

/// What is to be written, and what each batch is answered if it is.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) rows: Vec<Numbered<'a>>,
    pub(crate) answers: Vec<StoreResult<Appended>>,
}

/// Decides over everything that one transaction appends: first what its changes recorded, then each batch, all of
/// it or nothing.
pub(crate) fn plan<'a>(known: Known, recorded: &'a [Recorded], batches: &'a [Batch]) -> Plan<'a> {
    let mut planner = Planner { known, new: HashMap::new(), rows: Vec::new() };
    for Recorded { session, body, at } in recorded {
        planner.number(*session, body, body.run, *at);
    }
    let answers = batches.iter().map(|batch| planner.append(batch)).collect();
    Plan { rows: planner.rows, answers }
}

struct Planner<'a> {
    known: Known,
    /// Where in `rows` the origins stand that are new.
    new: HashMap<(SessionId, &'a Origin), usize>,
    rows: Vec<Numbered<'a>>,
}

impl<'a> Planner<'a> {
    fn append(&mut self, batch: &'a Batch) -> StoreResult<Appended> {
        let (session, author) = self.admitted(batch.author)?;
        batch.author.may_append(&batch.events)?;
        let before = self.known.heads.get(&session).copied().ok_or(StoreError::UnknownSession(session))?;
        let begin = self.rows.len();
        let mut seqs = Vec::with_capacity(batch.events.len());
        for body in &batch.events {
            let run = author.or(body.run);
            match self.repeated(session, body, run) {
                Ok(Some(first)) => seqs.push(first),
                Ok(None) => seqs.push(self.number(session, body, run, batch.at)),
                Err(conflict) => {
                    // All or nothing: take back what this batch has so far.
                    self.rows.truncate(begin);
                    self.new.retain(|_, row| *row < begin);
                    self.known.heads.insert(session, before);
                    return Err(conflict);
                }
            }
        }
        Ok(Appended { session, seqs })
    }

    /// Whose log the author may write into, and the run that the events are of.
    fn admitted(&self, author: Author) -> StoreResult<(SessionId, Option<RunId>)> {
        match author {
            Author::Live(session) if self.known.ended.contains(&session) => {
                let trigger = "append";
                Err(InvalidTransition { machine: "session", from: "terminated", trigger }.into())
            }
            Author::Session(session) | Author::Live(session) => Ok((session, None)),
            Author::Run(fence) => {
                let claim = self.known.claims.get(&fence.run).ok_or(StoreError::UnknownRun(fence.run))?;
                claim.admits(fence, "append")?;
                Ok((claim.session, Some(fence.run)))
            }
        }
    }

    /// The number of the event that this one repeats.
    fn repeated(
        &self,
        session: SessionId,
        body: &'a NewEvent,
        run: Option<RunId>,
    ) -> StoreResult<Option<Seq>> {
        let Some(origin) = &body.origin else { return Ok(None) };
        let there = if let Some(row) = self.new.get(&(session, origin)) {
            self.rows.get(*row).map(|row| (row.seq, row.run, row.body))
        } else {
            let first = self.known.origins.get(&(session, origin.clone()));
            first.map(|(seq, first)| (*seq, first.run, first))
        };
        match there {
            None => Ok(None),
            Some((seq, of, first))
                if of == run && first.kind == body.kind && first.payload == body.payload =>
            {
                Ok(Some(seq))
            }
            Some(_) => {
                let producer = origin.producer.as_str().into();
                Err(Conflict::Origin { session, producer, seq: origin.seq }.into())
            }
        }
    }

    fn number(&mut self, session: SessionId, body: &'a NewEvent, run: Option<RunId>, at: Timestamp) -> Seq {
        let head = self.known.heads.entry(session).or_default();
        *head = head.next();
        let seq = *head;
        if let Some(origin) = &body.origin {
            self.new.insert((session, origin), self.rows.len());
        }
        self.rows.push(Numbered { session, seq, at, run, body });
        seq
    }
}

#[cfg(test)]
mod tests {
    use session_core::event::{EventKind, Payload};

    use super::*;

    #[derive(Clone, Copy)]
    struct World {
        session: SessionId,
        run: RunId,
        other: SessionId,
    }

    fn world() -> World {
        let (env, _) = session_core::testing::env();
        World { session: env.session_id(), run: env.run_id(), other: env.session_id() }
    }

    impl World {
        fn known(&self) -> Known {
            let claim = Claim { session: self.session, epoch: Epoch(2), phase: RunPhase::Running };
            Known {
                heads: [(self.session, Seq(7)), (self.other, Seq(0))].into(),
                ended: HashSet::new(),
                claims: [(self.run, claim)].into(),
                origins: HashMap::new(),
            }
        }

        fn by_session(&self, events: Vec<NewEvent>) -> Batch {
            Batch { author: Author::Session(self.session), events, at: Timestamp::UNIX_EPOCH }
        }

        fn by_run(&self, epoch: u32, events: Vec<NewEvent>) -> Batch {
            let author = Author::Run(Fence { run: self.run, epoch: Epoch(epoch) });
            Batch { author, events, at: Timestamp::UNIX_EPOCH }
        }
    }

    fn event(text: &str, origin: Option<u64>) -> NewEvent {
        NewEvent {
            run: None,
            kind: EventKind::Message,
            payload: Payload::parse(text).unwrap(),
            origin: origin.map(|seq| Origin { producer: "p".parse().unwrap(), seq }),
        }
    }

    fn seqs(answer: &StoreResult<Appended>) -> Vec<u64> {
        answer.as_ref().unwrap().seqs.iter().map(|seq| seq.0).collect()
    }

    #[test]
    fn numbers_are_dense_over_changes_and_batches() {
        let world = world();
        let recorded = Recorded { session: world.session, body: event("0", None), at: Timestamp::UNIX_EPOCH };
        let batches = vec![
            world.by_session(vec![event("1", None), event("2", None)]),
            world.by_run(2, vec![event("3", None)]),
        ];
        let recorded = [recorded];
        let plan = plan(world.known(), &recorded, &batches);
        assert_eq!(plan.rows.iter().map(|row| row.seq.0).collect::<Vec<_>>(), [8, 9, 10, 11]);
        assert_eq!((seqs(&plan.answers[0]), seqs(&plan.answers[1])), (vec![9, 10], vec![11]));
        assert_eq!(plan.rows[3].run, Some(world.run));
    }

    #[test]
    fn a_repeated_origin_is_the_same_event_in_the_database_the_group_and_the_batch() {
        let world = world();
        let mut known = world.known();
        let there = event("1", Some(1));
        known.origins.insert((world.session, there.origin.clone().unwrap()), (Seq(3), there.clone()));
        let batches = vec![
            world.by_session(vec![there.clone(), event("2", Some(2)), event("2", Some(2))]),
            world.by_session(vec![event("2", Some(2)), event("3", None)]),
        ];
        let plan = plan(known, &[], &batches);
        assert_eq!((seqs(&plan.answers[0]), seqs(&plan.answers[1])), (vec![3, 8, 8], vec![8, 9]));
        assert_eq!(plan.rows.len(), 2);
    }

    #[test]
    fn a_conflict_takes_its_whole_batch_back_and_nothing_else() {
        let world = world();
        let batches = vec![
            world.by_session(vec![event("1", Some(1))]),
            world.by_session(vec![event("5", Some(5)), event("6", None), event("2", Some(1))]),
            world.by_session(vec![event("55", Some(5))]),
        ];
        let plan = plan(world.known(), &[], &batches);
        assert!(matches!(plan.answers[1], Err(StoreError::Conflict(Conflict::Origin { seq: 1, .. }))));
        assert_eq!((seqs(&plan.answers[0]), seqs(&plan.answers[2])), (vec![8], vec![9]));
        assert_eq!(plan.rows.len(), 2);
    }

    #[test]
    fn who_may_not_write_is_told_why() {
        let world = world();
        let (env, _) = session_core::testing::env();
        let [_, ended, nobody] = [env.run_id(), env.run_id(), env.run_id()];
        let mut known = world.known();
        known.claims.insert(ended, Claim { session: world.session, epoch: Epoch(2), phase: RunPhase::Lost });
        known.heads.remove(&world.other);
        let of = |run| World { run, ..world }.by_run(2, vec![event("1", None)]);
        let stranger = World { session: world.other, ..world }.by_session(Vec::new());
        let batches = [world.by_run(1, Vec::new()), of(ended), of(nobody), stranger];
        let plan = plan(known, &[], &batches);
        assert!(matches!(
            plan.answers.as_slice(),
            [
                Err(StoreError::Fenced { held: Epoch(2), given: Epoch(1), .. }),
                Err(StoreError::Transition(_)),
                Err(StoreError::UnknownRun(_)),
                Err(StoreError::UnknownSession(_)),
            ]
        ));
        assert!(plan.rows.is_empty());
    }
}
