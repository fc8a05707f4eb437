//! Whole toolchains at work inside: cargo, node and npm, git with worktrees, and agents where they are installed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::room::{Guard, Room, Who, said, skipped};
use crate::work::{prints, prints_at};

const BOTH: [Guard; 2] = [Guard::Floor, Guard::Full];

/// Two crates: one without dependencies, and one with a dependency that lies in the tree, as `cargo vendor` puts it.
const CRATES: &str = r#"set -e
    mkdir -p alone/src with/src with/.cargo with/vendor/helper/src; cd alone
    printf '[package]\nname = "alone"\nversion = "1.0.0"\nedition = "2021"\n' > Cargo.toml
    echo 'fn main() { println!("alone"); }' > src/main.rs
    cargo run --offline --quiet
    cd ../with
    printf '[package]\nname = "with"\nversion = "1.0.0"\nedition = "2021"\n[dependencies]\nhelper = "1"\n' > Cargo.toml
    printf '[source.crates-io]\nreplace-with = "here"\n[source.here]\ndirectory = "vendor"\n' > .cargo/config.toml
    printf '[package]\nname = "helper"\nversion = "1.0.0"\nedition = "2021"\n' > vendor/helper/Cargo.toml
    echo '{"files":{}}' > vendor/helper/.cargo-checksum.json
    echo 'pub fn word() -> &'"'"'static str { "helped" }' > vendor/helper/src/lib.rs
    echo 'fn main() { println!("{}", helper::word()); }' > src/main.rs
    cargo run --offline --quiet"#;

#[test]
fn cargo_builds_offline() {
    if skipped() {
        return;
    }
    // The toolchain of the tests lies where the user of the tests keeps it, and may be read.
    let cargo = fs::canonicalize(env!("CARGO")).unwrap();
    let toolchain = cargo.parent().unwrap().parent().unwrap().to_str().unwrap().to_owned();
    for guard in BOTH {
        let room = Room::new(guard, Who::all()[0]);
        let scope = room.text("scope");
        let path = format!("PATH={toolchain}/bin:/usr/bin:/bin");
        let [home, temporary] = ["HOME", "TMPDIR"].map(|name| format!("{name}={scope}"));
        let room = room.with(&["--ro", &toolchain, "--env", &path, "--env", &home, "--env", &temporary]);
        let output = room.shell(CRATES);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "alone\nhelped\n",
            "{guard:?}: {}",
            said(&output)
        );
    }
}

#[test]
fn node_with_workers_and_children() {
    let script = "node -e 'const {Worker}=require(\"worker_threads\"); \
        new Worker(\"require(\\\"worker_threads\\\").parentPort.postMessage(3)\",{eval:true})\
        .on(\"message\",m=>console.log(m))'
        echo 'process.on(\"message\",m=>{process.send(m*2);process.disconnect()})' > child.js
        node -e 'const c=require(\"child_process\").fork(\"./child.js\");c.on(\"message\",m=>console.log(m));c.send(21)'";
    prints(&[], script, "3\n42");
}

#[test]
fn node_watches_its_files() {
    let script = "node -e 'const fs=require(\"fs\");\
        const w=fs.watch(\".\",(event,name)=>{console.log(event,name);w.close()});fs.writeFileSync(\"new\",\"\")'";
    prints(&[], script, "rename new");
}

#[test]
fn node_serves_on_the_loopback() {
    let script = "node -e 'const http=require(\"http\");\
        const s=http.createServer((q,r)=>r.end(\"heard\")).listen(0,\"127.0.0.1\",()=>\
        http.get({host:\"127.0.0.1\",port:s.address().port},r=>r.on(\"data\",d=>{console.log(String(d));s.close()})))'";
    prints(&["--net", "open"], script, "heard");
    prints_at(Guard::Full, &["--net", "loopback"], script, "heard");
}

#[test]
fn npm_runs_scripts() {
    let script = r#"export HOME=$PWD; echo 'console.log(require("./package.json").name)' > hello.js
        echo '{"name":"local","version":"1.0.0","scripts":{"prehello":"echo first","hello":"node hello.js"}}' > package.json
        npm run --silent --offline --no-update-notifier hello"#;
    prints(&[], script, "first\nlocal");
}

/// The scripts of git tests: who commits, and the repository with one commit.
const REPOSITORY: &str = "set -e; export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
    export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git init -q repository; cd repository; echo one > file; git add file; git commit -qm one;";

#[test]
fn git_with_two_worktrees() {
    let script = format!(
        "{REPOSITORY} git worktree add -q -b first ../first; git worktree add -q -b second ../second
        for tree in first second; do cd ../$tree; echo $tree > new; git add new; git commit -qm $tree; done
        git -C ../repository log --all --oneline | wc -l; git worktree remove ../first; git worktree list | wc -l"
    );
    prints(&[], &script, "3\n2");
}

/// The room of one worktree: it may write there and in the repository's own directory, and neither in the repository's
/// working tree nor in the other worktree.
#[test]
fn git_in_one_worktree_of_a_repository_elsewhere() {
    if skipped() {
        return;
    }
    for guard in BOTH {
        for who in Who::all() {
            let room = Room::new(guard, who);
            let script = format!(
                "cd \"$1\"; {REPOSITORY} git worktree add -q -b first ../first; git worktree add -q -b second ../second"
            );
            let made =
                room.outside("sh").args(["-c", &script, "sh", &room.text("outside")]).output().unwrap();
            assert!(made.status.success(), "{}", said(&made));
            for tree in ["first", "second"] {
                let (place, common) =
                    (room.text(&format!("outside/{tree}")), room.text("outside/repository/.git"));
                let session = room.with(&["--rw", &place, "--rw", &common, "--cwd", &place]);
                let script = "export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a \
                    GIT_COMMITTER_EMAIL=a@b; pwd > new; git add new && git commit -qm new && git status --short
                    for other in ../first ../second ../repository; do echo evil > $other/planted; done 2>/dev/null; true";
                let output = session.shell(script);
                assert_eq!(
                    String::from_utf8_lossy(&output.stdout),
                    "",
                    "{who:?} at {guard:?}: {}",
                    said(&output)
                );
            }
            let script = "git -C \"$1\" log --all --oneline | wc -l; cd \"$1\"/..; ls -d */planted; true";
            let seen = room
                .outside("sh")
                .args(["-c", script, "sh", &room.text("outside/repository")])
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&seen.stdout).into_owned();
            assert_eq!(text, "3\nfirst/planted\nsecond/planted\n", "{who:?} at {guard:?}: {}", said(&seen));
        }
    }
}

/// Where a program of this name is installed, the directory that all of it lies in.
fn installed(name: &str) -> Option<(PathBuf, PathBuf)> {
    let room = Room::new(Guard::Off, Who::all()[0]);
    let found = room.outside("sh").args(["-c", "command -v \"$1\"", "sh", name]).output().unwrap();
    let program = fs::canonicalize(String::from_utf8(found.stdout).unwrap().trim()).ok()?;
    let modules =
        program.ancestors().filter(|above| above.file_name().is_some_and(|name| name == "node_modules"));
    let whole = modules.last().or(program.parent()).unwrap_or(Path::new("/usr")).to_owned();
    Some((program, whole))
}

/// The agents are no prerequisite of the tests.
#[test]
fn agents_start_where_they_are_installed() {
    if skipped() {
        return;
    }
    for name in ["claude", "codex"] {
        let Some((program, whole)) = installed(name) else { continue };
        for guard in BOTH {
            let room = Room::new(guard, Who::all()[0]);
            let [home, temporary] = ["HOME", "TMPDIR"].map(|name| format!("{name}={}", room.text("scope")));
            let room = room.with(&["--ro", whole.to_str().unwrap(), "--net", "open", "--env", &home]);
            let room = room.with(&["--env", &temporary]);
            let output = room.inside(&[program.to_str().unwrap(), "--version"]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains('.'), "{name} at {guard:?}: {}", said(&output));
        }
    }
}
