//! What children spend: of what their parent has, together no more than that, and back comes what they leave.

use std::fs;

use camino::Utf8PathBuf;
use serde_json::{Value, json};
use session_tests::http::{Reply, Served};

use super::House;

/// A prompt that has the agent say what its token is and wait until it may go on.
const WAITS: &str = "tool printf %s \"$ROOMETTE_TOKEN\" > token.new; mv token.new token; \
                     until [ -e go ]; do sleep 0.05; done";

/// An agent at work whose session starts children.
struct Parent<'h> {
    house: &'h House,
    served: &'h Served,
    session: String,
    work: Utf8PathBuf,
    token: String,
}

impl<'h> Parent<'h> {
    /// `then` is what it does when it may go on.
    fn begin(house: &'h House, served: &'h Served, limits: &[&str], then: &str) -> Self {
        let asked = format!("{WAITS}\n{then}");
        let session = house.begin_agent(&[&["--allow-tool", "Bash"], limits].concat(), &asked);
        let work = house.home.session(&session).join("work");
        house.home.until(|| work.join("token").exists());
        let token = fs::read_to_string(work.join("token")).unwrap();
        Self { house, served, session, work, token }
    }

    /// Starts a child with the run's own token.
    fn child(&self, script: &str, budget: &Value) -> Reply {
        let body = json!({"type": "start", "argv": ["sh", "-c", script], "budget": budget});
        self.served.ask("POST", "/v1/runs", &self.token, &body.to_string())
    }

    fn shares(&self, part: &str) -> [Value; 3] {
        let account = self.house.home.run(&["--json", "budget", "show", &self.session]).ok().json().remove(0);
        ["tokens", "tool_calls", "turns"].map(|name| account[name][part].clone())
    }

    fn goes_on(&self) {
        fs::write(self.work.join("go"), "").unwrap();
        self.house.home.run(&["wait", &self.session]);
    }
}

#[test]
fn children_have_together_what_their_parent_has() {
    let house = House::new();
    let home = &house.home;
    let served = Served::start(home);
    let parent = Parent::begin(&house, &served, &["--max-tokens", "200000", "--max-turns", "9"], "say done");
    let left = 200_000 - parent.shares("reserved")[0].as_u64().unwrap();
    let third = json!({"tokens": left / 3, "tool_calls": 0, "turns": 1});
    let script = "echo ready; until [ -e go ]; do sleep 0.05; done";
    let asked: Vec<Reply> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..6).map(|_| scope.spawn(|| parent.child(script, &third))).collect();
        asking.into_iter().map(|reply| reply.join().unwrap()).collect()
    });
    let (made, refused): (Vec<_>, Vec<_>) = asked.into_iter().partition(|reply| reply.status == 201);
    assert!(
        made.len() == 3 && refused.iter().all(|reply| [409, 422].contains(&reply.status)),
        "{refused:#?}"
    );
    assert_eq!(parent.shares("allotted"), [json!(left / 3 * 3), Value::Null, json!(3)]);
    let table = home.run(&["budget", "show", &parent.session]).ok().stdout;
    assert!(table.contains("FOR CHILDREN"), "{table}");
    let inspected = home.run(&["inspect", &parent.session]).ok().stdout;
    assert!(inspected.contains(&format!("({} for children)", left / 3 * 3)), "{inspected}");

    let children: Vec<_> = made.iter().map(|reply| reply.text("/session_id")).collect();
    for child in &children {
        home.until_logged(child, "ready");
    }
    let [completed, stopped, killed] = &children[..] else { panic!("{children:?}") };
    fs::write(home.session(completed).join("work/go"), "").unwrap();
    home.run(&["wait", completed]).ok();
    home.run(&["stop", stopped]).ok();
    home.run(&["kill", killed]).ok();
    home.until(|| parent.shares("allotted") == [Value::Null, Value::Null, Value::Null]);
    assert_eq!(parent.shares("used"), [json!(0), json!(0), json!(3)]);
    let booked = house.events(&parent.session, "usage");
    let booked: Vec<_> = booked.iter().filter_map(|usage| usage["child"].as_str()).collect();
    assert!(children.iter().all(|child| booked.contains(&child.as_str())) && booked.len() == 3, "{booked:?}");

    let whole = json!({"tokens": left, "turns": 2});
    let last = parent.child("true", &whole).is(201).text("/session_id");
    home.run(&["wait", &last]).ok();
    parent.goes_on();
    assert_eq!(home.inspect(&parent.session)["last_run"]["state"], "completed");
    assert_eq!(parent.shares("used")[2], json!(5), "its own turn, and those of four children");
    // Whose work is over goes on with what its parent has.
    home.run(&["resume", &last]).ok();
    assert_eq!(parent.shares("used")[2], json!(6));
}

/// What a turn has given to children it has not any more: it ends when it has used that. What it has used it cannot give.
#[test]
fn a_turn_hears_of_what_its_children_have() {
    let house = House::with(&[("ROOMETTE_HOST_LEASE", "5s")]);
    let served = Served::start(&house.home);
    let parent = Parent::begin(&house, &served, &["--max-tool-calls", "4"], "tool exec sleep 600");
    parent.child("true", &json!({"tool_calls": 4})).refused(422, "invalid");
    // With its next sign of life the step after this one is its own too.
    let child = parent.child("exec sleep 600", &json!({"tool_calls": 2})).is(201).text("/session_id");
    parent.child("true", &json!({"tool_calls": 2})).refused(422, "invalid");
    house.home.until(|| parent.shares("reserved")[1] == json!(2));
    let last = parent.child("exec sleep 600", &json!({"tool_calls": 1})).is(422).body;
    assert!(last.to_string().contains("has 0 left"), "{last}");
    house.home.run(&["budget", "set", &parent.session, "--tool-calls", "3"]).ok();
    fs::write(parent.work.join("go"), "").unwrap();
    house.home.run(&["wait", &parent.session]).exits(7);
    let run = &house.home.inspect(&parent.session)["last_run"];
    assert_eq!((&run["state"], &run["reason"]), (&json!("failed"), &json!("budget_exhausted")), "{run:#}");
    house.home.run(&["kill", &child]).ok();
}
