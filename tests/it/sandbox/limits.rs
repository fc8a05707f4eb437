//! What a run may use up, and what is said when it wants more.

use std::fs;

use serde_json::{Value, json};
use session_tests::home::{Who, processes_with};

use super::ground::{Ground, Ran, may_have_a_group, skipped};

fn each(check: impl Fn(&Ground, &str)) {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        for level in ["--sandbox=full", "--sandbox=floor"] {
            check(&ground, level);
        }
    }
}

fn held(ground: &Ground, ran: &Ran) -> Value {
    ground.home.inspect(&ran.id)["last_run"]["sandbox"].clone()
}

fn names_gap(held: &Value, gap: &str) -> bool {
    held["gaps"].as_array().unwrap().contains(&json!(gap))
}

#[test]
fn memory_of_one_process() {
    each(|ground, level| {
        let script = "/usr/bin/python3 -c 'x = bytearray(160 << 20); print(\"had it\")'";
        let ran = ground.session(&[level, "--max-memory=128M"], script);
        assert_eq!(ran.run["state"], "failed", "{ran:?}");
        assert!(!ran.log.stdout.contains("had it"), "{ran:?}");
        ground.session(&[level, "--max-memory=512M"], script).completed();
    });
}

/// Shared memory is no process's own: only a cgroup holds it, and where there is none, that is said.
#[test]
fn memory_of_the_whole_tree() {
    each(|ground, level| {
        // Each holds what it has until all four have it or are killed.
        let script = "for n in 1 2 3 4; do
    (/usr/bin/python3 -c 'import mmap, os, time
m = mmap.mmap(-1, 40 << 20); m.write(b\"x\" * (40 << 20)); open(\"up\", \"a\").write(\"x\")
while os.path.getsize(\"up\") < 4: time.sleep(0.02)' || { printf x >> up; exit 1; }) & pids=\"$pids $!\"
done
killed=0; for pid in $pids; do wait $pid || killed=$((killed+1)); done; echo killed $killed";
        let ran = ground.session(&[level, "--max-memory=100M"], script).completed();
        let held = held(ground, &ran);
        let is_held = held["limits"]["memory"]["hold"] == "held";
        assert_eq!(ran.log.stdout.trim() != "killed 0", is_held, "{:?} {level}: {ran:?}", ground.who);
        assert_eq!(names_gap(&held, "memory_sum"), !is_held, "{held:#}");
        assert!(is_held || !may_have_a_group(ground.who), "there is a cgroup to write to: {held:#}");
        let shown = ground.home.run(&["inspect", &ran.id]).ok().stdout;
        assert!(shown.contains("memory 100M"), "{shown}");
        assert_eq!(shown.contains("no cgroup for memory"), !is_held, "{shown}");
    });
}

#[test]
fn processes() {
    each(|ground, level| {
        let script = "for n in $(seq 400); do sleep 600 & done; echo started";
        // For an ordinary user at floor all that the user runs counts, and it is one who runs nothing else.
        let ran = ground.session(&[level, "--max-processes=40"], script);
        assert!(!ran.log.stdout.contains("started"), "{ran:?}");
        assert_eq!(ran.run["reason"], "exit_nonzero", "{ran:?}");
        assert_eq!(processes_with(&format!("ROOMETTE_SESSION_ID={}", ran.id)), [] as [i32; 0]);
        assert!(!names_gap(&held(ground, &ran), "processes"));
        let script = "for n in $(seq 30); do sleep 600 & done; echo started";
        ground.session(&[level, "--max-processes=400"], script).completed();
    });
}

#[test]
fn one_large_file() {
    each(|ground, level| {
        let script = "head -c 8388608 /dev/zero > large; echo then; head -c 1000000 /dev/zero > small";
        let ran = ground.session(&[level, "--max-file-size=1M"], script).completed();
        let work = ground.home.session(&ran.id).join("work");
        assert_eq!(fs::metadata(work.join("large")).unwrap().len(), 1 << 20);
        assert_eq!(fs::metadata(work.join("small")).unwrap().len(), 1_000_000);
    });
}

#[test]
fn all_that_is_written() {
    each(|ground, level| {
        let script = "n=0; while [ $n -lt 60 ]; do n=$((n+1)); head -c 8388608 /dev/zero > file$n; sync file$n; done; echo wrote all";
        let ran = ground.session(&[level, "--max-writes=32M"], script);
        assert_eq!(ran.run["reason"], "limit_exceeded", "{ran:?}");
        let why = ran.run["message"].as_str().unwrap();
        assert!(why.contains("written more to disk than it may"), "{why}");
        assert!(!ran.log.stdout.contains("wrote all"));
        assert_eq!(held(ground, &ran)["limits"]["writes"], true);
        let states = ground.home.run(&["logs", "--states", &ran.id]).ok().stderr;
        assert!(states.contains("written more than it may"), "{states}");
        let script = "head -c 8388608 /dev/zero > file; sync file; echo wrote all";
        ground.session(&[level, "--max-writes=32M"], script).completed();
    });
}

#[test]
fn limits_that_are_lifted_are_lifted() {
    each(|ground, level| {
        let options =
            [level, "--max-memory=none", "--max-processes=0", "--max-file-size=none", "--max-writes=none"];
        let ran = ground.session(&options, "ulimit -f; ulimit -d").completed();
        assert_eq!(ran.log.stdout, "unlimited\nunlimited\n");
        let spec = &ground.home.inspect(&ran.id)["sandbox"];
        for limit in ["memory_bytes", "processes", "file_size_bytes", "write_bytes"] {
            assert_eq!(spec[limit], Value::Null, "{spec:#}");
        }
    });
}
