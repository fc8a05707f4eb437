//! How a server's process comes to its end, and what its client notices of that.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use session_tests::bridge::Bridge;
use session_tests::home::{Home, gone_within, processes_with};

use super::project;

#[test]
fn a_crash_is_an_error_for_who_asked_and_the_next_call_goes_on() {
    let home = Home::new();
    let mine = project(&home, "mine");
    let bridge = Bridge::isolated(&home, &[]);
    let mut client = bridge.opens(&[&mine]);
    let before = client.call("session", &json!({}));
    let crashed = client.call("crash", &json!({}));
    assert!(crashed.contains("exit code 3"), "{crashed}");
    let after = client.call("session", &json!({}));
    assert_ne!(before, after, "another run");
    assert_eq!(before.split(' ').next(), after.split(' ').next(), "of the same session");
    assert_eq!(client.call("cwd", &json!({})), mine);
    drop(bridge);
    home.until_free();
    let bridge = Bridge::isolated(&home, &["--restart", "never"]);
    let mut client = bridge.opens(&[&mine]);
    assert!(client.call("crash", &json!({})).contains("exit code 3"));
    assert!(client.call("cwd", &json!({})).contains("exit code 3"), "it stays so");
}

#[test]
fn a_bridge_that_is_killed_goes_on_with_its_twenty_sessions_under_their_ids() {
    const SESSIONS: usize = 20;
    let home = Home::new();
    let projects: Vec<_> = (0..SESSIONS).map(|number| project(&home, &format!("project-{number}"))).collect();
    let bridge = Bridge::isolated(&home, &[]);
    let mut clients: Vec<_> = projects.iter().map(|own| bridge.opens(&[own])).collect();
    let before: Vec<_> = clients.iter_mut().map(|client| client.call("session", &json!({}))).collect();
    let address = bridge.address.clone();
    assert_eq!(bridge.end_by(Signal::KILL), None);
    let again = Bridge::at(&home, &address, &["--session-isolation"]);
    // All of them come back at once.
    let after: Vec<String> = std::thread::scope(|scope| {
        let calls = clients.iter_mut().map(|client| scope.spawn(|| client.call("session", &json!({}))));
        calls.collect::<Vec<_>>().into_iter().map(|call| call.join().unwrap()).collect()
    });
    for (number, client) in clients.iter_mut().enumerate() {
        let (own, foreign) = (&projects[number], &projects[(number + 1) % SESSIONS]);
        assert_eq!(before[number].split(' ').next(), after[number].split(' ').next());
        assert_ne!(before[number], after[number], "in a process of its own");
        assert_eq!(client.call("cwd", &json!({})), *own);
        assert!(client.read(&foreign.join("secret")).contains("Error"));
        let seen = home.inspect(&client.session);
        assert_eq!(seen["runs"].as_array().map(Vec::len), Some(2), "{seen}");
    }
    // The same after it was asked to leave.
    assert_eq!(again.end_by(Signal::TERM), Some(0));
    let _third = Bridge::at(&home, &address, &["--session-isolation"]);
    assert_eq!(clients[0].call("cwd", &json!({})), projects[0]);
}

#[test]
fn people_suspend_stop_and_kill_it() {
    let home = Home::new();
    let mine = project(&home, "mine");
    let bridge = Bridge::isolated(&home, &[]);
    let mut client = bridge.opens(&[&mine]);
    let mut last = client.call("session", &json!({}));
    for command in ["suspend", "stop"] {
        home.run(&[command, &client.session]).ok();
        if command == "suspend" {
            assert_eq!(home.inspect(&client.session)["state"], json!("suspended"));
        }
        home.until(|| processes_with(&format!("ROOMETTE_SESSION_ID={}", client.session)).is_empty());
        let mut next = String::new();
        // A call that was on its way to the process that went is told to come again.
        home.until(|| {
            next = client.call("session", &json!({}));
            next.starts_with(&client.session)
        });
        assert_ne!(std::mem::replace(&mut last, next.clone()), next, "it came back after {command}");
    }
    // Nobody but its bridge starts it.
    let refused = home.run(&["resume", &client.session]).exits(2);
    assert!(refused.stderr.contains("roomette bridge"), "{}", refused.stderr);
    home.run(&["kill", &client.session]).ok();
    let over = client.call("cwd", &json!({}));
    assert!(over.contains("killed"), "{over}");
    home.until(|| client.call("cwd", &json!({})).starts_with("404 "));
    assert_eq!(home.inspect(&client.session)["state"], json!("terminated"));
}

#[test]
fn delete_ends_the_whole_tree_within_a_second_also_during_a_call() {
    let home = Home::new();
    let mine = project(&home, "mine");
    let bridge = Bridge::isolated(&home, &[]);
    let mut client = bridge.opens(&[&mine]);
    assert_eq!(client.call("linger", &json!({})), "lingers");
    let ours = format!("ROOMETTE_SESSION_ID={}", client.session);
    let mut caller = bridge.client();
    client.session.clone_into(&mut caller.session);
    let calling = std::thread::spawn(move || caller.call("sleep", &json!({"seconds": 100})));
    home.until(|| processes_with(&ours).len() > 1);
    let tree = processes_with(&ours);
    assert_eq!(client.ask("DELETE", "").status, 204);
    for pid in tree {
        assert!(gone_within(pid, Duration::from_secs(1)), "{pid} is still there");
    }
    assert_eq!(processes_with(&ours), [] as [i32; 0]);
    let told = calling.join().unwrap();
    assert!(told.contains("404") || told.contains("over") || told.contains("ended"), "{told}");
    assert!(client.call("cwd", &json!({})).starts_with("404 "));
    assert_eq!(home.inspect(&client.session)["terminated_because"], json!("stopped"));
}
