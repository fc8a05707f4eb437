//! The scheduler: one thread, and chance decides who is polled next, how much time passes, and what goes wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use jiff::SignedDuration;
use session_core::Clock as _;
use session_core::testing::ManualClock;

use crate::machine::{Life, Role};
use crate::world::{Born, Moment, Weather, Work, World};
use crate::{client, coordinator, runner};

/// More steps than any seed takes: what needs more goes round in circles.
const STEPS_MAX: u32 = 400_000;

/// Something that is under way on a machine.
struct Actor {
    machine: usize,
    name: String,
    work: Work,
    ready: Arc<Ready>,
}

/// Whether an actor has something to do.
struct Ready(AtomicBool);

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls whoever is ready, one at a time.
pub(crate) struct Schedule {
    world: Arc<World>,
    actors: Vec<Actor>,
    steps: u32,
}

impl Schedule {
    pub(crate) fn new(world: Arc<World>) -> Self {
        Self { world, actors: Vec::new(), steps: 0 }
    }

    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }

    /// Goes on until that moment, or until something is wrong. An error says what.
    pub(crate) fn run_until(&mut self, end: Moment) -> Result<(), String> {
        while self.world.now() < end {
            self.step(end)?;
            if let Some(violation) = self.world.witness().violation() {
                return Err(violation);
            }
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(format!("{STEPS_MAX} steps, and no end of it"));
            }
        }
        Ok(())
    }

    /// Whether something of this name is under way.
    pub(crate) fn is_busy(&self, name: &str) -> bool {
        self.actors.iter().any(|actor| actor.name.starts_with(name))
    }

    fn step(&mut self, end: Moment) -> Result<(), String> {
        let world = Arc::clone(&self.world);
        self.take_up();
        if world.weather() == Weather::Storm && world.one_in(120) {
            self.strike();
        }
        if world.one_in(2) && world.deliver_one() {
            return Ok(());
        }
        let now = world.now();
        let halted =
            |actor: &Actor| world.machines[actor.machine].life().halted_until.is_some_and(|at| at > now);
        let ready = |actor: &Actor| actor.ready.0.load(Ordering::Relaxed) && !halted(actor);
        let ready: Vec<_> = (0..self.actors.len()).filter(|place| ready(&self.actors[*place])).collect();
        let Some(&next) = world.pick(&ready) else {
            // Nobody has anything to do: time passes until somebody has.
            let next = self.next_moment().unwrap_or(end).clamp(now + 1, end.max(now + 1));
            world.pass(next - now);
            return Ok(());
        };
        self.poll(next)?;
        if world.one_in(4) {
            world.pass(1 + world.below(30));
        }
        Ok(())
    }

    /// When the next thing comes that somebody waits for.
    fn next_moment(&self) -> Option<Moment> {
        let now = self.world.now();
        let lives = self.world.machines.iter().map(|machine| *machine.life());
        let machines = lives.flat_map(|Life { starts_at, halted_until }| [starts_at, halted_until]);
        let machines = machines.flatten().filter(|at| *at > now);
        machines.chain(self.world.next_moment()).min()
    }

    /// Starts the hosts whose time has come, and takes up what was begun.
    fn take_up(&mut self) {
        let now = self.world.now();
        for (place, machine) in self.world.machines.iter().enumerate() {
            let due = machine.life().starts_at.is_some_and(|at| at <= now);
            if due {
                machine.life().starts_at = None;
                self.world.note(place, || "starts".into());
                match machine.role {
                    Role::Coordinator => coordinator::start(&self.world, place),
                    Role::Runner => runner::start(&self.world, place),
                    Role::Client => client::start(&self.world, place),
                }
            }
        }
        for Born { machine, name, work } in self.world.take_born() {
            let ready = Arc::new(Ready(AtomicBool::new(true)));
            self.actors.push(Actor { machine, name, work, ready });
        }
    }

    fn poll(&mut self, place: usize) -> Result<(), String> {
        let actor = &mut self.actors[place];
        actor.ready.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&actor.ready));
        let work = &mut actor.work;
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(&waker))));
        match polled {
            Ok(Poll::Pending) => Ok(()),
            Ok(Poll::Ready(())) => {
                let _done = self.actors.swap_remove(place);
                Ok(())
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something");
                Err(format!("{} panicked: {text}", actor.name))
            }
        }
    }

    /// Something goes wrong with a machine.
    fn strike(&mut self) {
        let world = Arc::clone(&self.world);
        let place = usize::try_from(world.below(world.machines.len() as u64)).unwrap_or_default();
        let machine = &world.machines[place];
        let (now, life) = (world.now(), *machine.life());
        if machine.role == Role::Client
            || life.starts_at.is_some()
            || life.halted_until.is_some_and(|at| at > now)
        {
            return;
        }
        world.witness().disturbed = true;
        match world.below(4) {
            0 => {
                let milliseconds = 1_000 * (1 + world.below(200));
                world.note(place, || format!("halts for {milliseconds} ms"));
                machine.life().halted_until = Some(now + milliseconds);
            }
            1 => {
                let seconds = i64::try_from(world.below(600)).unwrap_or_default() - 300;
                world.note(place, || format!("its clock is stepped by {seconds} s"));
                machine.clock.set(machine.clock.now() + SignedDuration::from_secs(seconds));
            }
            power => {
                let after = 1_000 * (1 + world.below(150));
                let how = if power == 2 { "its host is killed" } else { "its power is cut" };
                world.note(place, || format!("{how}, back after {after} ms"));
                self.crash(place, power == 3, now + after);
            }
        }
    }

    /// Drops everything that is under way on a machine, wherever it waits.
    fn crash(&mut self, place: usize, power: bool, back_at: Moment) {
        let world = &self.world;
        let machine = &world.machines[place];
        self.actors.retain(|actor| actor.machine != place);
        *machine.life() = Life { starts_at: Some(back_at), halted_until: None };
        if power {
            machine.lose_power(world.now());
        } else {
            machine.lose_host(world.now());
        }
    }

    /// Nothing goes wrong any more: whoever is down comes back, and the clocks are set right.
    pub(crate) fn clear_up(&mut self) {
        let world = &self.world;
        world.set_weather(Weather::Clear);
        let since = SignedDuration::from_millis(i64::try_from(world.now()).unwrap_or(i64::MAX));
        let right = ManualClock::default().now() + since;
        for machine in &world.machines {
            machine.clock.set(right);
            let mut life = machine.life();
            life.halted_until = None;
            life.starts_at = life.starts_at.map(|_| world.now());
        }
        world.note(0, || "the weather clears".into());
    }
}
