//! A coordinator on another machine: what a runner asks of it goes over HTTP, and what it reports is not lost while nobody
//! answers.
//!
//! Reports of one claim go out in order. One that cannot be delivered now waits on disk ([`spool`]), and with it all that
//! come behind it; the run goes on. When the coordinator is there again they are delivered, each once in effect: a report
//! that arrived although its answer was lost is known there. A claim that counts no more drops what waits of it.

mod answers;
mod delivery;
mod dispatcher;
mod records;
mod spool;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use session_api::client::{Client, ClientError};
use session_api::paths;
use session_api::runners::{Register, Registered, RunnerView, Settlement};
use session_core::affinity::RunnerProfile;
use session_core::names::ProgramVersion;
use session_core::{ClaimId, Env, Fence, Run, RunId, RunnerId};
use tokio_util::sync::CancellationToken;

use self::delivery::Line;

/// A coordinator on another machine, as one of its runners sees it. Clones share everything.
#[derive(Clone)]
pub struct Remote {
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    client: Client,
    runner: RunnerId,
    /// Which instance of the runner this process is.
    instance: u32,
    spool: Utf8PathBuf,
    state: Mutex<State>,
    /// Something waits to be delivered.
    waits: tokio::sync::Notify,
    superseded: CancellationToken,
}

/// What is known of the runs here. Behind a std mutex: held for a look, never across an await.
#[derive(Default)]
struct State {
    /// Under which id the next run is asked for: that of the last request to which no answer came.
    claim: Option<ClaimId>,
    runs: HashMap<RunId, Run>,
    /// The tokens of claims, for the processes of their runs.
    tokens: HashMap<Fence, String>,
    lines: HashMap<Fence, Arc<Line>>,
    settlements: HashMap<RunId, Settlement>,
    /// The coordinator asked what runs need.
    asks_spending: bool,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("client", &self.inner.client)
            .field("runner", &self.inner.runner)
            .finish_non_exhaustive()
    }
}

/// A runner is registered, and what came with that.
#[derive(Debug)]
pub struct Welcome {
    /// The coordinator.
    pub remote: Remote,
    /// The runner as it is known there.
    pub runner: RunnerView,
    /// For how long a claim holds without a sign of life.
    pub lease: Duration,
    /// The token that speaks for this runner alone, if it did not show it: to be kept.
    pub secret: Option<String>,
}

impl Remote {
    /// Registers a runner under its next instance, and finds what an earlier one left undelivered in `spool`.
    pub async fn register(
        env: Env,
        client: &Client,
        profile: &RunnerProfile,
        version: &ProgramVersion,
        spool: Utf8PathBuf,
    ) -> Result<Welcome, ClientError> {
        let request = Register { version: version.to_string(), ..Register::from(profile) };
        let Registered { runner, lease_ms, secret } =
            client.post(paths::RUNNERS, &request, Duration::ZERO).await?;
        let client = match &secret {
            Some(secret) => client.with_token(secret)?,
            None => client.clone(),
        };
        let inner = Inner {
            env,
            client,
            runner: profile.id,
            instance: runner.instance,
            spool,
            state: Mutex::default(),
            waits: tokio::sync::Notify::new(),
            superseded: CancellationToken::new(),
        };
        let remote = Self { inner: Arc::new(inner) };
        Ok(Welcome { remote, runner, lease: Duration::from_millis(lease_ms), secret })
    }

    /// Fires when another process with this runner's id has registered since: this one must end.
    #[must_use]
    pub fn superseded(&self) -> CancellationToken {
        self.inner.superseded.clone()
    }

    /// Takes up what an earlier process left undelivered. Returns of how many claims something waits.
    pub async fn take_up(&self) -> io::Result<usize> {
        let directory = self.inner.spool.clone();
        let left = tokio::task::spawn_blocking(move || spool::left_in(&directory)).await;
        let left = left.map_err(io::Error::other)??;
        let mut state = self.state();
        for (fence, spooled) in left {
            if !spooled.is_empty() {
                state.lines.insert(fence, Arc::new(Line::left(spooled)));
            }
        }
        Ok(state.lines.len())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is whole.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, path: &str) -> String {
        paths::with_id(path, &self.inner.runner.to_string())
    }
}
