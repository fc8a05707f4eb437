//! Scopes that cannot be: refused with the reason, and nothing made.

use std::fs;
use std::os::unix::fs::symlink;

use session_tests::home::Who;

use super::ground::{Ground, skipped};

/// Runs a command that must be refused so, and checks that no session was made by it.
#[track_caller]
fn refused(ground: &Ground, arguments: &[&str], reason: &str) {
    let before = ground.home.run(&["ps", "--quiet", "--all"]).stdout;
    let left = ground.home.run(arguments).exits(2);
    assert!(left.stderr.contains(reason), "{arguments:?}: no {reason:?} in:\n{}", left.stderr);
    assert!(!left.stderr.contains("panicked"), "{}", left.stderr);
    assert_eq!(ground.home.run(&["ps", "--quiet", "--all"]).stdout, before, "{arguments:?} made a session");
}

fn ground() -> Ground {
    let ground = Ground::new(Who::all()[0]);
    ground.file("file", "");
    symlink("loop", ground.path("loop")).unwrap();
    symlink("readable", ground.path("link")).unwrap();
    ground.home.run(&["run", "--", "true"]).ok();
    ground
}

#[test]
fn directories_that_cannot_be_roots() {
    if skipped() {
        return;
    }
    let ground = ground();
    let base = ground.path("").as_str().trim_end_matches('/').to_owned();
    let at = |name: &str| format!("{base}/{name}");
    let cases: &[(String, &str)] = &[
        ("/".into(), "whole machine"),
        ("///".into(), "whole machine"),
        (String::new(), "is empty"),
        ("readable".into(), "is relative"),
        ("./readable".into(), "is relative"),
        (at("gone"), "does not exist"),
        (at("file"), "not a directory"),
        (at("file/below"), "not a directory"),
        (at("loop"), "symbolic link"),
        (at("link/../outside"), "plain form"),
        (at("readable/.."), "plain form"),
        (at("./readable"), "plain form"),
        (at("read\nable"), "control character"),
        ("/proc".into(), "/proc, /sys or /dev"),
        ("/proc/self".into(), "/proc, /sys or /dev"),
        ("/sys/fs/cgroup".into(), "/proc, /sys or /dev"),
        ("/dev/shm".into(), "/proc, /sys or /dev"),
        ("/etc".into(), "the system's own"),
        ("/usr".into(), "the system's own"),
        ("/bin".into(), "the system's own"),
        (at("data"), "overlaps roomette's own data"),
        (at("data/sessions"), "overlaps roomette's own data"),
        (base.clone(), "overlaps roomette's own data"),
    ];
    for (path, reason) in cases {
        for flag in ["--allow-read", "--allow-write"] {
            refused(&ground, &["run", &format!("{flag}={path}"), "--", "true"], reason);
        }
    }
    // Under another name it is still the data directory.
    symlink("data", ground.path("alias")).unwrap();
    refused(&ground, &["run", "--allow-read", &at("alias"), "--", "true"], "overlaps roomette's own data");
    for project in [base.as_str(), "/proc", "/", "/etc", "/usr"] {
        refused(&ground, &["run", "--in-place", "--project", project, "--", "true"], "project");
    }
}

#[test]
fn directories_that_the_operator_does_not_allow() {
    if skipped() {
        return;
    }
    let ground = Ground::new(Who::all()[0]);
    for name in ["data", "allowed", "allowed/in", "not"] {
        fs::create_dir(ground.path(name)).unwrap();
        ground.home.give(ground.path(name));
    }
    symlink("../not", ground.path("allowed/out")).unwrap();
    let (allowed, not) = (ground.path("allowed"), ground.path("not"));
    ground.file("data/config.toml", &format!("[sandbox]\nroots = [\"{allowed}\"]\n"));
    for path in [not.as_str(), allowed.join("out").as_str(), "/opt", ground.path("readable").as_str()] {
        refused(&ground, &["run", "--allow-read", path, "--", "true"], "allow");
        refused(&ground, &["run", "--allow-write", path, "--", "true"], "allow");
    }
    refused(&ground, &["run", "--in-place", "--project", not.as_str(), "--", "true"], "project");
    for path in [allowed.as_str(), allowed.join("in").as_str()] {
        ground.home.run(&["run", "--allow-write", path, "--", "touch", &format!("{path}/made")]).ok();
    }
    ground.home.run(&["run", "--in-place", "--project", allowed.as_str(), "--", "true"]).ok();
    ground.home.run(&["run", "--", "true"]).ok();
    assert!(allowed.join("in/made").exists());
}

#[test]
fn networks_limits_and_levels_that_cannot_be() {
    if skipped() {
        return;
    }
    let ground = ground();
    let cases: &[(&[&str], &str)] = &[
        (&["--net-allow=host:0"], "--net-allow"),
        (&["--net-allow=host:65536"], "--net-allow"),
        (&["--net-allow="], "--net-allow"),
        (&["--net-allow=:443"], "--net-allow"),
        (&["--net-allow=http://host/"], "--net-allow"),
        (&["--net-allow=*"], "--net-allow"),
        (&["--net-allow=*:443"], "--net-allow"),
        (&["--net-allow=a b:443"], "--net-allow"),
        (&["--net-allow=host:443\n"], "--net-allow"),
        (&["--net=none", "--net-allow=host:443"], "--net-allow"),
        (&["--net=open", "--net-allow=host:443"], "--net-allow"),
        (&["--net=allow"], "--net"),
        (&["--net=closed"], "--net"),
        (&["--max-memory=1M"], "memory: 1048576 is too little"),
        (&["--max-memory=lots"], "--max-memory"),
        (&["--max-memory=99999999999T"], "--max-memory"),
        (&["--max-processes=1"], "processes: 1 is too little"),
        (&["--max-processes=7"], "processes: 7 is too little"),
        (&["--max-processes=-1"], "--max-processes"),
        (&["--max-file-size=0"], "--max-file-size"),
        (&["--max-writes=0"], "--max-writes"),
        (&["--sandbox=floor", "--net=loopback"], "wants level full"),
        (&["--sandbox=floor", "--net-allow=host:443"], "wants level full"),
        (&["--sandbox=none"], "--sandbox"),
        (&["--sandbox="], "--sandbox"),
        (&["--sandbox=off", "--allow-read=/opt"], "allow_read means nothing with sandbox off"),
        (&["--sandbox=off", "--allow-write=/opt"], "allow_write means nothing with sandbox off"),
        (&["--sandbox=off", "--net=none"], "net means nothing with sandbox off"),
        (&["--sandbox=off", "--net-allow=host:443"], "net means nothing with sandbox off"),
    ];
    for (options, reason) in cases {
        refused(&ground, &[&["run"], *options, &["--", "true"]].concat(), reason);
    }
    let many: Vec<String> = (0..1_000).map(|number| format!("--net-allow=host{number}:443")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    refused(&ground, &[&["run"], many.as_slice(), &["--", "true"]].concat(), "net_allow: 1000 entries");
}

#[test]
fn crews_say_what_their_tasks_may() {
    if skipped() {
        return;
    }
    let ground = ground();
    let crew = |table: &str| {
        let text = format!(
            "[[task]]\nname = \"a\"\nargv = [\"sh\", \"-c\", \"ls /proc/1/root/\"]\n[task.sandbox]\n{table}\n"
        );
        ground.file("crew.toml", &text);
    };
    for (table, reason) in [
        ("level = \"half\"", "level"),
        ("colour = 3", "colour"),
        ("net = \"closed\"", "net"),
        ("net_allow = [\"nonsense:x\"]", "nonsense"),
        ("allow_read = [\"/\"]", "whole machine"),
        ("allow_read = [\"relative\"]", "is relative"),
        ("allow_write = [\"/gone\"]", "does not exist"),
        ("processes = 1", "processes: 1 is too little"),
        ("memory_bytes = 1", "memory: 1 is too little"),
        ("memory_bytes = -1", "memory_bytes"),
        ("level = \"off\"\nnet = \"none\"", "net means nothing with sandbox off"),
    ] {
        crew(table);
        refused(&ground, &["run", "-f", "crew.toml"], reason);
    }
    for flag in ["--sandbox=floor", "--net=none", "--allow-read=/opt", "--max-processes=9"] {
        crew("level = \"floor\"");
        refused(&ground, &["run", "-f", "crew.toml", flag], flag.split('=').next().unwrap());
    }
    let outside = ground.path("outside");
    crew(&format!("level = \"floor\"\nnet = \"none\"\nallow_read = [\"{outside}\"]\nprocesses = 50"));
    ground.home.run(&["run", "-f", "crew.toml"]).exits(1);
    let spec = &ground.home.inspect("a")["sandbox"];
    let said = (&spec["level"], &spec["net"], &spec["processes"]);
    assert_eq!(said, (&"floor".into(), &"none".into(), &50.into()), "{spec:#}");
    assert!(spec["allow_read"].as_array().unwrap().contains(&outside.as_str().into()), "{spec:#}");
    assert_eq!(ground.home.inspect("a")["last_run"]["sandbox"]["level"], "floor");
}

/// A project may come with a repository that was cloned.
#[test]
fn a_project_does_not_set_its_own_sandbox() {
    if skipped() {
        return;
    }
    let ground = ground();
    for (setting, key) in [
        ("level = \"off\"", "sandbox.level"),
        ("allow_read = [\"/opt\"]", "sandbox.allow_read"),
        ("net = \"open\"", "sandbox.net"),
        ("roots = []", "sandbox.roots"),
        ("memory_bytes = 0", "sandbox.memory_bytes"),
    ] {
        ground.file(".roomette.toml", &format!("[sandbox]\n{setting}\n"));
        refused(&ground, &["run", "--", "true"], key);
    }
    fs::remove_file(ground.path(".roomette.toml")).unwrap();
    ground.home.run(&["run", "--", "true"]).ok();
}
