//! A session's log followed over the API, through cuts and standstills.

use serde_json::{Value, json};
use session_tests::home::Home;
use session_tests::http::{Follower, Served, resident};

use super::run;

fn append(served: &Served, session: &str, payloads: impl Iterator<Item = Value>) {
    let events: Vec<Value> = payloads.map(|payload| json!({"kind": "note", "payload": payload})).collect();
    served.post(&format!("/v1/sessions/{session}/events"), &json!({ "events": events })).is(201);
}

#[test]
fn a_thousand_events_come_once_and_in_order_over_twenty_cuts() {
    const EVENTS: u64 = 1_000;
    const CUTS: u64 = 20;
    let home = Home::new();
    let served = Served::start(&home);
    let (session, _) = run(&home, &served, &["true"]);
    let page = served.get(&format!("/v1/sessions/{session}/events?limit=1000")).is(200);
    let before = page.body["items"].as_array().unwrap().len() as u64;
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            for batch in 0..EVENTS / 10 {
                append(&served, &session, (0..10).map(|n| json!({"n": batch * 10 + n})));
            }
        });
        let (mut seen, mut reader) = (Vec::<(u64, Value)>::new(), served.follow(&session, Some(before)));
        while (seen.len() as u64) < EVENTS {
            let frame = reader.frame().expect("the stream goes on");
            let last = frame.id.unwrap();
            seen.push((last, frame.data));
            if (seen.len() as u64).is_multiple_of(EVENTS / (CUTS + 1)) {
                reader.cut();
                reader = served.follow(&session, Some(last));
            }
        }
        seen
    });
    for (place, (seq, event)) in (0..).zip(&seen) {
        assert_eq!((*seq, &event["payload"]["n"]), (before + place + 1, &json!(place)), "{event}");
    }
}

#[test]
fn readers_that_stop_cost_no_memory() {
    const READERS: usize = 8;
    let home = Home::new();
    let served = Served::start(&home);
    let (session, _) = run(&home, &served, &["true"]);
    let large = |count: usize| (0..count).map(|n| json!({"n": n, "text": "x".repeat(900_000)}));
    append(&served, &session, large(4));
    let mut readers: Vec<Follower> = (0..READERS).map(|_| served.follow(&session, None)).collect();
    for reader in &mut readers {
        assert_eq!(reader.frame().unwrap().id, Some(1));
    }
    // What appending so much takes by itself, and a page of each reader, is taken from now on.
    (0..12).for_each(|_| append(&served, &session, large(6)));
    let before = resident(served.pid());
    (0..12).for_each(|_| append(&served, &session, large(6)));
    // 65 MB for each of the readers, who take none of it.
    let grown = resident(served.pid()).saturating_sub(before);
    assert!(grown < 16 * 1024 * 1024, "{} KiB for {READERS} readers", grown / 1024);
    // And each still gets all of it.
    let mut last = 1;
    let reader = &mut readers[0];
    while last < 150 {
        last = reader.frame().expect("the stream goes on").id.map_or(last, |id| {
            assert_eq!(id, last + 1);
            id
        });
    }
}
