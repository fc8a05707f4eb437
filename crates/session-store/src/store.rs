//! The store: how it is opened and closed, and which way each method of the ports takes.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;
use session_core::approval::{Approval, NewApproval, Reply, Withdrawal};
use session_core::budget::{Account, BudgetChange, Usage};
use session_core::event::{Event, NewEvent, Note, Payload, Seq};
use session_core::identity::IdentityKey;
use session_core::ids::{ApprovalId, RunId, SessionId, SessionRef};
use session_core::names::{Label, Principal};
use session_core::ports::{
    Appended, ApprovalFilter, ApprovalStore, Author, EventStore, Ledger, Listing, NotePart, Page,
    SessionFilter, SessionStore, Sweep, Swept, Wakes,
};
use session_core::run::Fence;
use session_core::session::{Keyed, ManagedSession, NewSession, OpenSession, Opened, Validity};
use session_core::state::Trigger;
use session_core::wake::{Listener, Topic, WakeHub};
use session_core::{StoreError, StoreResult};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::conn::{Pool, Pooled};
use crate::identity::{self, Looked};
use crate::migrate::MIGRATIONS;
use crate::open::{OpenError, OpenOptions};
use crate::plan::Batch;
use crate::postgres::{self, Changes, Lanes};
use crate::url::StoreUrl;
use crate::writer::{Asked, Job, QUEUE_MAX, Writer, ended};
use crate::{approvals, connect, history, keys, ledger, sessions, sweep, tx};

/// A store on SQLite or PostgreSQL. Clones share everything.
#[derive(Clone)]
pub struct SqlStore {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    hub: WakeHub,
    writing: Writing,
    /// Ends the tasks when the last clone goes, also when nobody closed the store.
    stop: DropGuard,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// How this store writes.
enum Writing {
    /// Not at all.
    No,
    /// Through the one writer of an SQLite file.
    Queue(mpsc::Sender<Job>),
    /// In transactions of their own on PostgreSQL, and appends in groups.
    Pool(Lanes, Changes),
}

impl SqlStore {
    /// Opens a store to write: makes or migrates its schema, and starts its writer.
    ///
    /// Fails with the reason and leaves the store as it was. Must be called within a tokio runtime.
    pub async fn open(url: &StoreUrl, options: OpenOptions) -> Result<Self, OpenError> {
        let hub = WakeHub::default();
        let stop = CancellationToken::new();
        match url {
            StoreUrl::Sqlite(file) => {
                let connection = connect::sqlite_writer(file, &options, MIGRATIONS).await?;
                let (sender, jobs) = mpsc::channel(QUEUE_MAX);
                let writer = Writer::new(connection, jobs, hub.clone(), stop.clone(), file);
                let tasks = vec![tokio::spawn(writer.run())];
                let pool = Pool::Sqlite(connect::sqlite_readers(file));
                Ok(Self::of(pool, hub, Writing::Queue(sender), stop, tasks))
            }
            StoreUrl::Postgres(url) => {
                let (connection, options) = connect::postgres(url).await?;
                connect::migrate_postgres(connection).await?;
                let pool = connect::postgres_pool(options);
                let (lanes, mut tasks) = Lanes::start(&pool, &hub, &stop);
                tasks.push(tokio::spawn(postgres::listen(pool.clone(), hub.clone(), stop.clone())));
                let writing = Writing::Pool(lanes, Changes::new(&pool, &hub));
                Ok(Self::of(Pool::Postgres(pool), hub, writing, stop, tasks))
            }
        }
    }

    /// Opens a store only to read, beside whoever writes it. Never writes and never migrates: `NoSchema`,
    /// `SchemaOlder` or `SchemaNewer` where the schema is not this program's. Every writing method answers
    /// [`StoreError::Unavailable`]. On SQLite, wake-ups have to be fed to [`wake_hub`](Self::wake_hub).
    pub async fn open_reader(url: &StoreUrl) -> Result<Self, OpenError> {
        let hub = WakeHub::default();
        let stop = CancellationToken::new();
        match url {
            StoreUrl::Sqlite(file) => {
                let pool = connect::sqlite_readers(file);
                connect::check_sqlite(&pool, file).await?;
                Ok(Self::of(Pool::Sqlite(pool), hub, Writing::No, stop, Vec::new()))
            }
            StoreUrl::Postgres(address) => {
                let (connection, options) = connect::postgres(address).await?;
                connect::check_postgres(connection, &url.to_string()).await?;
                let pool = connect::postgres_pool(options);
                let listener = postgres::listen(pool.clone(), hub.clone(), stop.clone());
                let tasks = vec![tokio::spawn(listener)];
                Ok(Self::of(Pool::Postgres(pool), hub, Writing::No, stop, tasks))
            }
        }
    }

    fn of(
        pool: Pool,
        hub: WakeHub,
        writing: Writing,
        stop: CancellationToken,
        tasks: Vec<JoinHandle<()>>,
    ) -> Self {
        let inner = Inner { pool, hub, writing, stop: stop.drop_guard(), tasks: Mutex::new(tasks) };
        Self { inner: Arc::new(inner) }
    }

    /// Finishes what is in the queue, ends every task, and closes the connections. The other clones of this store
    /// answer [`StoreError::Unavailable`] from then on.
    pub async fn close(self) {
        self.inner.stop.token().cancel();
        let tasks = std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        if let Pool::Sqlite(readers) = &self.inner.pool {
            // Before the writer ends: a reader would hold up its last checkpoint.
            readers.close().await;
        }
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the store failed");
            }
        }
        if let Writing::Pool(_, changes) = &self.inner.writing {
            changes.ended().await;
        }
        // A change that is left to itself keeps its connection.
        if tokio::time::timeout(postgres::ENDED_BOUND, self.inner.pool.close()).await.is_err() {
            tracing::warn!("the connections of the store are still in use, and are left to themselves");
        }
    }

    /// The hub that passes this store's wake-ups on. What happened in another process can be told to it.
    #[must_use]
    pub fn wake_hub(&self) -> &WakeHub {
        &self.inner.hub
    }

    async fn connection(&self) -> StoreResult<Pooled> {
        self.inner.pool.acquire().await
    }

    /// Makes a change: all of it or nothing.
    async fn change<T: Send + 'static>(&self, change: tx::Change<T>) -> StoreResult<T> {
        match &self.inner.writing {
            Writing::Queue(queue) => {
                let (reply, answer) = oneshot::channel();
                let job = Job::Change(Box::new(Asked { change, outcome: None, reply }));
                queue.send(job).await.map_err(|_| ended())?;
                answer.await.map_err(|_| ended())?
            }
            Writing::Pool(_, changes) => changes.change(change).await,
            Writing::No => Err(read_only()),
        }
    }
}

impl fmt::Debug for SqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (database, writes) = match (&self.inner.pool, &self.inner.writing) {
            (Pool::Sqlite(_), writing) => ("SQLite", !matches!(writing, Writing::No)),
            (Pool::Postgres(_), writing) => ("PostgreSQL", !matches!(writing, Writing::No)),
        };
        f.debug_struct("SqlStore")
            .field("database", &database)
            .field("writes", &writes)
            .finish_non_exhaustive()
    }
}

fn read_only() -> StoreError {
    StoreError::Unavailable("the store was opened only to read".into())
}

/// A change with its values: they are shared, because a transaction may have to be tried again.
macro_rules! change {
    ($store:expr, [$($value:ident),*], $tx:ident => $body:expr) => {{
        $(let $value = Arc::new($value);)*
        $store.change(Box::new(move |$tx| {
            $(let $value = Arc::clone(&$value);)*
            Box::pin(async move { $body.await })
        }))
    }};
}

impl SqlStore {
    /// Where an identity leads that is valid, which is a use of it: a read, and a write where its stamp is old.
    async fn led_to(
        &self,
        key: IdentityKey,
        validity: Validity,
        now: Timestamp,
    ) -> StoreResult<Option<Opened>> {
        let looked = identity::look(&mut self.connection().await?.conn(), validity, key, now).await?;
        match looked {
            Looked::Found(found) => Ok(Some(found)),
            Looked::Undecided => Ok(None),
            Looked::Stale { found, expires_at } => {
                let session = found.session;
                if change!(self, [], tx => identity::stamp(tx, key, session, now, expires_at)).await? {
                    return Ok(Some(Opened { stamped: true, expires_at, ..found }));
                }
                // Somebody else wrote it, or it is over.
                identity::opened(&mut self.connection().await?.conn(), key, now).await
            }
        }
    }
}

// Behind the macro that they use.
mod coordinator;
mod legacy;
mod runs;

#[async_trait]
impl SessionStore for SqlStore {
    async fn open(&self, request: OpenSession, now: Timestamp) -> StoreResult<Opened> {
        let key = request.identity.key();
        if let Some(found) = self.led_to(key, request.validity(), now).await? {
            return Ok(found);
        }
        change!(self, [request], tx => identity::open(tx, &request, now)).await
    }

    async fn opened(
        &self,
        key: IdentityKey,
        used: Option<Validity>,
        now: Timestamp,
    ) -> StoreResult<Option<Opened>> {
        match used {
            Some(validity) => self.led_to(key, validity, now).await,
            None => identity::opened(&mut self.connection().await?.conn(), key, now).await,
        }
    }

    async fn open_key(&self, new: NewSession, now: Timestamp) -> StoreResult<Keyed> {
        if let Some(session) = keys::look(&mut self.connection().await?.conn(), &new, now).await? {
            return Ok(Keyed { session, created: false });
        }
        change!(self, [new], tx => keys::open(tx, &new, now)).await
    }

    async fn create(&self, new: NewSession, now: Timestamp) -> StoreResult<ManagedSession> {
        change!(self, [new], tx => tx.create(&new, None, now)).await
    }

    async fn import(
        &self,
        new: NewSession,
        events: Vec<Event>,
        imported: Payload,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        change!(self, [new, events, imported], tx => sessions::import(tx, &new, &events, &imported, now))
            .await
    }

    async fn fork(
        &self,
        source: SessionId,
        upto: Option<Seq>,
        new: NewSession,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        change!(self, [new], tx => keys::fork(tx, source, upto, &new, now)).await
    }

    async fn session(&self, id: SessionId) -> StoreResult<Option<ManagedSession>> {
        sessions::session(&mut self.connection().await?.conn(), id).await
    }

    async fn find(&self, name: &SessionRef, limit: u32) -> StoreResult<Vec<SessionId>> {
        sessions::find(&mut self.connection().await?.conn(), name, limit).await
    }

    async fn list(&self, filter: &SessionFilter, page: &Page) -> StoreResult<Listing> {
        sessions::list(&mut self.connection().await?.conn(), filter, page).await
    }

    async fn transition(
        &self,
        id: SessionId,
        trigger: Trigger,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        change!(self, [], tx => sessions::transition(tx, id, trigger, now)).await
    }

    async fn sweep(&self, sweep: &Sweep, now: Timestamp) -> StoreResult<Vec<Swept>> {
        let sweep = sweep.clone();
        change!(self, [sweep], tx => sweep::sweep(tx, &sweep, now)).await
    }

    async fn relabel(&self, id: SessionId, label: Option<Label>, now: Timestamp) -> StoreResult<()> {
        change!(self, [label], tx => sessions::relabel(tx, id, label.as_ref().as_ref(), now)).await
    }

    async fn workspace_removed(&self, id: SessionId, now: Timestamp) -> StoreResult<()> {
        change!(self, [], tx => sessions::workspace_removed(tx, id, now)).await
    }

    async fn expire_identities(&self, now: Timestamp, limit: u32) -> StoreResult<Vec<SessionId>> {
        change!(self, [], tx => identity::expire(tx, now, limit)).await
    }
}

#[async_trait]
impl EventStore for SqlStore {
    async fn append(&self, author: Author, batch: Vec<NewEvent>, now: Timestamp) -> StoreResult<Appended> {
        let batch = Batch { author, events: batch, at: now };
        match &self.inner.writing {
            Writing::Queue(queue) => {
                let (reply, answer) = oneshot::channel();
                queue.send(Job::Append(batch, reply)).await.map_err(|_| ended())?;
                answer.await.map_err(|_| ended())?
            }
            Writing::Pool(lanes, _) => lanes.append(batch).await,
            Writing::No => Err(read_only()),
        }
    }

    async fn read(&self, session: SessionId, after: Seq, limit: u32) -> StoreResult<Vec<Event>> {
        history::read(&mut self.connection().await?.conn(), session, after, limit).await
    }

    async fn tail(&self, session: SessionId, limit: u32) -> StoreResult<Vec<Event>> {
        history::tail(&mut self.connection().await?.conn(), session, limit).await
    }

    async fn notes(&self, session: SessionId, note: Note, part: NotePart) -> StoreResult<Vec<Event>> {
        history::notes(&mut self.connection().await?.conn(), session, note, part).await
    }
}

#[async_trait]
impl Ledger for SqlStore {
    async fn reserve(&self, session: SessionId, worst: Usage, _: Timestamp) -> StoreResult<Account> {
        change!(self, [], tx => ledger::reserve(tx, session, worst)).await
    }

    async fn settle(
        &self,
        session: SessionId,
        worst: Usage,
        actual: Usage,
        run: Option<RunId>,
        now: Timestamp,
    ) -> StoreResult<Account> {
        change!(self, [], tx => ledger::settle(tx, session, worst, actual, run, now)).await
    }

    async fn forfeit(&self, session: SessionId, now: Timestamp) -> StoreResult<Account> {
        change!(self, [], tx => ledger::forfeit(tx, session, now)).await
    }

    async fn set_budget(
        &self,
        session: SessionId,
        change: BudgetChange,
        by: &Principal,
        now: Timestamp,
    ) -> StoreResult<Account> {
        let by = by.clone();
        change!(self, [by], tx => ledger::set_budget(tx, session, change, &by, now)).await
    }

    async fn tokens_by_minute(&self, since: Timestamp) -> StoreResult<Vec<(i64, u64)>> {
        ledger::tokens_by_minute(&mut self.connection().await?.conn(), since).await
    }
}

#[async_trait]
impl ApprovalStore for SqlStore {
    async fn ask(&self, fence: Fence, new: NewApproval, now: Timestamp) -> StoreResult<Approval> {
        change!(self, [new], tx => approvals::ask(tx, fence, &new, now)).await
    }

    async fn answer(&self, id: ApprovalId, reply: Reply, now: Timestamp) -> StoreResult<Approval> {
        change!(self, [reply], tx => approvals::answer(tx, id, &reply, now)).await
    }

    async fn withdraw(
        &self,
        fence: Fence,
        id: ApprovalId,
        why: Withdrawal,
        now: Timestamp,
    ) -> StoreResult<Approval> {
        change!(self, [], tx => approvals::withdraw(tx, fence, id, why, now)).await
    }

    async fn approval(&self, id: ApprovalId) -> StoreResult<Option<Approval>> {
        approvals::approval(&mut self.connection().await?.conn(), id).await
    }

    async fn approvals(
        &self,
        filter: &ApprovalFilter,
        after: Option<ApprovalId>,
        limit: u32,
    ) -> StoreResult<Vec<Approval>> {
        approvals::list(&mut self.connection().await?.conn(), filter, after, limit).await
    }
}

impl Wakes for SqlStore {
    fn listen(&self, topic: Topic) -> Listener {
        self.inner.hub.listen(topic)
    }
}
