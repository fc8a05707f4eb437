//! Ordinary work goes on inside, at both levels.

use crate::room::{Guard, Room, Who, said, skipped};

/// Runs the script of the shell at both levels, for every user, and compares what it prints.
#[track_caller]
pub(crate) fn prints(options: &[&str], script: &str, expected: &str) {
    for guard in [Guard::Floor, Guard::Full] {
        prints_at(guard, options, script, expected);
    }
}

#[track_caller]
pub(crate) fn prints_at(guard: Guard, options: &[&str], script: &str, expected: &str) {
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
fn python_with_an_environment_of_its_own() {
    let script = "python3 -m venv --without-pip env
        env/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'";
    prints(&["--env", "PATH=/usr/bin:/bin"], script, "True");
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
    let script = "sqlite3 x.db 'pragma journal_mode=wal; create table t(a); insert into t values(1),(2);'
        for n in 3 4 5 6; do sqlite3 -cmd '.timeout 20000' x.db \"insert into t values($n)\" & done; wait
        sqlite3 x.db 'select sum(a) from t;'";
    prints(&[], script, "wal\n21");
}

#[test]
fn a_compiler_and_make() {
    let script = "printf 'int main(void){return 0;}' > a.c; printf 'all: b c\\nb c: a.c\\n\\tcc -o $@ a.c\\n' > Makefile
        make -s -j && ./b && ./c && echo built";
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
fn processes_are_listed_at_full() {
    prints_at(Guard::Full, &[], "ps -o comm= -p $$; ps -e -o pid= | head -n 1 | tr -d ' '", "sh\n1");
}

#[test]
fn servers_on_the_loopback() {
    let script = "python3 -c 'import http.server, threading, urllib.request
s = http.server.HTTPServer((\"127.0.0.1\", 0), http.server.BaseHTTPRequestHandler)
threading.Thread(target=s.serve_forever, daemon=True).start()
try: urllib.request.urlopen(\"http://127.0.0.1:%d/\" % s.server_port)
except urllib.error.HTTPError as answer: print(answer.code)' 2>/dev/null";
    let path = ["--env", "PATH=/usr/bin:/bin"];
    prints(&[&path[..], &["--net", "open"]].concat(), script, "501");
    prints_at(Guard::Full, &[&path[..], &["--net", "loopback"]].concat(), script, "501");
}

/// What floor takes away, and why. Full has it all; a session that needs one of these wants full.
const NOT_AT_FLOOR: &[(&str, &str, &str)] = &[
    (
        "a new terminal",
        "the host's /dev/pts shows the terminals of others",
        "python3 -c 'import pty; pty.openpty()'",
    ),
    (
        "semaphores and shared memory by name",
        "the host's /dev/shm is shared with all other sessions",
        "python3 -c 'import multiprocessing; multiprocessing.Lock()'",
    ),
    (
        "Unix sockets",
        "Landlock before ABI 9 does not know which of them may be connected to",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX)'",
    ),
    (
        "the list of interfaces (node: os.networkInterfaces)",
        "a netlink socket tells of the host's network",
        "node -e 'require(\"os\").networkInterfaces()'",
    ),
    ("the list of processes", "the host's /proc shows all of them", "test -n \"$(ps -e 2>/dev/null)\""),
    (
        "files in /tmp",
        "the host's /tmp is shared with all others: TMPDIR names a directory in a root",
        "mktemp",
    ),
    ("System V queues and memory", "they are shared with everybody of the same user", "ipcmk -Q"),
];

#[test]
fn what_floor_takes_away_full_has() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let works = |guard, script: &str| {
            Room::new(guard, who).shell(&format!("{{ {script}; }} >/dev/null 2>&1")).status.success()
        };
        for (what, reason, script) in NOT_AT_FLOOR {
            assert!(works(Guard::Full, script), "{who:?}: {what} does not work at full");
            assert!(!works(Guard::Floor, script), "{who:?}: {what} works at floor, although {reason}");
        }
    }
}

#[test]
fn the_machine_has_another_name_at_full() {
    prints_at(Guard::Full, &[], "uname -n; cat /proc/1/comm >/dev/null && echo $$ | grep -c .", "session\n1");
}
