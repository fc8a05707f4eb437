//! What holds of a scope that is recorded by name and settled elsewhere.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use session_core::sandbox::{NetworkSpec, ProcessLimits};

use super::*;
use crate::workspace::Layout;

struct Disk {
    _directory: tempfile::TempDir,
    path: Utf8PathBuf,
}

impl Disk {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path()).unwrap()).unwrap();
        for name in
            ["data/sessions", "srv/project/below", "srv/cache", "secret", "home/tools/bin", "home/.cargo/bin"]
        {
            fs::create_dir_all(path.join(name)).unwrap();
        }
        fs::create_dir_all(path.join("home/.rustup")).unwrap();
        symlink("../secret", path.join("srv/link")).unwrap();
        Self { _directory: directory, path }
    }

    fn at(&self, name: &str) -> Utf8PathBuf {
        self.path.join(name)
    }

    /// A machine with tools in its `PATH`.
    fn machine(&self) -> Machine {
        let home = self.at("home");
        let pairs = [
            ("PATH", format!("{home}/tools/bin:{home}/.cargo/bin:/usr/bin")),
            ("HOME", home.to_string()),
            ("LANG", "C".into()),
        ];
        let environment = HostEnvironment::new(pairs.map(|(name, value)| (name.to_owned(), value)));
        Machine { environment, roots: Vec::new() }
    }

    fn settled(
        &self,
        asked: &Asked,
        roots: &[&str],
        plain: bool,
        machine: &Machine,
    ) -> Result<Settlement, ScopeError> {
        self.settled_below(asked, roots, plain, machine, None)
    }

    fn settled_below(
        &self,
        asked: &Asked,
        roots: &[&str],
        plain: bool,
        machine: &Machine,
        parent: Option<&SandboxSpec>,
    ) -> Result<Settlement, ScopeError> {
        let roots: Vec<_> = roots.iter().map(|name| self.at(name)).collect();
        let spec = by_name(asked, &roots, plain)?;
        let project = asked.project.as_ref().map(|(project, in_place)| (project.as_path(), *in_place));
        Settlement::of(&spec, project, machine, parent, &self.at("data"))
    }
}

fn nowhere(read: &[&str]) -> Asked {
    Asked { read: read.iter().map(Into::into).collect(), ..Asked::default() }
}

#[test]
fn names_are_recorded_as_they_were_asked_for_wherever_they_lead() {
    let asked = Asked {
        write: vec!["/no/such/place".into()],
        network: NetworkSpec::None,
        project: Some(("/no/project".into(), InPlace::Yes)),
        ..nowhere(&["/no/tools/", "/no/more"])
    };
    let spec = by_name(&asked, &["/no".into()], true).unwrap();
    assert_eq!(spec.read, BTreeSet::from(["/no/more".into(), "/no/tools".into()]));
    assert_eq!(spec.pending, Some(Pending { roots: ["/no".into()].into(), plain: true }));
    assert_eq!((spec.repository, spec.network), (None, NetworkSpec::None));
    let off = Asked { level: SandboxLevel::Off, project: asked.project, ..Asked::default() };
    assert_eq!(by_name(&off, &["/srv".into()], true).unwrap().pending, Some(Pending::default()));
}

#[test]
fn what_a_name_shows_to_be_wrong_is_refused_at_once() {
    let refused = |asked: &Asked| by_name(asked, &["/srv".into()], false).unwrap_err().to_string();
    for (path, expected) in [
        ("", "is empty"),
        ("/", "is the whole machine"),
        ("srv", "is relative"),
        ("/srv/../etc", "is not in its plain form"),
        ("/srv//a", "is not in its plain form"),
        ("/proc/self", "lies in /proc"),
        ("/home", "is outside of the roots"),
        ("/srvs", "is outside of the roots"),
    ] {
        let sentence = refused(&nowhere(&[path]));
        assert!(sentence.starts_with("allow_read: ") && sentence.contains(expected), "{path}: {sentence}");
    }
    let project = Some(("/home/a".into(), InPlace::No));
    assert!(refused(&Asked { project, ..Asked::default() }).starts_with("project: \"/home/a\" is outside"));
    let limits = ProcessLimits { processes: Some(1), ..ProcessLimits::NONE };
    assert!(refused(&Asked { limits, ..Asked::default() }).contains("too little"));
    let off = Asked { level: SandboxLevel::Off, ..nowhere(&["/srv"]) };
    assert_eq!(by_name(&off, &[], false), Err(ScopeError::Unenforced { field: "allow_read" }));
}

#[test]
fn a_machine_looks_where_the_names_lead_on_it() {
    let disk = Disk::new();
    let asked = Asked {
        read: vec![disk.at("srv/link")],
        project: Some((disk.at("srv/project"), InPlace::Yes)),
        ..Asked::default()
    };
    let own = Machine::default();
    let settled = disk.settled(&asked, &[], false, &own).unwrap();
    assert_eq!(settled.sandbox.read, BTreeSet::from([disk.at("secret")]));
    assert_eq!((settled.sandbox.pending, settled.project), (None, Some(disk.at("srv/project"))));
    let sentence = |asked: &Asked, roots: &[&str], plain, machine: &Machine| {
        disk.settled(asked, roots, plain, machine).unwrap_err().to_string()
    };
    let missing = nowhere(&[disk.at("srv/gone").as_str()]);
    assert!(sentence(&missing, &[], false, &own).ends_with("gone\" does not exist"));
    let project = Some((disk.at("srv/gone"), InPlace::No));
    let off = Asked { level: SandboxLevel::Off, project, ..Asked::default() };
    assert!(sentence(&off, &[], false, &own).starts_with("project: "));
    let project = Some(("srv".into(), InPlace::No));
    let relative = Asked { level: SandboxLevel::Off, project, ..Asked::default() };
    assert!(sentence(&relative, &[], false, &own).contains("is relative"));
    let held = nowhere(&[disk.at("data").as_str()]);
    assert!(sentence(&held, &[], false, &own).contains("overlaps roomette's own data"));
    // What is in bounds by its name may lead out of them.
    assert!(sentence(&asked, &["srv"], false, &own).contains("outside of the roots"));
    let bounded = Machine { roots: vec![disk.at("srv")], ..own.clone() };
    assert!(sentence(&asked, &[], false, &bounded).contains("outside of the roots"));
    let project = Some((disk.at("srv/link"), InPlace::No));
    let linked = Asked { project, ..Asked::default() };
    assert!(sentence(&linked, &["srv"], false, &own).contains("outside of the roots"));
    assert!(sentence(&linked, &[], true, &own).contains("symbolic link"));
    assert!(sentence(&Asked { project: None, ..asked }, &[], true, &own).contains("symbolic link"));
}

/// A parent that may change a directory must not lead its child out of it.
#[test]
fn a_child_gets_the_repository_that_its_project_holds_and_no_other() {
    let disk = Disk::new();
    for name in ["objects", "refs"] {
        fs::create_dir_all(disk.at("srv/.git").join(name)).unwrap();
    }
    fs::write(disk.at("srv/.git/HEAD"), "ref: refs/heads/main").unwrap();
    let own = Machine::default();
    let working = |name: &str| Asked { project: Some((disk.at(name), InPlace::No)), ..Asked::default() };
    let repository = |asked: &Asked, plain| {
        disk.settled(asked, &[], plain, &own).map(|settled| settled.sandbox.repository)
    };
    let given = Some(disk.at("srv/.git"));
    assert_eq!(repository(&working("srv/project"), false), Ok(given.clone()));
    assert_eq!(repository(&working("srv"), true), Ok(given.clone()));
    let beyond = Err(ScopeError::Beyond { repository: disk.at("srv/.git") });
    assert_eq!(repository(&working("srv/project"), true), beyond);
    let in_place = Asked { project: Some((disk.at("srv/project"), InPlace::Yes)), ..Asked::default() };
    assert_eq!(repository(&in_place, true), Ok(None));
    let named = Asked { write: vec![disk.at("srv")], ..working("srv/project") };
    assert_eq!(repository(&named, true), Ok(given));
}

#[test]
fn tools_are_the_machine_s_own() {
    let disk = Disk::new();
    let (home, machine) = (disk.at("home"), disk.machine());
    let settled = disk.settled(&nowhere(&[disk.at("srv/cache").as_str()]), &[], false, &machine).unwrap();
    let expected = ["home/.cargo/bin", "home/.rustup", "home/tools", "srv/cache"].map(|name| disk.at(name));
    assert_eq!(settled.sandbox.read.iter().cloned().collect::<Vec<_>>(), expected);
    assert_eq!(settled.variables.get("RUSTUP_HOME"), Some(&home.join(".rustup").into_string()));
    let names = |settled: &Settlement| {
        let beneath = settled.environment(&machine);
        beneath.pairs().iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&settled), ["LANG", "PATH"]);
    let bounded = Machine { roots: vec![disk.at("srv")], ..machine.clone() };
    assert_eq!(disk.settled(&Asked::default(), &[], false, &bounded).unwrap().sandbox.read.len(), 0);
    let off = Asked { level: SandboxLevel::Off, ..Asked::default() };
    let settled = disk.settled(&off, &[], false, &machine).unwrap();
    assert_eq!((names(&settled).len(), settled.variables.len(), settled.sandbox.read.len()), (3, 0, 0));
}

#[test]
fn tools_are_within_the_roots_of_the_coordinator_too() {
    let disk = Disk::new();
    let read = |roots: &[&str]| {
        let settled = disk.settled(&Asked::default(), roots, false, &disk.machine()).unwrap();
        (settled.sandbox.read.into_iter().collect::<Vec<_>>(), settled.variables.len())
    };
    assert_eq!(read(&["srv"]), (Vec::new(), 0));
    assert_eq!(read(&["srv", "home/tools"]), (vec![disk.at("home/tools")], 0));
}

#[test]
fn a_child_has_the_tools_of_its_parent_and_no_others() {
    let disk = Disk::new();
    let below = |asked: &Asked, parent: &[&str]| {
        let read = parent.iter().map(|name| disk.at(name)).collect();
        let parent = SandboxSpec { read, ..SandboxSpec::default() };
        let settled = disk.settled_below(asked, &[], true, &disk.machine(), Some(&parent)).unwrap();
        (settled.sandbox.read.into_iter().collect::<Vec<_>>(), settled.variables.len())
    };
    let nothing = Asked::default();
    assert_eq!(below(&nothing, &[]), (Vec::new(), 0));
    assert_eq!(below(&nothing, &["home/tools"]), (vec![disk.at("home/tools")], 0));
    let rust = ["home/.cargo/bin", "home/.rustup"];
    assert_eq!(below(&nothing, &rust), (rust.map(|name| disk.at(name)).into(), 1));
    // A parent that was opened on another machine; and one from before there were others, whose tools are in its record.
    let elsewhere = |asked: &Asked| disk.settled(asked, &[], true, &disk.machine()).unwrap();
    assert_eq!(elsewhere(&nothing).sandbox.read.len(), 0);
    let names = rust.map(|name| disk.at(name).into_string());
    let before = elsewhere(&nowhere(&names.each_ref().map(String::as_str)));
    assert_eq!((before.sandbox.read.len(), before.variables.len()), (2, 1));
}

#[test]
fn a_link_may_lead_a_child_into_what_its_parent_has() {
    let disk = Disk::new();
    let reading = nowhere(&[disk.at("srv/link").as_str()]);
    let writing = Asked { write: vec![disk.at("srv/link")], ..Asked::default() };
    let parent = |read: &[&str], write: &[&str]| SandboxSpec {
        read: read.iter().map(|name| disk.at(name)).collect(),
        write: write.iter().map(|name| disk.at(name)).collect(),
        ..SandboxSpec::default()
    };
    let below = |asked: &Asked, parent: &SandboxSpec| {
        let settled = disk.settled_below(asked, &[], true, &Machine::default(), Some(parent));
        settled.map(|settled| settled.sandbox)
    };
    let secret = BTreeSet::from([disk.at("secret")]);
    assert_eq!(below(&reading, &parent(&["secret"], &[])).unwrap().read, secret);
    assert_eq!(below(&writing, &parent(&[], &["secret"])).unwrap().write, secret);
    for (asked, parent) in [(&reading, parent(&["srv"], &["srv"])), (&writing, parent(&["secret"], &["srv"]))]
    {
        assert!(below(asked, &parent).unwrap_err().to_string().contains("symbolic link"));
    }
}

#[test]
fn it_is_kept_whole_and_private_and_nothing_else_is_taken_for_it() {
    let disk = Disk::new();
    let dir = Layout::new(disk.at("data")).session("ses_0123456789abcdef0123456789abcdef".parse().unwrap());
    fs::create_dir_all(dir.root()).unwrap();
    assert_eq!(Settlement::read(&dir).unwrap_err().kind(), io::ErrorKind::NotFound);
    let settled = disk.settled(&Asked::default(), &[], false, &Machine::default()).unwrap();
    settled.write(&dir).unwrap();
    assert_eq!(Settlement::read(&dir).unwrap(), settled);
    let mode = fs::metadata(dir.settlement()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let pending = SandboxSpec { pending: Some(Pending::default()), ..SandboxSpec::default() };
    assert_eq!(Settlement::found(&dir, &pending).unwrap(), Some(settled));
    let recorded = Settlement::found(&dir, &SandboxSpec::default()).unwrap();
    assert_eq!(recorded, None, "it is recorded, and nothing else counts");
    let whole = fs::read_to_string(dir.settlement()).unwrap();
    for torn in ["", &whole[..whole.len() / 2], "{}", &whole.replace("\"v\":1", "\"v\":2")] {
        fs::write(dir.settlement(), torn).unwrap();
        assert!(Settlement::read(&dir).is_err(), "{torn}");
        assert!(Settlement::found(&dir, &pending).is_err(), "{torn}");
    }
    fs::remove_file(dir.settlement()).unwrap();
    assert!(Settlement::found(&dir, &pending).is_err(), "it was settled");
    fs::remove_dir_all(dir.root()).unwrap();
    assert_eq!(Settlement::found(&dir, &pending).unwrap(), None, "nothing is left");
}
