//! What a host can be asked to do, each as one function: the same whether the request came over the socket or this
//! process is the host for a moment.

#[cfg(target_os = "linux")]
mod staying;

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use jiff::{SignedDuration, Timestamp};
use session_core::SessionId;
use session_core::affinity::{Place, RunnerProfile};
use session_core::approval::Reply as Answer;
use session_core::approvals::Verdict;
use session_core::env::whole_milliseconds;
use session_core::error::StoreError;
use session_core::names::{ExecutorType, Hostname, Label, NameError, Principal};
use session_core::ports::{Ledger as _, RunnerStore as _, SessionStore as _, TokenStore as _};
use session_core::run::StopMode;
use session_core::state::TerminationReason;
use session_manager::options::{EvictionStrategy, Limits};
use session_manager::recovery::OnHostLoss;
use session_manager::{Coordinator, DispatchOptions, ManagerOptions, Parting, SessionManager};
use session_runner::doctor::is_here;
use session_runner::workspace::{Layout, finish_removals};
use session_runner::{DirectOrder, Recovery, Rooms, recover};
use session_store::SqlStore;
use tokio::sync::mpsc;

use super::cleanup::Cleaner;
use super::protocol::{Recovered, Reply, Request};
use super::runner_id;
use crate::config::{Config, Eviction, HostLoss};
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::records::Records;
use crate::resume::Resumer;
use crate::system;
use crate::transfer;

/// How long the engines of sessions have to go when the host leaves: longer than any of them needs.
const PARTING_BOUND: Duration = Duration::from_mins(1);

/// Everything a host can be asked to do.
#[derive(Debug)]
pub struct Operations {
    context: Context,
    store: SqlStore,
    coordinator: Coordinator,
    resumer: Arc<Resumer<Rooms>>,
    limits: Limits,
    profile: RunnerProfile,
    /// When this host began, by the clock that people set and by the one that nobody sets.
    began: (Timestamp, Duration),
    direct: Option<mpsc::Sender<DirectOrder>>,
    recovered: Vec<Recovered>,
}

impl Operations {
    /// Opens the store; the caller holds the host lock.
    pub async fn open(context: &Context) -> Outcome<Self> {
        let profile = RunnerProfile {
            id: runner_id::load_or_make(&context.paths.runner_id(), &context.env)?,
            hostname: hostname()?,
            executors: offered(context)?,
            project_dirs: None,
        };
        let store = context.open_store().await?;
        let shared = Arc::new(store.clone());
        let coordinator = Coordinator::new(context.env.clone(), shared, dispatch_options(&context.config));
        let options = manager_options(&context.config);
        let limits = options.limits;
        let records = Arc::new(Records::new(store.clone(), context.env.clone()));
        let manager = SessionManager::new(context.env.clone(), options, Rooms, records)
            .map_err(|error| Failure::of(Kind::Usage, &error))?;
        let resumer = Arc::new(Resumer::new(manager, Arc::new(coordinator.clone())));
        Ok(Self {
            context: context.clone(),
            store,
            coordinator,
            resumer,
            limits,
            profile,
            began: (context.env.now(), context.env.elapsed()),
            direct: None,
            recovered: Vec::new(),
        })
    }

    /// Deals with the runs of a host that went away. Returns those that go on.
    pub async fn recover(&mut self) -> Outcome<Recovery> {
        let policy = on_host_loss(&self.context.config);
        let layout = self.context.layout();
        self.finish_removals(&layout).await?;
        self.expire_identities().await?;
        let grace = self.context.config.run.grace.unsigned_abs();
        // Before it is decided what becomes of what runs in them.
        self.end_orphans().await?;
        let recovery = recover(&self.coordinator, &layout, &self.profile, policy, grace).await?;
        let reaped = self.coordinator.reap().await?;
        for run in &recovery.ended {
            // What its turn had set aside, nobody settles any more.
            self.store.forfeit(run.session, self.now()).await?;
        }
        self.go_on_counting().await?;
        self.suspend_what_was_left().await?;
        let ended = recovery.ended.iter().chain(&reaped);
        self.recovered = ended.map(recovered).collect();
        self.recovered.extend(recovery.adopted.iter().map(|adopted| recovered(&adopted.claimed.run)));
        Ok(recovery)
    }

    /// The tokens of the last hour count, whichever process used them.
    async fn go_on_counting(&self) -> Outcome<()> {
        let hour_ago = self.now().saturating_sub(SignedDuration::from_hours(1)).unwrap_or(Timestamp::MIN);
        self.manager().seed_hourly(self.store.tokens_by_minute(hour_ago).await?);
        Ok(())
    }

    /// Forgets identities that expired, batch by batch, each its own transaction.
    async fn expire_identities(&self) -> Outcome<()> {
        const BATCH: u32 = 100;
        let now = self.context.env.now();
        loop {
            let expired = self.store.expire_identities(now, BATCH).await?;
            for &session in &expired {
                self.let_go(session, TerminationReason::IdentityExpired).await;
            }
            if expired.len() < BATCH as usize {
                return Ok(());
            }
        }
    }

    /// Goes on with removals of workspaces that a crash interrupted.
    async fn finish_removals(&self, layout: &Layout) -> Outcome<()> {
        let layout = layout.clone();
        let finished = tokio::task::spawn_blocking(move || finish_removals(&layout)).await;
        match finished
            .map_err(|error| error.to_string())
            .and_then(|done| done.map_err(|error| error.to_string()))
        {
            Ok(sessions) => {
                for session in sessions {
                    self.store.workspace_removed(session, self.context.env.now()).await?;
                }
            }
            // What is left takes room, and nothing more; the next start tries again.
            Err(error) => tracing::warn!(%error, "the removal of a workspace could not be finished"),
        }
        Ok(())
    }

    /// Does what is asked for.
    pub async fn handle(&self, request: Request) -> Outcome<Reply> {
        match request {
            Request::Submit(submit) => self.submit(submit).await,
            Request::Follow { .. } | Request::Watch { .. } => {
                Err(Failure::new(Kind::Unreachable, "no host is running, so nothing changes"))
            }
            Request::Tool(_) => Err(Failure::new(Kind::Unreachable, "tools are for a host that stays")),
            Request::Stop { sessions, now } => self.stop(&sessions, now).await,
            Request::Kill { sessions } => self.kill(&sessions).await,
            Request::KillAll { principal } => self.kill_all(principal.as_deref()).await,
            Request::Suspend { sessions } => self.suspend(&sessions).await,
            Request::Fork { source, upto, label } => self.fork(source, upto, label.as_deref()).await,
            Request::Budget { session, change, by } => self.change_budget(session, change, &by).await,
            Request::Label { session, label } => {
                let label = label.as_deref().map(Label::new).transpose().map_err(bad_name)?;
                self.store.relabel(session, label, self.context.env.now()).await?;
                Ok(Reply::Done)
            }
            Request::Answer { approval, allow, lasting, message, by } => {
                let verdict = if allow { Verdict::Allow } else { Verdict::Deny };
                let by = Principal::new(&by).map_err(bad_name)?;
                self.coordinator.answer(approval, Answer { verdict, lasting, by, message }).await?;
                Ok(Reply::Done)
            }
            Request::IssueToken(request) => self.issue(request).await,
            Request::RevokeToken { token } => {
                self.store.revoke(token, self.now()).await?;
                Ok(Reply::Done)
            }
            Request::DrainRunner { runner, draining } => {
                self.store.drain(runner, draining).await?;
                Ok(Reply::Done)
            }
            Request::ForgetRunner { runner } => Ok(Reply::Forgotten(self.store.forget(runner).await?)),
            Request::Cleanup(request) => {
                self.expire_identities().await?;
                let cleaned = self.cleaner().run(&request).await?;
                for session in cleaned.iter().filter(|cleaned| cleaned.removed && !request.dry_run) {
                    self.let_go(session.session, TerminationReason::CleanedUp).await;
                }
                self.end_orphans().await?;
                Ok(Reply::Cleaned(cleaned))
            }
            Request::Import { lines } => {
                let principal = self.context.principal()?;
                let sandbox = self.default_sandbox()?;
                let session =
                    transfer::import(&self.store, &lines, principal, sandbox, &self.context.env).await?;
                // Nothing is alive behind it until somebody works in it.
                self.suspend(&[session]).await?;
                Ok(Reply::Imported(session))
            }
            Request::ImportLegacy(wire) => self.import_legacy(wire).await,
            Request::Recovered => Ok(Reply::Recovered(self.recovered.clone())),
        }
    }

    /// Lets go of a session whose record says that it is over.
    pub(super) async fn let_go(&self, session: SessionId, reason: TerminationReason) {
        if let Err(error) = self.manager().terminate(session, reason).await {
            // Most do not live here.
            tracing::debug!(%session, %error, "a session that is over was not here");
        }
    }

    fn cleaner(&self) -> Cleaner {
        Cleaner {
            store: self.store.clone(),
            layout: self.layout(),
            git: self.context.git(),
            runner: self.profile.id,
            now: self.context.env.now(),
        }
    }

    async fn stop(&self, sessions: &[SessionId], now: bool) -> Outcome<Reply> {
        let mode = if now { StopMode::Kill } else { StopMode::Graceful };
        match self.coordinator.stop(sessions, mode).await {
            Ok(stopped) => {
                let sessions = stopped.iter().map(|run| run.session).collect();
                Ok(Reply::Stopped { runs: stopped.len(), sessions })
            }
            Err(error) => Err(self.past_the_store(sessions, mode, error)),
        }
    }

    /// Passes an order on past a store that cannot take it.
    pub(super) fn past_the_store(
        &self,
        sessions: &[SessionId],
        mode: StopMode,
        error: StoreError,
    ) -> Failure {
        let unavailable = matches!(error, StoreError::Unavailable(_));
        let failure = Failure::from(error);
        match &self.direct {
            Some(direct) if unavailable => {
                let sent = sessions
                    .iter()
                    .filter(|&&session| direct.try_send(DirectOrder { session, mode }).is_ok());
                let _count = sent.count();
                failure.hint("what runs is being ended all the same; that it was is recorded when the store can be written")
            }
            Some(_) | None => failure,
        }
    }

    pub(super) fn manager(&self) -> &SessionManager<Rooms> {
        self.resumer.manager()
    }

    pub(super) fn store(&self) -> &SqlStore {
        &self.store
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn now(&self) -> Timestamp {
        self.context.env.now()
    }

    /// The time that it is if nobody has set the clock since this host began.
    pub(super) fn steady_now(&self) -> Timestamp {
        let (began, elapsed) = self.began;
        let passed = self.context.env.elapsed().saturating_sub(elapsed);
        let passed = SignedDuration::try_from(passed).unwrap_or(SignedDuration::MAX);
        whole_milliseconds(began.saturating_add(passed).unwrap_or(Timestamp::MAX))
    }

    /// What the host was started with.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The settings.
    pub(super) fn config(&self) -> &Config {
        &self.context.config
    }

    /// Where everything lies, and what no session sees.
    pub(super) fn data_dir(&self) -> &Utf8Path {
        &self.context.paths.data
    }

    /// Whose sessions this host makes where nobody says otherwise.
    pub(super) fn principal(&self) -> Outcome<Principal> {
        self.context.principal()
    }

    pub(super) fn session_id(&self) -> SessionId {
        self.context.env.session_id()
    }

    /// The runs' use-cases.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// What this host offers.
    pub fn profile(&self) -> &RunnerProfile {
        &self.profile
    }

    /// It executes this as well.
    #[cfg(target_os = "linux")]
    pub fn offer(&mut self, executor: ExecutorType) {
        self.profile.executors.push(executor);
    }

    /// Where runs are executed that are bound to no place: here, unless there are other runners.
    pub fn place(&self) -> Place {
        match self.context.config.host.fleet() {
            Some(_) => Place::Anywhere,
            None => Place::Runner(self.profile.id),
        }
    }

    /// The directories of sessions.
    pub fn layout(&self) -> Layout {
        self.context.layout()
    }

    /// Lets go of every session that lives here, as it is recorded, and closes the store.
    pub async fn close(self) {
        self.suspend_all().await;
        let report = self.manager().shutdown(Parting::Leave, PARTING_BOUND).await;
        for session in report.given_up {
            tracing::warn!(%session, "what is alive behind a session did not go in time");
        }
        let Self { store, coordinator, resumer, .. } = self;
        drop((coordinator, resumer));
        store.close().await;
    }
}

/// Where there are runners on other machines they have the time of a claim to come back to a coordinator that was away.
fn dispatch_options(config: &Config) -> DispatchOptions {
    let usual = DispatchOptions::default();
    let fleet = config.host.fleet();
    DispatchOptions {
        resume_within: Some(config.run.resume_within).filter(|within| !within.is_zero()),
        patience: if fleet.is_some() { config.host.lease.unsigned_abs() } else { usual.patience },
        claim_within: fleet,
        lease: config.host.lease,
    }
}

/// What becomes of running processes when their host goes away.
pub fn on_host_loss(config: &Config) -> OnHostLoss {
    match config.host.on_host_loss {
        HostLoss::End => OnHostLoss::End,
        HostLoss::Adopt => OnHostLoss::Adopt,
    }
}

/// The limits of the manager of sessions.
pub fn manager_options(config: &Config) -> ManagerOptions {
    let limits = &config.limits;
    let unless_zero = |duration: SignedDuration| Some(duration).filter(|duration| !duration.is_zero());
    ManagerOptions {
        limits: Limits {
            active_max: limits.active_sessions.into(),
            active_per_principal_max: limits.active_per_principal.map(Into::into),
            suspended_per_principal_max: None,
            idle_timeout: unless_zero(limits.idle_timeout),
            suspended_ttl: unless_zero(limits.suspended_ttl),
            eviction: match limits.eviction {
                Eviction::SuspendOldestIdle => EvictionStrategy::SuspendOldestIdle,
                Eviction::RejectNew => EvictionStrategy::RejectNew,
                Eviction::TerminateOldest => EvictionStrategy::TerminateOldest,
            },
        },
        tokens_per_hour: limits.tokens_per_hour,
        ..ManagerOptions::default()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn bad_name(error: NameError) -> Failure {
    Failure::of(Kind::Usage, &error)
}

/// What this host offers. A coordinator alone takes nothing itself, and a host of a fleet what is here, as every other runner.
/// Where a run can go nowhere else, whether its agent is there is found out when it is started: by the caller's own `PATH`.
fn offered(context: &Context) -> Outcome<Vec<ExecutorType>> {
    let host = &context.config.host;
    match (host.runs_at_once, host.fleet()) {
        (0, _) => Ok(Vec::new()),
        (_, Some(_)) => Ok(executors_here(context)?.0),
        (_, None) => executors(),
    }
}

/// The executors whose programs this process finds by its `PATH`, and those whose it does not find.
pub fn executors_here(context: &Context) -> Outcome<(Vec<ExecutorType>, Vec<ExecutorType>)> {
    let environment = context.host_environment();
    Ok(executors()?.into_iter().partition(|executor| is_here(executor, environment.path())))
}

/// Every executor there is.
pub fn executors() -> Outcome<Vec<ExecutorType>> {
    let agents = ExecutorType::AGENTS.iter().map(|name| ExecutorType::new(name).map_err(bad_name));
    std::iter::once(Ok(ExecutorType::command())).chain(agents).collect()
}

/// This machine's name.
pub fn hostname() -> Outcome<Hostname> {
    Hostname::new(&system::hostname()).map_err(bad_name)
}

fn recovered(run: &session_core::Run) -> Recovered {
    let message = run.ended().map_or_else(
        || "goes on".into(),
        |(_, ending)| if ending.message.is_empty() { "had completed".into() } else { ending.message.clone() },
    );
    Recovered { session: run.session, run: run.id, state: run.state.phase().code().into(), message }
}
