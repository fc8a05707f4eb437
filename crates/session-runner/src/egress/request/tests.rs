//! Heads of all kinds, and bytes that are none.

use proptest::prelude::*;

use super::*;

fn forwarded(head: &str) -> Forward {
    match parse(head.as_bytes()) {
        Ok(Request::Forward(forward)) => forward,
        other => panic!("{head:?}: {other:?}"),
    }
}

#[track_caller]
fn refused(head: &str, expected: Malformed) {
    assert_eq!(parse(head.as_bytes()), Err(expected), "{head:?}");
}

#[test]
fn a_connect_names_its_target() {
    for (head, target) in [
        ("CONNECT api.example.com:443 HTTP/1.1\r\n\r\n", "api.example.com:443"),
        ("CONNECT a:1 HTTP/1.0\r\nHost: other:2\r\nContent-Length: 5\r\n\r\n", "a:1"),
        ("CONNECT [::1]:80 HTTP/1.1\nHost: [::1]:80\n\n", "[::1]:80"),
    ] {
        match parse(head.as_bytes()) {
            Ok(Request::Connect(found)) => assert_eq!(found.to_string(), target),
            other => panic!("{head:?}: {other:?}"),
        }
    }
}

#[test]
fn a_request_is_passed_on_in_origin_form() {
    let forward = forwarded(
        "GET http://Example.com./a?b=c HTTP/1.1\r\nHost: other\r\nAccept: */*\r\nProxy-Connection: keep-alive\r\n\
         Proxy-Authorization: Basic eA==\r\nConnection: keep-alive, X-Mine\r\nx-mine: 1\r\nUpgrade: h2c\r\n\
         TE: trailers\r\nX-Other: 2\r\n\r\n",
    );
    assert_eq!(forward.target.to_string(), "example.com:80");
    assert_eq!(
        String::from_utf8(forward.head).unwrap(),
        "GET /a?b=c HTTP/1.1\r\nHost: example.com\r\nAccept: */*\r\nX-Other: 2\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(forward.body, Body::Complete);
}

#[test]
fn the_path_and_the_host_are_what_the_url_says() {
    for (line, first) in [
        ("GET http://a HTTP/1.1", "GET / HTTP/1.1\r\nHost: a\r\n"),
        ("GET HTTP://a:8080?x HTTP/1.0", "GET /?x HTTP/1.0\r\nHost: a:8080\r\n"),
        ("OPTIONS http://a:80 HTTP/1.1", "OPTIONS * HTTP/1.1\r\nHost: a\r\n"),
        ("OPTIONS http://a/ HTTP/1.1", "OPTIONS / HTTP/1.1\r\nHost: a\r\n"),
        ("PUT http://[::1]:8/a:b@c HTTP/1.1", "PUT /a:b@c HTTP/1.1\r\nHost: [::1]:8\r\n"),
    ] {
        let head = String::from_utf8(forwarded(&format!("{line}\r\n\r\n")).head).unwrap();
        assert!(head.starts_with(first), "{line}: {head:?}");
    }
}

#[test]
fn the_length_of_a_body_is_said_once() {
    let check = |headers: &str, body: Body, said: &str| {
        let forward = forwarded(&format!("POST http://a/ HTTP/1.1\r\n{headers}\r\n"));
        assert_eq!(forward.body, body, "{headers:?}");
        let head = String::from_utf8(forward.head).unwrap();
        assert_eq!(head, format!("POST / HTTP/1.1\r\nHost: a\r\n{said}Connection: close\r\n\r\n"));
    };
    check("Content-Length: 12\r\n", Body::Bytes(12), "Content-Length: 12\r\n");
    check("Content-Length: 0\r\n", Body::Complete, "Content-Length: 0\r\n");
    let chunked = Body::Chunks(Chunks::START);
    check("transfer-encoding: Chunked\r\n", chunked, "Transfer-Encoding: chunked\r\n");
    // Nobody makes a length go away by calling it a matter of this connection.
    check("Content-Length: 3\r\nConnection: content-length\r\n", Body::Bytes(3), "Content-Length: 3\r\n");
}

#[test]
fn a_length_that_is_not_clear_is_refused() {
    for (version, headers) in [
        ("1.1", "Content-Length: 1\r\nContent-Length: 1\r\n"),
        ("1.1", "Content-Length: 1, 1\r\n"),
        ("1.1", "Content-Length: +1\r\n"),
        ("1.1", "Content-Length: 0x1\r\n"),
        ("1.1", "Content-Length: \r\n"),
        ("1.1", "Content-Length: 18446744073709551616\r\n"),
        ("1.1", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
        ("1.1", "Transfer-Encoding: gzip, chunked\r\n"),
        ("1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
        ("1.1", "Transfer-Encoding: xchunked\r\n"),
        ("1.0", "Transfer-Encoding: chunked\r\n"),
    ] {
        let found = parse(format!("POST http://a/ HTTP/{version}\r\n{headers}\r\n").as_bytes());
        assert!(matches!(found, Err(Malformed::Length(_))), "{headers:?}: {found:?}");
    }
}

#[test]
fn what_is_no_request_for_a_proxy_is_told_apart() {
    refused("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Malformed::NotForAProxy);
    refused("OPTIONS * HTTP/1.1\r\n\r\n", Malformed::NotForAProxy);
    refused("GET ftp://a/ HTTP/1.1\r\n\r\n", Malformed::NotForAProxy);
    refused("connect a:1 HTTP/1.1\r\n\r\n", Malformed::NotForAProxy);
    refused("GET https://a/ HTTP/1.1\r\n\r\n", Malformed::Https);
    let version = Malformed::Head("its version is another one");
    refused("PRI * HTTP/2.0\r\n\r\n", version);
    refused("CONNECT a:1 HTTP/1.1\r\nHost : a\r\n\r\n", Malformed::Head("a header has no proper name"));
    refused("CONNECT a:1 HTTP/1.1\r\nA: b\r\n c\r\n\r\n", Malformed::Head("a header has no proper name"));
    refused("CONNECT a:1 HTTP/1.1\r\nA: b\0\r\n\r\n", Malformed::Head("a header has no proper value"));
    refused("\r\n\r\n", Malformed::Head("it ends too early"));
    refused(&format!("CONNECT a:1 HTTP/1.1\r\n{}\r\n", "a:b\r\n".repeat(129)), Malformed::TooManyHeaders);
    for target in ["a", "a:0", "http://a:80", "a:443/", "u@a:443", "/", "a:443?x"] {
        let found = parse(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes());
        assert!(matches!(found, Err(Malformed::Target(_))), "{target}: {found:?}");
    }
    for url in ["http:///x", "http://u:p@a/", "http://a:/", "http://a/#b", "http://a:b/", "http://1.2.3.4.:x"]
    {
        let found = parse(format!("GET {url} HTTP/1.1\r\n\r\n").as_bytes());
        assert!(matches!(found, Err(Malformed::Target(_))), "{url}: {found:?}");
    }
}

#[test]
fn a_head_ends_at_its_first_empty_line() {
    assert_eq!(end_of_head(b"a\r\n\r\nb\r\n\r\n", 0), Some(5));
    assert_eq!(end_of_head(b"a\n\nb", 0), Some(3));
    assert_eq!(end_of_head(b"a\r\n\r", 0), None);
    assert_eq!(end_of_head(b"a\r\n\r\n", 4), Some(5));
    assert_eq!(end_of_head(b"", 0), None);
}

proptest! {
    #[test]
    fn any_bytes_are_understood_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _understood = parse(&bytes);
        let _end = end_of_head(&bytes, 0);
    }

    #[test]
    fn what_resembles_a_head_is_understood_or_refused(
        method in "CONNECT|GET|POST|[A-Z]{0,5}",
        target in "(https?://)?[a-zA-Z0-9.:@\\[\\]/?#%_-]{0,40}|\\PC{0,20}",
        version in "HTTP/1\\.[01]|HTTP/[0-9.]{0,4}",
        headers in proptest::collection::vec(
            "(Content-Length|Transfer-Encoding|Connection|Host|[A-Za-z-]{0,8})(:| :|)[ \t]?([0-9]{0,22}|chunked|\\PC{0,12})(\r\n|\n|)",
            0..6,
        ),
    ) {
        let head = format!("{method} {target} {version}\r\n{}\r\n", headers.concat());
        if let Ok(Request::Forward(forward)) = parse(head.as_bytes()) {
            // What is passed on is one head, and says what the proxy understood.
            prop_assert_eq!(end_of_head(&forward.head, 0), Some(forward.head.len()));
            let mut again = [EMPTY_HEADER; HEADERS_MAX + 4];
            let mut request = httparse::Request::new(&mut again);
            prop_assert!(request.parse(&forward.head).unwrap().is_complete());
            let minor = request.version.unwrap();
            prop_assert_eq!(length(minor, request.headers).unwrap().unwrap_or(Body::Complete), forward.body);
            let hosts = values(request.headers, "host").collect::<Vec<_>>();
            prop_assert_eq!(hosts, vec![forward.target.authority(HTTP_PORT)]);
            prop_assert!(forward.head.len() <= head.len() + 64);
        }
    }

    #[test]
    fn the_end_is_found_however_it_arrives(bytes in "[a\r\n]{0,30}", step in 1_usize..4) {
        let bytes = bytes.as_bytes();
        let whole = end_of_head(bytes, 0);
        let mut before = 0;
        let mut found = None;
        while found.is_none() && before < bytes.len() {
            let now = (before + step).min(bytes.len());
            found = end_of_head(&bytes[..now], before);
            before = now;
        }
        prop_assert_eq!(found, whole);
    }
}
