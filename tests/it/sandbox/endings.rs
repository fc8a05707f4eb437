//! Nothing is left of a session whose host, keeper or launcher is killed, however stubborn it is.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use session_tests::home::{Home, Who, processes_with};

use super::ground::{Ground, may_have_a_group, skipped};

/// Ignores what can be ignored, and leaves a daemon in a session of its own, twice forked.
const STUBBORN: &str = "trap '' TERM HUP INT
(setsid sh -c \"trap '' TERM HUP; touch daemon-1; while :; do sleep 600; done\" &) &
$1
until [ -e daemon-1 ] && [ -e daemon-2 ]; do :; done
echo ready
while :; do sleep 600; done";
/// A second one, which has nothing of the session's environment.
const UNMARKED: &str = "(setsid env -i /bin/sh -c \"trap '' TERM HUP; touch daemon-2; while :; do /bin/sleep 600; done\" \
    </dev/null >/dev/null 2>&1 &) &";
/// A second one like the first.
const MARKED: &str = "(setsid sh -c \"trap '' TERM HUP; touch daemon-2; while :; do sleep 600; done\" \
    </dev/null >/dev/null 2>&1 &) &";

/// A running session of that kind, and what there is of it.
struct Stubborn {
    ground: Ground,
    session: String,
    keeper: i32,
    outer: i32,
    members: BTreeSet<(i32, String)>,
}

/// When a process began, which together with its number is one process alone.
fn began(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = stat.rsplit_once(") ")?.1.to_owned();
    let mut fields = rest.split(' ');
    if fields.next() == Some("Z") { None } else { fields.nth(18).map(str::to_owned) }
}

fn children(pid: i32) -> Vec<i32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A process and all below it.
fn tree(pid: i32) -> Vec<i32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children(pid));
        next += 1;
    }
    found
}

impl Stubborn {
    fn new(who: Who, level: &str, second: &str) -> Self {
        let home = home(who);
        let ground = Ground::in_home(home, who);
        let level = format!("--sandbox={level}");
        let script = STUBBORN.replace("$1", second);
        let arguments = ["run", "--detach", &level, "--", "sh", "-c", &script];
        let session = ground.home.run(&arguments).ok().stdout.trim().to_owned();
        ground.home.until_logged(&session, "ready");
        ground.home.until(|| ground.home.inspect(&session)["status"] == "running");
        let record = fs::read_to_string(ground.home.session(&session).join("keeper.json")).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        let keeper = record["keeper"]["pid"].as_i64().unwrap().try_into().unwrap();
        let members: BTreeSet<_> =
            tree(keeper).into_iter().filter_map(|pid| Some((pid, began(pid)?))).collect();
        // The keeper, the outer launcher, the shell, two daemons and what they wait for.
        assert!(members.len() >= 7, "{members:?}");
        Self { outer: children(keeper)[0], ground, session, keeper, members }
    }

    fn left(&self) -> Vec<i32> {
        let lives = |(pid, start): &&(i32, String)| began(*pid).as_ref() == Some(start);
        self.members.iter().filter(lives).map(|(pid, _)| *pid).collect()
    }

    /// Waits until nothing of it is left, within the bound of `until`, and looks for what came later.
    fn until_nothing_is_left(&self, what: &str) {
        println!("{what}: {:?}", self.members);
        self.ground.home.until(|| self.left().is_empty());
        let marked = processes_with(&format!("ROOMETTE_SESSION_ID={}", self.session));
        assert_eq!(marked, [] as [i32; 0], "{what}");
    }
}

fn kill_9(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

fn home(who: Who) -> Home {
    Home::of(who).with("ROOMETTE_RUN_GRACE", "200ms").with("ROOMETTE_HOST_LINGER", "60s")
}

/// At floor, where there is no cgroup, a session is found by its environment when its keeper is gone.
fn found_without_its_keeper(who: Who, level: &str) -> &'static str {
    if !may_have_a_group(who) && level == "floor" { MARKED } else { UNMARKED }
}

fn each(check: impl Fn(Who, &str)) {
    if skipped() {
        return;
    }
    for who in Who::all() {
        for level in ["full", "floor"] {
            check(who, level);
        }
    }
}

#[test]
fn nothing_outlives_its_host() {
    each(|who, level| {
        let run = Stubborn::new(who, level, UNMARKED);
        kill_9(run.ground.home.host());
        run.until_nothing_is_left(&format!("{who:?} at {level}"));
        run.ground.home.run(&["recover"]).ok();
        assert_eq!(run.ground.home.inspect(&run.session)["last_run"]["state"], "lost");
    });
}

#[test]
fn nothing_outlives_its_keeper() {
    each(|who, level| {
        let run = Stubborn::new(who, level, found_without_its_keeper(who, level));
        kill_9(run.keeper);
        run.until_nothing_is_left(&format!("{who:?} at {level}"));
        run.ground.home.run(&["wait", &run.session]).exits(1);
        assert_eq!(run.ground.home.inspect(&run.session)["last_run"]["state"], "lost");
    });
}

#[test]
fn nothing_outlives_its_launcher() {
    each(|who, level| {
        let run = Stubborn::new(who, level, UNMARKED);
        kill_9(run.outer);
        run.until_nothing_is_left(&format!("{who:?} at {level}"));
        run.ground.home.run(&["wait", &run.session]).exits(1);
        let last = run.ground.home.inspect(&run.session)["last_run"].clone();
        assert!(["failed", "lost"].contains(&last["state"].as_str().unwrap()), "{last:#}");
    });
}

#[test]
fn nothing_outlives_its_program() {
    each(|who, level| {
        let run = Stubborn::new(who, level, UNMARKED);
        // At full it is below the launcher and the first process of its own; at floor it is what the launcher became.
        let below = |pid: i32| children(pid)[0];
        kill_9(if level == "full" { below(below(run.outer)) } else { run.outer });
        run.until_nothing_is_left(&format!("{who:?} at {level}"));
        run.ground.home.run(&["wait", &run.session]).exits(1);
        let last = run.ground.home.inspect(&run.session)["last_run"].clone();
        assert_eq!((&last["state"], &last["reason"]), (&"failed".into(), &"signalled".into()), "{last:#}");
    });
}

/// Host, keeper and launcher at one blow: at full the kernel sees to it, at floor the next host does.
#[test]
fn nothing_outlives_all_of_them() {
    each(|who, level| {
        let run = Stubborn::new(who, level, found_without_its_keeper(who, level));
        let host = run.ground.home.host();
        for pid in [host, run.keeper] {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
        }
        for pid in [run.keeper, host, run.outer] {
            kill_9(pid);
        }
        if level == "floor" {
            run.ground.home.until_free();
            run.ground.home.run(&["recover"]).ok();
        }
        run.until_nothing_is_left(&format!("{who:?} at {level}"));
        run.ground.home.run(&["recover"]).ok();
        assert_eq!(run.ground.home.inspect(&run.session)["last_run"]["state"], "lost");
    });
}

#[test]
fn a_run_that_is_adopted_is_as_confined_as_before() {
    each(|who, level| {
        let home = home(who).with("ROOMETTE_HOST_ON_HOST_LOSS", "adopt");
        let ground = Ground::in_home(home, who);
        ground.file("outside/secret", "secret");
        let level_flag = format!("--sandbox={level}");
        let script =
            "echo ready; until [ -e go ]; do sleep 0.02; done; cat ../../../../outside/secret; echo over";
        let arguments = ["run", "--detach", &level_flag, "--", "sh", "-c", script];
        let session = ground.home.run(&arguments).ok().stdout.trim().to_owned();
        ground.home.until_logged(&session, "ready");
        ground.home.until(|| ground.home.inspect(&session)["status"] == "running");
        let before = ground.home.inspect(&session)["last_run"]["sandbox"].clone();
        ground.home.kill_host();
        let recovered = ground.home.run(&["--json", "recover"]).ok().json();
        assert_eq!(recovered[0]["state"], "running", "{who:?} at {level}");
        fs::write(ground.home.session(&session).join("work/go"), "").unwrap();
        ground.home.run(&["wait", &session]).ok();
        let last = ground.home.inspect(&session)["last_run"].clone();
        assert_eq!((&last["sandbox"], &last["epoch"]), (&before, &2.into()), "{last:#}");
        assert_eq!(ground.home.run(&["logs", &session]).ok().stdout, "ready\nover\n");
    });
}
