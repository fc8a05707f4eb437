//! The registry of sessions.

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};

use crate::error::StoreResult;
use crate::event::{Event, Payload, Seq};
use crate::identity::IdentityKey;
use crate::ids::{SessionId, SessionRef};
use crate::names::{ExternalKey, Label, Principal};
use crate::ports::{Sweep, Swept};
use crate::session::{Keyed, ManagedSession, NewSession, OpenSession, Opened, SessionSummary, Validity};
use crate::state::Trigger;

/// The registry of sessions.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Gets or creates by identity, decided by one statement: any number of callers at once get one session.
    ///
    /// A known identity moves its expiry to `now + ttl` (but not past `created + lifetime`), and costs a write only
    /// when its stamp is older than [`STAMP_EVERY`]. An expired one (`expires_at <= now`) is never
    /// revived: a new session is made under the next generation, linked to the one before, which is terminated
    /// with `identity_expired` unless it is terminated already. A session that is terminated otherwise makes its
    /// identity count as expired. A new session starts `active`, with a `session.created` event; `Conflict::Exists`
    /// and `UnknownSession` as for [`create`](Self::create).
    ///
    /// A stamp that is not written leaves the expiry as it is stored, and that is what is returned: a `ttl` below
    /// [`STAMP_EVERY`] does not slide. A session that was found stays in its state.
    async fn open(&self, request: OpenSession, now: Timestamp) -> StoreResult<Opened>;

    /// Where an identity leads at the moment: `None` where [`open`](Self::open) would make a session. With `used` that is a
    /// use as it is there; without, nothing is written.
    async fn opened(
        &self,
        key: IdentityKey,
        used: Option<Validity>,
        now: Timestamp,
    ) -> StoreResult<Option<Opened>>;

    /// Gets or creates by the key that `new` must have (else `Backend`): the one live session of this owner with this
    /// key. Any number of callers at once get one session; a terminated one has given its key up.
    ///
    /// To be found is use, but wakes nobody up: `idle` becomes `active`, `suspended` stays, and `active_at` is now
    /// unless that was written within [`STAMP_EVERY`]. A new session starts as with [`create`](Self::create).
    async fn open_key(&self, new: NewSession, now: Timestamp) -> StoreResult<Keyed>;

    /// Creates a session without an identity, `active`, with a `session.created` event.
    /// `Conflict::Exists` if the id is taken, or the key by a live session of the same owner. For the sake of the parent,
    /// as [`admit`](crate::family::admit) says with what holds in the same transaction: `UnknownSession`, also if it is
    /// another owner's, `Transition` if it is terminated, `Conflict::TooDeep`, `Conflict::TooManyChildren`,
    /// `Conflict::Wider`. Where a run starts it its claim holds in that transaction too, else `UnknownRun`, `Fenced` or
    /// `Transition`; and the parent has what is set aside for it, else `Exhausted`.
    async fn create(&self, new: NewSession, now: Timestamp) -> StoreResult<ManagedSession>;

    /// Creates a session with the log of another one: numbers, times, runs and origins of `events` are kept (they
    /// must be dense from 1, else `Backend`; the `session` field is ignored). It starts `idle`. Afterwards a
    /// `session.imported` event is appended with the payload `imported`. `Conflict::Exists` if the id is taken,
    /// `UnknownSession` if the parent is not there.
    async fn import(
        &self,
        new: NewSession,
        events: Vec<Event>,
        imported: Payload,
        now: Timestamp,
    ) -> StoreResult<ManagedSession>;

    /// Creates a session, `active`, with a copy of another one's log: the events 1 to `upto` (`None` for all that
    /// there are), with their numbers, times, runs and origins, and a `session.forked` event behind them. Everything
    /// else is as `new` has it, and nothing is used up yet. The source may be in use or terminated, and is not
    /// touched.
    ///
    /// `UnknownSession` if there is no source, `Conflict::NoEvent` if `upto` is 0 or beyond its last event; otherwise
    /// as for [`create`](Self::create).
    async fn fork(
        &self,
        source: SessionId,
        upto: Option<Seq>,
        new: NewSession,
        now: Timestamp,
    ) -> StoreResult<ManagedSession>;

    /// One session.
    async fn session(&self, id: SessionId) -> StoreResult<Option<ManagedSession>>;

    /// The sessions that a person may mean, newest first, at most `limit`: the id itself; else every id that
    /// begins so; else (where the text may be one) every session with exactly this label, in whichever Unicode
    /// form it is given.
    async fn find(&self, name: &SessionRef, limit: u32) -> StoreResult<Vec<SessionId>>;

    /// One page, newest first, each session with its last run. Never counts, never skips by offset.
    async fn list(&self, filter: &SessionFilter, page: &Page) -> StoreResult<Listing>;

    /// Moves the session through its state machine (compare-and-set) and appends a `session.state` event, unless
    /// the state is the same afterwards (activity of an active session). What makes or leaves it `active` counts
    /// as use: `active_at` is now.
    ///
    /// What lets go of the session's worker (`IdleTimeout`, `GraceElapsed`, `Suspend`, `TtlExpired`, termination with
    /// `cleaned_up`) is refused (`Busy`) while the session has a run that is not over; what of that ends it, also while a live
    /// session below it has one, and then the error names that. Any other termination also ends
    /// its pending runs (`stopped`, `session_terminated`) and orders its run in flight to be killed. `UnknownSession`,
    /// or `Transition` when the table has no such step.
    async fn transition(
        &self,
        id: SessionId,
        trigger: Trigger,
        now: Timestamp,
    ) -> StoreResult<ManagedSession>;

    /// Moves on what rested for long enough, at most `limit` sessions, those first that are due for longest:
    /// `active → idle → suspended → terminated` (`ttl_expired`), several steps at once where their times have come,
    /// each with its `session.state` event. Never one with a run that is not over, and none is terminated while a live session
    /// below it has one. A suspended one to which a live identity leads stays until that expires. Returns where each is now; fewer
    /// than `limit` means that none is left.
    ///
    /// `now` is to come from a clock that is not stepped while the host lives: one that leaps forward by a day makes
    /// every suspended session's time come, and none of them comes back.
    async fn sweep(&self, sweep: &Sweep, now: Timestamp) -> StoreResult<Vec<Swept>>;

    /// Gives the session another label, or none, and appends a `session.label` event. A terminated session may
    /// be labelled too. `UnknownSession`.
    async fn relabel(&self, id: SessionId, label: Option<Label>, now: Timestamp) -> StoreResult<()>;

    /// Records that the session's workspace was removed; the first time stays. `UnknownSession`.
    async fn workspace_removed(&self, id: SessionId, now: Timestamp) -> StoreResult<()>;

    /// Forgets at most `limit` identities whose `expires_at <= now`, oldest first, and terminates their sessions
    /// (`identity_expired`) unless they are terminated or have a run that is not over. Returns the sessions whose
    /// identities were forgotten; fewer than `limit` means that none is left. Records, logs and the numbering of
    /// generations stay.
    async fn expire_identities(&self, now: Timestamp, limit: u32) -> StoreResult<Vec<SessionId>>;
}

/// How old the stamp of an identity, or of a session that is found by its key, may grow before its next use is
/// written: one minute.
pub const STAMP_EVERY: SignedDuration = SignedDuration::from_secs(60);

/// Which sessions a list shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// Only this owner's.
    pub principal: Option<Principal>,
    /// Only the live one of each owner that bears this key.
    pub key: Option<ExternalKey>,
    /// Only those with this label.
    pub label: Option<Label>,
    /// Only children of this session.
    pub parent: Option<SessionId>,
    /// Only those with a run that is not over.
    pub busy: bool,
    /// Only those whose workspace was not removed.
    pub with_workspace: bool,
    /// Leave out terminated ones.
    pub live: bool,
}

/// Which part of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Begin behind this place; `None` for the beginning.
    pub after: Option<Cursor>,
    /// At most so many; 1 to [`Page::MAX`].
    pub limit: u32,
}

impl Page {
    /// The most that one page holds.
    pub const MAX: u32 = 1_000;

    /// The first page of this size, cut to 1 … [`Page::MAX`].
    #[must_use]
    pub fn first(limit: u32) -> Self {
        Self { after: None, limit: limit.clamp(1, Self::MAX) }
    }

    /// The page behind this place.
    #[must_use]
    pub fn after(self, cursor: Cursor) -> Self {
        Self { after: Some(cursor), ..self }
    }
}

/// A place in a list: the last session that was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// When it was created.
    pub created_at: Timestamp,
    /// Its id, which orders sessions of one instant.
    pub id: SessionId,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The sessions, newest first.
    pub items: Vec<SessionSummary>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
}
