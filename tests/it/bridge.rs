//! The built program as a bridge: each client session in directories of its own, and what holds them there.

mod asked;
mod clients;
mod conformance;
mod endings;
mod escapes;
mod published;
mod turmoil;

use std::fs;

use camino::Utf8PathBuf;
use serde_json::json;
use session_tests::bridge::{self, Bridge};
use session_tests::home::Home;

/// A directory with a file in it, apart from roomette's own data.
fn project(home: &Home, name: &str) -> Utf8PathBuf {
    let path = home.path().join(name).canonicalize_utf8().unwrap_or_else(|_| {
        let path = home.path().canonicalize_utf8().unwrap().join(name);
        fs::create_dir(&path).unwrap();
        path
    });
    fs::write(path.join("secret"), format!("of {name}")).unwrap();
    path
}

#[test]
fn two_clients_have_directories_of_their_own_and_no_others() {
    let home = Home::new();
    let (mine, theirs) = (project(&home, "mine"), project(&home, "theirs"));
    let bridge = Bridge::isolated(&home, &[]);
    let (mut one, mut other) = (bridge.opens(&[&mine]), bridge.opens(&[&theirs]));
    for (client, own, foreign) in [(&mut one, &mine, &theirs), (&mut other, &theirs, &mine)] {
        assert_eq!(client.call("cwd", &json!({})), *own);
        assert_eq!(client.read(&own.join("secret")), format!("of {}", own.file_name().unwrap()));
        for foreign in [foreign.join("secret"), bridge_token(&home), home.data().join("roomette.db")] {
            let refused = client.read(&foreign);
            assert!(refused.contains("NotFound") || refused.contains("Permission"), "{foreign}: {refused}");
        }
        let intruded = foreign.join(format!("by-{}", own.file_name().unwrap()));
        let refused = client.call("write", &json!({"path": intruded, "text": "x"}));
        assert!(refused.contains("Error"), "{refused}");
        assert!(!intruded.exists(), "{intruded}");
        assert_eq!(client.call("write", &json!({"path": "new", "text": "x"})), "written");
    }
    assert_eq!(fs::read_to_string(mine.join("new")).unwrap(), "x");
    // Each is a session of roomette, under the id that its client has.
    let session = one.call("session", &json!({}));
    assert_eq!(session.split(' ').next(), Some(one.session.as_str()));
    let seen = home.inspect(&one.session);
    assert_eq!((&seen["workspace"]["project"], &seen["state"]), (&json!(mine), &json!("active")), "{seen}");
    let listed = home.run(&["ps"]).ok().stdout;
    assert_eq!(listed.matches("running").count(), 2, "{listed}");
    // What a server says to its client is not in the log; what it says to people is.
    assert_eq!(home.run(&["logs", &one.session]).ok().stderr.trim(), "ready");
    assert_eq!(bridge.end_by(rustix::process::Signal::TERM), Some(0));
    assert_eq!(home.run(&["ps", "--busy", "-q"]).ok().stdout, "");
}

fn bridge_token(home: &Home) -> Utf8PathBuf {
    home.data().join("bridge.token")
}

#[test]
fn without_isolation_all_share_one_process_and_one_scope() {
    let home = Home::new();
    let scope = project(&home, "scope");
    let bridge = Bridge::start(&home, &["--sandbox-scope", scope.as_str()]);
    let (mut one, mut other) = (bridge.client(), bridge.client());
    one.begin(None);
    other.begin(None);
    assert_ne!(one.session, other.session);
    assert_eq!(one.call("session", &json!({})), other.call("session", &json!({})));
    for client in [&mut one, &mut other] {
        assert_eq!(client.call("cwd", &json!({})), scope);
        assert_eq!(client.read(&scope.join("secret")), "of scope");
    }
    // Whoever says goodbye is gone for the next bridge as well, and the other is not.
    assert_eq!(other.ask("DELETE", "").status, 204);
    let address = bridge.address.clone();
    bridge.end_by(rustix::process::Signal::TERM);
    let _again = Bridge::at(&home, &address, &["--sandbox-scope", scope.as_str()]);
    assert!(other.call("cwd", &json!({})).starts_with("404 "));
    assert_eq!(one.call("cwd", &json!({})), scope);
}

#[test]
fn who_names_no_directory_gets_the_operators_or_private_ones() {
    let home = Home::new();
    let scope = project(&home, "scope");
    let private = Bridge::isolated(&home, &["--env", "A=1"]);
    let mut client = private.client();
    client.begin(None);
    let cwd = client.call("cwd", &json!({}));
    assert_eq!(cwd, home.session(&client.session).join("work").canonicalize_utf8().unwrap());
    assert!(client.read(&scope.join("secret")).contains("Error"));
    assert_eq!(client.call("variable", &json!({"name": "A"})), "1");
    drop(private);
    home.until_free();
    let given = Bridge::isolated(&home, &["--no-auth", "--sandbox-scope", scope.as_str()]);
    assert_eq!(given.token, "");
    let mut client = given.opens(&[]);
    assert_eq!(client.call("cwd", &json!({})), scope);
    // Who is anybody opens nothing else.
    let elsewhere = project(&home, "elsewhere");
    let refused = given.opens(&[&elsewhere]).call("cwd", &json!({}));
    assert!(refused.contains("root_not_allowed"), "{refused}");
    assert_eq!(refused.matches("root_not_allowed").count(), 1, "{refused}");
}

#[test]
fn a_root_is_within_what_the_operator_allows_or_refused_with_a_code() {
    let home = Home::new();
    let (mine, theirs) = (project(&home, "mine"), project(&home, "theirs"));
    std::os::unix::fs::symlink(&theirs, mine.join("link")).unwrap();
    let bridge = Bridge::isolated(&home, &["--allow-root", mine.as_str()]);
    for (root, code) in [
        (theirs.clone(), "root_not_allowed"),
        (mine.join("link"), "root_not_allowed"),
        (mine.join("nowhere"), "root_not_found"),
        (mine.join("secret"), "root_not_a_directory"),
        ("/".into(), "root_everything"),
        (format!("{mine}/../theirs").into(), "root_dots"),
        (format!("{mine}%2F..%2Ftheirs").into(), "root_encoded_slash"),
        (format!("{mine}?x").into(), "root_query"),
    ] {
        let mut client = bridge.opens(&[&root]);
        let refused = client.call("cwd", &json!({}));
        assert!(refused.contains(code), "{root}: {refused}");
        assert!(client.call("cwd", &json!({})).contains(code), "it stays so");
    }
    assert_eq!(bridge.opens(&[&mine]).call("cwd", &json!({})), mine);
    // The first that it names is where it works, whatever the others are called.
    let [last, first] = ["z", "a"].map(|name| mine.join(name));
    fs::create_dir(&last).unwrap();
    fs::create_dir(&first).unwrap();
    assert_eq!(bridge.opens(&[&last, &first]).call("cwd", &json!({})), last);
}

#[test]
fn other_directories_later_end_the_session() {
    let home = Home::new();
    let mine = project(&home, "mine");
    let bridge = Bridge::isolated(&home, &[]);
    let mut client = bridge.opens(&[&mine]);
    assert_eq!(client.call("cwd", &json!({})), mine);
    client.tell("notifications/roots/list_changed");
    let refused = client.call("cwd", &json!({}));
    assert!(refused.starts_with("403 ") && refused.contains("roots_change_rejected"), "{refused}");
    assert!(refused.contains("new session"), "{refused}");
    let seen = home.inspect(&client.session);
    assert_eq!(
        (&seen["state"], &seen["terminated_because"]),
        (&json!("terminated"), &json!("roots_change_rejected")),
        "{seen}"
    );
    // And another bridge says the same.
    let address = bridge.address.clone();
    bridge.end_by(rustix::process::Signal::TERM);
    let _again = Bridge::at(&home, &address, &["--session-isolation"]);
    assert!(client.call("cwd", &json!({})).starts_with("403 "));
}

#[test]
fn a_host_that_serves_is_a_bridge_too_where_its_settings_say_so() {
    let home = Home::new();
    let (mine, server) = (project(&home, "mine"), bridge::server(&home));
    let servers = home.path().join("servers.json");
    let (place, entry) = (bridge::directory(&server), json!({"command": "python3", "args": [server]}));
    fs::write(&servers, json!({"mcpServers": {"tries": entry}}).to_string()).unwrap();
    let settings = |isolation: bool| {
        format!(
            "[host]\nruns_at_once = 1\n[bridge]\nconfig = \"{servers}\"\nlisten = \"127.0.0.1:0\"\nsessions = 2\n\
             session_isolation = {isolation}\nallow_root = [\"{mine}\"]\nallow_read = [\"{place}\"]\n"
        )
    };
    fs::create_dir_all(home.data()).unwrap();
    let file = home.data().join("config.toml");
    fs::write(&file, settings(false)).unwrap();
    assert!(home.run(&["serve"]).exits(2).stderr.contains("bridge.sandbox_scope"));
    fs::write(&file, settings(true)).unwrap();
    let host = Bridge::of(&home, &["serve", "--listen", "127.0.0.1:0"]);
    let (mut one, mut other) = (host.opens(&[&mine]), host.opens(&[&mine]));
    for client in [&mut one, &mut other] {
        assert_eq!(client.call("cwd", &json!({})), mine);
    }
    // Servers at work take no places from other runs.
    let _completed = home.run(&["run", "--", "true"]).ok();
    assert_eq!(home.run(&["ps", "--busy", "-q"]).ok().stdout.lines().count(), 2);
    assert_eq!(host.end_by(rustix::process::Signal::TERM), Some(0));
}
