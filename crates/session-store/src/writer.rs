//! The one writer of an SQLite database: a task that owns the only connection that writes, and commits in groups.
//!
//! It takes what waits in its queue, runs it in one transaction, commits, and only then answers. Appends of a group
//! are written together by few statements. A change that fails before it wrote anything leaves no trace in the
//! group; one that fails later makes the group be rolled back and run again one by one, each in a transaction of
//! its own.

use std::path::PathBuf;

use async_trait::async_trait;
use session_core::ports::Appended;
use session_core::wake::{Topic, WakeHub};
use session_core::{StoreError, StoreResult};
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::conn::{Conn, Sql};
use crate::error::{DatabaseError, Failure, database_error, failed};
use crate::events;
use crate::plan::Batch;
use crate::tx::{Change, Tx, apply};

/// How many jobs may wait for a writer; who comes then waits for a place.
pub(crate) const QUEUE_MAX: usize = 1_024;

/// How many jobs one transaction takes at the most.
pub(crate) const GROUP_MAX: usize = 256;

/// How large the write-ahead log may grow before the writer insists on a checkpoint: 24 MiB.
const WAL_MAX_BYTES: u64 = 24 << 20;

/// How many commits lie between two looks at the size of the write-ahead log.
const COMMITS_PER_LOOK: u32 = 16;

const BEGIN: Sql = sql!("BEGIN IMMEDIATE");
const COMMIT: Sql = sql!("COMMIT");
const ROLLBACK: Sql = sql!("ROLLBACK");
const CHECKPOINT: Sql = sql!("PRAGMA wal_checkpoint(TRUNCATE)");

row! {
    /// What a checkpoint says: whether it was held up, and how many pages there were and were copied.
    CheckpointRow { busy: i64, pages: i64, copied: i64, }
}

/// Something to do for a writer.
pub(crate) enum Job {
    /// Appends a batch.
    Append(Batch, oneshot::Sender<StoreResult<Appended>>),
    /// Makes a change.
    Change(Box<dyn Work>),
}

/// A change whose answer has any type.
#[async_trait]
pub(crate) trait Work: Send {
    /// Runs in a transaction; `false` if it failed.
    async fn run(&mut self, tx: &mut Tx<'_>) -> bool;
    /// Answers, with the outcome of the run or with why there is none.
    fn answer(self: Box<Self>, failure: Option<&StoreError>);
}

/// A change and who waits for it.
pub(crate) struct Asked<T> {
    pub(crate) change: Change<T>,
    pub(crate) outcome: Option<StoreResult<T>>,
    pub(crate) reply: oneshot::Sender<StoreResult<T>>,
}

#[async_trait]
impl<T: Send> Work for Asked<T> {
    async fn run(&mut self, tx: &mut Tx<'_>) -> bool {
        let outcome = apply(tx, &self.change).await;
        let succeeded = outcome.is_ok();
        self.outcome = Some(outcome);
        succeeded
    }

    fn answer(self: Box<Self>, failure: Option<&StoreError>) {
        let outcome = match (failure, self.outcome) {
            // What failed by itself has failed for its own reason.
            (_, Some(Err(error))) => Err(error),
            (Some(failure), _) => Err(same(failure)),
            (None, Some(Ok(value))) => Ok(value),
            (None, None) => Err(ended()),
        };
        // Who asked may have gone away.
        drop(self.reply.send(outcome));
    }
}

/// The same failure for one more of those that share it.
pub(crate) fn same(failure: &StoreError) -> StoreError {
    match database_error(failure) {
        Some(error) => failed(error.clone()),
        None => StoreError::Backend(failure.to_string().into()),
    }
}

/// The writer is gone.
pub(crate) fn ended() -> StoreError {
    failed(DatabaseError::plain(Failure::Closed, "the store was closed"))
}

/// The writing task's state.
pub(crate) struct Writer {
    connection: SqliteConnection,
    jobs: mpsc::Receiver<Job>,
    hub: WakeHub,
    stop: CancellationToken,
    log: PathBuf,
    commits: u32,
}

/// How a transaction of several jobs ended.
enum Together {
    Committed(Vec<StoreResult<Appended>>, Vec<Topic>),
    /// Nothing is written; the only job has its own reason, or there is none.
    RolledBack,
    /// Nothing is written, and each job has to be run alone.
    Apart,
    Failed(StoreError),
}

/// The jobs of one transaction.
#[derive(Default)]
struct Group {
    changes: Vec<Box<dyn Work>>,
    batches: Vec<Batch>,
    replies: Vec<oneshot::Sender<StoreResult<Appended>>>,
}

impl Writer {
    pub(crate) fn new(
        connection: SqliteConnection,
        jobs: mpsc::Receiver<Job>,
        hub: WakeHub,
        stop: CancellationToken,
        database: &std::path::Path,
    ) -> Self {
        let mut log = database.as_os_str().to_owned();
        log.push("-wal");
        Self { connection, jobs, hub, stop, log: log.into(), commits: 0 }
    }

    /// Works until the store is closed or dropped, and through what waits by then.
    pub(crate) async fn run(mut self) {
        loop {
            let first = tokio::select! {
                biased;
                job = self.jobs.recv() => job,
                () = self.stop.cancelled(), if !self.jobs.is_closed() => {
                    self.jobs.close();
                    continue;
                }
            };
            let Some(first) = first else { break };
            // Those who were answered a moment ago get the chance to ask again, and to share the next commit.
            tokio::task::yield_now().await;
            let mut group = Group::default();
            group.add(first);
            while group.len() < GROUP_MAX
                && let Ok(job) = self.jobs.try_recv()
            {
                group.add(job);
            }
            self.commit(group).await;
        }
        self.checkpoint().await;
        if let Err(error) = self.connection.close().await {
            tracing::warn!(error = %DatabaseError::from(error), "the store's writer did not close cleanly");
        }
    }

    async fn commit(&mut self, mut group: Group) {
        match self.together(&mut group).await {
            Together::Committed(answers, wakes) => {
                // Whoever has an answer finds that what it changed is known here.
                for topic in wakes {
                    self.hub.wake(topic);
                }
                group.answer(Ok(answers));
                self.bound_log().await;
            }
            Together::RolledBack => group.answer(Ok(Vec::new())),
            Together::Failed(error) => group.answer(Err(&error)),
            Together::Apart => {
                for alone in group.apart() {
                    Box::pin(self.commit(alone)).await;
                }
            }
        }
    }

    /// Runs a group in one transaction.
    async fn together(&mut self, group: &mut Group) -> Together {
        if let Err(error) = self.execute(&BEGIN).await {
            return Together::Failed(error);
        }
        let outcome = self.inside(group).await;
        if matches!(outcome, Together::Committed(..)) {
            match self.execute(&COMMIT).await {
                Ok(()) => return outcome,
                Err(error) => {
                    self.roll_back().await;
                    return Together::Failed(error);
                }
            }
        }
        self.roll_back().await;
        outcome
    }

    async fn inside(&mut self, group: &mut Group) -> Together {
        let alone = group.len() == 1;
        let mut tx = Tx::new(Conn::Sqlite(&mut self.connection));
        for change in &mut group.changes {
            let mark = tx.mark();
            if !change.run(&mut tx).await && !tx.back_to(mark) {
                return if alone { Together::RolledBack } else { Together::Apart };
            }
        }
        if tx.is_empty() && group.batches.is_empty() {
            return Together::RolledBack;
        }
        match events::flush(&mut tx, &group.batches).await {
            Ok(answers) => Together::Committed(answers, tx.wakes),
            Err(error) => Together::Failed(error),
        }
    }

    async fn execute(&mut self, sql: &Sql) -> StoreResult<()> {
        Conn::Sqlite(&mut self.connection).execute(sql, args![]).await.map(drop)
    }

    async fn roll_back(&mut self) {
        // SQLite may have rolled back by itself; then there is nothing left to do.
        if let Err(error) = self.execute(&ROLLBACK).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "nothing to roll back");
        }
    }

    /// SQLite checkpoints by itself but never waits for readers: when the log has grown all the same, wait for them.
    async fn bound_log(&mut self) {
        self.commits += 1;
        if !self.commits.is_multiple_of(COMMITS_PER_LOOK) {
            return;
        }
        let bytes = std::fs::metadata(&self.log).map_or(0, |log| log.len());
        if bytes > WAL_MAX_BYTES {
            self.checkpoint().await;
        }
    }

    async fn checkpoint(&mut self) {
        let rows = Conn::Sqlite(&mut self.connection).rows::<CheckpointRow>(&CHECKPOINT, args![]).await;
        match rows.as_deref() {
            Ok([CheckpointRow { busy: 0, pages, copied }]) => {
                tracing::debug!(pages, copied, "write-ahead log emptied");
            }
            Ok(_) => tracing::debug!("a reader holds up the checkpoint"),
            Err(error) => {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "the write-ahead log was not emptied"
                );
            }
        }
    }
}

impl Group {
    fn len(&self) -> usize {
        self.changes.len() + self.batches.len()
    }

    fn add(&mut self, job: Job) {
        match job {
            Job::Append(batch, reply) => {
                self.batches.push(batch);
                self.replies.push(reply);
            }
            Job::Change(work) => self.changes.push(work),
        }
    }

    /// Every job as a group of its own.
    fn apart(self) -> impl Iterator<Item = Self> {
        let changes =
            self.changes.into_iter().map(|change| Self { changes: vec![change], ..Self::default() });
        let batches = self.batches.into_iter().zip(self.replies).map(|(batch, reply)| Self {
            batches: vec![batch],
            replies: vec![reply],
            ..Self::default()
        });
        changes.chain(batches)
    }

    fn answer(self, outcome: Result<Vec<StoreResult<Appended>>, &StoreError>) {
        let failure = outcome.as_ref().err().copied();
        for change in self.changes {
            change.answer(failure);
        }
        let answers =
            outcome.unwrap_or_default().into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        for (reply, answer) in self.replies.into_iter().zip(answers) {
            let answer = answer.unwrap_or_else(|| Err(failure.map_or_else(ended, same)));
            drop(reply.send(answer));
        }
    }
}
