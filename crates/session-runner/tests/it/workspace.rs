//! Workspaces without git: made, found again, removed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use camino::Utf8Path;
use session_core::{SandboxSpec, WorkspaceKind};
use session_runner::Launcher;
use session_runner::workspace::{
    Git, HostEnvironment, Layout, Removal, Removed, Workspace, WorkspaceError, WorkspaceRequest,
    finish_removals, prepare, remove,
};

use crate::fixture::{LAUNCHER, PATH, Place, ids, this_path};

/// A data directory, and a git with a home of its own, which works in sandboxes.
pub(crate) struct Ground {
    pub(crate) place: Place,
    pub(crate) layout: Layout,
    pub(crate) git: Git,
}

impl Ground {
    pub(crate) fn new() -> Self {
        let place = Place::new();
        let layout = Layout::new(place.path.join("data"));
        let pairs = [("PATH", PATH), ("HOME", place.path.as_str())];
        let git = Git::new(&HostEnvironment::new(pairs.map(|(name, value)| (name.into(), value.into()))));
        let launcher = Launcher::new(this_path(), vec![LAUNCHER.into()]);
        Self { place, layout, git: git.with_launcher(Arc::new(launcher)) }
    }

    pub(crate) fn prepare(&self, request: &WorkspaceRequest) -> Result<Workspace, WorkspaceError> {
        prepare(&self.layout, &self.git, request)
    }

    pub(crate) fn remove(&self, removal: &Removal<'_>) -> Result<Removed, WorkspaceError> {
        remove(&self.layout, &self.git, removal)
    }

    /// Everything below the data directory but the directories that all sessions share.
    pub(crate) fn everything(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for shared in [self.layout.sessions(), self.layout.outputs(), self.layout.archives()] {
            let Ok(entries) = fs::read_dir(&shared) else { continue };
            found.extend(entries.map(|entry| entry.unwrap().path().display().to_string()));
        }
        found
    }
}

pub(crate) fn request(kind: WorkspaceKind, project: Option<&Utf8Path>) -> WorkspaceRequest {
    WorkspaceRequest {
        session: ids().0,
        kind,
        project: project.map(ToOwned::to_owned),
        base: None,
        sandbox: SandboxSpec::default(),
        settlement: None,
    }
}

pub(crate) fn removal(request: &WorkspaceRequest) -> Removal<'_> {
    Removal {
        session: request.session,
        kind: request.kind,
        project: request.project.as_deref(),
        force: false,
        archive: false,
        sandbox: &request.sandbox,
    }
}

fn mode(path: &Utf8Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

pub(crate) fn a_scratch_workspace_is_private_and_found_again() {
    let ground = Ground::new();
    let request = request(WorkspaceKind::Scratch, None);
    let made = ground.prepare(&request).unwrap();
    let dir = ground.layout.session(request.session);
    assert_eq!(
        (&made.cwd, made.found, made.project.as_ref(), made.branch.as_ref()),
        (&dir.work(), false, None, None)
    );
    for path in [ground.layout.data_dir(), dir.root(), &dir.work(), &dir.tmp(), dir.output_dir()] {
        assert_eq!(mode(path), 0o700, "{path}");
    }
    fs::write(dir.output_link().join("result"), "x").unwrap();
    assert_eq!(fs::read_to_string(dir.output_dir().join("result")).unwrap(), "x");
    fs::write(made.cwd.join("memory.db"), "kept").unwrap();
    // What a session does to its own directories is made good, as far as it can be.
    fs::remove_dir_all(dir.tmp()).unwrap();
    fs::remove_file(dir.output_link()).unwrap();
    let again = ground.prepare(&request).unwrap();
    assert!(again.found && dir.tmp().is_dir() && dir.output_link().join("result").exists());
    assert_eq!(Workspace { found: false, ..again }, made);
    assert_eq!(fs::read_to_string(made.cwd.join("memory.db")).unwrap(), "kept");
}

pub(crate) fn an_in_place_workspace_is_the_project() {
    let ground = Ground::new();
    let project = ground.place.path.join("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("file"), "kept").unwrap();
    let link = ground.place.path.join("link");
    symlink(&project, &link).unwrap();
    let request = request(WorkspaceKind::InPlace, Some(&link));
    let made = ground.prepare(&request).unwrap();
    assert_eq!((&made.cwd, made.project.as_ref()), (&project, Some(&project)));
    assert!(!made.dir.work().exists());
    assert!(ground.prepare(&request).unwrap().found);
    ground.remove(&removal(&request)).unwrap();
    assert!(!made.dir.root().exists());
    assert_eq!(fs::read_to_string(project.join("file")).unwrap(), "kept");
    fs::remove_dir_all(&project).unwrap();
    let error = ground.prepare(&request).unwrap_err();
    assert!(matches!(&error, WorkspaceError::NoProject(path) if *path == link), "{error}");
}

pub(crate) fn bad_places_are_named() {
    let ground = Ground::new();
    let file = ground.place.path.join("file");
    fs::write(&file, "").unwrap();
    let check = |layout: &Layout, request: &WorkspaceRequest, expect: &str| {
        let error = prepare(layout, &ground.git, request).unwrap_err().to_string();
        assert!(error.contains(expect), "{error:?} does not say {expect:?}");
    };
    let scratch = request(WorkspaceKind::Scratch, None);
    check(&ground.layout, &request(WorkspaceKind::InPlace, None), "kind in-place needs a project");
    check(&ground.layout, &request(WorkspaceKind::Worktree, None), "kind worktree needs a project");
    let missing = ground.place.path.join("missing");
    check(&ground.layout, &request(WorkspaceKind::InPlace, Some(&missing)), "missing does not exist");
    check(&ground.layout, &request(WorkspaceKind::InPlace, Some(&file)), "file is not a directory");
    check(&Layout::new(file.clone()), &scratch, "file is not a directory");
    check(&Layout::new(file.join("data")), &scratch, "is not a directory");
    fs::create_dir(ground.layout.data_dir()).unwrap();
    fs::write(ground.layout.sessions(), "").unwrap();
    check(&ground.layout, &scratch, "data/sessions is not a directory");
    check(&Layout::new("/proc/roomette"), &scratch, "/proc/roomette");
    check(&Layout::new("/sys/roomette"), &scratch, "/sys/roomette");
    assert_eq!(ground.everything(), BTreeSet::new(), "nothing is half made");
}

pub(crate) fn what_a_crash_left_half_made_is_made_anew() {
    let ground = Ground::new();
    let request = request(WorkspaceKind::Scratch, None);
    let dir = ground.layout.session(request.session);
    fs::create_dir_all(dir.root()).unwrap();
    fs::write(dir.root().join("half"), "").unwrap();
    fs::write(format!("{}.making", dir.root()), "").unwrap();
    let made = ground.prepare(&request).unwrap();
    assert!(!made.found && made.cwd.is_dir() && !dir.root().join("half").exists());
    assert!(ground.prepare(&request).unwrap().found);
    assert_eq!(ground.everything().len(), 2, "{:?}", ground.everything());
}

pub(crate) fn a_lost_workspace_is_not_made_up() {
    let ground = Ground::new();
    let request = request(WorkspaceKind::Scratch, None);
    let made = ground.prepare(&request).unwrap();
    fs::remove_dir(&made.cwd).unwrap();
    let error = ground.prepare(&request).unwrap_err();
    assert!(matches!(&error, WorkspaceError::Lost { path, .. } if *path == made.cwd), "{error}");
    fs::write(&made.cwd, "").unwrap();
    let error = ground.prepare(&request).unwrap_err();
    assert!(matches!(&error, WorkspaceError::NotADirectory(path) if *path == made.cwd), "{error}");
}

pub(crate) fn a_removal_keeps_the_output_and_follows_no_link() {
    let ground = Ground::new();
    let request = request(WorkspaceKind::Scratch, None);
    let made = ground.prepare(&request).unwrap();
    let outside = ground.place.path.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "kept").unwrap();
    symlink(&outside, made.cwd.join("link")).unwrap();
    fs::write(made.dir.output_dir().join("result"), "kept").unwrap();
    // Some tools take the right to write from their directories.
    let sealed = made.cwd.join("a/sealed");
    fs::create_dir_all(&sealed).unwrap();
    fs::write(sealed.join("file"), "").unwrap();
    fs::set_permissions(&sealed, fs::Permissions::from_mode(0o500)).unwrap();
    fs::set_permissions(made.cwd.join("a"), fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(ground.remove(&removal(&request)).unwrap(), Removed::default());
    assert!(!made.dir.root().exists());
    assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "kept");
    assert_eq!(fs::read_to_string(made.dir.output_dir().join("result")).unwrap(), "kept");
    assert_eq!(ground.remove(&removal(&request)).unwrap(), Removed::default(), "once more changes nothing");
    assert_eq!(fs::read_dir(ground.layout.sessions()).unwrap().count(), 0);
}

pub(crate) fn an_archive_holds_everything() {
    let ground = Ground::new();
    let request = request(WorkspaceKind::Scratch, None);
    let made = ground.prepare(&request).unwrap();
    let deep = made.cwd.join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), vec![7; 100_000]).unwrap();
    fs::write(made.cwd.join("memory.db-wal"), "committed").unwrap();
    symlink("/etc/passwd", made.cwd.join("link")).unwrap();
    let _listener = UnixListener::bind(made.cwd.join("socket")).unwrap();
    fs::write(made.dir.log(), "the log").unwrap();
    fs::create_dir_all(ground.layout.archives()).unwrap();
    let stale = ground.layout.archives().join(format!(".{}.half", request.session));
    fs::write(&stale, "").unwrap();
    let removed = ground.remove(&Removal { archive: true, ..removal(&request) }).unwrap();
    let archive = ground.layout.archive(request.session);
    assert_eq!(removed.archive.as_ref(), Some(&archive));
    assert!(!made.dir.root().exists() && !stale.exists());
    assert_eq!(mode(&archive), 0o600);
    let mut tar = tar::Archive::new(zstd::Decoder::new(fs::File::open(&archive).unwrap()).unwrap());
    let mut files = std::collections::BTreeMap::new();
    for entry in tar.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let target = entry.link_name().unwrap().map(|target| target.display().to_string());
        files.insert(name, (content, target));
    }
    let id = request.session;
    let file = |name: &str| {
        files.get(&format!("{id}/{name}")).unwrap_or_else(|| panic!("{name} is not in {:?}", files.keys()))
    };
    assert_eq!(file(&format!("work/{}/{}/file", "d".repeat(120), "e".repeat(120))).0, vec![7; 100_000]);
    assert_eq!(file("work/memory.db-wal").0, b"committed");
    assert_eq!(file("log").0, b"the log");
    assert_eq!(file("work/link").1.as_deref(), Some("/etc/passwd"));
    assert_eq!(file("output").1, Some(format!("../../output/{id}")));
    assert!(!files.contains_key(&format!("{id}/work/socket")));
}

pub(crate) fn a_removal_that_was_cut_off_is_finished() {
    let ground = Ground::new();
    let (one, two) = (request(WorkspaceKind::Scratch, None), request(WorkspaceKind::Scratch, None));
    assert_eq!(finish_removals(&ground.layout).unwrap(), []);
    for request in [&one, &two] {
        let made = ground.prepare(request).unwrap();
        fs::write(made.cwd.join("file"), "").unwrap();
    }
    // As after a crash between the two steps.
    let root = ground.layout.session(one.session).root().to_owned();
    fs::rename(&root, format!("{root}.removing")).unwrap();
    let not_ours = ground.layout.sessions().join("notes.removing");
    fs::create_dir(&not_ours).unwrap();
    assert_eq!(finish_removals(&ground.layout).unwrap(), [one.session]);
    assert!(not_ours.exists());
    assert!(ground.layout.session(two.session).work().join("file").exists());
    assert!(!Utf8Path::new(&format!("{root}.removing")).exists());
}

pub(crate) fn twenty_sessions_have_twenty_places() {
    let ground = Ground::new();
    let requests: Vec<_> = (0..20).map(|_| request(WorkspaceKind::Scratch, None)).collect();
    std::thread::scope(|scope| {
        for request in &requests {
            scope.spawn(|| fs::write(ground.prepare(request).unwrap().cwd.join("memory.db"), "").unwrap());
        }
    });
    assert_eq!(ground.everything().len(), 40);
    for request in &requests {
        assert_eq!(fs::read_dir(ground.layout.session(request.session).work()).unwrap().count(), 1);
    }
}
