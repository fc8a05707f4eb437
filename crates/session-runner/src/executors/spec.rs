//! What a keeper is told to start: in which sandbox, with which environment, under which limits.

use std::sync::Arc;

use camino::Utf8PathBuf;
use sandbox::Policy;
use serde_json::{Value, json};
use session_core::WorkspaceKind;
use session_core::error::StoreError;
use session_core::event::Payload;
use session_core::run::{EndKind, Ending, ReasonCode};
use session_core::sandbox::{NetworkSpec, SandboxLevel, SandboxSpec};
use session_manager::recovery::OnHostLoss;

use super::execution::{Execution, milliseconds, sentence};
use crate::agents::Launch;
use crate::confinement::Launcher;
use crate::egress::{Denied, Egress};
use crate::process::{
    Applied, CgroupPreference, Confinement, KeeperSpec, Setting, TreeLimits, Wiring, protocol,
};
use crate::scope::{Grounds, Settlement, network, policy, wanted, watched};
use crate::workspace::environment::ApiAccess;
use crate::workspace::{HostEnvironment, Noted, RunPlace, SessionDir, Workspace, child_environment};

impl Execution {
    /// All that the run's keeper needs to know.
    pub(super) async fn spec(
        &self,
        workspace: &Workspace,
        egress: Option<&Egress>,
        launch: Option<&Launch>,
    ) -> Result<KeeperSpec, Ending> {
        let (directory, spec) = (self.directory(), self.session.sandbox.clone());
        let is_mcp = self.run.affinity.executor.is_mcp();
        let api = self.api().await;
        let env = self.environment(launch, api.as_ref())?;
        let made = Made {
            launcher: Arc::clone(&self.options.launcher),
            spec: spec.clone(),
            directory: directory.clone(),
            kind: workspace.kind,
            project: self.session.workspace.project.clone(),
            cwd: workspace.cwd.clone(),
            egress: egress.map(|egress| egress.socket().to_owned()),
            env,
        };
        // It looks at the disk.
        let made = tokio::task::spawn_blocking(move || made.setting());
        let unavailable =
            |message: String| Ending::because(EndKind::Failed, ReasonCode::SandboxUnavailable, None, message);
        let (setting, watch) =
            made.await.map_err(|error| unavailable(error.to_string()))?.map_err(unavailable)?;
        Ok(KeeperSpec {
            session: self.session.id,
            run: self.run.id,
            argv: launch.map_or_else(|| self.run.spec.argv.clone(), |launch| launch.argv.clone()),
            setting,
            limits: TreeLimits {
                memory_bytes: spec.limits.memory_bytes,
                processes: spec.limits.processes,
                write_bytes: spec.limits.write_bytes,
            },
            watch,
            log: directory.log(),
            rotation: self.options.log,
            state_file: directory.keeper_state(),
            timeout_ms: self.run.spec.timeout.map(|timeout| milliseconds(timeout.unsigned_abs())),
            grace_ms: milliseconds(self.options.grace),
            on_host_loss: match self.options.on_host_loss {
                // Who speaks with its host is of no use without one.
                OnHostLoss::Adopt if launch.is_none() && !is_mcp => protocol::OnHostLoss::Adopt,
                OnHostLoss::End | OnHostLoss::Adopt => protocol::OnHostLoss::End,
            },
            cgroup: CgroupPreference::Auto,
            wiring: match launch {
                Some(_) => Wiring::Carried,
                None if is_mcp => Wiring::HandedOut,
                None => Wiring::Logged,
            },
        })
    }

    /// Refuses a project whose path leads elsewhere than when the session was made: it is not what the session was given.
    pub(super) fn not_redirected(&self) -> Result<(), Ending> {
        let (Some(project), false) =
            (&self.session.workspace.project, self.session.sandbox.level == SandboxLevel::Off)
        else {
            return Ok(());
        };
        match project.canonicalize_utf8() {
            Ok(real) if real != *project => Err(Ending::because(
                EndKind::Failed,
                ReasonCode::SandboxUnavailable,
                None,
                format!(
                    "its project {project} leads to {real} now, which this session was not given: look at who replaced it, put \
                     it back, or make a new session for the other place"
                ),
            )),
            // What is missing is told by whoever looks for it next.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Refuses where no sandbox holds the session, before anything is made for it.
    pub(super) async fn must_be_held(&self) -> Result<(), Ending> {
        let Some(wanted) = wanted(self.session.sandbox.level) else { return Ok(()) };
        let network = network(&self.session.sandbox.network, None);
        let launcher = Arc::clone(&self.options.launcher);
        let held = tokio::task::spawn_blocking(move || {
            let support = launcher.support().map_err(|error| sentence(&error))?;
            let policy = Policy::new("/").with_level(wanted).with_network(network);
            support.choose(&policy).map_err(|error| sentence(&error))
        });
        let held = held.await.unwrap_or_else(|error| Err(error.to_string()));
        held.map(drop).map_err(|message| {
            Ending::because(EndKind::Failed, ReasonCode::SandboxUnavailable, None, message)
        })
    }

    /// What the run's processes need to speak with the service, where they reach it: a network of their own leads nowhere
    /// near it, and through the proxy nobody gets to this machine.
    async fn api(&self) -> Option<ApiAccess> {
        let url = self.options.api.clone().filter(|_| self.session.sandbox.network == NetworkSpec::Open)?;
        let token = self.dispatcher.run_token(&self.session, &self.run).await;
        let told =
            |error: &StoreError| tracing::warn!(run = %self.run.id, %error, "a run has no token of its own");
        token.inspect_err(told).ok().flatten().map(|token| ApiAccess { url, token })
    }

    fn environment(
        &self,
        launch: Option<&Launch>,
        api: Option<&ApiAccess>,
    ) -> Result<Vec<(String, String)>, Ending> {
        let directory = self.directory();
        let (home, tmp, history) = (directory.home(), directory.tmp(), directory.history());
        let place = RunPlace {
            session: self.session.id,
            run: self.run.id,
            output: directory.output_dir(),
            home: &home,
            tmp: &tmp,
            history: history.exists().then_some(&history),
            api,
        };
        let set = &self.run.spec.env;
        let is_set = |name: &String| set.iter().any(|(given, _)| given == name);
        let more = launch.map(|launch| launch.env.as_slice()).unwrap_or_default();
        let (beneath, found) = self.beneath();
        let more = found.iter().chain(more).filter(|(name, _)| !is_set(name)).chain(set).cloned();
        child_environment(&beneath, &place, &more.collect::<Vec<_>>()).map_err(|error| {
            Ending::because(EndKind::Failed, ReasonCode::SpawnFailed, None, sentence(&error))
        })
    }

    /// What this machine gives beneath what the run was given, and what its toolchains want. Where the session was made for one
    /// machine alone, what the caller's environment gives is in the run already: nothing of this host's is added.
    fn beneath(&self) -> (HostEnvironment, Vec<(String, String)>) {
        let Some(settlement) = &self.settlement else { return Default::default() };
        let found = settlement.variables.iter().map(|(name, value)| (name.clone(), value.clone()));
        (settlement.environment(&self.options.machine), found.collect())
    }

    /// What is recorded of the sandbox that was applied.
    pub(super) fn report(&self, applied: &Applied) -> Payload {
        report(&self.session.sandbox, self.session.workspace.kind, applied, self.settlement.as_ref())
    }

    /// The proxy of a session that may reach some endpoints alone; it lives as long as the run does.
    pub(super) async fn egress(&self) -> Result<Option<Egress>, Ending> {
        let NetworkSpec::Allow(endpoints) = &self.session.sandbox.network else { return Ok(None) };
        let session = self.session.id;
        let told = move |denied: Denied| tracing::info!(%session, %denied, "a connection was denied");
        let resolver = Arc::clone(&self.resolver);
        let listening = Egress::listen(&self.directory().egress(), endpoints.clone(), resolver, told).await;
        listening.map(Some).map_err(|error| {
            let message = format!("its proxy cannot listen: {}", sentence(&error));
            Ending::because(EndKind::Failed, ReasonCode::SandboxUnavailable, None, message)
        })
    }
}

/// All that a run's setting is made of.
struct Made {
    launcher: Arc<Launcher>,
    spec: SandboxSpec,
    directory: SessionDir,
    kind: WorkspaceKind,
    project: Option<Utf8PathBuf>,
    cwd: Utf8PathBuf,
    egress: Option<Utf8PathBuf>,
    env: Vec<(String, String)>,
}

impl Made {
    /// The setting, and what is watched. A policy is approved here: its directories are held to be what they are at this
    /// moment. Otherwise a sentence that says why it cannot be had.
    fn setting(self) -> Result<(Setting, Vec<Utf8PathBuf>), String> {
        let repository = Noted::read(&self.directory).map(|noted| noted.common);
        let grounds = Grounds {
            directory: &self.directory,
            kind: self.kind,
            project: self.project.as_deref(),
            cwd: &self.cwd,
            repository: repository.as_deref(),
            egress: self.egress.as_deref(),
        };
        let watch = watched(&self.spec, &grounds);
        let Some(policy) = policy(&self.spec, &grounds, &self.env) else {
            return Ok((Setting::Open { env: self.env, cwd: self.cwd }, watch));
        };
        let support = self.launcher.support().map_err(|error| sentence(&error))?;
        let level = support.choose(&policy).map_err(|error| sentence(&error))?;
        let sealed = policy.seal().map_err(|error| {
            format!("{error}; the session was given it when it was made: put it back, or make a new session")
        })?;
        let confinement = Confinement {
            roots: sealed.places(),
            policy: sealed.policy().clone(),
            level,
            launcher: self.launcher.arguments().to_vec(),
        };
        Ok((Setting::Confined(Box::new(confinement)), watch))
    }
}

/// What the kernel holds of a session's sandbox, as it is recorded with the run: with the directories where the session's own
/// record has only names.
fn report(
    spec: &SandboxSpec,
    kind: WorkspaceKind,
    applied: &Applied,
    settlement: Option<&Settlement>,
) -> Payload {
    let mut report = match &applied.report {
        None => json!({ "level": "off", "gaps": sandbox::unconfined() }),
        Some(found) => json!({
            "level": found.level.to_string(),
            "policy": applied.digest,
            "workspace": kind.as_str(),
            "landlock_abi": found.landlock_abi,
            "seccomp_instructions": found.seccomp_instructions,
            "namespaces": found.namespaces,
            "network": spec.network,
            "verified": found.verified,
            "unprotected": found.unprotected,
            "gaps": found.gaps,
            "processes_held_by": found.processes_held_by,
        }),
    };
    report["wanted"] = json!(spec.level);
    report["limits"] = json!({
        "memory": applied.cgroup.memory,
        "processes": applied.cgroup.processes,
        "writes": applied.write_budget,
    });
    if let Some(Settlement { sandbox, project, .. }) = settlement {
        report["project"] = json!(project);
        report["read"] = json!(sandbox.read);
        report["write"] = json!(sandbox.write);
    }
    Payload::from_value(&strip(report))
}

/// Without what is not there.
fn strip(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    value
}
