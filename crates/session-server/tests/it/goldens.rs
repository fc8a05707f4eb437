//! Pages that are written by these tests (`UPDATE=1`) and compared by them: whoever changes the contract sees it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use session_api::Code;

#[track_caller]
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if update() {
        fs::write(&path, text).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "docs/{name} is not what the program says: run the test with UPDATE=1 and look at it"
    );
}

#[expect(clippy::disallowed_methods, reason = "a person asks for the page to be written")]
fn update() -> bool {
    std::env::var_os("UPDATE").is_some()
}

#[test]
fn the_description_is_the_one_in_docs() {
    let text = serde_json::to_string_pretty(&session_server::document()).unwrap() + "\n";
    golden("openapi.json", &text);
}

#[test]
fn every_problem_is_in_docs() {
    let mut page = include_str!("http-api.head.txt").to_owned();
    for &code in Code::ALL {
        let (name, status, title) = (code.as_str(), code.status(), code.title());
        let sentence = code.sentence().split_whitespace().collect::<Vec<_>>().join(" ");
        writeln!(page, "| `{name}` | {status} | {title} | {sentence} |").unwrap();
    }
    golden("http-api.md", &page);
}

#[test]
fn every_path_is_described_and_every_operation_has_a_name_of_its_own() {
    let api = serde_json::to_value(session_server::document()).unwrap();
    assert_eq!(api["openapi"], "3.1.0");
    let mut names = std::collections::BTreeSet::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path}"));
            assert!(names.insert(name.to_owned()), "{name} is there twice");
            assert!(operation["responses"].get("default").is_some(), "{name} says nothing of problems");
        }
    }
    let paths = api["paths"].as_object().unwrap();
    for path in [session_api::paths::RUN_STOP, session_api::paths::SESSION_EVENTS, session_api::paths::TOKEN]
    {
        assert!(paths.contains_key(path), "{path}");
    }
}

#[test]
fn what_may_be_any_json_is_described_as_such() {
    let api = serde_json::to_value(session_server::document()).unwrap();
    for (schema, part) in [("NewEvent", "payload"), ("EventView", "payload"), ("ResultView", "result")] {
        let described = &api["components"]["schemas"][schema]["properties"][part];
        assert!(described.is_object() && described.get("type").is_none(), "{schema}: {described}");
    }
}
