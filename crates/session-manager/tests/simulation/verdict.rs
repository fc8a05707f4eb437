//! What must hold when everything has come to rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use session_core::budget::Usage;
use session_core::error::StoreResult;
use session_core::event::EventKind;
use session_core::ports::{FamilyStore as _, Ledger as _, RunStore as _};
use session_core::{Event, RunId, RunPhase, SessionId};

use crate::coordinator::further;
use crate::machine::Role;
use crate::runner::coordinator;
use crate::snapshot::Snapshot;
use crate::witness::Witness;
use crate::world::{World, at_once};

/// What is left to do: somebody would wait for ever if it stayed so.
pub(crate) fn unfinished(world: &World) -> Option<String> {
    let now = Snapshot::whole(&world.store);
    if let Some(run) = now.runs.values().find(|run| !run.state.phase().is_ended()) {
        return Some(format!("{run:?}"));
    }
    // One that was stopped is told of nothing until it is used again.
    if let Some(parent) = at_once(world.store.callbacks_due(1)).unwrap().first() {
        return Some(format!("the end of a run is not told to {parent}"));
    }
    let living = world.machines.iter().flat_map(|machine| machine.living(world.now()));
    living.map(|(run, _)| format!("{run} is over, and its processes live")).next()
}

/// Every live session that has nothing to do is used once more. Says how many.
pub(crate) fn use_once_more(world: &Arc<World>) -> usize {
    let now = Snapshot::whole(&world.store);
    let client = world.machines.iter().position(|machine| machine.role == Role::Client).unwrap();
    let coordinator = coordinator(world, client);
    let live = now.sessions.values().filter(|session| !session.state.is_terminated());
    let enqueued = live.map(|session| {
        let run = further(&coordinator, session);
        let once_more: StoreResult<_> =
            at_once(world.store.enqueue(vec![run], None, coordinator.env().now()));
        once_more.unwrap_or_else(|error| panic!("{} cannot be used once more: {error}", session.id))
    });
    let count = enqueued.count();
    // The witness has to see what was done past every wire.
    let call = crate::wire::Call { name: "once more", fence: None };
    world.witness().saw(world, call, None);
    count
}

/// Judges what is there, and what was there on the way.
pub(crate) fn judge(world: &World) {
    let now = Snapshot::whole(&world.store);
    let mut witness = world.witness();
    let seen = Arc::clone(&witness.seen);
    witness.demand(*seen == now, || "something changed that nobody asked for".into());
    acknowledged(&mut witness);
    logs_are_as_they_were(&mut witness, world);
    callbacks(&mut witness, &now);
    for session in now.sessions.values().filter(|session| !session.state.is_terminated()) {
        let left = session.reserved;
        witness.demand(left == Usage::NONE, || format!("{} has {left:?} set aside for nobody", session.id));
    }
    for session in now.sessions.values() {
        let left = session.allotted;
        witness.demand(left == Usage::NONE, || format!("{} has {left:?} for children at rest", session.id));
    }
    let used: u64 = now.sessions.values().map(|session| session.usage.tokens).sum();
    let used = used - booked_for_children(&witness, &now);
    let minutes = at_once(world.store.tokens_by_minute(jiff::Timestamp::UNIX_EPOCH)).unwrap();
    let counted: u64 = minutes.iter().map(|(_, tokens)| tokens).sum();
    witness.demand(used == counted, || {
        format!("{used} tokens were used, and {counted} are counted by the minute")
    });
    for (id, acted_on) in witness.acted.clone() {
        let phase = now.approvals.get(&id).map(|approval| approval.state.phase());
        witness.demand(phase == Some(acted_on), || format!("{id} is {phase:?}, and {acted_on} was acted on"));
    }
    let lost = now.runs.values().find(|run| run.state.phase() == RunPhase::Lost);
    let disturbed = witness.disturbed;
    let lost = lost.filter(|_| !disturbed);
    witness.demand(lost.is_none(), || format!("no machine ever failed, and this run is lost: {lost:?}"));
    for machine in world.machines.iter().filter(|machine| machine.role == Role::Runner) {
        let held = at_once(world.store.in_flight(machine.profile.id)).unwrap();
        witness.demand(held.is_empty(), || format!("{} holds {held:?}", machine.name));
    }
}

/// The tokens that parents have as used and their children used.
fn booked_for_children(witness: &Witness, now: &Snapshot) -> u64 {
    let forked = |id| now.sessions.get(&id).and_then(|session| session.forked_from);
    let own = |event: &&Event| forked(event.session).is_none_or(|point| event.seq > point.upto);
    let usage = witness.logs.values().flatten().filter(|event| event.body.kind == EventKind::Usage);
    let usage = usage.filter(own).map(|event| event.body.payload.value().unwrap());
    usage.filter(|usage| usage.get("child").is_some()).filter_map(|usage| usage["tokens"].as_u64()).sum()
}

/// Every acknowledged event is in the log, once, and those of one producer in their order.
fn acknowledged(witness: &mut Witness) {
    let mut last: BTreeMap<(SessionId, String), usize> = BTreeMap::new();
    for (session, event) in witness.acknowledged.clone() {
        let Some(origin) = event.origin.clone() else { continue };
        let log = witness.logs.get(&session).map(Vec::as_slice).unwrap_or_default();
        let is_it = |found: &Event| found.body.origin.as_ref() == Some(&origin);
        let places: Vec<_> = (0..log.len()).filter(|place| is_it(&log[*place])).collect();
        let [place] = places[..] else {
            return witness.complain(format!("{session} has {} times the event {event:?}", places.len()));
        };
        let same = log[place].body == event;
        let before = last.insert((session, origin.producer.to_string()), place);
        witness.demand(same, || format!("{session} has another event than the acknowledged {event:?}"));
        let in_order = before.is_none_or(|before| before < place);
        witness.demand(in_order, || format!("{session} has {event:?} before what was acknowledged earlier"));
    }
    for (session, log) in witness.logs.clone() {
        let mut seen = BTreeMap::new();
        for origin in log.iter().filter_map(|event| event.body.origin.as_ref()) {
            let times = seen.entry((origin.producer.as_str().to_owned(), origin.seq)).or_insert(0);
            *times += 1;
            witness.demand(*times == 1, || format!("{session} has {origin:?} twice"));
        }
    }
}

/// Nothing that was once in a log has changed.
fn logs_are_as_they_were(witness: &mut Witness, world: &World) {
    for (session, log) in witness.logs.clone() {
        let now = Snapshot::events(&world.store, session, session_core::Seq::START);
        witness.demand(now == log, || format!("the log of {session} is not what it was"));
    }
    for session in Arc::clone(&witness.seen).sessions.values() {
        let Some(point) = session.forked_from else { continue };
        let bodies = |session: SessionId| {
            let log = witness.logs.get(&session).into_iter().flatten();
            log.take_while(|event| event.seq <= point.upto)
                .map(|event| event.body.clone())
                .collect::<Vec<_>>()
        };
        let same = bodies(session.id) == bodies(point.source);
        witness.demand(same, || format!("{} does not begin as {} does", session.id, point.source));
    }
}

/// Every parent that wants to hear of its children has one event of each end, and was told of each once.
fn callbacks(witness: &mut Witness, now: &Snapshot) {
    let mut told: BTreeMap<(SessionId, RunId), usize> = BTreeMap::new();
    for (session, log) in &witness.logs {
        let forked = now.sessions.get(session).and_then(|session| session.forked_from);
        let own = log.iter().filter(|event| forked.is_none_or(|point| event.seq > point.upto));
        for event in own.filter(|event| event.body.kind == EventKind::ChildEnded) {
            let payload = event.body.payload.value().unwrap_or_default();
            if let Some(run) = payload["run"].as_str().and_then(|run| run.parse().ok()) {
                *told.entry((*session, run)).or_default() += 1;
            }
        }
    }
    for run in now.runs.values() {
        let Some(child) = now.sessions.get(&run.session) else { continue };
        let Some(parent) = child.parent.filter(|_| child.callback) else { continue };
        let times = told.remove(&(parent, run.id)).unwrap_or_default();
        witness.demand(times == 1, || format!("{parent} has {times} events of the end of {}", run.id));
        let is_told = witness.delivered.contains_key(&run.id);
        let lives = now.sessions.get(&parent).is_some_and(|parent| !parent.state.is_terminated());
        witness.demand(is_told || !lives, || format!("the end of {} is not told to {parent}", run.id));
    }
    witness.demand(told.is_empty(), || format!("nobody wants to hear of {told:?}"));
}
