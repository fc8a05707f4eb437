//! Room for server processes: how many there may be at once, who gives way when somebody waits, and how many begin at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use session_core::names::Principal;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, interval, timeout_at};

use crate::host::HostError;
use crate::settings::Settings;

/// Who waits for room asks another to give way this often.
const NUDGE: Duration = Duration::from_secs(1);
/// When to try again where there was no room.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The places of all server processes.
#[derive(Debug)]
pub(crate) struct Places {
    room: Arc<Semaphore>,
    max: usize,
    /// Whose places are not counted: one who has a host alone has all of it.
    owner: Principal,
    each: Each,
    /// How long somebody waits for room.
    limit: Duration,
    /// Who has rested for less than this is not asked to give way.
    rest: Duration,
    taken: Arc<Mutex<Taken>>,
    starts: Arc<Semaphore>,
    starts_each: Each,
    /// Servers that are only asked how they begin: they never give way.
    asked_each: Each,
}

/// Something of which each principal has so much at the most.
#[derive(Debug)]
struct Each {
    max: usize,
    by: Mutex<HashMap<Principal, Arc<Semaphore>>>,
}

impl Each {
    fn new(max: usize) -> Self {
        Self { max, by: Mutex::default() }
    }

    fn of(&self, principal: &Principal) -> Arc<Semaphore> {
        let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody waits for one that is held here alone.
        by.retain(|_, own| Arc::strong_count(own) > 1 || own.available_permits() < self.max);
        let fresh = || Arc::new(Semaphore::new(self.max));
        Arc::clone(by.entry(principal.clone()).or_insert_with(fresh))
    }
}

/// Who may be asked to give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Sessions of the one who waits.
    Own,
    /// Anybody's, its own first.
    Any,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    seats: HashMap<u64, Seat>,
}

/// A process that may give way.
#[derive(Debug)]
struct Seat {
    principal: Principal,
    rest: Arc<Rest>,
    /// Since when it rested when it was asked to give way: it is not asked twice for one rest.
    asked: Option<Instant>,
}

/// Whether nobody needs the process of a session just now, and that somebody else wants its room.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    since: Mutex<Option<Instant>>,
    wanted: Notify,
}

impl Rest {
    /// Since when nobody needs it; `None` while somebody does.
    pub(crate) fn set(&self, since: Option<Instant>) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn since(&self) -> Option<Instant> {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes when its room is wanted.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

/// The place of one process, for as long as it is there.
#[derive(Debug)]
pub(crate) struct Place {
    taken: Arc<Mutex<Taken>>,
    number: Option<u64>,
    /// Of those that are only asked something.
    _asked: Option<OwnedSemaphorePermit>,
    _own: Option<OwnedSemaphorePermit>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            locked(&self.taken).seats.remove(&number);
        }
    }
}

/// The turn of a process that begins, for as long as it does.
#[derive(Debug)]
pub(crate) struct Starting {
    _own: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    // Every change is one assignment: a panic cannot leave it half done.
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

fn full(message: String) -> HostError {
    HostError::Limit { message, retry_after: RETRY_AFTER }
}

impl Places {
    pub(crate) fn new(settings: &Settings, owner: Principal) -> Self {
        let caps = settings.caps;
        Self {
            room: Arc::new(Semaphore::new(caps.processes)),
            max: caps.processes,
            owner,
            // One who is at work with many leaves room for others.
            each: Each::new(caps.processes.div_ceil(2)),
            limit: settings.times.room,
            rest: settings.times.rest,
            taken: Arc::default(),
            starts: Arc::new(Semaphore::new(caps.starts)),
            starts_each: Each::new(caps.starts.div_ceil(2)),
            asked_each: Each::new(caps.starts.div_ceil(2)),
        }
    }

    /// A place for a process that is only asked something. It never gives way, so who asks many waits for its own.
    pub(crate) async fn ask(&self, principal: &Principal) -> Result<Place, HostError> {
        let until = Instant::now() + self.limit;
        let asked = timeout_at(until, self.asked_each.of(principal).acquire_owned()).await;
        // Never closed.
        let asked = asked.ok().and_then(Result::ok).ok_or_else(|| {
            let max = self.asked_each.max;
            full(format!("as many servers are asked how they begin for you as may be ({max})"))
        })?;
        self.take_until(until, Some(asked), principal, None).await
    }

    /// A place for a process of this one's. Where there is none, the session that rests longest gives way, this one's own
    /// before another's. Without a `rest` it never gives way itself.
    pub(crate) async fn take(
        &self,
        principal: &Principal,
        rest: Option<Arc<Rest>>,
    ) -> Result<Place, HostError> {
        self.take_until(Instant::now() + self.limit, None, principal, rest).await
    }

    async fn take_until(
        &self,
        until: Instant,
        asked: Option<OwnedSemaphorePermit>,
        principal: &Principal,
        rest: Option<Arc<Rest>>,
    ) -> Result<Place, HostError> {
        let mut own = None;
        if *principal != self.owner {
            let waiting = self.wait(self.each.of(principal), principal, Whose::Own);
            own = Some(timeout_at(until, waiting).await.ok().flatten().ok_or_else(|| {
                let (each, max) = (self.each.max, self.max);
                full(format!("as many of your servers are at work as one may have ({each} of {max})"))
            })?);
        }
        let waiting = self.wait(Arc::clone(&self.room), principal, Whose::Any);
        let permit = timeout_at(until, waiting).await.ok().flatten();
        let permit =
            permit.ok_or_else(|| full(format!("as many servers are at work as may be ({})", self.max)))?;
        Ok(self.seat([asked, own], permit, principal, rest))
    }

    /// Waits for one of these. `None` never comes: they are not closed.
    async fn wait(
        &self,
        room: Arc<Semaphore>,
        principal: &Principal,
        whose: Whose,
    ) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(&room).try_acquire_owned() {
            return Some(permit);
        }
        let mut nudge = interval(NUDGE);
        let acquired = room.acquire_owned();
        tokio::pin!(acquired);
        loop {
            tokio::select! {
                permit = &mut acquired => return permit.ok(),
                now = nudge.tick() => self.give_way(principal, whose, now),
            }
        }
    }

    fn seat(
        &self,
        [asked, own]: [Option<OwnedSemaphorePermit>; 2],
        permit: OwnedSemaphorePermit,
        principal: &Principal,
        rest: Option<Arc<Rest>>,
    ) -> Place {
        let number = rest.map(|rest| {
            let mut taken = locked(&self.taken);
            taken.next += 1;
            let number = taken.next;
            taken.seats.insert(number, Seat { principal: principal.clone(), rest, asked: None });
            number
        });
        Place { taken: Arc::clone(&self.taken), number, _asked: asked, _own: own, _permit: permit }
    }

    /// Asks one to give way, if there is one that rests.
    fn give_way(&self, principal: &Principal, whose: Whose, now: Instant) {
        let mut taken = locked(&self.taken);
        let may = |seat: &&mut Seat| whose == Whose::Any || seat.principal == *principal;
        let resting = taken.seats.values_mut().filter(may).filter_map(|seat| {
            let since =
                seat.rest.since().filter(|since| now.saturating_duration_since(*since) >= self.rest)?;
            (seat.asked != Some(since)).then_some((since, seat))
        });
        let longest = resting.min_by_key(|(since, seat)| (seat.principal != *principal, *since));
        if let Some((since, seat)) = longest {
            seat.asked = Some(since);
            seat.rest.wanted.notify_one();
        }
    }

    /// The turn of this one to start a process.
    pub(crate) async fn start(&self, principal: &Principal) -> Starting {
        // Neither is ever closed: there is always a turn sooner or later.
        let own = self.starts_each.of(principal).acquire_owned().await.ok();
        Starting { _own: own, _all: Arc::clone(&self.starts).acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::settings::{Caps, Times};

    fn places(processes: usize) -> Places {
        let caps = Caps { processes, starts: 2, ..Caps::default() };
        let times =
            Times { room: Duration::from_millis(20), rest: Duration::from_secs(10), ..Times::default() };
        Places::new(&Settings { times, caps, ..Settings::default() }, principal("owner"))
    }

    fn principal(name: &str) -> Principal {
        name.parse().unwrap()
    }

    async fn is_asked(rest: &Rest) -> bool {
        timeout(Duration::ZERO, rest.wanted()).await.is_ok()
    }

    #[tokio::test]
    async fn who_rests_longest_gives_way_and_ones_own_before_anothers() {
        let (places, now) = (places(3), Instant::now());
        let give_way = |now| places.give_way(&principal("bob"), Whose::Any, now);
        let (ada, bob) = (principal("ada"), principal("bob"));
        let rests: [Arc<Rest>; 3] = [(); 3].map(|()| Arc::default());
        let mut taken = Vec::new();
        for (rest, whose) in rests.iter().zip([&ada, &bob, &bob]) {
            taken.push(places.take(whose, Some(Arc::clone(rest))).await.unwrap());
        }
        let later = now + Duration::from_secs(20);
        give_way(later);
        for (rest, since) in rests.iter().zip([3, 4, 1]) {
            assert!(!is_asked(rest).await, "it is at work");
            rest.set(Some(now + Duration::from_secs(since)));
        }
        give_way(now + Duration::from_secs(5));
        assert!(!is_asked(&rests[2]).await, "it has hardly rested");
        for asked in [2, 1, 0] {
            give_way(later);
            assert!(is_asked(&rests[asked]).await, "{asked}");
        }
        give_way(later);
        assert!(!is_asked(&rests[2]).await, "once for one rest");
        let full = places.take(&ada, None).await.unwrap_err();
        assert!(full.to_string().contains("as many servers"), "{full}");
        taken.pop();
        let _provisional = places.take(&ada, None).await.unwrap();
        assert_eq!(locked(&places.taken).seats.len(), 2);
    }

    #[tokio::test]
    async fn one_principal_has_half_and_the_hosts_own_user_what_there_is() {
        let (places, now) = (places(4), Instant::now());
        let (ada, bob, owner) = (principal("ada"), principal("bob"), principal("owner"));
        let rests: [Arc<Rest>; 3] = [(); 3].map(|()| Arc::default());
        let mut hers = Vec::new();
        for rest in &rests[..2] {
            hers.push(places.take(&ada, Some(Arc::clone(rest))).await.unwrap());
        }
        let _his = places.take(&bob, Some(Arc::clone(&rests[2]))).await.unwrap();
        let full = places.take(&ada, None).await.unwrap_err();
        assert!(full.to_string().contains("(2 of 4)"), "{full}");
        // Another's place would be of no use to her.
        for (rest, since) in rests.iter().zip([2, 1, 0]) {
            rest.set(Some(now + Duration::from_secs(since)));
        }
        places.give_way(&ada, Whose::Own, now + Duration::from_secs(20));
        assert!(is_asked(&rests[1]).await && !is_asked(&rests[2]).await);
        let _last = places.take(&owner, None).await.unwrap();
        hers.clear();
        let _all = (places.take(&owner, None).await.unwrap(), places.take(&owner, None).await.unwrap());
    }

    #[tokio::test]
    async fn one_who_asks_many_waits_for_its_own() {
        let places = places(4);
        let (ada, bob) = (principal("ada"), principal("bob"));
        let first = places.ask(&ada).await.unwrap();
        assert!(timeout(Duration::ZERO, places.ask(&ada)).await.is_err(), "it has its share");
        let _other = places.ask(&bob).await.unwrap();
        drop(first);
        let _again = places.ask(&ada).await.unwrap();
    }

    #[tokio::test]
    async fn one_who_starts_many_leaves_turns_for_others() {
        let places = places(3);
        let first = places.start(&principal("ada")).await;
        let second = timeout(Duration::ZERO, places.start(&principal("ada"))).await;
        assert!(second.is_err(), "it has its share");
        let _other = timeout(Duration::ZERO, places.start(&principal("bob"))).await.unwrap();
        drop(first);
        let _again = places.start(&principal("ada")).await;
    }
}
