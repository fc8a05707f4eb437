//! What is asked of the command, and who is let in.

use std::fs;

use serde_json::json;
use session_tests::bridge::{Bridge, directory, server};
use session_tests::home::Home;

use super::project;

#[test]
fn a_check_starts_a_server_once_and_leaves_nothing() {
    let home = Home::new();
    let server = server(&home);
    let check = |more: &[&str]| {
        let first = ["bridge", "--check", "--allow-read", directory(&server), "--"];
        home.run(&[&first, more].concat())
    };
    let found = check(&["python3", server.as_str()]).ok();
    assert!(found.lines().contains(&"read\t") && found.stdout.contains("crash"), "{}", found.stdout);
    assert!(found.stderr.contains("tries 1, MCP 2025-11-25, 8 tools"), "{}", found.stderr);
    let failed = check(&["python3", "-c", "raise SystemExit(7)"]).exits(1);
    assert!(failed.stderr.contains("exit code 7"), "{}", failed.stderr);
    let failed = check(&["no-such-program"]).exits(1);
    assert!(failed.stderr.contains("no-such-program"), "{}", failed.stderr);
    assert!(!home.data().exists(), "nothing is recorded");
}

#[test]
fn a_server_that_is_not_there_is_its_operators_to_mend() {
    let home = Home::new();
    let scope = project(&home, "scope");
    for isolation in [&["--session-isolation"][..], &["--sandbox-scope", scope.as_str()]] {
        let arguments = ["--listen", "127.0.0.1:0", "--", "no-such-program"];
        let bridge = Bridge::serving(&home, &[isolation, &arguments].concat());
        let refused = bridge.client().send("initialize", &json!({"protocolVersion": "2025-11-25"}));
        assert_eq!(refused.status, 502, "{}", refused.body);
        assert!(!refused.head.to_lowercase().contains("retry-after"), "{}", refused.head);
        assert!(refused.body["error"]["message"].to_string().contains("no-such-program"), "{}", refused.body);
        drop(bridge);
        home.until_free();
    }
}

#[test]
fn several_servers_have_a_path_each() {
    let home = Home::new();
    let (server, file) = (server(&home), home.path().join("servers.json"));
    let entry = json!({"command": "python3", "args": [server]});
    fs::write(&file, json!({"mcpServers": {"one": entry, "two": entry}}).to_string()).unwrap();
    let arguments = ["bridge", "--check", "--allow-read", directory(&server), "--config", file.as_str()];
    let found = home.run(&arguments).ok();
    assert_eq!(found.stdout.matches("read").count(), 2, "{}", found.stdout);
    assert!(found.lines().iter().any(|line| line.starts_with("two\tread")), "{}", found.stdout);
    for (text, says) in [
        (r#"{"mcpServers": {"a/b": {"command": "x"}}}"#, "a/b"),
        (r#"{"mcpServers": {"a": {"url": "http://x"}}}"#, "over HTTP already"),
        ("{", "servers.json"),
    ] {
        fs::write(&file, text).unwrap();
        let refused = home.run(&arguments).exits(2);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_done() {
    let home = Home::new();
    let bridge = |more: &[&str]| home.run(&[&["bridge"], more].concat());
    for (arguments, says) in [
        (&[][..], "COMMAND"),
        (&["--config", "x", "--", "true"], "cannot be used with"),
        (&["--config", "nowhere.json"], "nowhere.json"),
        (&["--name", "a/b", "--", "true"], "a/b"),
        (&["--listen", "example.com:80", "--", "true"], "example.com:80"),
        (&["--sandbox-scope", "/no/such", "--", "true"], "--sandbox-scope /no/such"),
        (&["--allow-root", "/", "--", "true"], "--allow-root /"),
        (&["--allow-read", "/no/such", "--", "true"], "--allow-read /no/such"),
        (&["--sessions", "0", "--", "true"], "--sessions"),
        (&["--env", "NO_SUCH", "--", "true"], "NO_SUCH"),
        (&["--no-auth", "--session-isolation", "--", "true"], "--allow-root"),
        (&["--url", "example.com", "--", "true"], "--url"),
        (&["--issuer", "https://a?b", "--", "true"], "--issuer"),
        (&["--no-auth", "--token-file", "t", "--", "true"], "cannot be used with"),
    ] {
        let refused = bridge(arguments).exits(2);
        assert!(refused.stderr.contains(says), "{arguments:?}: {}", refused.stderr);
    }
    let refused = bridge(&["--no-auth", "--listen", "0.0.0.0:0", "--", "true"]).exits(5);
    assert!(refused.stderr.contains("loopback"), "{}", refused.stderr);
    // Whom its operator names is who issues tokens, where the operator says that it is.
    let other = Home::new();
    let scope = project(&other, "scope");
    let named = ["--url", "http://bridge.example", "--issuer", "https://login.example.com"];
    let named = [&named[..], &["--sandbox-scope", scope.as_str()]].concat();
    let bridge_of = Bridge::start(&other, &named);
    let mut stranger = bridge_of.client();
    stranger.token.clear();
    let refused = stranger.send("initialize", &json!({}));
    let expected = "http://bridge.example/.well-known/oauth-protected-resource/mcp";
    assert!(refused.head.contains(expected), "{}", refused.head);
    drop(bridge_of);
    // One host a data directory.
    let _standing = Bridge::isolated(&home, &[]);
    bridge(&["--listen", "127.0.0.1:0", "--", "true"]).exits(6);
}

#[test]
fn a_token_lets_in_and_to_ones_own_sessions_alone() {
    let home = Home::new();
    let mine = project(&home, "mine");
    let bridge = Bridge::isolated(&home, &[]);
    let said = bridge.said.to_string();
    assert!(said.contains("bridge.token") && !said.contains(&bridge.token), "{said}");
    let mut client = bridge.opens(&[&mine]);
    assert_eq!(client.call("cwd", &json!({})), mine);
    let mut stranger = bridge.client();
    for token in ["", "x", "rmt_00"] {
        token.clone_into(&mut stranger.token);
        assert_eq!(stranger.send("initialize", &json!({})).status, 401, "{token}");
    }
    let token = |verbs: &str| {
        let made = ["token", "create", "--name", "t", "--principal", "guest", "--verbs", verbs];
        home.run(&made).ok().stdout.trim().to_owned()
    };
    stranger.token = token("read");
    assert_eq!(stranger.send("initialize", &json!({})).status, 401, "it is for nothing that runs");
    stranger.token = token("run");
    client.session.clone_into(&mut stranger.session);
    assert!(stranger.call("cwd", &json!({})).starts_with("404 "));
    // Without --allow-root a guest names nothing of this user's.
    stranger.session.clear();
    stranger.begin(Some(&[&mine]));
    let refused = stranger.call("cwd", &json!({}));
    assert!(refused.contains("root_not_allowed"), "{refused}");
    assert_eq!(client.call("cwd", &json!({})), mine);
}

#[test]
fn no_session_sees_what_lets_in_or_what_only_another_server_is_to_know() {
    let home = Home::new();
    let (mine, other) = (project(&home, "mine"), project(&home, "other"));
    let (server, token, file) = (server(&home), mine.join("bridge.token"), mine.join("servers.json"));
    let secret = json!({"command": "python3", "args": [server], "env": {"KEY": "of one"}});
    fs::write(&file, json!({"mcpServers": {"one": secret}}).to_string()).unwrap();
    let read = ["--listen", "127.0.0.1:0", "--allow-read", directory(&server)];
    let [with_token, with_file] = [["--token-file", token.as_str()], ["--config", file.as_str()]]
        .map(|of| [&["bridge"], &read[..], &of[..]].concat());
    // What the operator opens to all does not hold it.
    for (arguments, more) in [
        (&with_token, &["--sandbox-scope", mine.as_str(), "--", "true"][..]),
        (&with_token, &["--session-isolation", "--allow-read", mine.as_str(), "--", "true"]),
        (&with_file, &["--session-isolation", "--sandbox-scope", mine.as_str()]),
        (&with_file, &["--check", "--sandbox-scope", mine.as_str()]),
    ] {
        let refused = home.run(&[&arguments[..], more].concat()).exits(2);
        assert!(refused.stderr.contains("which no session may see"), "{more:?}: {}", refused.stderr);
    }
    // Nor does what a client opens.
    for (arguments, more) in [
        (&with_token, &["--session-isolation", "--", "python3", server.as_str()][..]),
        (&with_file, &["--session-isolation"]),
    ] {
        let bridge = Bridge::of(&home, &[&arguments[..], more].concat());
        let refused = bridge.opens(&[&mine]).call("cwd", &json!({}));
        assert!(refused.contains("root_holds_data"), "{refused}");
        assert_eq!(bridge.opens(&[&other]).call("cwd", &json!({})), other);
        drop(bridge);
        home.until_free();
    }
}
