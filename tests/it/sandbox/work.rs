//! Ordinary work in a session as it comes, without any flag.

use session_tests::home::{Home, Who};

use super::ground::{Ground, skipped};

/// Runs a script in a session as every user, at both levels, and compares what it prints.
#[track_caller]
fn prints(script: &str, expected: &str) {
    for level in ["--sandbox=best", "--sandbox=floor"] {
        prints_at(level, script, expected);
    }
}

#[track_caller]
fn prints_at(level: &str, script: &str, expected: &str) {
    if skipped() {
        return;
    }
    for who in Who::all() {
        // Tools of the system, which every user has.
        let ground = Ground::in_home(Home::of(who).with("PATH", "/usr/local/bin:/usr/bin:/bin"), who);
        let ran = ground.session(&[level], script);
        assert!(ran.run["state"] == "completed" && ran.log.stdout == expected, "{who:?} {level}: {ran:?}");
    }
}

#[test]
fn shells_pipes_and_devices() {
    let script = "seq 1000 | sort -rn | head -n 1; mkfifo p; (echo through > p &); cat p
echo x > /dev/null; head -c 9 /dev/zero | wc -c; head -c 9 /dev/urandom | wc -c; f=$(mktemp) && echo tmp > $f && cat $f
case $f in $TMPDIR/*) echo own tmp;; esac; id -u > /dev/null && echo known";
    prints(script, "1000\nthrough\n9\n9\ntmp\nown tmp\nknown\n");
}

#[test]
fn a_home_of_its_own() {
    let script = "echo mine > ~/note; cat \"$HOME/note\"; test -n \"$USER\" && echo user
case $HOME in */sessions/$ROOMETTE_SESSION_ID/home) echo own;; esac
mkdir -p ~/.cache ~/.config && echo made; ls -A /root 2>/dev/null; echo result > $ROOMETTE_OUTPUT_DIR/result";
    prints(script, "mine\nuser\nown\nmade\n");
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    let script = "sqlite3 x.db 'pragma journal_mode=wal; create table t(a); insert into t values(1),(2);'
for n in 3 4 5 6; do sqlite3 -cmd '.timeout 20000' x.db \"insert into t values($n)\" & done; wait
sqlite3 x.db 'select sum(a) from t;'";
    prints(script, "wal\n21\n");
}

#[test]
fn a_compiler_and_make() {
    let script = "printf 'int main(void){return 0;}' > a.c
printf 'all: b c d e\\nb c d e: a.c\\n\\tcc -o $@ a.c\\n' > Makefile; make -s -j && ./b && ./e && echo built";
    prints(script, "built\n");
}

#[test]
fn python_with_an_environment_of_its_own() {
    let script = "/usr/bin/python3 -m venv --without-pip env && . env/bin/activate
python -c 'import sys, subprocess, threading; print(sys.prefix != sys.base_prefix)
print(subprocess.check_output([\"echo\", \"child\"]).decode(), end=\"\")'";
    prints(script, "True\nchild\n");
    let script = "/usr/bin/python3 -c 'import multiprocessing
with multiprocessing.Pool(3) as pool: print(sum(pool.map(abs, range(-9, 0))))'";
    prints_at("--sandbox=best", script, "45\n");
}

#[test]
fn a_terminal() {
    let script = "script -qec 'test -t 0 && stty size > /dev/null && echo terminal' /dev/null < /dev/null | tr -d '\\r'";
    prints_at("--sandbox=best", script, "terminal\n");
}

#[test]
fn servers_on_the_loopback() {
    let script = "/usr/bin/python3 -c 'import http.server, threading, urllib.request
s = http.server.HTTPServer((\"127.0.0.1\", 0), http.server.BaseHTTPRequestHandler)
threading.Thread(target=s.serve_forever, daemon=True).start()
try: urllib.request.urlopen(\"http://127.0.0.1:%d/\" % s.server_port)
except urllib.error.HTTPError as answer: print(answer.code)' 2>/dev/null";
    prints(script, "501\n");
}

/// Tools that are not the system's are those of the person who runs the tests.
fn with_tools() -> Option<Ground> {
    let who = Who::all()[0];
    let home = Home::of(who);
    let home = if let Some(of_person) = option_env!("HOME") { home.with("HOME", of_person) } else { home };
    (!skipped()).then(|| Ground::in_home(home, who))
}

#[test]
fn node_and_npm() {
    let Some(ground) = with_tools() else { return };
    let script = "node -e 'const {Worker}=require(\"worker_threads\");
new Worker(\"require(\\\"worker_threads\\\").parentPort.postMessage(3)\",{eval:true}).on(\"message\",m=>console.log(m))'
echo '{\"name\":\"p\",\"version\":\"1.0.0\",\"scripts\":{\"say\":\"echo from npm\"}}' > package.json; npm run --silent say
node -e 'console.log(Object.keys(require(\"os\").networkInterfaces()).includes(\"lo\"))'";
    let ran = ground.session(&[], script).completed();
    assert_eq!(ran.log.stdout, "3\nfrom npm\ntrue\n", "{ran:?}");
}

#[test]
fn cargo_builds_offline_in_a_worktree() {
    let Some(ground) = with_tools() else { return };
    let script = "set -e; export HOME=$PWD; git config --global user.name P; git config --global user.email p@example.com
git init -q project; cd project; mkdir -p src vendor/helper/src .cargo
printf '[package]\\nname = \"with\"\\nversion = \"1.0.0\"\\nedition = \"2021\"\\n[dependencies]\\nhelper = \"1\"\\n' > Cargo.toml
printf '[source.crates-io]\\nreplace-with = \"here\"\\n[source.here]\\ndirectory = \"vendor\"\\n' > .cargo/config.toml
printf '[package]\\nname = \"helper\"\\nversion = \"1.0.0\"\\nedition = \"2021\"\\n' > vendor/helper/Cargo.toml
echo '{\"files\":{}}' > vendor/helper/.cargo-checksum.json
echo 'pub fn word() -> &'\"'\"'static str { \"helped\" }' > vendor/helper/src/lib.rs
echo 'fn main() { println!(\"{}\", helper::word()); }' > src/main.rs; git add -A; git commit -qm one";
    ground.outside(script).ok();
    let project = ground.path("project");
    let options = ["--worktree", "--project", project.as_str(), "--env", "CARGO_TERM_COLOR=never"];
    let ran = ground.session(
        &options,
        "cargo build --offline --quiet && target/debug/with && git status --porcelain | head -1",
    );
    assert_eq!(ran.run["state"], "completed", "{ran:?}");
    assert!(ran.log.stdout.starts_with("helped\n"), "{ran:?}");
    assert!(!project.join("target").exists());
}
