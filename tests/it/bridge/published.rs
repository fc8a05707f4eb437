//! Servers that others have published, each with a session of its own behind the bridge: they work, and their own settings
//! open nothing that the client did not.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use session_tests::bridge::{Bridge, Client};
use session_tests::home::{Home, left};
use session_tests::peers::Peers;

/// A bridge before a server, and a client in it that opens `mine`; `theirs` lies beside.
struct Ground {
    home: Home,
    mine: Utf8PathBuf,
    theirs: Utf8PathBuf,
}

impl Ground {
    fn new() -> Self {
        let home = Home::new();
        let (mine, theirs) = (super::project(&home, "mine"), super::project(&home, "theirs"));
        Self { home, mine, theirs }
    }

    fn bridge(&self, peers: &Peers, more: &[&str], command: &[&str]) -> Bridge {
        let place = peers.place().as_str();
        let first = ["--listen", "127.0.0.1:0", "--session-isolation", "--allow-read", place];
        Bridge::serving(&self.home, &[&first, more, &["--"], command].concat())
    }

    fn git(&self, directory: &Utf8Path, arguments: &[&str]) {
        let who = ["-c", "user.name=tester", "-c", "user.email=tester@example.com", "-C", directory.as_str()];
        left(self.home.program("git", &[&who, arguments].concat())).ok();
    }
}

/// What a tool of a package from npm is started by.
fn package(peers: &Peers, name: &str) -> [String; 2] {
    let file = peers.package(&format!("@modelcontextprotocol/{name}/dist/index.js"));
    [peers.node().into_string(), file.into_string()]
}

/// Calls a tool that must succeed.
fn succeeds(client: &mut Client, tool: &str, arguments: &Value) -> String {
    let reply = client.send("tools/call", &json!({"name": tool, "arguments": arguments}));
    assert!(reply.body["result"]["isError"] != json!(true), "{tool}: {}", reply.body);
    let text = reply.body["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{tool}: {}", reply.body)).to_owned()
}

/// Calls a tool that must fail, and says nothing of the secret.
fn fails(client: &mut Client, tool: &str, arguments: &Value) {
    let reply = client.send("tools/call", &json!({"name": tool, "arguments": arguments}));
    let failed = reply.body["result"]["isError"] == json!(true) || reply.body["error"].is_object();
    assert!(failed, "{tool} {arguments}: {}", reply.body);
    assert!(!reply.body.to_string().contains("of theirs"), "{tool} {arguments}: {}", reply.body);
}

#[test]
fn server_everything() {
    let Some(peers) = Peers::installed() else { return };
    let ground = Ground::new();
    let [node, file] = package(&peers, "server-everything");
    let bridge = ground.bridge(&peers, &[], &[&node, &file, "stdio"]);
    let mut client = bridge.opens(&[&ground.mine]);
    assert_eq!(succeeds(&mut client, "echo", &json!({"message": "a b"})), "Echo: a b");
    assert!(succeeds(&mut client, "get-sum", &json!({"a": 40, "b": 2})).contains("42"));
    let long = json!({"duration": 0.2, "steps": 2});
    assert!(succeeds(&mut client, "trigger-long-running-operation", &long).contains("completed"));
    let prompts = client.send("prompts/list", &json!({})).body;
    assert!(prompts["result"]["prompts"].as_array().is_some_and(|prompts| !prompts.is_empty()), "{prompts}");
    let resources = client.send("resources/list", &json!({})).body;
    let first = &resources["result"]["resources"][0]["uri"];
    let read = client.send("resources/read", &json!({"uri": first})).body;
    assert!(read["result"]["contents"].is_array(), "{resources}\n{read}");
    // Its environment is that of a session.
    let variables: Value = serde_json::from_str(&succeeds(&mut client, "get-env", &json!({}))).unwrap();
    assert_eq!(variables["ROOMETTE_SESSION_ID"], json!(client.session), "{variables}");
}

#[test]
fn server_filesystem_reads_nothing_outside_whatever_its_own_settings_allow() {
    let Some(peers) = Peers::installed() else { return };
    let ground = Ground::new();
    std::os::unix::fs::symlink(&ground.theirs, ground.mine.join("link")).unwrap();
    let [node, file] = package(&peers, "server-filesystem");
    // All of the disk, and the very directory.
    let command = [node.as_str(), &file, "/", ground.mine.as_str(), ground.theirs.as_str()];
    let scope = ["--sandbox-scope", ground.mine.as_str()];
    let bridge = ground.bridge(&peers, &scope, &command);
    let (mut named, mut scoped) = (bridge.opens(&[&ground.mine]), bridge.client());
    scoped.begin(None);
    let allowed = succeeds(&mut scoped, "list_allowed_directories", &json!({}));
    assert!(allowed.lines().any(|line| line == "/"), "its own settings allow it: {allowed}");
    for (number, client) in [&mut named, &mut scoped].into_iter().enumerate() {
        let own = ground.mine.join("secret");
        assert_eq!(succeeds(client, "read_text_file", &json!({"path": own})), "of mine");
        let new = ground.mine.join(format!("new-{number}"));
        succeeds(client, "write_file", &json!({"path": new, "content": "x"}));
        assert_eq!(fs::read_to_string(&new).unwrap(), "x");
        let foreign = ground.theirs.join("secret");
        for path in [foreign.clone(), ground.mine.join("link/secret"), ground.mine.join("../theirs/secret")] {
            fails(client, "read_text_file", &json!({"path": path}));
            fails(client, "read_media_file", &json!({"path": path}));
            fails(client, "write_file", &json!({"path": path, "content": "overwritten"}));
            fails(client, "edit_file", &json!({"path": path, "edits": [{"oldText": "of", "newText": "x"}]}));
            fails(client, "move_file", &json!({"source": path, "destination": ground.mine.join("moved")}));
            fails(client, "move_file", &json!({"source": own, "destination": path.with_extension("moved")}));
        }
        fails(client, "list_directory", &json!({"path": ground.theirs}));
        fails(client, "create_directory", &json!({"path": ground.theirs.join("new")}));
        let several = succeeds(client, "read_multiple_files", &json!({"paths": [own, foreign]}));
        assert!(several.contains("of mine") && !several.contains("of theirs"), "{several}");
    }
    assert_eq!(fs::read_to_string(ground.theirs.join("secret")).unwrap(), "of theirs");
    assert_eq!(fs::read_dir(&ground.theirs).unwrap().count(), 1);
}

#[test]
fn server_memory() {
    let Some(peers) = Peers::installed() else { return };
    let ground = Ground::new();
    let [node, file] = package(&peers, "server-memory");
    let entity = json!({"entities": [{"name": "room", "entityType": "place", "observations": ["quiet"]}]});
    for (kept, is_kept) in
        [(ground.mine.join("memory.json"), true), (ground.theirs.join("memory.json"), false)]
    {
        let variable = format!("MEMORY_FILE_PATH={kept}");
        let bridge = ground.bridge(&peers, &["--env", &variable], &[&node, &file]);
        let mut client = bridge.opens(&[&ground.mine]);
        if is_kept {
            succeeds(&mut client, "create_entities", &entity);
            assert!(succeeds(&mut client, "read_graph", &json!({})).contains("quiet"));
        } else {
            fails(&mut client, "create_entities", &entity);
        }
        assert_eq!(kept.exists(), is_kept);
        drop(bridge);
        ground.home.until_free();
    }
}

#[test]
fn mcp_server_git() {
    let Some(peers) = Peers::installed() else { return };
    let ground = Ground::new();
    for directory in [&ground.mine, &ground.theirs] {
        ground.git(directory, &["init", "--quiet"]);
        ground.git(directory, &["add", "secret"]);
        ground.git(directory, &["commit", "--quiet", "-m", "the first of all"]);
        fs::write(directory.join("new"), "text").unwrap();
    }
    let server = peers.python().with_file_name("mcp-server-git");
    let bridge = ground.bridge(&peers, &[], &[server.as_str()]);
    let mut client = bridge.opens(&[&ground.mine]);
    let (mine, theirs) = (json!({"repo_path": ground.mine}), json!({"repo_path": ground.theirs}));
    assert!(succeeds(&mut client, "git_log", &mine).contains("the first of all"));
    assert!(succeeds(&mut client, "git_status", &mine).contains("new"));
    succeeds(&mut client, "git_add", &json!({"repo_path": ground.mine, "files": ["new"]}));
    assert!(succeeds(&mut client, "git_diff_staged", &mine).contains("+text"));
    for tool in ["git_log", "git_status", "git_diff_unstaged"] {
        fails(&mut client, tool, &theirs);
    }
    fails(&mut client, "git_add", &json!({"repo_path": ground.theirs, "files": ["new"]}));
    // What it did is there outside.
    let staged =
        left(ground.home.program("git", &["-C", ground.mine.as_str(), "diff", "--cached", "--name-only"]));
    assert_eq!(staged.ok().stdout.trim(), "new");
}

#[test]
fn mcp_server_time() {
    let Some(peers) = Peers::installed() else { return };
    let ground = Ground::new();
    let server = peers.python().with_file_name("mcp-server-time");
    let bridge = ground.bridge(&peers, &[], &[server.as_str(), "--local-timezone", "UTC"]);
    let mut client = bridge.opens(&[&ground.mine]);
    let now = succeeds(&mut client, "get_current_time", &json!({"timezone": "Asia/Tokyo"}));
    assert!(now.contains("+09:00"), "{now}");
    let asked = json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"});
    assert!(succeeds(&mut client, "convert_time", &asked).contains("21:00"));
}
