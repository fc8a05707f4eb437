//! Every attempt of the list, one session for each level and user, with another session and the host as what is attacked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use camino::Utf8PathBuf;
use serde_json::Value;
use session_tests::compiled::{ATTEMPT, put};
use session_tests::home::{Home, Who};

use super::attempts::{Attempt, FILES, HOST, NETWORK, Off, PROCESSES, Seen};
use super::ground::{Ground, skipped};
use super::listeners::Listeners;

/// What is attacked: a session without a sandbox, which has all that one can have in common with others. Its three shells
/// write down each signal; they end when a file `end` is there.
const OTHER: &str = r#"sqlite3 other.db "create table t (word text); insert into t values ('secret')"
"$A" make-shared-memory > shm && "$A" make-message-queue "$M" && "$A" make-key "$M" || exit 1
for n in 1 2 3; do
    sh -c 'trap "echo signal >> signals-$0" USR1; echo $$ > pid-$0; while [ ! -e end ]; do sleep 0.02; done' $n &
done
until [ -s pid-1 ] && [ -s pid-2 ] && [ -s pid-3 ]; do sleep 0.02; done
echo ready
wait"#;

/// Before the attempts: what they need to know comes as a file, when everything else is there.
const PRELUDE: &str = "until [ -e go ]; do sleep 0.02; done; . ./go; W=$PWD
run() { (eval \"$2\") >/dev/null 2>&1; echo \"$1 $?\"; }\n";

/// What may be read, as every ground has it.
const TEXT: &str = "readable/text";

/// One attack: who at which level.
struct Attack {
    ground: Ground,
    level: &'static str,
    mark: String,
    other: String,
    listeners: Listeners,
    before: BTreeMap<&'static str, String>,
    attempts: Vec<&'static Attempt>,
}

impl Attack {
    fn new(who: Who, level: &'static str, groups: &[&'static [Attempt]]) -> Self {
        let home = Home::of(who).with("SECRET_KEY", "host-secret");
        let ground = Ground::in_home(home, who);
        let place = ground.path("").parent().and_then(|path| path.file_name().map(str::to_owned)).unwrap();
        // Names of this kind are the whole machine's: another suite may run at the same time.
        let mark = format!("e2e{}-{}-{who:?}-{level}", std::process::id(), place.replace('.', ""));
        let runs = |attempt: &&Attempt| match attempt.off {
            Off::Skip => level != "off",
            Off::User => who == Who::User,
            Off::Both | Off::Root => true,
        };
        let attempts: Vec<_> = groups.iter().copied().flatten().filter(runs).collect();
        for attempt in &attempts {
            let files: &[&str] = match &attempt.seen {
                Seen::Changed(names) => names,
                Seen::Metadata(name) => std::slice::from_ref(name),
                Seen::Inside | Seen::Made(_) | Seen::Database | Seen::SetId | Seen::Reached(_) => &[],
            };
            files.iter().filter(|name| **name != TEXT).for_each(|name| ground.file(name, "secret"));
        }
        ground.file("outside/f01", "secret");
        ground.file("outside/f27", "secret");
        ground.file("readable/f49", "secret");
        ground.attempt_outside(&["setxattr", ground.path("outside/f27").as_str()]).ok();
        symlink("x", ground.path("outside/link")).unwrap();
        put(ATTEMPT, &ground.path("readable/set-id"));
        fs::set_permissions(ground.path("readable/set-id"), fs::Permissions::from_mode(0o4755)).unwrap();
        let listeners = Listeners::new(&ground, &mark);
        let other = Self::other(&ground, &mark);
        let metadata = attempts.iter().filter_map(|attempt| match attempt.seen {
            Seen::Metadata(name) => Some((name, metadata(&ground, name))),
            Seen::Inside
            | Seen::Changed(_)
            | Seen::Made(_)
            | Seen::Database
            | Seen::SetId
            | Seen::Reached(_) => None,
        });
        let before = metadata.collect();
        Self { ground, level, mark, other, listeners, before, attempts }
    }

    /// Starts the session that is attacked.
    fn other(ground: &Ground, mark: &str) -> String {
        let (attempt, mark) = (format!("A={}", ground.path("readable/attempt")), format!("M={mark}"));
        let arguments = [
            &["run", "--detach", "--sandbox=off", "--env", attempt.as_str(), "--env", mark.as_str(), "--"],
            ["sh", "-c", OTHER].as_slice(),
        ];
        let other = ground.home.run(&arguments.concat()).ok().stdout.trim().to_owned();
        ground.home.until_logged(&other, "ready");
        other
    }

    fn of_other(&self, name: &str) -> Utf8PathBuf {
        self.ground.home.session(&self.other).join("work").join(name)
    }

    fn keeper(&self, session: &str) -> String {
        let record =
            fs::read_to_string(self.ground.home.session(session).join("keeper.json")).unwrap_or_default();
        let record: Value = serde_json::from_str(&record).unwrap_or_default();
        record["keeper"]["pid"].to_string()
    }

    /// What the attempts need to know.
    fn variables(&self, session: &str) -> String {
        let word = |name: &str| fs::read_to_string(self.of_other(name)).unwrap().trim().to_owned();
        let device = fs::metadata("/").unwrap().dev();
        let mut text = String::new();
        let mut set = |name: &str, value: &dyn std::fmt::Display| writeln!(text, "{name}='{value}'").unwrap();
        set("A", &self.ground.path("readable/attempt"));
        set("O", &self.ground.path("outside"));
        set("R", &self.ground.path("readable"));
        set("S", &self.ground.path("data/sessions").join(&self.other));
        set("D", &self.ground.path("data"));
        set("M", &self.mark);
        set("DISK", &format!("{} {}", rustix::fs::major(device), rustix::fs::minor(device)));
        set("H", &self.ground.home.host());
        set("K", &self.keeper(session));
        set("L", &self.keeper(&self.other));
        for (name, value) in [("V1", "pid-1"), ("V2", "pid-2"), ("V3", "pid-3"), ("SHM", "shm")] {
            set(name, &word(value));
        }
        for (name, port) in self.listeners.ports() {
            set(&format!("PORT_{name}"), &port);
            set(&format!("HEX_{name}"), &format!("{port:04X}"));
        }
        text
    }

    /// Makes all attempts in one session; those that the kernel let happen, as it says inside, and the session.
    fn make(&self, options: &[&str]) -> (BTreeSet<String>, String) {
        let home = &self.ground.home;
        let level = format!("--sandbox={}", self.level);
        let readable = self.ground.path("readable");
        let mut script = PRELUDE.to_owned();
        for attempt in &self.attempts {
            writeln!(script, "run {} '{}'", attempt.name, attempt.line.replace('\'', "'\\''")).unwrap();
        }
        let mut arguments = vec!["run", "--detach", &level];
        if self.level != "off" {
            arguments.extend(["--allow-read", readable.as_str()]);
        }
        arguments.extend(options);
        arguments.extend(["--", "sh", "-c", &script]);
        let session = home.run(&arguments).ok().stdout.trim().to_owned();
        home.until(|| home.inspect(&session)["status"] == "running");
        let work = home.session(&session).join("work");
        let variables = self.variables(&session);
        fs::write(work.join("go.new"), variables).unwrap();
        home.give(work.join("go.new"));
        fs::rename(work.join("go.new"), work.join("go")).unwrap();
        self.listeners.meet(home, &session, &work);
        home.run(&["wait", &session]).ok();
        let log = home.run(&["logs", &session]).ok().stdout;
        let codes: Vec<_> = log.lines().filter_map(|line| line.split_once(' ')).collect();
        assert_eq!(codes.len(), self.attempts.len(), "an attempt ended the session: {log}");
        let done =
            codes.into_iter().filter(|(_, code)| *code == "0").map(|(name, _)| name.to_owned()).collect();
        (done, session)
    }

    /// Lets the other session end: by then it has written down what reached it.
    fn end(&self) {
        fs::write(self.of_other("end"), "").unwrap();
        self.ground.home.run(&["wait", &self.other]).ok();
        let shm = fs::read_to_string(self.of_other("shm")).unwrap();
        self.ground.attempt_outside(&["remove-shared-memory", shm.trim()]).ok();
        self.ground.attempt_outside(&["remove-message-queue", &self.mark]).ok();
        self.ground.attempt_outside(&["remove-key", &self.mark]).ok();
    }

    /// Whether an attempt got out.
    fn got_out(&self, attempt: &Attempt, done: &BTreeSet<String>, session: &str) -> bool {
        let sessions = self.ground.path("data/sessions");
        let (other, own) = (sessions.join(&self.other), sessions.join(session));
        let place = |name: &str| {
            let name = name.replace("$S", other.as_str()).replace("$T", own.as_str());
            self.ground.path(&name.replace("$M", &self.mark))
        };
        match attempt.seen {
            Seen::Inside => done.contains(attempt.name),
            Seen::Changed(names) => names.iter().any(|name| {
                let initial = if *name == TEXT { "text" } else { "secret" };
                fs::read_to_string(place(name)).is_ok_and(|text| text != initial) || !place(name).exists()
            }),
            Seen::Made(names) => names.iter().any(|name| {
                let made = fs::symlink_metadata(place(name)).is_ok();
                // Of /tmp and /dev/shm nothing else would clean it away.
                let _removed =
                    if made && name.starts_with('/') { fs::remove_file(place(name)) } else { Ok(()) };
                made
            }),
            Seen::Metadata(name) => self.before[name] != metadata(&self.ground, name),
            Seen::Database => {
                let database = rusqlite::Connection::open(self.of_other("other.db")).unwrap();
                let word: String = database.query_row("select word from t", [], |row| row.get(0)).unwrap();
                word != "secret"
            }
            Seen::SetId => {
                let files = fs::read_dir(self.ground.home.session(session).join("work")).unwrap();
                let modes = files.map(|file| file.unwrap().metadata().unwrap().permissions().mode());
                modes.into_iter().any(|mode| mode & 0o6000 != 0)
            }
            Seen::Reached(name) => self.listeners.reached(name),
        }
    }

    fn should(&self, attempt: &Attempt) -> bool {
        let who = self.ground.who;
        let is_root = rustix::process::geteuid().is_root();
        match (self.level, attempt.off) {
            ("off", Off::Both) => true,
            ("off", Off::Root) => who == Who::Root,
            ("off", Off::User) => who == Who::User && is_root,
            ("floor", _) => attempt.gap.is_some() && (who == Who::Root || !attempt.root_alone),
            _ => false,
        }
    }
}

/// Mode, owner, times and attributes of a file.
fn metadata(ground: &Ground, name: &str) -> String {
    let path = ground.path(name);
    let found = fs::metadata(&path).unwrap();
    let marked = ground.attempt_outside(&["getxattr", path.as_str()]).code;
    format!("{:o} {} {} {marked}", found.mode(), found.uid(), found.mtime())
}

/// The attempts of these groups, at a level, as everybody there is. What floor lets happen is what it says.
#[track_caller]
fn check(level: &'static str, groups: &[&'static [Attempt]], options: &[&str]) {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let attack = Attack::new(who, level, groups);
        let home = &attack.ground.home;
        let host = home.host();
        let (done, session) = attack.make(options);
        attack.end();
        let got_out = |attempt: &&&Attempt| attack.got_out(attempt, &done, &session);
        let out: BTreeSet<_> = attack.attempts.iter().filter(got_out).map(|attempt| attempt.name).collect();
        let expected = attack.attempts.iter().filter(|attempt| attack.should(attempt));
        let expected: BTreeSet<_> = expected.map(|attempt| attempt.name).collect();
        let (more, fewer): (Vec<_>, Vec<_>) =
            (out.difference(&expected).collect(), expected.difference(&out).collect());
        assert!(
            more.is_empty() && fewer.is_empty(),
            "{who:?} at {level}: out {more:?}, and not out {fewer:?}"
        );
        assert_eq!(home.host(), host, "{who:?} at {level}: the host was ended from inside");
        if level != "off" {
            said_gaps(&attack, &session, &out);
        }
    }
}

/// What got out is what `inspect` names; nothing that it names was held.
fn said_gaps(attack: &Attack, session: &str, out: &BTreeSet<&str>) {
    let inspected = attack.ground.home.inspect(session);
    let held = &inspected["last_run"]["sandbox"];
    assert_eq!(held["level"], attack.level, "{inspected:#}");
    let listed: BTreeSet<_> =
        held["gaps"].as_array().unwrap().iter().map(|gap| gap.as_str().unwrap()).collect();
    let of = |attempt: &&&Attempt| out.contains(attempt.name);
    let open: BTreeSet<_> = attack.attempts.iter().filter(of).filter_map(|attempt| attempt.gap).collect();
    assert!(open.is_subset(&listed), "{open:?} are open, and {listed:?} are named");
    let tried: BTreeSet<_> = attack.attempts.iter().filter_map(|attempt| attempt.gap).collect();
    let tried_and_listed: BTreeSet<_> = listed.intersection(&tried).copied().collect();
    assert_eq!(open, tried_and_listed, "a gap is named that is none");
}

const INSIDE: &[&[Attempt]] = &[FILES, PROCESSES, HOST];

#[test]
fn what_the_attempts_do_where_nothing_confines_them() {
    check("off", INSIDE, &[]);
}

#[test]
fn floor_lets_happen_what_it_names_and_nothing_else() {
    check("floor", INSIDE, &[]);
}

#[test]
fn full_lets_nothing_happen() {
    check("full", INSIDE, &[]);
}

#[test]
fn an_open_network_is_open() {
    check("off", &[NETWORK], &[]);
}

#[test]
fn nothing_leaves_a_session_without_a_network_at_floor() {
    check("floor", &[NETWORK], &["--net=none"]);
}

#[test]
fn nothing_leaves_a_session_without_a_network_at_full() {
    check("full", &[NETWORK], &["--net=none"]);
}
