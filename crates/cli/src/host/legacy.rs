//! The import of a legacy coordinator's database.

use camino::{Utf8Path, Utf8PathBuf};
use session_core::SandboxSpec;
use session_core::affinity::Place;
use session_core::names::{ExecutorType, Hostname};
use session_runner::scope::InPlace;
use session_store::legacy::{
    LegacyDatabase, LegacyError, LegacyImport, LegacyOutcome, LegacyPlace, LegacyResult,
};

use super::operations::{Operations, bad_name};
use super::protocol::{BudgetWire, LegacySession, LegacyWire, Reply, SandboxWire};
use super::scope;
use crate::failure::{Failure, Kind, Outcome};

impl Operations {
    /// Makes sessions of those of a legacy database, and lets go of them: nothing is alive behind one until it is used.
    pub(super) async fn import_legacy(&self, wire: LegacyWire) -> Outcome<Reply> {
        let LegacyWire { file, source, hostname, executor, base_env, dry_run } = wire;
        let here = self.profile().hostname.clone();
        let wish = LegacyImport {
            principal: self.principal()?,
            source,
            hostname: hostname.as_deref().map(Hostname::new).transpose().map_err(bad_name)?.unwrap_or(here),
            executor: ExecutorType::new(&executor).map_err(bad_name)?,
            budget: self.budget(BudgetWire::default()),
            dry_run,
            secret: self.coordinator().env().secret(),
        };
        let elsewhere = self.sandbox_of(None, base_env.clone())?;
        let place = |hostname: &Hostname, project: Option<&str>| {
            self.legacy_place(&elsewhere, &base_env, hostname, project)
        };
        let mut database = LegacyDatabase::open(file.as_std_path()).await.map_err(refused)?;
        let now = self.coordinator().env().now();
        let outcomes = self.store().import_legacy(&mut database, &wish, &place, now).await.map_err(refused);
        database.close().await;
        let outcomes = outcomes?;
        if !dry_run {
            for outcome in &outcomes {
                if let LegacyResult::Imported(session) = outcome.result {
                    self.suspend(&[session]).await?;
                }
            }
        }
        Ok(Reply::LegacyImported(outcomes.into_iter().map(told).collect()))
    }

    /// Where a session worked. What is on this machine is looked at; of another one its word is taken, and its runner looks.
    fn legacy_place(
        &self,
        elsewhere: &SandboxSpec,
        base_env: &[(String, String)],
        hostname: &Hostname,
        project: Option<&str>,
    ) -> Result<LegacyPlace, String> {
        let as_it_stands = |project: Option<&str>| LegacyPlace {
            project: project.map(|project| Utf8Path::new(project).components().as_path().to_string()),
            sandbox: elsewhere.clone(),
        };
        let is_here = *hostname == self.profile().hostname && self.place() != Place::Anywhere;
        let Some(named) = project.filter(|_| is_here) else {
            return Ok(as_it_stands(project));
        };
        let Ok(project) = Utf8PathBuf::from(named).canonicalize_utf8() else {
            return Ok(as_it_stands(project));
        };
        let sandbox = self.sandbox_of(Some(project.clone()), base_env.to_vec());
        let sandbox = sandbox.map_err(|failure| failure.in_one_line())?;
        Ok(LegacyPlace { project: Some(project.into()), sandbox })
    }

    /// What a session gets that works in this directory, by the installation's settings.
    fn sandbox_of(
        &self,
        project: Option<Utf8PathBuf>,
        base_env: Vec<(String, String)>,
    ) -> Outcome<SandboxSpec> {
        let touched = project.map(|project| (project, InPlace::Yes));
        let settled = self.settle(self.settling(), None, &SandboxWire::default(), touched, base_env, &[]);
        Ok(settled.map_err(scope::refused)?.sandbox)
    }
}

fn told(outcome: LegacyOutcome) -> LegacySession {
    let LegacyOutcome { executor_session_id, name, result, notes } = outcome;
    let (result, session, reason) = match result {
        LegacyResult::Imported(id) => ("imported", Some(id), None),
        LegacyResult::Known(id) => ("known", Some(id), None),
        LegacyResult::Refused(reason) => ("refused", None, Some(reason)),
    };
    LegacySession { executor_session_id, name, result: result.into(), session, reason, notes }
}

fn refused(error: LegacyError) -> Failure {
    match error {
        LegacyError::Store(error) => error.into(),
        error @ (LegacyError::Missing(_)
        | LegacyError::Damaged { .. }
        | LegacyError::Foreign { .. }
        | LegacyError::TooMany(_)) => Failure::of(Kind::Usage, &error).hint("nothing was imported"),
        error @ LegacyError::Unreadable { .. } => {
            Failure::of(Kind::Error, &error).hint("nothing was imported")
        }
    }
}
