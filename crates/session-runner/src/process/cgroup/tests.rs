//! Groups in a made-up tree: files of the same names, which do nothing.

use session_core::Env;

use super::*;

const LIMITS: TreeLimits =
    TreeLimits { memory_bytes: Some(64 << 20), processes: Some(50), write_bytes: None };

struct Tree {
    _directory: tempfile::TempDir,
    path: Utf8PathBuf,
    run: RunId,
}

impl Tree {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(directory.path().to_owned()).unwrap();
        Self { _directory: directory, path, run: Env::system().run_id() }
    }

    /// A group as the kernel would make it, as far as it is written to.
    fn group(&self, path: &str, files: &[(&str, &str)]) -> Utf8PathBuf {
        let path = self.path.join(path);
        fs::create_dir_all(&path).unwrap();
        for (file, text) in [("cgroup.procs", "")].iter().chain(files) {
            fs::write(path.join(file), text).unwrap();
        }
        path
    }

    /// The run's group in this one. It is there before: one that is made here has no files.
    fn of_run(&self, parent: &str, files: &[&str]) -> Utf8PathBuf {
        let files: Vec<_> = files.iter().map(|file| (*file, "")).collect();
        self.group(&format!("{parent}/{}", name(self.run)), &files)
    }

    fn spot(&self, own: &str) -> Spot {
        Spot { own: self.path.join(own), top: self.path.clone() }
    }
}

fn read(group: &Utf8Path, file: &str) -> String {
    fs::read_to_string(group.join(file)).unwrap()
}

#[test]
fn version_two_holds_what_it_hands_down() {
    let tree = Tree::new();
    tree.group("user", &[("cgroup.subtree_control", "memory pids")]);
    let own = tree.group("user/app", &[]);
    let group = tree.of_run("user", &["memory.max", "memory.oom.group", "pids.max", "cgroup.kill"]);
    let hierarchies = Hierarchies { unified: Some(tree.spot("user/app")), ..Hierarchies::default() };
    let (entered, held) = enter(&hierarchies, tree.run, &LIMITS);
    let by_group = Hold::Held { group: group.clone() };
    assert_eq!(held, Held { memory: by_group.clone(), processes: by_group });
    assert_eq!([read(&group, "memory.max"), read(&group, "memory.oom.group")], ["67108864", "1"]);
    assert_eq!([read(&group, "pids.max"), read(&group, "cgroup.procs")], ["50", "0"]);
    fs::write(own.join("cgroup.procs"), "").unwrap();
    let left = entered.unwrap().leave().unwrap();
    assert_eq!(read(&own, "cgroup.procs"), "0", "the keeper is back where it came from");
    left.kill().unwrap();
    assert_eq!(read(&group, "cgroup.kill"), "1");
    assert_eq!(RunCgroup::recorded(left.paths(), tree.run), Some(left.clone()));
    assert_eq!(RunCgroup::recorded(left.paths(), Env::system().run_id()), None, "it is another run's");
}

#[test]
fn only_the_group_that_is_taken_is_told_to_hand_down() {
    let tree = Tree::new();
    let both = [("cgroup.controllers", "memory pids"), ("cgroup.subtree_control", "")];
    let top = tree.group("", &both);
    let user = tree.group("user", &both);
    // As in a group with processes: it cannot be told to.
    let app = tree.group("user/app", &both[..1]);
    let own = tree.group("user/app/own", &both[1..]);
    let refused = tree.of_run("user/app", &["memory.max", "pids.max"]);
    let group = tree.of_run("user", &["memory.max", "pids.max"]);
    let hierarchies = Hierarchies { unified: Some(tree.spot("user/app/own")), ..Hierarchies::default() };
    let (entered, held) = enter(&hierarchies, tree.run, &LIMITS);
    let by_group = Hold::Held { group: group.clone() };
    assert_eq!(held, Held { memory: by_group.clone(), processes: by_group });
    assert_eq!(read(&user, "cgroup.subtree_control"), "+memory +pids");
    assert_eq!([read(&top, "cgroup.subtree_control"), read(&own, "cgroup.subtree_control")], ["", ""]);
    assert!(!app.join("cgroup.subtree_control").exists());
    assert_eq!([read(&refused, "memory.max"), read(&group, "memory.max")], ["", "67108864"]);
    assert_eq!(entered.unwrap().leave().unwrap().paths(), [group]);
}

#[test]
fn a_keeper_that_cannot_leave_makes_the_limits_missing() {
    let tree = Tree::new();
    tree.group("user", &[("cgroup.subtree_control", "memory pids")]);
    let own = tree.group("user/app", &[]);
    let group = tree.of_run("user", &["memory.max", "memory.oom.group", "pids.max"]);
    let hierarchies = Hierarchies { unified: Some(tree.spot("user/app")), ..Hierarchies::default() };
    let (entered, held) = enter(&hierarchies, tree.run, &LIMITS);
    fs::remove_file(own.join("cgroup.procs")).unwrap();
    let why = entered.unwrap().leave().unwrap_err();
    assert!(why.contains(own.as_str()) && why.contains(group.as_str()), "{why}");
    let missing = Hold::Missing { why: why.clone() };
    assert_eq!(held.lost(&why), Held { memory: missing.clone(), processes: missing });
    assert_eq!(Held::default().lost(&why), Held::default(), "what was not asked for is not missed");
    // In this made-up tree a file keeps the end of what was written over.
    assert!(read(&group, "memory.max").starts_with("max") && read(&group, "pids.max").starts_with("ma"));
    assert_eq!(read(&group, "memory.oom.group"), "0", "the keeper is not killed with its tree");
}

#[test]
fn version_one_holds_what_version_two_does_not() {
    let tree = Tree::new();
    tree.group("two", &[]);
    let group = tree.of_run("two", &[]);
    tree.group("memory/own", &[]);
    let memory = tree.of_run("memory/own", &["memory.limit_in_bytes"]);
    let hierarchies = Hierarchies {
        unified: Some(tree.spot("two")),
        memory: Some(tree.spot("memory/own")),
        pids: Some(tree.spot("pids/own")),
    };
    let (entered, held) = enter(&hierarchies, tree.run, &LIMITS);
    assert_eq!(held.memory, Hold::Held { group: memory.clone() });
    assert_eq!(read(&memory, "memory.limit_in_bytes"), "67108864");
    let Hold::Missing { why } = held.processes else { panic!("{:?}", held.processes) };
    assert!(why.contains("cgroup v2 cannot limit pids") && why.contains("pids/own"), "{why}");
    let entered = entered.unwrap();
    assert_eq!(entered.group().paths(), [group, memory]);
    fs::write(tree.path.join("two").join(name(tree.run)).join("cgroup.procs"), "7\n8\n").unwrap();
    fs::write(tree.path.join("memory/own").join(name(tree.run)).join("cgroup.procs"), "8\n9\n").unwrap();
    assert_eq!(entered.group().members(), [7, 8, 9]);
}

#[test]
fn without_limits_or_groups_there_is_nothing_to_hold() {
    let tree = Tree::new();
    let (entered, held) = enter(&Hierarchies::default(), tree.run, &LIMITS);
    assert!(entered.is_none());
    let why = "there is no cgroup v2, and there is no cgroup v1 for memory".into();
    assert_eq!(held.memory, Hold::Missing { why });
    tree.group("memory", &[]);
    tree.of_run("memory", &["memory.limit_in_bytes"]);
    let legacy = Hierarchies { memory: Some(tree.spot("memory")), ..Hierarchies::default() };
    let (entered, held) = enter(&legacy, tree.run, &TreeLimits::default());
    assert!(entered.is_none(), "version 1 is for limits alone");
    assert_eq!(held, Held::default());
}

#[test]
fn a_lack_of_memory_is_told_from_other_kills() {
    let full = Some((96 << 20, 96 << 20));
    let half = Some((48 << 20, 96 << 20));
    for (events, oom_control, peak, expect) in [
        ("low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 1\n", "", None, true),
        ("low 0\nhigh 0\nmax 9\noom 0\noom_kill 3\n", "", None, false),
        ("max 9\noom 2\noom_kill 0\n", "", None, false),
        ("", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", full, true),
        ("", "oom_kill_disable 1\nunder_oom 0\noom_kill 0\n", full, false),
        ("", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", half, false),
        ("", "", None, false),
    ] {
        assert_eq!(short_of_memory(events, oom_control, peak), expect, "{events}{oom_control}");
    }
}
