//! The world of a simulation: one true time, the machines with their clocks and disks, chance, and the post under way.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use jiff::SignedDuration;
use session_core::Env;
use session_core::testing::{ManualClock, MemoryStore, SequentialIds};

use crate::machine::{Machine, Role};
use crate::wire::Fault;
use crate::witness::Witness;

/// The true time, in milliseconds since the beginning. No machine can read it: each has a clock of its own.
pub(crate) type Moment = u64;

/// Whatever an actor does, until it is done or its machine goes down.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Nothing.
    Clear,
    /// Answers get lost, and reports arrive late, twice and in another order.
    Mist,
    /// All that, and machines crash, halt and have their clocks stepped.
    Storm,
}

/// Something that was begun and that nobody has polled yet.
pub(crate) struct Born {
    pub(crate) machine: usize,
    pub(crate) name: String,
    pub(crate) work: Work,
}

/// A report that arrives after its sender has given up on it, or a second time.
struct Late {
    due: Moment,
    deliver: Work,
}

/// Everything of one simulation.
pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) machines: Vec<Machine>,
    pub(crate) fault: Option<Fault>,
    witness: Mutex<Witness>,
    ids: Arc<SequentialIds>,
    state: Mutex<State>,
}

struct State {
    now: Moment,
    weather: Weather,
    chance: fastrand::Rng,
    timers: BTreeMap<(Moment, u64), Waker>,
    timers_made: u64,
    born: Vec<Born>,
    late: Vec<Late>,
    trace: Vec<String>,
}

impl World {
    pub(crate) fn new(seed: u64, weather: Weather, fault: Option<Fault>, roles: &[Role]) -> Arc<Self> {
        let ids = Arc::new(SequentialIds::default());
        let machines =
            roles.iter().enumerate().map(|(place, role)| Machine::new(place, *role, &ids)).collect();
        let state = State {
            now: 0,
            weather,
            chance: fastrand::Rng::with_seed(seed),
            timers: BTreeMap::new(),
            timers_made: 0,
            born: Vec::new(),
            late: Vec::new(),
            trace: Vec::new(),
        };
        Arc::new(Self {
            store: MemoryStore::new(),
            machines,
            fault,
            witness: Mutex::new(Witness::default()),
            ids,
            state: Mutex::new(state),
        })
    }

    /// The world as one machine sees it: its own clock, and ids that are everybody's.
    pub(crate) fn env(&self, machine: usize) -> Env {
        let clock: Arc<ManualClock> = Arc::clone(&self.machines[machine].clock);
        Env { clock, ids: Arc::clone(&self.ids) as _ }
    }

    pub(crate) fn witness(&self) -> MutexGuard<'_, Witness> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Moment {
        self.state().now
    }

    pub(crate) fn weather(&self) -> Weather {
        self.state().weather
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    // Chance.

    /// A number below `bound`.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.state().chance.u64(..bound.max(1))
    }

    /// True once in `times`.
    pub(crate) fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of them; `None` where there is none.
    pub(crate) fn pick<'l, T>(&self, list: &'l [T]) -> Option<&'l T> {
        let place = self.below(u64::try_from(list.len()).unwrap_or(u64::MAX));
        list.get(usize::try_from(place).unwrap_or_default())
    }

    // Time.

    /// Lets time pass, on every machine's clock alike, and wakes those who waited for it.
    pub(crate) fn pass(&self, milliseconds: u64) {
        let by = SignedDuration::from_millis(i64::try_from(milliseconds).unwrap_or(i64::MAX));
        for machine in &self.machines {
            machine.clock.advance(by);
        }
        let mut state = self.state();
        state.now += milliseconds;
        let due = (state.now, u64::MAX);
        let later = state.timers.split_off(&due);
        let woken = std::mem::replace(&mut state.timers, later);
        drop(state);
        woken.into_values().for_each(Waker::wake);
    }

    /// When the next thing comes that somebody waits for: a time, or the post.
    pub(crate) fn next_moment(&self) -> Option<Moment> {
        let state = self.state();
        let timer = state.timers.keys().next().map(|(at, _)| *at);
        let late = state.late.iter().map(|late| late.due).min();
        timer.into_iter().chain(late).min()
    }

    /// Waits until that moment.
    pub(crate) async fn until(&self, at: Moment) {
        poll_fn(|context| {
            let mut state = self.state();
            if state.now >= at {
                return Poll::Ready(());
            }
            state.timers_made += 1;
            let key = (at, state.timers_made);
            state.timers.insert(key, context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits for so many milliseconds.
    pub(crate) async fn sleep(&self, milliseconds: u64) {
        let at = self.now() + milliseconds;
        self.until(at).await;
    }

    // The post.

    /// Begins something on this machine; it ends with the machine at the latest.
    pub(crate) fn begin(&self, machine: usize, name: String, work: Work) {
        self.state().born.push(Born { machine, name, work });
    }

    pub(crate) fn take_born(&self) -> Vec<Born> {
        std::mem::take(&mut self.state().born)
    }

    /// Leaves something to be delivered after so many milliseconds, whatever becomes of its sender.
    pub(crate) fn post(&self, after: u64, deliver: Work) {
        let mut state = self.state();
        let due = state.now + after;
        state.late.push(Late { due, deliver });
    }

    /// Delivers one thing that is due, in any order. Says whether there was one.
    pub(crate) fn deliver_one(&self) -> bool {
        let letter = {
            let mut state = self.state();
            let now = state.now;
            let due: Vec<_> = (0..state.late.len()).filter(|place| state.late[*place].due <= now).collect();
            if due.is_empty() {
                return false;
            }
            let place = due[state.chance.usize(..due.len())];
            state.late.swap_remove(place)
        };
        at_once(letter.deliver);
        true
    }

    // The trace.

    /// Writes down what happens, for whoever looks into a failure.
    pub(crate) fn note(&self, machine: usize, what: impl FnOnce() -> String) {
        let line = what();
        let name = &self.machines[machine].name;
        let mut state = self.state();
        let now = state.now;
        state.trace.push(format!("{:>9} {name:<8} {line}", Seconds(now)));
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.state().trace.clone()
    }
}

/// A moment in seconds.
struct Seconds(Moment);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}.{:03}", self.0 / 1_000, self.0 % 1_000))
    }
}

/// Lets everybody else go first.
pub(crate) async fn give_way() {
    let mut gave = false;
    poll_fn(|context| {
        if std::mem::replace(&mut gave, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// What this comes to; it must not wait for anything.
pub(crate) fn at_once<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the store in memory waits for nothing"),
    }
}
