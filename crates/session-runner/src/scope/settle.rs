//! From what was asked for to what is recorded: every directory looked at, none taken on trust.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use sandbox::guard::{Misleading, discover};
use sandbox::{PathReason, Policy, PolicyError};
use session_core::sandbox::{NAMED_MAX, NetworkSpec, ProcessLimits, SandboxLevel, SandboxSpec};
use thiserror::Error;

/// The fewest processes, and the least memory in bytes, under which a program starts.
const PROCESSES_MIN: u64 = sandbox::PROCESSES_MIN;
const MEMORY_BYTES_MIN: u64 = sandbox::MEMORY_BYTES_MIN;

/// What somebody asks for a new session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// How much the kernel must enforce.
    pub level: SandboxLevel,
    /// Directories that it may read beyond its own.
    pub read: Vec<Utf8PathBuf>,
    /// Directories that it may change beyond its own.
    pub write: Vec<Utf8PathBuf>,
    /// What it may reach.
    pub network: NetworkSpec,
    /// What each run may use up.
    pub limits: ProcessLimits,
    /// The project, and whether the session works in it or in a worktree of its repository.
    pub project: Option<(Utf8PathBuf, InPlace)>,
}

/// Whether a session works in its project itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPlace {
    /// In the project's own directory, with all that lies there.
    Yes,
    /// In a directory of its own; of the project it gets the repository.
    No,
}

/// What no session gets beyond.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// The data directory: records, other sessions' files, keys. No session sees it.
    pub data_dir: &'a Utf8Path,
    /// Where the operator lets sessions work, beside the system and their own directories; empty for anywhere.
    pub allowed: &'a [Utf8PathBuf],
}

/// Why a scope is refused. Nothing has been made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScopeError {
    /// A directory cannot be one.
    #[error("{field}: {path:?} {reason}")]
    Directory {
        /// The part of the request.
        field: &'static str,
        /// The directory, as it was given.
        path: String,
        /// What is wrong with it.
        reason: PathReason,
    },
    /// It holds what no session may see, or lies in it.
    #[error(
        "{field}: {path:?} overlaps roomette's own data in {data}, which no session may see: name a directory apart from it"
    )]
    HoldsData {
        /// The part of the request.
        field: &'static str,
        /// The directory.
        path: Utf8PathBuf,
        /// The data directory.
        data: Utf8PathBuf,
    },
    /// More than [`NAMED_MAX`].
    #[error("{field}: {count} entries, and no more than {NAMED_MAX} are allowed")]
    TooMany {
        /// The part of the request.
        field: &'static str,
        /// How many there are.
        count: usize,
    },
    /// Nothing can live with so little.
    #[error("{field}: {given} is too little for any program to start; at least {min} is needed")]
    TooLittle {
        /// The part of the request.
        field: &'static str,
        /// What was given.
        given: u64,
        /// The least that is allowed.
        min: u64,
    },
    /// A network of its own wants namespaces.
    #[error("net {net:?} wants level full, and floor was asked for")]
    NetworkWantsFull {
        /// The network.
        net: &'static str,
    },
    /// It says what only a sandbox could hold, and wants none.
    #[error("{field} means nothing with sandbox off: nothing would enforce it")]
    Unenforced {
        /// The part of the request.
        field: &'static str,
    },
    /// The repository of a child's project is more than its parent was given.
    #[error(
        "project: its repository {repository} lies outside of it, and a child gets no more than its parent: name the directory \
         that holds it, or work in place"
    )]
    Beyond {
        /// The repository.
        repository: Utf8PathBuf,
    },
    /// Its project leads to a repository that may be somebody else's.
    #[error(
        "project: {misleading}, so it may be another's repository: look at who put it there and remove it; if it is meant, \
         name that directory with --allow-write"
    )]
    Repository {
        /// What leads there.
        misleading: Misleading,
    },
}

/// What can be said of a request without a look at any disk: its parts go together, and something can live with its limits.
pub(super) fn check(asked: &Asked) -> Result<(), ScopeError> {
    let Asked { level, read, write, network, limits, project: _ } = asked;
    check_limits(limits)?;
    let said = [
        ("allow_read", !read.is_empty()),
        ("allow_write", !write.is_empty()),
        ("net", *network != NetworkSpec::Open),
    ];
    let unenforced = said.into_iter().find(|(_, said)| *said && *level == SandboxLevel::Off);
    if let Some((field, _)) = unenforced {
        return Err(ScopeError::Unenforced { field });
    }
    match network {
        NetworkSpec::Loopback | NetworkSpec::Allow(_) if *level == SandboxLevel::Floor => {
            Err(ScopeError::NetworkWantsFull { net: network.as_str() })
        }
        NetworkSpec::Allow(endpoints) => few("net_allow", endpoints.len()),
        NetworkSpec::Open | NetworkSpec::None | NetworkSpec::Loopback => Ok(()),
    }
}

/// Looks at everything that was asked for, and says what is recorded: real paths, in one order.
pub fn settle(asked: &Asked, bounds: &Bounds<'_>) -> Result<SandboxSpec, ScopeError> {
    let Asked { level, read, write, network, limits, project } = asked;
    check(asked)?;
    if *level == SandboxLevel::Off {
        let (level, limits) = (*level, *limits);
        // It may go wherever its user may.
        let repository = repository(project.as_ref(), |_| true)?;
        return Ok(SandboxSpec { level, limits, repository, ..SandboxSpec::default() });
    }
    match project {
        Some((project, InPlace::Yes)) => drop(root("project", project, bounds)?),
        Some((project, InPlace::No)) => drop(allowed("project", project, bounds)?),
        None => {}
    }
    let write = roots("allow_write", write, bounds)?;
    let repository =
        repository(project.as_ref(), |target| write.iter().any(|root| target.starts_with(root)))?;
    Ok(SandboxSpec {
        level: *level,
        read: roots("allow_read", read, bounds)?,
        write,
        network: network.clone(),
        limits: *limits,
        repository,
        pending: None,
    })
}

/// The repository of the project, if it has one. A session that is to have a worktree of it must know; one that works in
/// place has what lies there anyway, and of a doubtful one nothing more.
fn repository(
    project: Option<&(Utf8PathBuf, InPlace)>,
    is_meant: impl Fn(&Utf8Path) -> bool,
) -> Result<Option<Utf8PathBuf>, ScopeError> {
    let Some((project, in_place)) = project else { return Ok(None) };
    // One that is missing is told by whoever looks for it next.
    let Ok(real) = project.canonicalize_utf8() else { return Ok(None) };
    match (discover(&real, is_meant), in_place) {
        (Ok(found), _) => Ok(found.map(|found| found.common)),
        (Err(_), InPlace::Yes) => Ok(None),
        (Err(misleading), InPlace::No) => Err(ScopeError::Repository { misleading }),
    }
}

fn check_limits(limits: &ProcessLimits) -> Result<(), ScopeError> {
    for (field, given, min) in [
        ("processes", limits.processes, PROCESSES_MIN),
        ("memory", limits.memory_bytes, MEMORY_BYTES_MIN),
        ("file_size", limits.file_size_bytes, 1),
        ("writes", limits.write_bytes, 1),
    ] {
        if let Some(given) = given.filter(|given| *given < min) {
            return Err(ScopeError::TooLittle { field, given, min });
        }
    }
    Ok(())
}

pub(super) fn few(field: &'static str, count: usize) -> Result<(), ScopeError> {
    if count > NAMED_MAX { Err(ScopeError::TooMany { field, count }) } else { Ok(()) }
}

fn roots(
    field: &'static str,
    given: &[Utf8PathBuf],
    bounds: &Bounds<'_>,
) -> Result<BTreeSet<Utf8PathBuf>, ScopeError> {
    few(field, given.len())?;
    given.iter().map(|path| root(field, path, bounds)).collect()
}

/// The real path of a directory that may be a root: allowed, and apart from what no session sees.
fn root(field: &'static str, given: &Utf8Path, bounds: &Bounds<'_>) -> Result<Utf8PathBuf, ScopeError> {
    let real = allowed(field, given, bounds)?;
    if real.starts_with(bounds.data_dir) || bounds.data_dir.starts_with(&real) {
        return Err(ScopeError::HoldsData { field, path: real, data: bounds.data_dir.to_owned() });
    }
    Ok(real)
}

/// The real path of a directory that the operator allows.
fn allowed(field: &'static str, given: &Utf8Path, bounds: &Bounds<'_>) -> Result<Utf8PathBuf, ScopeError> {
    let refused = |reason| ScopeError::Directory { field, path: given.to_string(), reason };
    let real = real(field, &named(field, given)?)?;
    form(&real).map_err(refused)?;
    if !bounds.allowed.is_empty() && !bounds.allowed.iter().any(|allowed| real.starts_with(allowed)) {
        return Err(refused(PathReason::NotAllowed));
    }
    Ok(real)
}

/// The name of a directory, if it can be one by its letters.
pub(super) fn named(field: &'static str, given: &Utf8Path) -> Result<Utf8PathBuf, ScopeError> {
    // Whoever completes a name in a shell ends it with a slash.
    let plain = match given.as_str().trim_end_matches('/') {
        "" if !given.as_str().is_empty() => "/",
        plain => plain,
    };
    let refused = |reason| ScopeError::Directory { field, path: given.to_string(), reason };
    form(Utf8Path::new(plain)).map_err(refused)?;
    Ok(plain.into())
}

/// The real path of a directory that is there.
pub(super) fn real(field: &'static str, name: &Utf8Path) -> Result<Utf8PathBuf, ScopeError> {
    let refused = |reason| ScopeError::Directory { field, path: name.to_string(), reason };
    let real = fs::canonicalize(name).map_err(|error| refused(reason(&error)))?;
    let real = Utf8PathBuf::from_path_buf(real)
        .map_err(|_| refused(PathReason::Unreadable("its real path is not UTF-8".into())))?;
    if real.is_dir() { Ok(real) } else { Err(refused(PathReason::NotADirectory)) }
}

/// What is wrong with a path by its letters: the policy's own rules, asked before the disk is.
fn form(path: &Utf8Path) -> Result<(), PathReason> {
    match Policy::new("/").allow_read(path).check() {
        Ok(()) => Ok(()),
        Err(PolicyError::Path { reason, .. }) => Err(reason),
        Err(other) => Err(PathReason::Unreadable(other.to_string())),
    }
}

fn reason(error: &io::Error) -> PathReason {
    let is = |kind| error.kind() == kind;
    if is(io::ErrorKind::NotFound) {
        PathReason::Missing
    } else if is(io::ErrorKind::NotADirectory) {
        PathReason::NotADirectory
    } else if leads_nowhere(error) {
        PathReason::Link
    } else {
        PathReason::Unreadable(error.to_string())
    }
}

/// Whether links lead to links without end.
#[cfg(unix)]
fn leads_nowhere(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Nothing tells it there.
#[cfg(not(unix))]
fn leads_nowhere(_: &io::Error) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Place {
        _directory: tempfile::TempDir,
        path: Utf8PathBuf,
    }

    fn place() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path()).unwrap()).unwrap();
        for name in ["data/sessions", "tools", "project"] {
            fs::create_dir_all(path.join(name)).unwrap();
        }
        fs::write(path.join("file"), "").unwrap();
        symlink("tools", path.join("link")).unwrap();
        symlink("loop", path.join("loop")).unwrap();
        Place { _directory: directory, path }
    }

    fn settled(place: &Place, asked: &Asked, allowed: &[Utf8PathBuf]) -> Result<SandboxSpec, ScopeError> {
        settle(asked, &Bounds { data_dir: &place.path.join("data"), allowed })
    }

    fn reading(path: impl Into<Utf8PathBuf>) -> Asked {
        Asked { read: vec![path.into()], ..Asked::default() }
    }

    #[test]
    fn what_cannot_be_a_root_is_refused_with_the_reason() {
        let place = place();
        let inside = |name: &str| place.path.join(name).into_string();
        for (path, expected) in [
            (String::new(), PathReason::Empty),
            ("/".into(), PathReason::Everything),
            ("//".into(), PathReason::Everything),
            ("tools".into(), PathReason::Relative),
            ("../tools".into(), PathReason::Relative),
            (inside("tools/../tools"), PathReason::NotPlain),
            (inside("new\nline"), PathReason::ControlCharacter),
            (inside("missing"), PathReason::Missing),
            (inside("file"), PathReason::NotADirectory),
            (inside("file/x"), PathReason::NotADirectory),
            (inside("loop"), PathReason::Link),
            ("/proc/self".into(), PathReason::MadeAnew),
            ("/etc/".into(), PathReason::OfSystem),
        ] {
            let error = settled(&place, &reading(path.as_str()), &[]).unwrap_err();
            let ScopeError::Directory { field: "allow_read", path: named, reason } = error else {
                panic!("{path}: {error}")
            };
            assert_eq!((named, reason), (path.clone(), expected), "{path:?}");
        }
    }

    #[test]
    fn a_root_is_recorded_by_its_real_path() {
        let place = place();
        let tools = place.path.join("tools");
        for name in ["link", "tools/", "tools"] {
            let spec = settled(&place, &reading(place.path.join(name)), &[]).unwrap();
            assert_eq!(spec.read, BTreeSet::from([tools.clone()]), "{name}");
        }
    }

    #[test]
    fn nobody_gets_the_data_directory_or_a_place_around_or_inside_it() {
        let place = place();
        for name in ["", "data", "data/sessions"] {
            let path = if name.is_empty() { place.path.clone() } else { place.path.join(name) };
            let error = settled(&place, &reading(path.clone()), &[]).unwrap_err();
            assert!(matches!(error, ScopeError::HoldsData { .. }), "{error}");
            let working = |in_place| Asked { project: Some((path.clone(), in_place)), ..Asked::default() };
            let refused = settled(&place, &working(InPlace::Yes), &[]);
            assert!(matches!(refused, Err(ScopeError::HoldsData { field: "project", .. })), "{refused:?}");
            settled(&place, &working(InPlace::No), &[]).unwrap();
        }
    }

    #[test]
    fn the_operators_roots_bound_all_others() {
        let place = place();
        let allowed = [place.path.join("tools")];
        settled(&place, &reading(place.path.join("link")), &allowed).unwrap();
        for in_place in [InPlace::Yes, InPlace::No] {
            let project = Some((place.path.join("project"), in_place));
            let error = settled(&place, &Asked { project, ..Asked::default() }, &allowed).unwrap_err();
            assert!(error.to_string().contains("outside of the roots that the operator allows"), "{error}");
        }
    }

    #[test]
    fn without_a_sandbox_nothing_is_promised() {
        let place = place();
        let off = |asked| Asked { level: SandboxLevel::Off, ..asked };
        let project = Some((place.path.clone(), InPlace::Yes));
        assert_eq!(
            settled(&place, &off(Asked { project, ..Asked::default() }), &[]).unwrap().level,
            SandboxLevel::Off
        );
        for (asked, field) in [
            (reading("/opt"), "allow_read"),
            (Asked { write: vec!["/opt".into()], ..Asked::default() }, "allow_write"),
            (Asked { network: NetworkSpec::None, ..Asked::default() }, "net"),
        ] {
            assert_eq!(settled(&place, &off(asked), &[]), Err(ScopeError::Unenforced { field }));
        }
    }

    #[test]
    fn a_network_that_floor_cannot_give_is_refused_at_once() {
        let place = place();
        for network in [NetworkSpec::Loopback, NetworkSpec::Allow([].into())] {
            let asked = |level| Asked { level, network: network.clone(), ..Asked::default() };
            let refused = settled(&place, &asked(SandboxLevel::Floor), &[]);
            assert_eq!(refused, Err(ScopeError::NetworkWantsFull { net: network.as_str() }));
            settled(&place, &asked(SandboxLevel::Best), &[]).unwrap();
        }
    }

    /// Where a session has put a pointer, the next one's worktree is not made of what it leads to.
    #[test]
    fn a_repository_is_recorded_once_and_a_doubtful_one_refused() {
        let place = place();
        let (project, secret) = (place.path.join("project"), place.path.join("secret"));
        for git in [&project.join(".git"), &secret] {
            for name in ["objects", "refs"] {
                fs::create_dir_all(git.join(name)).unwrap();
            }
            fs::write(git.join("HEAD"), "ref: refs/heads/main").unwrap();
        }
        let of = |in_place| Asked { project: Some((project.clone(), in_place)), ..Asked::default() };
        let recorded = |asked: &Asked| settled(&place, asked, &[]).map(|spec| spec.repository);
        assert_eq!(recorded(&of(InPlace::No)), Ok(Some(project.join(".git"))));
        fs::remove_dir_all(project.join(".git")).unwrap();
        assert_eq!(recorded(&of(InPlace::No)), Ok(None));
        fs::write(project.join(".git"), format!("gitdir: {secret}")).unwrap();
        let error = recorded(&of(InPlace::No)).unwrap_err();
        assert!(error.to_string().contains("project/.git leads to"), "{error}");
        assert_eq!(recorded(&of(InPlace::Yes)), Ok(None));
        let meant = Asked { write: vec![secret.clone()], ..of(InPlace::No) };
        assert_eq!(recorded(&meant), Ok(Some(secret.clone())));
        assert_eq!(recorded(&Asked { level: SandboxLevel::Off, ..of(InPlace::No) }), Ok(Some(secret)));
    }

    #[test]
    fn limits_that_nothing_can_live_with_are_refused() {
        let place = place();
        let limits = ProcessLimits { processes: Some(1), ..ProcessLimits::NONE };
        let error = settled(&place, &Asked { limits, ..Asked::default() }, &[]).unwrap_err();
        assert_eq!(error, ScopeError::TooLittle { field: "processes", given: 1, min: 8 });
        let many = Asked { read: vec!["/opt".into(); NAMED_MAX + 1], ..Asked::default() };
        assert!(matches!(settled(&place, &many, &[]), Err(ScopeError::TooMany { field: "allow_read", .. })));
    }
}
