//! What is kept and shown: lists, labels, logs, events, export and import, cleanup, crews.

use std::fs;

use camino::Utf8Path;
use session_tests::home::{Home, left_with};
use session_tests::repository_root;

fn session_of(left: &session_tests::home::Left) -> String {
    left.json()[0]["session"].as_str().unwrap().to_owned()
}

#[test]
fn lists_go_page_by_page() {
    let home = Home::new();
    home.run(&["run", "--count", "5", "--label", "many", "--", "true"]).ok();
    let mut seen = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut arguments = vec!["--json", "ps", "-n", "2"];
        arguments.extend(after.iter().flat_map(|cursor| ["--after", cursor.as_str()]));
        let page = home.run(&arguments).ok().json().remove(0);
        seen.extend(
            page["sessions"].as_array().unwrap().iter().map(|s| s["id"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    let all: Vec<String> = home
        .run(&["ps", "--quiet", "--label", "many"])
        .ok()
        .lines()
        .iter()
        .map(|&id| id.to_owned())
        .collect();
    assert_eq!((seen.len(), &seen), (5, &all));
    let ambiguous = home.run(&["inspect", "many"]).exits(2);
    assert!(ambiguous.stderr.contains("several sessions"), "{}", ambiguous.stderr);
    assert_eq!(home.run(&["ps", "--quiet", "--busy"]).ok().stdout, "");
}

#[test]
fn labels_are_given_changed_and_taken_away() {
    let home = Home::new();
    let id = session_of(&home.run(&["--json", "run", "--", "true"]).ok());
    home.run(&["label", &id, "first"]).ok();
    home.run(&["label", "first", "second"]).ok();
    assert_eq!(home.inspect("second")["id"], id.as_str());
    home.run(&["inspect", "first"]).exits(4);
    home.run(&["label", "second", "--remove"]).ok();
    assert!(home.inspect(&id).get("label").is_none());
}

#[test]
fn logs_keep_the_streams_apart() {
    let home = Home::new();
    let script = "echo one; echo two >&2; printf 'no newline'";
    let id = session_of(&home.run(&["--json", "run", "--", "sh", "-c", script]).ok());
    let left = home.run(&["logs", &id]).ok();
    assert_eq!((left.stdout.as_str(), left.stderr.as_str()), ("one\nno newline\n", "two\n"));
    let tail = home.run(&["logs", "--tail", "1", &id]).ok();
    // Which stream was read last is not ours to say; that it is one line is.
    assert_eq!((tail.stdout + &tail.stderr).lines().count(), 1);
    let stamped = home.run(&["logs", "--timestamps", &id]).ok().stdout;
    assert!(stamped.lines().next().unwrap().starts_with("20"), "{stamped}");
    let states = home.run(&["logs", "--states", &id]).ok().stderr;
    assert!(states.contains("exit code 0"), "{states}");
    let followed = home.run(&["logs", "--follow", &id]).ok();
    assert_eq!(followed.stdout, "one\nno newline\n");
}

#[test]
fn events_tell_the_whole_story() {
    let home = Home::new();
    let id = session_of(&home.run(&["--json", "run", "--", "sh", "-c", "echo hi; exit 3"]).exits(1));
    let events = home.run(&["--json", "events", &id]).ok().json();
    let seqs: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>());
    let told = events.iter().map(|event| {
        let to = event["payload"]["to"].as_str().unwrap_or_default();
        format!("{} {to}", event["kind"].as_str().unwrap()).trim().to_owned()
    });
    let expected = [
        "session.created",
        "run.state pending",
        "run.state claimed",
        "run.state starting",
        "run.sandbox",
        "run.state running",
        "usage",
        "result",
        "run.state failed",
    ];
    // When its host leaves, the session is suspended: that may have happened by now, or not.
    assert_eq!(told.take(expected.len()).collect::<Vec<_>>(), expected);
    let last = &events[expected.len() - 1];
    assert_eq!(
        (&last["payload"]["reason"], &last["payload"]["exit_code"]),
        (&"exit_nonzero".into(), &3.into())
    );
    let after = home.run(&["--json", "events", "--after", "5", "-n", "1", &id]).ok().json();
    assert_eq!((after.len(), &after[0]["seq"]), (1, &6.into()));
}

#[test]
fn an_export_is_imported_under_a_fresh_id() {
    let home = Home::new();
    let arguments = ["--json", "run", "--label", "källa", "--metadata", "{\"k\": [1, \"ü\"]}", "--", "true"];
    let id = session_of(&home.run(&arguments).ok());
    // Then nothing happens to it when its host leaves.
    home.run(&["suspend", &id]).ok();
    let export = home.run(&["export", &id]).ok().stdout;
    let elsewhere = Home::new();
    let new = left_with(elsewhere.command(&["import", "-"]), &export).ok().stdout.trim().to_owned();
    assert_ne!(new, id);
    let imported = elsewhere.inspect(&new);
    assert_eq!((&imported["label"], &imported["metadata"]["k"][1]), (&"källa".into(), &"ü".into()));
    let (ours, theirs) = (
        home.run(&["--json", "events", &id]).ok().stdout,
        elsewhere.run(&["--json", "events", &new]).ok().stdout,
    );
    assert!(theirs.starts_with(&ours), "{theirs}");
    let more: Vec<_> = elsewhere.run(&["--json", "events", &new]).ok().json().split_off(ours.lines().count());
    let more: Vec<_> = more.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(more, ["session.imported", "session.state"], "nothing is alive behind it yet");
    let unknown = elsewhere.run(&["resume", &new]).exits(2);
    assert!(unknown.stderr.contains("never ran"), "{}", unknown.stderr);
    elsewhere.run(&["resume", &new, "--", "true"]).ok();
    let torn = export.replacen("\"seq\":2", "\"seq\":3", 1);
    let left = left_with(elsewhere.command(&["import", "-"]), &torn).exits(2);
    assert!(left.stderr.contains("line 3"), "{}", left.stderr);
}

#[test]
fn cleanup_takes_what_ended_and_keeps_the_rest() {
    let home = Home::new();
    let script = "echo result > \"$ROOMETTE_OUTPUT_DIR/result\"; echo scrap > scrap";
    let id = session_of(&home.run(&["--json", "run", "--", "sh", "-c", script]).ok());
    let running = home.detached(&["sh", "-c", "echo ready; exec sleep 600"]);
    home.until_logged(&running, "ready");
    let none = home.run(&["cleanup"]).ok();
    assert!(none.stderr.contains("0 removed, 2 kept"), "{}", none.stderr);
    let dry = home.run(&["cleanup", "--older-than", "0s", "--dry-run"]).ok();
    assert!(dry.stderr.contains("1 would be removed"), "{}", dry.stderr);
    assert!(home.session(&id).join("work/scrap").exists());
    let cleaned = home.run(&["--json", "cleanup", "--older-than", "0s", "--archive"]).ok().json();
    let of = |session: &str| cleaned.iter().find(|one| one["session"] == session).unwrap().clone();
    assert_eq!((&of(&id)["removed"], &of(&running)["removed"]), (&true.into(), &false.into()));
    assert!(Utf8Path::new(of(&id)["archive"].as_str().unwrap()).exists());
    assert!(!home.session(&id).exists());
    assert_eq!(fs::read_to_string(home.data().join("output").join(&id).join("result")).unwrap(), "result\n");
    assert_eq!(home.inspect(&id)["terminated_because"], "cleaned_up");
    home.run(&["resume", &id]).exits(6);
    home.run(&["stop", &running]).ok();
}

#[expect(clippy::disallowed_methods, reason = "a test uses git as a person would")]
fn git(directory: &Utf8Path, arguments: &[&str]) -> String {
    let mut command = std::process::Command::new("git");
    command.args(arguments).current_dir(directory);
    for (name, value) in [("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_SYSTEM", "/dev/null")] {
        command.env(name, value);
    }
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "t").env(format!("GIT_{role}_EMAIL"), "t@example.org");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn worktrees_are_apart_and_never_lose_work() {
    let home = Home::new();
    let project = home.path().join("project");
    fs::create_dir(&project).unwrap();
    git(&project, &["init", "-q", "-b", "main"]);
    fs::write(project.join("file"), "original\n").unwrap();
    git(&project, &["add", "."]);
    git(&project, &["commit", "-qm", "first"]);
    let run = |script: &str| {
        session_of(
            &home.run(&["--json", "run", "--project", project.as_str(), "--", "sh", "-c", script]).ok(),
        )
    };
    let clean = run("cat file");
    let dirty = run("echo changed > file");
    assert_eq!(fs::read_to_string(project.join("file")).unwrap(), "original\n");
    let branches = git(&project, &["branch", "--list", "roomette/*"]);
    assert_eq!(branches.lines().count(), 2, "{branches}");
    let cleaned = home.run(&["--json", "cleanup", "--older-than", "0s"]).ok().json();
    let of = |session: &str| cleaned.iter().find(|one| one["session"] == session).unwrap().clone();
    assert_eq!(of(&clean)["removed"], true, "{cleaned:?}");
    assert_eq!(of(&dirty)["removed"], false, "{cleaned:?}");
    assert!(home.session(&dirty).join("work/file").exists());
    home.run(&["cleanup", "--older-than", "0s", "--force"]).ok();
    assert!(!home.session(&dirty).exists());
    assert_eq!(git(&project, &["worktree", "list"]).lines().count(), 1);
    let in_place =
        ["--json", "run", "--in-place", "--project", project.as_str(), "--", "sh", "-c", "echo new > new"];
    let id = session_of(&home.run(&in_place).ok());
    assert!(project.join("new").exists());
    home.run(&["cleanup", "--older-than", "0s", &id]).ok();
    assert!(project.join("new").exists() && project.join("file").exists(), "a project was touched");
}

#[test]
fn the_example_crew_does_what_it_says() {
    let home = Home::new();
    let crew = repository_root().join("examples/crew.toml");
    let left = home.run(&["--json", "run", "-f", crew.as_str()]).exits(1);
    let runs = left.json();
    let sessions = home.run(&["--json", "ps"]).ok().json().remove(0);
    let label_of = |id: &str| {
        let sessions = sessions["sessions"].as_array().unwrap();
        sessions.iter().find(|session| session["id"] == id).unwrap()["label"].as_str().unwrap().to_owned()
    };
    let mut told: Vec<_> = runs
        .iter()
        .map(|run| {
            let id = run["session"].as_str().unwrap();
            let database = home.session(id).join("work/data.db").exists();
            format!("{} {} {database}", label_of(id), run["state"].as_str().unwrap())
        })
        .collect();
    told.sort();
    let expected = [
        "after-broken failed false",
        "broken failed true",
        "collatz completed true",
        "primes completed true",
        "report completed true",
        "ticker completed true",
    ];
    assert_eq!(told, expected);
    let after_broken = home.inspect("after-broken");
    assert_eq!(after_broken["last_run"]["reason"], "dependency_failed");
}

#[test]
fn what_a_session_calls_itself_does_not_confuse_us() {
    let home = Home::new();
    // A task that calls roomette with its own variables set talks to the same data directory.
    let program = session_tests::program::roomette();
    let script = format!("ROOMETTE_HOME={} {program} ps --quiet", home.data());
    let left = home.run(&["--json", "run", "--sandbox=off", "--", "sh", "-c", &script]).ok();
    assert_eq!(left.json()[0]["last_line"].as_str().unwrap(), session_of(&left));
}

#[test]
fn doctor_and_completion_work_anywhere() {
    let home = Home::new();
    let findings = home.run(&["--json", "doctor"]).ok().json().remove(0);
    let store =
        findings["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == "store").unwrap();
    assert_eq!(store["level"], "ok");
    let completion = home.run(&["completion", "bash"]).ok().stdout;
    assert!(completion.contains("roomette"));
}
