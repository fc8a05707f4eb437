//! Requests that are wrong in themselves: each is told what is wrong, and none is a fault of the program.

use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use session_server::state::Limits;

use crate::world::{World, request};

#[tokio::test]
async fn a_body_is_json_of_a_bounded_size_in_bounded_time() {
    let limits = Limits { body_bytes: 1_000, body_time: Duration::from_millis(20), ..Limits::default() };
    let world = World::with(limits, vec!["localhost".into()]);
    let alice = world.token("alice", "all").await;
    let post = |body: Body| {
        let request = request("POST", &alice, "/v1/runs").header("content-type", "application/json");
        world.send(request.body(body).unwrap())
    };
    for text in
        ["", "{", "nul\0", "{\"type\": \"start\"} {}", "{\"type\": \"start\"", "{\"type\": \"start\",}"]
    {
        post(Body::from(text)).await.refused(400, "malformed");
    }
    post(Body::from(&b"{\"label\": \"\xff\"}"[..])).await.refused(400, "malformed");
    let large = format!("{{\"label\": \"{}\"}}", "x".repeat(1_000));
    post(Body::from(large.clone())).await.refused(413, "too_large");
    let endless = stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 100])));
    post(Body::from_stream(endless)).await.refused(413, "too_large");
    let never = stream::pending::<Result<Bytes, std::io::Error>>();
    post(Body::from_stream(never)).await.refused(408, "request_timeout");
    let deep = "[".repeat(900);
    post(Body::from(deep)).await.refused(400, "malformed");
    post(Body::from("[\"start\"]")).await.refused(422, "invalid");
    let request = request("POST", &alice, "/v1/runs").header("content-type", "text/plain");
    world.send(request.body(Body::from("{}")).unwrap()).await.refused(415, "unsupported_media_type");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_comes_too_slowly_is_told_so_whatever_a_request_may_take() {
    let (body_time, request_time) = (Duration::from_secs(20), Duration::from_secs(10));
    let limits = Limits { body_time, request_time, ..Limits::default() };
    let world = World::with(limits, vec!["localhost".into()]);
    let alice = world.token("alice", "all").await;
    let request = request("POST", &alice, "/v1/runs").header("content-type", "application/json");
    let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    world.send(request.body(never).unwrap()).await.refused(408, "request_timeout");
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there_are_problems() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    for path in ["/", "/v1", "/v2/runs", "/v1/runs/", "/v1/sessions/x/y/z", "/../etc/passwd", "//"] {
        world.get(&alice, path).await.refused(404, "no_such_path");
    }
    for id in ["x", "ses_1", "run_00000000000000000000000000000001", "..%2f..%2fetc", &"x".repeat(5_000)] {
        let field = world.get(&alice, &format!("/v1/sessions/{id}")).await.refused(422, "invalid");
        assert_eq!(field.as_deref(), Some("id"));
    }
    world.get(&alice, "/v1/sessions/%ff").await.refused(400, "malformed");
    for method in ["PUT", "PATCH", "BREW"] {
        let answer = world.send(request(method, &alice, "/v1/runs").body(Body::empty()).unwrap()).await;
        answer.refused(405, "method_not_allowed");
        let allow = answer.headers["allow"].to_str().unwrap();
        assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    }
    let options = world.send(request("OPTIONS", "", "/v1/runs").body(Body::empty()).unwrap()).await.is(204);
    assert!(options.headers["allow"].to_str().unwrap().contains("POST"));
    let head = world.send(request("HEAD", &alice, "/v1/sessions").body(Body::empty()).unwrap()).await.is(200);
    assert_eq!(head.body, "");
}

#[tokio::test]
async fn there_is_room_for_so_many_requests() {
    let world = World::with(Limits { requests: 0, ..Limits::default() }, vec!["localhost".into()]);
    let answer = world.get("", "/v1/sessions").await;
    answer.refused(503, "overloaded");
    assert_eq!(answer.headers["retry-after"], "1");
    world.get("", "/healthz").await.is(200);
    let alice = world.token("alice", "read").await;
    world.get(&alice, "/metrics").await.is(200);
}

#[tokio::test]
async fn a_request_is_for_this_host_and_from_no_other_site() {
    let world = World::new();
    let alice = world.token("alice", "all").await;
    for (name, value, status, code) in [
        ("host", "evil.com", 400, "bad_host"),
        ("origin", "http://evil.com", 403, "foreign_origin"),
        ("origin", "null", 403, "foreign_origin"),
    ] {
        let request = request("GET", &alice, "/v1/sessions").header(name, value);
        world.send(request.body(Body::empty()).unwrap()).await.refused(status, code);
    }
    let ours = request("GET", &alice, "/v1/sessions").header("origin", "http://localhost");
    world.send(ours.body(Body::empty()).unwrap()).await.is(200);
}
