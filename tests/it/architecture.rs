//! Who may depend on whom. Every edge of the workspace stands in [`EDGES`]; an edge that is not there is
//! red, and so is a row that no manifest needs any more.
//!
//! To add an outside crate: one line of reason in the workspace's `Cargo.toml`, one name here.
//! To add an edge between our own crates: an ADR in `docs/adr` as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use session_tests::repository_root;
use toml::{Table, Value};

/// One crate and all it depends on, as its manifest names them.
struct Row {
    /// The package.
    name: &'static str,
    /// Crates of this workspace, in every build. A new one wants an ADR.
    ours: &'static str,
    /// Outside crates, in every build.
    outside: &'static str,
    /// Both, in tests and benches only.
    dev: &'static str,
    /// Both, in build scripts only.
    build: &'static str,
}

/// The whole graph, from the innermost crate outwards. Names are parted by spaces, in any order.
const EDGES: &[Row] = &[
    Row {
        name: "session-core",
        ours: "",
        outside: "async-trait base64 camino futures-util hmac jiff serde serde_json sha2 thiserror unicode-normalization uuid",
        dev: "futures-util proptest tempfile tokio",
        build: "",
    },
    Row {
        name: "session-store",
        ours: "session-core",
        outside: "async-trait jiff serde_json sqlx thiserror tokio tokio-util tracing",
        dev: "proptest session-core tempfile tokio",
        build: "",
    },
    Row {
        name: "session-manager",
        ours: "session-core",
        outside: "async-trait camino jiff thiserror tokio tokio-util tracing",
        dev: "fastrand mockall proptest proptest-state-machine serde_json session-core tokio",
        build: "",
    },
    Row {
        name: "session-api",
        ours: "session-core",
        outside: "jiff reqwest rustls serde serde_json thiserror utoipa",
        dev: "proptest",
        build: "",
    },
    Row {
        name: "session-server",
        ours: "session-api session-core session-manager",
        outside: "async-trait axum camino futures-util hyper hyper-util jiff prometheus-client serde serde_json \
                  serde_path_to_error thiserror tokio tokio-util tower tracing utoipa utoipa-axum",
        dev: "http-body-util session-core tokio",
        build: "",
    },
    Row {
        name: "session-runner",
        ours: "sandbox session-api session-core session-manager",
        outside: "async-trait camino close_fds httparse jiff rustix serde serde_json signal-hook tar tempfile thiserror \
                  tokio tokio-util tracing zstd",
        dev: "proptest session-core tokio",
        build: "",
    },
    Row {
        name: "sandbox",
        ours: "",
        outside: "camino close_fds fork landlock libc rustix seccompiler serde serde_json sha2 signal-hook thiserror",
        dev: "proptest tempfile",
        build: "",
    },
    Row {
        name: "mcp-bridge",
        ours: "session-core",
        outside: "async-trait axum base64 bytes camino futures-util memchr prometheus-client serde serde_json \
                  thiserror tokio tokio-util tracing",
        dev: "http-body-util hyper hyper-util proptest session-core tokio",
        build: "",
    },
    Row {
        name: "mcp-tools",
        ours: "session-core session-manager",
        outside: "async-trait base64 camino http jiff rmcp schemars serde serde_json thiserror tokio tokio-util tracing",
        dev: "session-core tempfile tokio",
        build: "",
    },
    Row {
        name: "roomette",
        ours: "mcp-bridge mcp-tools sandbox session-api session-core session-manager session-runner session-server session-store",
        outside: "async-trait camino clap clap_complete comfy-table futures-util indicatif jiff rustix serde serde_json \
                  tempfile thiserror tokio tokio-util toml tracing tracing-subscriber unicode-width",
        dev: "proptest session-core",
        build: "",
    },
    Row {
        name: "session-tests",
        ours: "session-core session-manager session-runner session-server session-store",
        outside: "camino jiff rusqlite rustix serde_json tempfile tokio tokio-util toml",
        dev: "axum cargo_metadata fastrand futures-util sha2",
        build: "",
    },
];

/// What a crate must not reach, not even through another of ours. The table above can be edited in a
/// hurry; this one says what such an edit must not do.
const NEVER: &[(&str, Reach, &str, &str)] = &[
    (
        "session-core",
        Reach::Build,
        "tokio sqlx rusqlite axum hyper reqwest",
        "the types and state machines must work without a runtime, a network or a database",
    ),
    (
        "session-core",
        Reach::TestsToo,
        "session-store session-manager session-runner roomette",
        "everything stands on the core, so it stands on nothing of ours",
    ),
    (
        "session-manager",
        Reach::TestsToo,
        "session-store session-runner sqlx rusqlite axum",
        "the manager reports through `LifecycleSink` and asks through ports; it never knows who keeps the rows",
    ),
    (
        "session-store",
        Reach::TestsToo,
        "session-manager session-runner axum",
        "the store holds what it is given; policy stands above it",
    ),
    (
        "sandbox",
        Reach::TestsToo,
        "session-core session-store session-manager session-runner roomette tokio tracing",
        "what confines a session is judged alone, and its launcher has one thread and no runtime",
    ),
    (
        "session-api",
        Reach::TestsToo,
        "session-store session-manager session-server axum tokio",
        "whoever speaks the API links its types, and neither a server nor what stands behind one",
    ),
    (
        "session-server",
        Reach::TestsToo,
        "session-store session-runner sandbox sqlx rusqlite",
        "a coordinator asks through ports; processes and rows are others' work",
    ),
    (
        "session-runner",
        Reach::TestsToo,
        "session-store sqlx rusqlite axum",
        "a runner may sit on another machine, where there is no database",
    ),
    (
        "mcp-bridge",
        Reach::TestsToo,
        "session-store session-runner session-server sqlx rusqlite",
        "a bridge asks its host for processes and records; it neither starts nor keeps any",
    ),
    (
        "mcp-tools",
        Reach::TestsToo,
        "session-store session-runner session-server sqlx rusqlite axum",
        "a tool asks through ports, and has the process around it do the rest",
    ),
];

/// How far a rule of [`NEVER`] goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// What is built into the crate.
    Build,
    /// What its own tests and build scripts use as well.
    TestsToo,
}

/// The kinds of edge, each with the field of [`Row`] that lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Ours,
    Outside,
    Dev,
    Build,
}

impl Kind {
    const fn field(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Outside => "outside",
            Self::Dev => "dev",
            Self::Build => "build",
        }
    }
}

/// For each crate, what it depends on and how.
type Graph = BTreeMap<String, BTreeSet<(Kind, String)>>;

#[test]
fn every_edge_is_in_the_table() {
    let found = found_edges(&metadata());
    let complaints = compare(&found, &expected_edges());
    assert!(complaints.is_empty(), "\n\n{}\n", complaints.join("\n"));
}

#[test]
fn no_crate_reaches_what_it_must_never_know() {
    let complaints = forbidden_paths(&found_edges(&metadata()));
    assert!(complaints.is_empty(), "\n\n{}\n", complaints.join("\n"));
}

#[test]
fn an_edge_from_manager_to_store_is_refused_twice() {
    let mut found = expected_edges();
    let manager = found.entry("session-manager".to_owned()).or_default();
    manager.insert((Kind::Ours, "session-store".to_owned()));

    let complaints = compare(&found, &expected_edges());
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(complaints[0].starts_with("session-manager depends on session-store"), "{complaints:?}");
    assert!(complaints[0].contains("ADR"), "{complaints:?}");

    let paths = forbidden_paths(&found);
    assert!(paths.iter().any(|path| path.contains("session-manager → session-store")), "{paths:?}");
    assert!(
        paths.iter().any(|path| path.contains("session-runner → session-manager → session-store")),
        "{paths:?}"
    );
}

#[test]
fn a_row_that_nothing_needs_is_refused() {
    let mut found = expected_edges();
    let core = found.entry("session-core".to_owned()).or_default();
    assert!(core.remove(&(Kind::Outside, "sha2".to_owned())));
    found.remove("session-runner");

    let complaints = compare(&found, &expected_edges()).join("\n");
    assert!(complaints.contains("take \"sha2\" out of `outside`"), "{complaints}");
    assert!(complaints.contains("take the row of session-runner out"), "{complaints}");
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    for (path, manifest) in member_manifests() {
        let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(
            inherits.and_then(Value::as_bool),
            Some(true),
            "{path} lacks `[lints] workspace = true`: add it, or the crate is checked by no lint"
        );
    }
}

#[test]
fn every_version_stands_in_the_workspace_manifest() {
    for (path, manifest) in member_manifests() {
        for (name, dependency) in dependency_tables(&manifest) {
            let inherits = dependency.get("workspace").and_then(Value::as_bool) == Some(true);
            assert!(
                inherits,
                "{path} gives `{name}` a version of its own: write `{name} = {{ workspace = true }}` and put the \
                 version, with a line of reason, into [workspace.dependencies]"
            );
        }
    }
}

#[test]
fn every_outside_dependency_has_a_line_of_reason() {
    let text = read("Cargo.toml");
    let mut inside = false;
    let mut previous = "";
    let mut checked = 0;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
        } else if inside && line.contains('=') && !line.starts_with('#') && !line.contains("{ path = ") {
            checked += 1;
            assert!(
                previous.starts_with("# "),
                "Cargo.toml:{}: `{}` has no comment line above it that says what it is for",
                number + 1,
                line.split('=').next().unwrap_or(line).trim()
            );
        }
        previous = line;
    }
    assert!(checked > 0, "no dependency found in [workspace.dependencies] of Cargo.toml");
}

/// All differences between what the manifests say and what the table says, each with what to do.
fn compare(found: &Graph, table: &Graph) -> Vec<String> {
    let mut complaints = Vec::new();
    for name in found.keys().filter(|name| !table.contains_key(*name)) {
        complaints.push(format!(
            "{name} is a crate that the table does not know. A new crate wants an ADR (docs/adr); \
             with it, add a row to EDGES in tests/it/architecture.rs."
        ));
    }
    for (name, rows) in table {
        let Some(edges) = found.get(name) else {
            complaints.push(format!("{name} is gone: take the row of {name} out of EDGES."));
            continue;
        };
        for (kind, on) in edges.difference(rows) {
            let field = kind.field();
            let adr = if is_ours(on) {
                " A new edge between our crates wants an ADR (docs/adr) first."
            } else {
                " Say in the workspace's Cargo.toml what it earns its place with."
            };
            complaints.push(format!(
                "{name} depends on {on}, which its row does not allow.{adr} If it is to stay, \
                 add \"{on}\" to `{field}` of {name} in tests/it/architecture.rs."
            ));
        }
        for (kind, on) in rows.difference(edges) {
            let field = kind.field();
            complaints.push(format!(
                "{name} no longer depends on {on}: take \"{on}\" out of `{field}` of {name} in \
                 tests/it/architecture.rs."
            ));
        }
    }
    complaints
}

/// Each forbidden crate that one of [`NEVER`] can reach, with the way there.
fn forbidden_paths(graph: &Graph) -> Vec<String> {
    let mut complaints = Vec::new();
    for (from, reach, forbidden, reason) in NEVER {
        for target in forbidden.split_whitespace() {
            if let Some(way) = way_to(graph, *reach, from, target) {
                complaints.push(format!("{} must not be: {reason}.", way.join(" → ")));
            }
        }
    }
    complaints
}

/// The shortest way from one crate to another through crates of ours. `reach` says which edges the first
/// step may take; the later ones are those that a build follows.
fn way_to(graph: &Graph, reach: Reach, from: &str, target: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut ways = vec![vec![from.to_owned()]];
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let last = way.last().cloned().unwrap_or_default();
            for (kind, next) in graph.get(&last).into_iter().flatten() {
                let first_of_tests = way.len() == 1 && reach == Reach::TestsToo;
                let follows = first_of_tests || matches!(kind, Kind::Ours | Kind::Outside);
                if !follows || !seen.insert(next.clone()) {
                    continue;
                }
                let mut step = way.clone();
                step.push(next.clone());
                if next == target {
                    return Some(step);
                }
                longer.push(step);
            }
        }
        ways = longer;
    }
    None
}

fn is_ours(name: &str) -> bool {
    EDGES.iter().any(|row| row.name == name)
}

fn expected_edges() -> Graph {
    let mut graph = Graph::new();
    for row in EDGES {
        let listed = [
            (Kind::Ours, row.ours),
            (Kind::Outside, row.outside),
            (Kind::Dev, row.dev),
            (Kind::Build, row.build),
        ];
        let edges = listed
            .iter()
            .flat_map(|(kind, names)| names.split_whitespace().map(|name| (*kind, name.to_owned())))
            .collect();
        assert!(graph.insert(row.name.to_owned(), edges).is_none(), "two rows for {}", row.name);
    }
    graph
}

fn found_edges(metadata: &Metadata) -> Graph {
    let mut graph = Graph::new();
    for package in metadata.workspace_packages() {
        let edges = graph.entry(package.name.to_string()).or_default();
        for dependency in &package.dependencies {
            let kind = match dependency.kind {
                DependencyKind::Normal if dependency.path.is_some() => Kind::Ours,
                DependencyKind::Normal => Kind::Outside,
                DependencyKind::Development => Kind::Dev,
                DependencyKind::Build => Kind::Build,
                DependencyKind::Unknown => {
                    panic!("{} depends on {} in a way this test does not know", package.name, dependency.name)
                }
            };
            edges.insert((kind, dependency.name.clone()));
        }
    }
    assert!(!graph.is_empty(), "cargo metadata names no package");
    graph
}

/// The manifests as cargo reads them. Nothing is resolved, so neither network nor a build is needed.
fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(repository_root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .unwrap_or_else(|error| panic!("cargo metadata failed: {error}"))
}

/// Each member's manifest, with its path from the repository's root.
fn member_manifests() -> Vec<(String, Table)> {
    let root = repository_root();
    let manifests: Vec<_> = metadata()
        .workspace_packages()
        .iter()
        .map(|package| {
            let path = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path).to_string();
            let manifest = read(&path).parse().unwrap_or_else(|error| panic!("{path} is not TOML: {error}"));
            (path, manifest)
        })
        .collect();
    assert!(!manifests.is_empty(), "the workspace has no members");
    manifests
}

/// All dependencies that a manifest declares, those under `[target.…]` too.
fn dependency_tables(manifest: &Table) -> Vec<(String, Value)> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let holders = targets.into_iter().flat_map(|targets| targets.values()).filter_map(Value::as_table);
    let mut found = Vec::new();
    for holder in std::iter::once(manifest).chain(holders) {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let declared = holder.get(section).and_then(Value::as_table);
            found.extend(declared.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
        }
    }
    found
}

fn read(path: &str) -> String {
    fs::read_to_string(repository_root().join(path))
        .unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
}
