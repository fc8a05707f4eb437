//! Where a run can be executed. A run's demands are in its row from the first instant, so that a runner that
//! does not match never sees it.

use camino::Utf8PathBuf;

use crate::error::Conflict;
use crate::ids::RunnerId;
use crate::names::{ExecutorType, Hostname};
use crate::run::RunSpec;
use crate::session::ManagedSession;

/// What a run demands of its runner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Affinity {
    /// On which machine.
    pub place: Place,
    /// With which executor.
    pub executor: ExecutorType,
    /// With which project directory, where the runner serves only some.
    pub project_dir: Option<Utf8PathBuf>,
}

/// On which machine a run can be executed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// On any.
    Anywhere,
    /// Only by this runner: it holds the session's files.
    Runner(RunnerId),
    /// Only by a runner on a machine of this name (imported sessions know no runner id).
    Hostname(Hostname),
}

/// What a runner offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerProfile {
    /// Its id.
    pub id: RunnerId,
    /// Its machine's name.
    pub hostname: Hostname,
    /// The executors it has.
    pub executors: Vec<ExecutorType>,
    /// The project directories it serves; `None` for any.
    pub project_dirs: Option<Vec<Utf8PathBuf>>,
}

impl Affinity {
    /// What a further run of this session demands where `wanted` was asked for, and `files` is the runner that has what earlier
    /// runs left in its workspace, where one is known to have it.
    ///
    /// A conversation is carried on where its files are: by the runner, with the executor and in the directory to which the
    /// session is bound. Another executor is refused. A run that begins a new conversation from the session's log, and one
    /// of a session that is not bound, demands what was asked for, but for the place: that is where the files are.
    pub fn of(
        session: &ManagedSession,
        files: Option<RunnerId>,
        wanted: &Self,
        spec: &RunSpec,
    ) -> Result<Self, Conflict> {
        let Some(binding) = session.binding.as_ref().filter(|_| !spec.is_from_history()) else {
            let place = files.map_or_else(|| wanted.place.clone(), Place::Runner);
            return Ok(Self { place, ..wanted.clone() });
        };
        if wanted.executor != binding.executor {
            return Err(Conflict::Executor {
                session: session.id,
                bound: binding.executor.clone(),
                wanted: wanted.executor.clone(),
            });
        }
        Ok(Self {
            place: match binding.runner {
                Some(runner) => Place::Runner(runner),
                None => Place::Hostname(binding.hostname.clone()),
            },
            executor: binding.executor.clone(),
            project_dir: Some(binding.project_dir.clone()),
        })
    }

    /// Whether this runner may execute the run.
    #[must_use]
    pub fn admits(&self, runner: &RunnerProfile) -> bool {
        let place = match &self.place {
            Place::Anywhere => true,
            Place::Runner(id) => *id == runner.id,
            Place::Hostname(name) => *name == runner.hostname,
        };
        let directory = match (&self.project_dir, &runner.project_dirs) {
            (Some(wanted), Some(served)) => served.contains(wanted),
            (None, _) | (_, None) => true,
        };
        place && directory && runner.executors.contains(&self.executor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_must_match_in_every_part() {
        let id = |n: u128| RunnerId::from_uuid(uuid::Uuid::from_u128(n)).unwrap();
        let runner = RunnerProfile {
            id: id(1),
            hostname: "box".parse().unwrap(),
            executors: vec![ExecutorType::command()],
            project_dirs: Some(vec!["/repo".into()]),
        };
        let affinity = |place| Affinity { place, executor: ExecutorType::command(), project_dir: None };
        assert!(affinity(Place::Anywhere).admits(&runner));
        assert!(affinity(Place::Runner(id(1))).admits(&runner));
        assert!(!affinity(Place::Runner(id(2))).admits(&runner));
        assert!(affinity(Place::Hostname("box".parse().unwrap())).admits(&runner));
        assert!(!affinity(Place::Hostname("other".parse().unwrap())).admits(&runner));
        let in_dir = |dir: &str| Affinity { project_dir: Some(dir.into()), ..affinity(Place::Anywhere) };
        assert!(in_dir("/repo").admits(&runner));
        assert!(!in_dir("/Repo").admits(&runner));
        let other = Affinity { executor: "codex".parse().unwrap(), ..affinity(Place::Anywhere) };
        assert!(!other.admits(&runner));
    }
}
