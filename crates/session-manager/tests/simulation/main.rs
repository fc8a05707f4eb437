//! A seeded simulation of coordinators, runners and clients over the store in memory: whatever chance brings, no run is
//! lost, doubled or stuck.
//!
//! One thread polls one actor at a time, chosen by a generator of random numbers that begins with the seed; so do crashes
//! at any await, halts that outlast a lease, steps of clocks, and reports that are lost, late, doubled or out of order. What
//! must hold is checked after every change of the store and when everything has come to rest. A seed that fails is named
//! with the command that replays it:
//!
//! ```text
//! ROOMETTE_SEED=17 cargo nextest run -p session-manager -E 'binary(simulation) & test(first)'
//! ROOMETTE_SEEDS=100000 cargo nextest run -p session-manager -E 'binary(simulation)'   # a long soak
//! ```

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod client;
mod coordinator;
mod execution;
mod machine;
mod recovery;
mod runner;
mod schedule;
mod snapshot;
mod verdict;
mod wire;
mod witness;
mod world;

use std::sync::Arc;

use crate::machine::Role;
use crate::schedule::Schedule;
use crate::wire::Fault;
use crate::world::{Moment, Weather, World};

/// How many seeds there are where nobody says otherwise.
const SEEDS: u64 = 500;
/// Into how many tests they are divided, which run beside each other.
const SHARDS: u64 = 4;
/// How long the weather is bad, in milliseconds.
const STORM: Moment = 240_000;
/// How long it may take until everything has come to rest after that.
const REST_MAX: Moment = 3_600_000;
/// How often it is looked whether it has.
const LOOK_EVERY: Moment = 10_000;
/// The last lines of the trace that are shown when nobody asked for this seed.
const TRACE_SHOWN: usize = 60;

/// Who takes part. The runners are no two alike.
const ROLES: [Role; 7] = [
    Role::Coordinator,
    Role::Coordinator,
    Role::Runner,
    Role::Runner,
    Role::Runner,
    Role::Client,
    Role::Client,
];

/// What is wrong with a seed.
struct Failure {
    what: String,
    trace: Vec<String>,
}

fn simulate(seed: u64, fault: Option<Fault>) -> Result<u32, Failure> {
    // In some worlds no machine ever fails: there, no run may be lost.
    let weather = if seed.is_multiple_of(4) { Weather::Mist } else { Weather::Storm };
    let world = World::new(seed, weather, fault, &ROLES);
    let mut schedule = Schedule::new(Arc::clone(&world));
    match play(&world, &mut schedule) {
        Ok(()) => Ok(schedule.steps()),
        Err(what) => Err(Failure { what, trace: world.trace() }),
    }
}

fn play(world: &Arc<World>, schedule: &mut Schedule) -> Result<(), String> {
    schedule.run_until(STORM)?;
    schedule.clear_up();
    come_to_rest(world, schedule)?;
    if verdict::use_once_more(world) > 0 {
        come_to_rest(world, schedule)?;
    }
    verdict::judge(world);
    world.witness().violation().map_or(Ok(()), Err)
}

/// Goes on until nobody has anything left to do. It is an error when that does not come.
fn come_to_rest(world: &World, schedule: &mut Schedule) -> Result<(), String> {
    let end = world.now() + REST_MAX;
    loop {
        let left = verdict::unfinished(world);
        let at_work = ["wishes", "execution"].into_iter().find(|name| schedule.is_busy(name));
        match left.or(at_work.map(|name| format!("{name} go on"))) {
            None => return Ok(()),
            Some(left) if world.now() >= end => return Err(format!("waits for ever: {left}")),
            Some(_) => schedule.run_until(world.now() + LOOK_EVERY)?,
        }
    }
}

/// A number from the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the root of the test: whoever runs it names the seeds"
)]
fn given(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// The seeds of one shard, or the one seed that somebody asked for.
fn check(shard: u64) {
    let asked = given("ROOMETTE_SEED");
    let count = given("ROOMETTE_SEEDS").unwrap_or(SEEDS);
    let seeds = (0..count).filter(|seed| asked.is_none() && seed % SHARDS == shard);
    for seed in seeds.chain(asked.filter(|_| shard == 0)) {
        if let Err(Failure { what, trace }) = simulate(seed, None) {
            let hidden = if asked.is_some() { 0 } else { trace.len().saturating_sub(TRACE_SHOWN) };
            panic!(
                "seed {seed}: {what}\n\n{}\n\nreplay it, with the whole trace:\n\
                 ROOMETTE_SEED={seed} cargo nextest run -p session-manager -E 'binary(simulation) & test(first)'\n",
                trace[hidden..].join("\n")
            );
        }
    }
}

#[test]
fn seeds_of_the_first_quarter() {
    check(0);
}

#[test]
fn seeds_of_the_second_quarter() {
    check(1);
}

#[test]
fn seeds_of_the_third_quarter() {
    check(2);
}

#[test]
fn seeds_of_the_last_quarter() {
    check(3);
}

/// A store that is wrong in this way is found within the seeds that are always run.
#[track_caller]
fn assert_found(fault: Fault, what: &str) {
    let found = (0..SEEDS).find_map(|seed| simulate(seed, Some(fault)).err().map(|failure| failure.what));
    let found = found.unwrap_or_else(|| panic!("{fault:?} goes unnoticed in {SEEDS} seeds"));
    assert!(found.contains(what), "{fault:?} is noticed as {found:?}");
}

#[test]
fn a_store_that_checks_no_fence_is_found() {
    assert_found(Fault::FenceUnchecked, "was taken at epoch");
}

#[test]
fn a_store_that_drops_callbacks_is_found() {
    assert_found(Fault::CallbackDropped, "is not told to");
}

#[test]
fn a_store_that_delivers_twice_is_found() {
    assert_found(Fault::DeliveredTwice, "and again by");
}

#[test]
fn a_store_that_appends_twice_is_found() {
    assert_found(Fault::OriginIgnored, "times the event");
}

#[test]
fn a_store_that_loses_an_append_is_found() {
    assert_found(Fault::AppendLost, "0 times the event");
}

#[test]
fn the_same_seed_is_the_same_world() {
    let traces = [(); 2].map(|()| {
        let world = World::new(7, Weather::Storm, None, &ROLES);
        let outcome = play(&world, &mut Schedule::new(Arc::clone(&world)));
        (outcome, world.trace())
    });
    assert_eq!(traces[0], traces[1]);
}
