//! Calls that try to read and to write outside, one after the other and all at once, from every thread of a server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use session_tests::bridge::{Bridge, Client};
use session_tests::home::Home;
use session_tests::trials::{self, Trials};

/// How often it is tried, one after the other and at once.
const TRIES: usize = 200;
/// The first id of those that are asked at once.
const FIRST: u64 = 1_000;
/// What no answer may hold.
const SECRET: &str = "known to nobody here";

/// A home with secrets in it, and two clients that each have directories of their own.
struct Ground {
    home: Home,
    mine: Utf8PathBuf,
    secrets: Vec<Utf8PathBuf>,
}

impl Ground {
    fn new() -> Self {
        let home = Home::new();
        let path = home.path().canonicalize_utf8().unwrap();
        let (mine, theirs) = (path.join("mine"), path.join("theirs"));
        let secrets =
            ["secret", "deep/secret", "deep/deeper/secret", ".hidden"].map(|name| theirs.join(name));
        let secrets = [&secrets[..], &[path.join("settings/credentials")]].concat();
        fs::create_dir(&mine).unwrap();
        for secret in &secrets {
            fs::create_dir_all(secret.parent().unwrap()).unwrap();
            fs::write(secret, SECRET).unwrap();
        }
        Self { home, mine, secrets }
    }

    /// What is tried: each way with each target, until there are enough.
    fn tries(&self, ways: &[String], other: &Utf8Path) -> Vec<Value> {
        let targets: Vec<_> = self.secrets.iter().map(|secret| &**secret).chain([other]).collect();
        let all = targets.iter().flat_map(|target| ways.iter().map(move |how| (how, target)));
        let tries: Vec<_> = all.map(|(how, target)| json!({"how": how, "target": target})).collect();
        assert!(tries.len() >= TRIES, "only {}", tries.len());
        tries.into_iter().take(TRIES).collect()
    }

    /// Everything outside, as it is: what is there, what it holds, and whose it is.
    fn outside(&self) -> BTreeMap<Utf8PathBuf, (Vec<u8>, u32, u32, i64)> {
        let mut found = BTreeMap::new();
        for below in self.secrets.iter().map(|secret| secret.parent().unwrap()).collect::<BTreeSet<_>>() {
            look(below, &mut found);
        }
        found
    }
}

fn look(directory: &Utf8Path, found: &mut BTreeMap<Utf8PathBuf, (Vec<u8>, u32, u32, i64)>) {
    for entry in directory.read_dir_utf8().unwrap() {
        let path = entry.unwrap().into_path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            look(&path, found);
        }
        let held = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        found.insert(path, (held, metadata.permissions().mode(), metadata.uid(), metadata.mtime()));
    }
}

fn ways(client: &mut Client) -> Vec<String> {
    let ways: Vec<String> = serde_json::from_str(&client.call("ways", &json!({}))).unwrap();
    assert!(ways.len() > 30, "{ways:?}");
    ways
}

/// What came of one try; what went well for the server is a failure here.
fn refused(reply: &Value, tried: &Value) -> Result<(), String> {
    let result = &reply["result"];
    let text = result["content"][0]["text"].as_str();
    match (result["isError"].as_bool(), text) {
        (Some(true), Some(text)) if !text.contains(SECRET) => Ok(()),
        _ => Err(format!("{tried}: {reply}")),
    }
}

#[test]
fn what_is_tried_works_where_nothing_confines_it() {
    let ground = Ground::new();
    let mut server = Trials::start(&ground.home, &ground.mine);
    let ways: Vec<String> = serde_json::from_str(&server.call("ways", &json!({})).unwrap()).unwrap();
    let target = &ground.secrets[0];
    for how in ways {
        fs::write(target, SECRET).unwrap();
        let got = server.call("escape", &json!({"how": how, "target": target}));
        // Without root there is no other owner; where programs may not mount, nothing is mounted.
        let needs = ["mount", "new root", "owner"].contains(&how.as_str());
        assert!(got.is_ok() || needs && !rustix::process::geteuid().is_root(), "{how}: {got:?}");
    }
}

#[test]
fn two_hundred_calls_one_after_the_other_get_nowhere() {
    let ground = Ground::new();
    let bridge = trials::isolated(&ground.home, &[]);
    let mut client = bridge.opens(&[&ground.mine]);
    let (ways, other) = (ways(&mut client), of_another(&bridge));
    let before = ground.outside();
    let answers = ground.tries(&ways, &other).into_iter().map(|tried| {
        let reply = client.send("tools/call", &json!({"name": "escape", "arguments": tried}));
        refused(&reply.body, &tried)
    });
    let failures: Vec<_> = answers.filter_map(Result::err).collect();
    assert_eq!(failures, [] as [String; 0]);
    assert_eq!(ground.outside(), before);
    assert_eq!(fs::read_to_string(other).unwrap(), SECRET);
    assert_eq!(client.call("echo", &json!({"text": "still there"})), "still there");
}

#[test]
fn two_hundred_calls_at_once_get_nowhere() {
    let ground = Ground::new();
    let bridge = trials::isolated(&ground.home, &[]);
    let mut client = bridge.opens(&[&ground.mine]);
    let (ways, other) = (ways(&mut client), of_another(&bridge));
    let (tries, before, client) = (ground.tries(&ways, &other), ground.outside(), &client);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let calls: Vec<_> = tries
            .iter()
            .enumerate()
            .map(|(number, tried)| {
                scope.spawn(move || {
                    let call = json!({"name": "escape", "arguments": tried});
                    refused(&client.send_as(FIRST + number as u64, "tools/call", &call).body, tried)
                })
            })
            .collect();
        calls.into_iter().filter_map(|call| call.join().unwrap().err()).collect()
    });
    assert_eq!(failures, [] as [String; 0]);
    assert_eq!(ground.outside(), before);
    assert_eq!(fs::read_to_string(other).unwrap(), SECRET);
}

/// A session's calls could be carried out by a thread of another's, where threads were what is confined.
#[test]
fn two_hundred_calls_at_once_of_several_sessions_get_nowhere_and_no_nearer_to_each_other() {
    const SESSIONS: usize = 5;
    let ground = Ground::new();
    let bridge = trials::isolated(&ground.home, &[]);
    let other = of_another(&bridge);
    let own: Vec<_> =
        (0..SESSIONS).map(|number| super::project(&ground.home, &format!("of-{number}"))).collect();
    let mut clients: Vec<_> = own.iter().map(|own| bridge.opens(&[own])).collect();
    let ways = ways(&mut clients[0]);
    let (tries, before) = (ground.tries(&ways, &other), ground.outside());
    let failures: Vec<String> = std::thread::scope(|scope| {
        let calls: Vec<_> = tries
            .iter()
            .enumerate()
            .map(|(number, tried)| {
                let (client, beside) = (&clients[number % SESSIONS], &own[(number + 1) % SESSIONS]);
                scope.spawn(move || {
                    let ask = |id: usize, tried: &Value| {
                        let call = json!({"name": "escape", "arguments": tried});
                        refused(&client.send_as(FIRST + id as u64, "tools/call", &call).body, tried)
                    };
                    // What is open to the one beside it is closed to this one.
                    let of_beside = json!({"how": "open", "target": beside.join("secret")});
                    ask(2 * number, tried).and_then(|()| ask(2 * number + 1, &of_beside))
                })
            })
            .collect();
        calls.into_iter().filter_map(|call| call.join().unwrap().err()).collect()
    });
    assert_eq!(failures, [] as [String; 0]);
    assert_eq!(ground.outside(), before);
    for (client, own) in clients.iter_mut().zip(&own) {
        let open = json!({"how": "open", "target": own.join("secret")});
        assert_eq!(client.call("escape", &open), format!("of {}", own.file_name().unwrap()));
    }
}

#[test]
fn what_the_host_has_for_itself_is_not_there() {
    let ground = Ground::new();
    let bridge = trials::isolated(&ground.home, &[]);
    let mut client = bridge.opens(&[&ground.mine]);
    let data = ground.home.data();
    let token = fs::read_to_string(data.join("bridge.token")).unwrap();
    for how in ways(&mut client) {
        for name in ["bridge.token", "roomette.db"] {
            // The directories on the way to its own are a server's own as well: what it makes there is seen by it alone.
            let tried = json!({"how": how, "target": data.join(name)});
            let got = client.call("escape", &tried);
            assert!(!got.contains(token.trim()) && !got.contains("SQLite"), "{tried}: {got}");
        }
    }
    assert_eq!(fs::read_to_string(data.join("bridge.token")).unwrap(), token);
    let others = data.read_dir_utf8().unwrap().map(|entry| entry.unwrap().file_name().to_owned());
    let made: Vec<_> =
        others.filter(|name| name.starts_with("bridge.token.") || name.contains(".new")).collect();
    assert_eq!(made, [] as [String; 0]);
    // And the host goes on.
    assert_eq!(ground.home.inspect(&client.session)["state"], json!("active"));
}

/// A secret of another session, in the directory that is that one's alone.
fn of_another(bridge: &Bridge) -> Utf8PathBuf {
    let mut other = bridge.client();
    other.begin(None);
    let secret = Utf8PathBuf::from(other.call("cwd", &json!({}))).join("secret");
    fs::write(&secret, SECRET).unwrap();
    secret
}
