//! Ordinary work goes on inside, at both levels.

use crate::room::{Guard, Room, Who, said, skipped};

/// Runs the script of the shell at both levels, for every user, and compares what it prints.
#[track_caller]
fn prints(options: &[&str], script: &str, expected: &str) {
    for guard in [Guard::Floor, Guard::Full] {
        prints_at(guard, options, script, expected);
    }
}

#[track_caller]
fn prints_at(guard: Guard, options: &[&str], script: &str, expected: &str) {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let room = Room::new(guard, who).with(options);
        let output = room.shell(script);
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success() && text == expected, "{who:?} at {guard:?}: {}", said(&output));
    }
}

#[test]
fn shell_and_pipelines() {
    prints(&[], "seq 100 | sort -rn | head -n 1; echo a > f && cat < f > g && wc -c < g && rm f g", "100\n2");
}

#[test]
fn null_zero_and_random_devices() {
    prints(&[], "echo x > /dev/null; head -c 9 /dev/zero | wc -c; head -c 9 /dev/urandom | wc -c", "9\n9");
}

#[test]
fn python_with_threads_and_processes() {
    let script = "python3 -c 'import threading, subprocess, os, random
t = threading.Thread(target=lambda: print(\"thread\")); t.start(); t.join()
print(subprocess.check_output([\"echo\", \"child\"]).decode().strip(), len(os.getrandom(8)))'";
    prints(&["--env", "PATH=/usr/bin:/bin"], script, "thread\nchild 8");
}

#[test]
fn python_with_shared_memory_at_full() {
    let script = "python3 -c 'import multiprocessing
if __name__ == \"__main__\":
    with multiprocessing.Pool(3) as pool: print(sum(pool.map(abs, range(-9, 0))))'";
    prints_at(Guard::Full, &["--env", "PATH=/usr/bin:/bin"], script, "45");
}

#[test]
fn a_terminal_at_full() {
    let script = "python3 -c 'import pty, os
pty.spawn([\"/bin/sh\", \"-c\", \"test -t 0 && echo terminal\"])' < /dev/null";
    prints_at(Guard::Full, &["--env", "PATH=/usr/bin:/bin"], script, "terminal");
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    let script = "sqlite3 x.db 'pragma journal_mode=wal; create table t(a); insert into t values(1),(2); \
                  select sum(a) from t;'";
    prints(&[], script, "wal\n3");
}

#[test]
fn a_compiler_and_make() {
    let script = "printf 'int main(void){return 0;}' > a.c; printf 'all: b c\\nb c: a.c\\n\\tcc -o $@ a.c\\n' > Makefile
        make -s -j2 && ./b && ./c && echo built";
    prints(&["--env", "TMPDIR=."], script, "built");
}

#[test]
fn archives_and_modes() {
    let script =
        "mkdir d; echo x > d/f; chmod 750 d; touch -d @1 d/f; tar cf - d | (mkdir e; cd e; tar xpf -)
        stat -c '%a %Y' e/d e/d/f | head -c 3";
    prints(&[], script, "750");
}

#[test]
fn node_with_workers() {
    let script = "command -v node >/dev/null || { echo 3; exit; }
        node -e 'const {Worker}=require(\"worker_threads\"); \
        new Worker(\"require(\\\"worker_threads\\\").parentPort.postMessage(3)\",{eval:true})\
        .on(\"message\",m=>console.log(m))'";
    prints(&[], script, "3");
}

#[test]
fn names_and_users_are_known() {
    prints(
        &[],
        "getent passwd root | cut -d: -f1; getent hosts localhost >/dev/null && echo known",
        "root\nknown",
    );
}

#[test]
fn temporary_files_at_full() {
    prints_at(
        Guard::Full,
        &[],
        "f=$(mktemp) && echo x > $f && cat $f && df --output=target /tmp | tail -n 1",
        "x\n/tmp",
    );
}

#[test]
fn cargo_says_its_version() {
    if skipped() {
        return;
    }
    // The toolchain of the tests lies where the user of the tests keeps it.
    let cargo = std::fs::canonicalize(env!("CARGO")).unwrap();
    let toolchain = cargo.parent().unwrap().parent().unwrap().to_str().unwrap().to_owned();
    for guard in [Guard::Floor, Guard::Full] {
        let room = Room::new(guard, Who::all()[0]).with(&["--ro", &toolchain]);
        let output = room.inside(&[cargo.to_str().unwrap(), "--version"]).output().unwrap();
        assert!(output.stdout.starts_with(b"cargo 1."), "{guard:?}: {}", said(&output));
    }
}

#[test]
fn the_machine_has_another_name_at_full() {
    prints_at(Guard::Full, &[], "uname -n; cat /proc/1/comm >/dev/null && echo $$ | grep -c .", "session\n1");
}
