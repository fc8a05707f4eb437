//! Room for server processes: how many there may be at once, who gives way when somebody waits, and how many begin at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use session_core::names::Principal;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, interval, timeout};

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
    /// How long somebody waits for room.
    limit: Duration,
    /// Who has rested for less than this is not asked to give way.
    rest: Duration,
    taken: Arc<Mutex<Taken>>,
    starts: Arc<Semaphore>,
    starts_each: usize,
    starting: Mutex<HashMap<Principal, Arc<Semaphore>>>,
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

impl Places {
    pub(crate) fn new(settings: &Settings) -> Self {
        let caps = settings.caps;
        Self {
            room: Arc::new(Semaphore::new(caps.processes)),
            max: caps.processes,
            limit: settings.times.room,
            rest: settings.times.rest,
            taken: Arc::default(),
            starts: Arc::new(Semaphore::new(caps.starts)),
            // One who asks for many leaves turns for others.
            starts_each: caps.starts.div_ceil(2),
            starting: Mutex::default(),
        }
    }

    /// A place for a process of this one's. Where there is none, the session that rests longest gives way, this one's own
    /// before another's. Without a `rest` it never gives way itself.
    pub(crate) async fn take(
        &self,
        principal: &Principal,
        rest: Option<Arc<Rest>>,
    ) -> Result<Place, HostError> {
        let room = Arc::clone(&self.room);
        let waiting = async {
            if let Ok(permit) = Arc::clone(&room).try_acquire_owned() {
                return Ok(permit);
            }
            let mut nudge = interval(NUDGE);
            let acquired = room.acquire_owned();
            tokio::pin!(acquired);
            loop {
                tokio::select! {
                    permit = &mut acquired => return permit,
                    now = nudge.tick() => self.give_way(principal, now),
                }
            }
        };
        match timeout(self.limit, waiting).await {
            Ok(Ok(permit)) => Ok(self.seat(permit, principal, rest)),
            // The first never happens: it is not closed.
            Ok(Err(_)) | Err(_) => Err(HostError::Limit {
                message: format!("as many servers are at work as may be ({})", self.max),
                retry_after: RETRY_AFTER,
            }),
        }
    }

    fn seat(&self, permit: OwnedSemaphorePermit, principal: &Principal, rest: Option<Arc<Rest>>) -> Place {
        let number = rest.map(|rest| {
            let mut taken = locked(&self.taken);
            taken.next += 1;
            let number = taken.next;
            taken.seats.insert(number, Seat { principal: principal.clone(), rest, asked: None });
            number
        });
        Place { taken: Arc::clone(&self.taken), number, _permit: permit }
    }

    /// Asks one to give way, if there is one that rests.
    fn give_way(&self, principal: &Principal, now: Instant) {
        let mut taken = locked(&self.taken);
        let resting = taken.seats.values_mut().filter_map(|seat| {
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
        let own = {
            let mut starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody waits for one that is held here alone.
            starting.retain(|_, turns| {
                Arc::strong_count(turns) > 1 || turns.available_permits() < self.starts_each
            });
            let fresh = || Arc::new(Semaphore::new(self.starts_each));
            Arc::clone(starting.entry(principal.clone()).or_insert_with(fresh))
        };
        // Neither is ever closed: there is always a turn sooner or later.
        let own = own.acquire_owned().await.ok();
        Starting { _own: own, _all: Arc::clone(&self.starts).acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Caps, Times};

    fn places(processes: usize) -> Places {
        let caps = Caps { processes, starts: 2, ..Caps::default() };
        let times =
            Times { room: Duration::from_millis(20), rest: Duration::from_secs(10), ..Times::default() };
        Places::new(&Settings { times, caps, ..Settings::default() })
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
        let (ada, bob) = (principal("ada"), principal("bob"));
        let rests: [Arc<Rest>; 3] = [(); 3].map(|()| Arc::default());
        let mut taken = Vec::new();
        for (rest, whose) in rests.iter().zip([&ada, &bob, &bob]) {
            taken.push(places.take(whose, Some(Arc::clone(rest))).await.unwrap());
        }
        let later = now + Duration::from_secs(20);
        places.give_way(&bob, later);
        for (rest, since) in rests.iter().zip([3, 4, 1]) {
            assert!(!is_asked(rest).await, "it is at work");
            rest.set(Some(now + Duration::from_secs(since)));
        }
        places.give_way(&bob, now + Duration::from_secs(5));
        assert!(!is_asked(&rests[2]).await, "it has hardly rested");
        for asked in [2, 1, 0] {
            places.give_way(&bob, later);
            assert!(is_asked(&rests[asked]).await, "{asked}");
        }
        places.give_way(&bob, later);
        assert!(!is_asked(&rests[2]).await, "once for one rest");
        let full = places.take(&ada, None).await.unwrap_err();
        assert!(full.to_string().contains("as many servers"), "{full}");
        taken.pop();
        let _provisional = places.take(&ada, None).await.unwrap();
        assert_eq!(locked(&places.taken).seats.len(), 2);
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
