//! From a session's record and its own directories to what the kernel enforces.

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::{Limits, Network, Policy, Wanted, guard};
use session_core::WorkspaceKind;
use session_core::sandbox::{NetworkSpec, SandboxLevel, SandboxSpec};

use crate::workspace::SessionDir;

/// Where a session stands: what is its own.
#[derive(Debug, Clone, Copy)]
pub struct Grounds<'a> {
    /// Its directory, by its real path.
    pub directory: &'a SessionDir,
    /// The kind of its workspace.
    pub kind: WorkspaceKind,
    /// The project, by its real path.
    pub project: Option<&'a Utf8Path>,
    /// Where its programs start.
    pub cwd: &'a Utf8Path,
    /// The repository that its worktree was made of.
    pub repository: Option<&'a Utf8Path>,
    /// The socket of its proxy, where it has one.
    pub egress: Option<&'a Utf8Path>,
}

impl Grounds<'_> {
    /// The directory that it works in, with all below.
    fn work(&self) -> Utf8PathBuf {
        match (self.kind, self.project) {
            (WorkspaceKind::InPlace, Some(project)) => project.to_owned(),
            (WorkspaceKind::Scratch | WorkspaceKind::Worktree | WorkspaceKind::InPlace, _) => {
                self.directory.work()
            }
        }
    }
}

/// The level in the sandbox's words; `None` where none is wanted.
#[must_use]
pub fn wanted(level: SandboxLevel) -> Option<Wanted> {
    match level {
        SandboxLevel::Best => Some(Wanted::Best),
        SandboxLevel::Full => Some(Wanted::Full),
        SandboxLevel::Floor => Some(Wanted::Floor),
        SandboxLevel::Off => None,
    }
}

/// The network in the sandbox's words. `egress` is the socket of the session's proxy.
#[must_use]
pub fn network(network: &NetworkSpec, egress: Option<&Utf8Path>) -> Network {
    match (network, egress) {
        (NetworkSpec::Open, _) => Network::Open,
        (NetworkSpec::None, _) => Network::None,
        (NetworkSpec::Allow(_), Some(socket)) => Network::Proxy { socket: socket.to_owned() },
        // Without its proxy it reaches nothing of what it may.
        (NetworkSpec::Loopback, _) | (NetworkSpec::Allow(_), None) => Network::Loopback,
    }
}

/// The policy of a run, with this environment; `None` where the session wants no sandbox.
///
/// It may change its work, its `tmp`, its `home` and its output, read what the host tells it (`context`), and touch what
/// its record names beside the system's programs. A worktree's commits go into the repository behind it, so that may be
/// changed as well, but for what makes git start programs.
#[must_use]
pub fn policy(spec: &SandboxSpec, grounds: &Grounds<'_>, env: &[(String, String)]) -> Option<Policy> {
    let wanted = wanted(spec.level)?;
    let network = network(&spec.network, grounds.egress);
    let directory = grounds.directory;
    let limits = Limits {
        memory_bytes: spec.limits.memory_bytes,
        processes: spec.limits.processes,
        file_size_bytes: spec.limits.file_size_bytes,
        ..Limits::default()
    };
    let work = grounds.work();
    let mut policy = Policy::new(grounds.cwd)
        .with_level(wanted)
        .with_network(network)
        .with_limits(limits)
        .allow_write(directory.tmp())
        .allow_write(directory.home())
        .allow_write(directory.output_dir())
        .allow_read(directory.context());
    if grounds.kind == WorkspaceKind::Worktree
        && let Some(repository) = guard::common_git_directory(&work)
        // A worktree that leads elsewhere by now gets nothing there.
        && grounds.repository == Some(repository.as_path())
    {
        policy = policy.allow_write(repository);
    }
    policy = spec.write.iter().fold(policy.allow_write(work), Policy::allow_write);
    policy = policy.guard(guard::guarded(&watched(spec, grounds)));
    // What may be changed may be read; a root of both kinds would be kept from changes.
    let readable = spec.read.iter().filter(|root| !policy.read_write.contains(*root)).cloned();
    policy = readable.collect::<Vec<_>>().into_iter().fold(policy, Policy::allow_read);
    Some(env.iter().fold(policy, |policy, (name, value)| policy.with_variable(name, value)))
}

/// The directories in which somebody else works too: what appears there may run outside later.
#[must_use]
pub fn watched(spec: &SandboxSpec, grounds: &Grounds<'_>) -> Vec<Utf8PathBuf> {
    let own = (grounds.kind != WorkspaceKind::Scratch).then(|| grounds.work());
    own.into_iter().chain(spec.write.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use session_core::sandbox::ProcessLimits;

    use super::*;
    use crate::workspace::Layout;

    fn directory() -> SessionDir {
        Layout::new("/data").session("ses_0123456789abcdef0123456789abcdef".parse().unwrap())
    }

    fn names(paths: impl IntoIterator<Item = Utf8PathBuf>) -> Vec<String> {
        let shown = |path: Utf8PathBuf| path.as_str().replace("ses_0123456789abcdef0123456789abcdef", "S");
        paths.into_iter().map(shown).collect()
    }

    #[test]
    fn a_scratch_session_has_its_own_directories_and_nothing_else() {
        let directory = directory();
        let (work, kind) = (directory.work(), WorkspaceKind::Scratch);
        let grounds = Grounds {
            directory: &directory,
            kind,
            project: None,
            cwd: &work,
            repository: None,
            egress: None,
        };
        let env = [("A".into(), "1".into())];
        let policy = policy(&SandboxSpec::default(), &grounds, &env).unwrap();
        assert_eq!(
            names(policy.read_write.clone()),
            ["/data/output/S", "/data/sessions/S/home", "/data/sessions/S/tmp", "/data/sessions/S/work"]
        );
        assert_eq!(names(policy.read_only.clone()), ["/data/sessions/S/context"]);
        assert_eq!((policy.level, &policy.network), (Wanted::Best, &Network::Open));
        assert_eq!(policy.limits.memory_bytes, ProcessLimits::default().memory_bytes);
        assert_eq!(policy.environment.get("A").map(String::as_str), Some("1"));
        assert_eq!(policy.check(), Ok(()));
        assert_eq!(watched(&SandboxSpec::default(), &grounds), [] as [Utf8PathBuf; 0]);
    }

    #[test]
    fn a_project_is_guarded_where_others_work_in_it_too() {
        let project = tempfile::tempdir().unwrap();
        let project = Utf8Path::from_path(project.path()).unwrap();
        fs::create_dir_all(project.join(".git/hooks")).unwrap();
        fs::write(project.join(".git/config"), "").unwrap();
        fs::create_dir_all(project.join("libs/inner/.git")).unwrap();
        let directory = directory();
        let kind = WorkspaceKind::InPlace;
        let (cwd, repository) = (project, None);
        let project = Some(project);
        let grounds = Grounds { directory: &directory, kind, project, cwd, repository, egress: None };
        let project = cwd;
        let spec = SandboxSpec {
            read: ["/opt/tools".into(), "/srv/both".into()].into(),
            write: ["/srv/both".into()].into(),
            network: NetworkSpec::Allow([].into()),
            ..SandboxSpec::default()
        };
        let policy = policy(&spec, &grounds, &[]).unwrap();
        assert!(
            policy.read_write.contains(project) && policy.read_write.contains(Utf8Path::new("/srv/both"))
        );
        assert!(!policy.read_write.contains(&directory.work()));
        assert!(policy.protected.contains(&project.join(".git/config")));
        assert!(policy.protected.contains(&project.join("libs/inner/.git/hooks")));
        assert!(policy.read_only.contains(Utf8Path::new("/opt/tools")));
        assert!(!policy.read_only.contains(Utf8Path::new("/srv/both")));
        assert_eq!(policy.network, Network::Loopback, "its proxy is not there");
        assert_eq!(watched(&spec, &grounds), [project, Utf8Path::new("/srv/both")]);
    }

    #[test]
    fn off_is_no_policy() {
        let directory = directory();
        let (work, kind) = (directory.work(), WorkspaceKind::Scratch);
        let grounds = Grounds {
            directory: &directory,
            kind,
            project: None,
            cwd: &work,
            repository: None,
            egress: None,
        };
        let spec = SandboxSpec { level: SandboxLevel::Off, ..SandboxSpec::default() };
        assert_eq!(policy(&spec, &grounds, &[]), None);
    }
}
