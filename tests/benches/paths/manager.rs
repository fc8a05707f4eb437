//! The manager's registry: what a use, a sweep, a session's coming and going and its keep cost, whether there are a thousand
//! sessions or a million.

use std::collections::{BTreeSet, HashMap};
use std::hint::black_box;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use session_core::SessionId;
use session_core::names::{ExternalKey, Principal};
use session_core::state::TerminationReason;
use session_manager::options::{EvictionStrategy, Limits};
use session_manager::registry::{Admission, Due, Flushed, Owner, Registry, Terminating};
use tokio::time::Instant;

use crate::measure::{Bench, Named, Outcome, Pair, Shown, Target, each, ensure, median, timed};

const FEW: u64 = 1_000;
const MANY: u64 = 1_000_000;
/// How many principals share the sessions.
const PRINCIPALS: u64 = 10_000;
/// How many sessions a sweep finds due.
const DUE: u64 = 100;
const SWEEPS: usize = 200;
const TOUCHES: usize = 2_000_000;
const COMINGS: usize = 100_000;
/// Sessions are opened so far apart.
const APART: SignedDuration = SignedDuration::from_millis(1);

/// Engines cost what they cost: they all share one handle here.
type Handle = Arc<()>;
type Sessions = Registry<Handle, ()>;

pub(crate) async fn manager(bench: &mut Bench) -> Outcome {
    keep(bench)?;
    nothing_due(bench).await?;
    sweep(bench)?;
    touch(bench, FEW, "1 000").await?;
    touch(bench, MANY, "1 000 000").await?;
    come_and_go(bench).await
}

/// Ids in no order, as random ones are.
fn id(number: u64) -> Outcome<SessionId> {
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Ok(format!("ses_{scattered:016x}{number:016x}").parse()?)
}

fn ids(count: u64) -> Outcome<Vec<SessionId>> {
    (1..=count).map(id).collect()
}

fn at(number: u64) -> Outcome<Timestamp> {
    Ok(Timestamp::UNIX_EPOCH + APART * i32::try_from(number)?)
}

fn owners() -> Outcome<Vec<Owner>> {
    (0..PRINCIPALS)
        .map(|number| Ok(Owner { principal: Principal::new(&format!("principal {number}"))?, key: None }))
        .collect()
}

fn limits() -> Limits {
    Limits {
        active_max: u64::MAX,
        active_per_principal_max: None,
        eviction: EvictionStrategy::RejectNew,
        ..Limits::default()
    }
}

fn come(
    sessions: &mut Sessions,
    now: Timestamp,
    session: SessionId,
    owner: Owner,
    handle: &Handle,
) -> Outcome {
    ensure!(
        matches!(sessions.admit(now, session, owner), Ok(Admission::Reserved)),
        "{session} is not let in"
    );
    ensure!(sessions.opened(now, session, Arc::clone(handle)).is_ok(), "{session} does not open");
    Ok(())
}

/// So many sessions, opened one after the other.
fn filled(ids: &[SessionId], keyed: bool) -> Outcome<Sessions> {
    let (owners, handle) = (owners()?, Handle::default());
    let mut sessions = Sessions::new(limits());
    for (number, (&session, owner)) in ids.iter().zip(owners.iter().cycle()).enumerate() {
        let key = if keyed { Some(ExternalKey::new(&format!("chat:{number}"))?) } else { None };
        let owner = Owner { key, ..owner.clone() };
        come(&mut sessions, at(u64::try_from(number)?)?, session, owner, &handle)?;
    }
    Ok(sessions)
}

/// The same, all of them idle.
fn idle(ids: &[SessionId], keyed: bool) -> Outcome<Sessions> {
    let mut sessions = filled(ids, keyed)?;
    let idle = sessions.due(at(u64::try_from(ids.len())?)? + SignedDuration::from_mins(15), ids.len());
    ensure!(idle.len() == ids.len(), "{} of {} are idle", idle.len(), ids.len());
    Ok(sessions)
}

/// The least that finds what is due: what is due when, and whose engine that is.
struct Plain {
    deadlines: BTreeSet<(Timestamp, SessionId)>,
    handles: HashMap<SessionId, Handle>,
}

fn plain(ids: &[SessionId]) -> Outcome<Plain> {
    let handle = Handle::default();
    let mut plain = Plain { deadlines: BTreeSet::new(), handles: HashMap::new() };
    for (number, &session) in ids.iter().enumerate() {
        plain.deadlines.insert((at(u64::try_from(number)?)?, session));
        plain.handles.insert(session, Arc::clone(&handle));
    }
    Ok(plain)
}

/// Bytes that the process has in memory.
fn resident() -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u32 = text.split(' ').nth(1).ok_or("statm has one field")?.parse()?;
    Ok(f64::from(pages) * f64::from(u32::try_from(rustix::param::page_size())?))
}

/// Bytes of each, and what was made: what is freed is not given back at once, so all of them stay until the end.
fn bytes_each<T>(kept: impl FnOnce() -> Outcome<T>) -> Outcome<(f64, T)> {
    let before = resident()?;
    let kept = kept()?;
    Ok(((resident()? - before) / f64::from(u32::try_from(MANY)?), kept))
}

fn keep(bench: &mut Bench) -> Outcome {
    let ids = ids(MANY)?;
    let (floor, _plain) = bytes_each(|| plain(&ids))?;
    let (ours, _idle) = bytes_each(|| idle(&ids, false))?;
    let named = |path| Named { path, floor: "deadline and handle" };
    let path = "registry: one of 1 000 000 idle sessions";
    bench.row(&named(path), Shown::Bytes, Target::Bytes(400.0), Pair { floor, ours });
    let (ours, _keyed) = bytes_each(|| idle(&ids, true))?;
    let path = "registry: the same, each with a key";
    bench.row(&named(path), Shown::Bytes, Target::None, Pair { floor, ours });
    Ok(())
}

async fn nothing_due(bench: &mut Bench) -> Outcome {
    let (few, many) = (ids(FEW)?, ids(MANY)?);
    let (mut few, mut many) = (idle(&few, false)?, idle(&many, false)?);
    let calls = bench.sized(TOUCHES);
    let named = Named { path: "registry: sweep, none due of 1 000 000", floor: "none due of 1 000" };
    let looked = |sessions: &mut Sessions| {
        timed(calls, |_| {
            ensure!(black_box(sessions.due(black_box(Timestamp::UNIX_EPOCH), 100)).is_empty(), "due");
            Ok(())
        })
    };
    let floor = async |_| looked(&mut few);
    bench.compare(named, Shown::Time, Target::Nanoseconds(100.0), floor, async |_| looked(&mut many)).await?;
    Ok(())
}

fn sweep(bench: &mut Bench) -> Outcome {
    let ids = ids(MANY)?;
    let sweeps = bench.sized(SWEEPS);
    let limit = usize::try_from(DUE)?;
    let mut plain = plain(&ids)?;
    let mut floors = Vec::new();
    for number in 1..=sweeps * bench.rounds() {
        let now = at(u64::try_from(number)? * DUE)? - APART;
        let begun = Instant::now();
        let mut due = Vec::new();
        while let Some(&(at, session)) = plain.deadlines.first()
            && at <= now
        {
            plain.deadlines.pop_first();
            due.extend(plain.handles.get(&session).map(|handle| (session, Arc::clone(handle))));
        }
        floors.push(each(begun.elapsed(), 1)?);
        ensure!(due.len() == limit, "{} are due", due.len());
    }
    drop(plain);
    let floor = median(floors);

    let named = |path| Named { path, floor: "set and map" };
    let target = Target::Microseconds(20.0);
    let mut active = filled(&ids, false)?;
    let ours = swept(&mut active, SignedDuration::from_mins(15), sweeps * bench.rounds())?;
    let path = "registry: sweep, 100 of 1 000 000 fall idle";
    bench.row(&named(path), Shown::Time, target, Pair { floor, ours });
    drop(active);
    let mut idle = idle(&ids, false)?;
    let ours = swept(&mut idle, SignedDuration::from_mins(45), sweeps * bench.rounds())?;
    let path = "registry: sweep, 100 of 1 000 000 to be suspended";
    bench.row(&named(path), Shown::Time, target, Pair { floor, ours });
    Ok(())
}

/// Seconds of a sweep that finds a hundred due, `after` they were opened.
fn swept(sessions: &mut Sessions, after: SignedDuration, sweeps: usize) -> Outcome<f64> {
    let limit = usize::try_from(DUE)?;
    let mut figures = Vec::new();
    for number in 1..=sweeps {
        let now = at(u64::try_from(number)? * DUE)? - APART + after;
        let begun = Instant::now();
        let due = sessions.due(now, limit + 1);
        figures.push(each(begun.elapsed(), 1)?);
        ensure!(due.len() == limit, "{} are due", due.len());
        for one in due {
            // It is used meanwhile: as many sessions are there as before.
            if let Due::Suspend(session, _) = one {
                ensure!(sessions.touch(now, session).is_ok(), "{session} cannot be used");
                ensure!(matches!(sessions.flushed(now, session, true), Flushed::Goes), "{session} closes");
            }
        }
    }
    Ok(median(figures))
}

async fn touch(bench: &mut Bench, count: u64, shown: &str) -> Outcome {
    let ids = ids(count)?;
    let sessions = Mutex::new(filled(&ids, false)?);
    let handles = Mutex::new(plain(&ids)?.handles);
    let stamp = AtomicI64::new(0);
    let calls = bench.sized(TOUCHES);
    let last = at(count)?;
    // A stride through all of them, so that a million do not fit into a cache.
    let pick = |call: usize| ids[call.wrapping_mul(7_919) % ids.len()];
    let used = || {
        timed(calls, |call| {
            let session = pick(call);
            let used = sessions.lock().unwrap_or_else(PoisonError::into_inner).touch(last, session);
            ensure!(used.is_ok(), "{session} cannot be used");
            Ok(())
        })
    };
    let path = format!("registry: touch, {shown} sessions");
    let named = |floor| Named { path: &path, floor };
    let target = if count == FEW { Target::Nanoseconds(50.0) } else { Target::None };
    let looked_up = async |_| {
        timed(calls, |call| {
            let session = pick(call);
            let handles = handles.lock().unwrap_or_else(PoisonError::into_inner);
            ensure!(black_box(handles.get(&session)).is_some(), "{session} is not there");
            Ok(())
        })
    };
    bench.compare(named("map behind a mutex"), Shown::Time, target, looked_up, async |_| used()).await?;
    if count == FEW {
        let stored = async |_| {
            timed(calls, |call| {
                black_box(pick(call));
                stamp.store(i64::try_from(call)?, Ordering::Release);
                Ok(())
            })
        };
        bench.compare(named("atomic store"), Shown::Time, target, stored, async |_| used()).await?;
    }
    Ok(())
}

async fn come_and_go(bench: &mut Bench) -> Outcome {
    let there = ids(MANY)?;
    let comings = bench.sized(COMINGS);
    let fresh: Vec<_> = (MANY + 1..).take(comings).map(id).collect::<Outcome<_>>()?;
    let owners: Vec<_> = owners()?.into_iter().cycle().take(comings).collect();
    let handle = Handle::default();
    let mut handles = plain(&there)?.handles;
    let mut sessions = filled(&there, false)?;
    let now = at(MANY)?;
    let floor = async |_| {
        timed(comings, |call| {
            handles.insert(fresh[call], Arc::clone(&handle));
            ensure!(handles.remove(&fresh[call]).is_some(), "it is not there");
            Ok(())
        })
    };
    let ours = async |_| {
        timed(comings, |call| {
            let session = fresh[call];
            come(&mut sessions, now, session, owners[call].clone(), &handle)?;
            let ending = sessions.begin_terminate(session, TerminationReason::Stopped);
            ensure!(matches!(ending, Ok(Terminating::Close(_))), "{session} does not end");
            ensure!(sessions.over(session), "{session} does not go");
            Ok(())
        })
    };
    let named =
        Named { path: "registry: create and terminate, beside 1 000 000", floor: "map insert and remove" };
    bench.compare(named, Shown::Time, Target::Microseconds(5.0), floor, ours).await?;
    Ok(())
}
