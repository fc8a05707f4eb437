//! Whose child a session may be, what it may reach, and how families are shown.

use serde_json::json;

use super::{House, session_of};

#[test]
fn a_family_is_as_deep_and_as_wide_as_is_set() {
    let house =
        House::with(&[("ROOMETTE_LIMITS_CHILDREN_DEPTH", "2"), ("ROOMETTE_LIMITS_CHILDREN_WIDTH", "2")]);
    let home = &house.home;
    let root = home.detached(&["true"]);
    let child = house.begin(&root, &[], "true");
    let grandchild = house.begin(&child, &[], "true");
    let refused = |parent: &str| home.run(&["run", "--parent", parent, "--", "true"]).exits(6).stderr;
    let deep = refused(&grandchild);
    assert!(deep.contains(&grandchild) && deep.contains("depth 2"), "{deep}");
    let second = house.begin(&root, &[], "true");
    let wide = refused(&root);
    assert!(wide.contains(&root) && wide.contains('2'), "{wide}");
    home.run(&["wait", &second]).ok();
    home.run(&["kill", &second]).ok();
    house.begin(&root, &[], "true");
    refused(&root);
    // A crew is made whole or not at all.
    let before = home.run(&["ps", "--all", "--quiet"]).ok().lines().len();
    home.run(&["run", "--count", "3", "--parent", &child, "--", "true"]).exits(6);
    assert_eq!(home.run(&["ps", "--all", "--quiet"]).ok().lines().len(), before);
}

#[test]
fn a_child_reaches_nothing_that_its_parent_does_not() {
    let house = House::new();
    let home = &house.home;
    let arguments = ["--json", "run", "--net", "none", "--max-memory", "1G", "--", "true"];
    let root = session_of(&home.run(&arguments).ok().json()[0]);
    let child = house.begin(&root, &[], "true");
    let sandbox = |session: &str| home.inspect(session)["sandbox"].clone();
    assert_eq!(sandbox(&child), sandbox(&root), "what is not said is as the parent has it");
    let elsewhere = home.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    for (options, named) in [
        (["--net", "open"], "network"),
        (["--sandbox", "off"], "sandbox level"),
        (["--max-memory", "2G"], "memory"),
        (["--allow-read", elsewhere.as_str()], "directory to read"),
    ] {
        let refused = home.run(&["run", "--parent", &root, options[0], options[1], "--", "true"]).exits(6);
        assert!(refused.stderr.contains(named) && refused.stderr.contains(&root), "{}", refused.stderr);
    }
    // Another one's session is no parent, as if it did not exist.
    let foreign = |parent: &str| {
        let mut other = home.command(&["run", "--parent", parent, "--", "true"]);
        other.env("USER", "somebody else");
        session_tests::home::left(other).exits(4).stderr
    };
    let unknown = "ses_00000000000040008000000000000001";
    assert!(foreign(&root).contains("there is no session"), "{}", foreign(&root));
    assert!(foreign(unknown).contains("there is no session"));
}

/// A command within a session makes children of it; the variable that says so is a hint, and no right.
#[test]
fn within_a_session_its_children_are_started() {
    let house = House::new();
    let home = &house.home;
    let root = home.detached(&["true"]);
    let run_in = |session: &str, options: &[&str]| {
        let mut command = home.command(&[&["--json", "run"], options, &["--", "true"]].concat());
        command.env("ROOMETTE_SESSION_ID", session);
        session_of(&session_tests::home::left(command).ok().json()[0])
    };
    let parent = |session: &str| home.inspect(session)["parent"].clone();
    assert_eq!(parent(&run_in(&root, &[])), json!(root));
    assert_eq!(parent(&run_in(&root, &["--no-parent"])), json!(null));
    assert_eq!(parent(&run_in("ses_00000000000040008000000000000001", &[])), json!(null));
    assert_eq!(parent(&run_in("nonsense", &[])), json!(null));
    let keyed = run_in(&root, &["--key", "mine"]);
    assert_eq!((parent(&keyed), run_in(&root, &["--key", "mine"])), (json!(null), keyed.clone()));
    let refused = home.run(&["run", "--key", "mine", "--parent", &root, "--", "true"]).exits(6);
    assert!(refused.stderr.contains("a parent"), "{}", refused.stderr);
}

#[test]
fn a_family_is_shown_as_a_tree() {
    let house = House::new();
    let home = &house.home;
    let root = home.detached(&["true"]);
    let children = [house.begin(&root, &[], "true"), house.begin(&root, &["--label", "second"], "true")];
    let grandchild = house.begin(&children[0], &[], "true");
    let alone = home.detached(&["true"]);
    home.run(&["wait", &root, &children[0], &children[1], &grandchild, &alone]).ok();
    let short = |session: &str| session[..16].to_owned();
    let listed = home.run(&["ps", "--tree"]).ok().stdout;
    let first = |line: &str| line[..line.find("ses_").unwrap() + 16].to_owned();
    let names: Vec<_> = listed.lines().skip(1).map(first).collect();
    let expected = [
        short(&alone),
        short(&root),
        format!("├─ {}", short(&children[0])),
        format!("│  └─ {}", short(&grandchild)),
        format!("└─ {}", short(&children[1])),
    ];
    assert_eq!(names, expected, "{listed}");
    let listed = home.run(&["--json", "ps", "--tree", "--label", "second"]).ok().json().remove(0);
    let sessions: Vec<_> = listed["sessions"].as_array().unwrap().iter().collect();
    let place = |session: &&serde_json::Value| (session["id"].clone(), session["depth"].clone());
    let places: Vec<_> = sessions.iter().map(place).collect();
    let expected = [(&root, 0), (&children[0], 1), (&grandchild, 2), (&children[1], 1)];
    assert_eq!(
        places,
        expected.map(|(id, depth)| (json!(id), json!(depth))),
        "the whole family of what is meant"
    );
    assert_eq!(sessions[2]["parent"], json!(children[0]));
    let shown = home.inspect(&root);
    assert_eq!(shown["children"], json!([&children[1], &children[0]]));
    let text = home.run(&["inspect", &root]).ok().stdout;
    assert!(text.contains(&format!("children   {}", short(&children[1]))), "{text}");
    home.run(&["kill", &grandchild]).ok();
    assert!(!home.run(&["ps", "--tree"]).ok().stdout.contains(&short(&grandchild)));
    assert!(home.run(&["ps", "--tree", "--all"]).ok().stdout.contains(&short(&grandchild)));
}
