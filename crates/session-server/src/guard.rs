//! What stands around every route: whether the request is for us and from where it may be, whether there is room, how long
//! it may take, and what is counted of it.

use std::panic::AssertUnwindSafe;

use axum::extract::{MatchedPath, Request, State as Extract};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use session_api::{Code, paths};

use crate::problem::Refusal;
use crate::state::{Access, State};

/// Around every route and every refusal.
pub(crate) async fn watch(Extract(state): Extract<State>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let method = named(request.method());
    let began = state.coordinator().env().elapsed();
    let response = match admit(&state, &request) {
        Ok(()) => answer(&state, request, next).await,
        Err(refusal) => refusal.into_response(),
    };
    let took = state.coordinator().env().elapsed().saturating_sub(began);
    let route = route.as_deref().unwrap_or("none");
    state.metrics().answered(route, method, response.status().as_u16(), took);
    response
}

/// A method by a name of the program's: a client may think up any.
fn named(method: &Method) -> &'static str {
    let known = [Method::GET, Method::HEAD, Method::POST, Method::DELETE, Method::OPTIONS];
    let names = ["GET", "HEAD", "POST", "DELETE", "OPTIONS"];
    known.iter().zip(names).find(|(known, _)| *known == method).map_or("other", |(_, name)| name)
}

fn admit(state: &State, request: &Request) -> Result<(), Refusal> {
    check_host(state.access(), request.headers(), request.uri())?;
    check_origin(state.access(), request.headers())?;
    let probe = matches!(request.uri().path(), paths::HEALTHZ | paths::READYZ | paths::METRICS);
    if state.drain().is_cancelled() && !probe {
        return Err(Refusal::new(Code::Draining, "this server is ending: ask again"));
    }
    Ok(())
}

async fn answer(state: &State, request: Request, next: Next) -> Response {
    let permit = state.requests().try_acquire();
    // Whether it lives and how it fares is asked most where there is no room.
    if permit.is_err() && !matches!(request.uri().path(), paths::HEALTHZ | paths::METRICS) {
        return Refusal::new(Code::Overloaded, "as many requests as there may be are worked on")
            .into_response();
    }
    let options = request.method() == Method::OPTIONS;
    // What comes slowly is told so, whichever of the two is longer: nothing of it was done.
    let limit = state.limits().request_time.saturating_add(state.limits().body_time);
    let caught = AssertUnwindSafe(next.run(request)).catch_unwind();
    let response = match tokio::time::timeout(limit, caught).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => {
            tracing::error!("a request panicked");
            Refusal::new(Code::Internal, "this is a fault of the program; its log says more").into_response()
        }
        Err(_) => Refusal::new(Code::Timeout, format!("it took longer than {limit:?}")).into_response(),
    };
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allow = response.headers().get(header::ALLOW).cloned();
    let mut response = if options {
        StatusCode::NO_CONTENT.into_response()
    } else {
        let known = allow.as_ref().and_then(|allow| allow.to_str().ok()).unwrap_or_default();
        Refusal::new(Code::MethodNotAllowed, format!("this path takes {known}")).into_response()
    };
    if let Some(allow) = allow {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

/// The `Host` must be one of ours, exactly, once, and the same as in the request line where that names one.
fn check_host(access: &Access, headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    let mut given = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (given.next(), given.next()) else {
        return Err(Refusal::new(Code::BadHost, "there must be one `Host` header"));
    };
    let host = host.to_str().map_err(|_| Refusal::new(Code::BadHost, "the `Host` header is no text"))?;
    if uri.authority().is_some_and(|authority| authority.as_str() != host) {
        return Err(Refusal::new(Code::BadHost, "the request line and the `Host` header differ"));
    }
    if is_ours(access, host) {
        return Ok(());
    }
    Err(Refusal::new(Code::ForeignHost, format!("this server does not answer by the name {host:?}")))
}

/// A page of another site must not speak through a person's browser.
fn check_origin(access: &Access, headers: &HeaderMap) -> Result<(), Refusal> {
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !host.is_some_and(|host| is_ours(access, host)) {
            return Err(Refusal::new(Code::ForeignOrigin, format!("{origin:?} is no page of this server")));
        }
    }
    Ok(())
}

fn is_ours(access: &Access, host: &str) -> bool {
    access.hosts.iter().any(|ours| ours.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn access() -> Access {
        Access { without_token: None, hosts: vec!["localhost:7777".into(), "[::1]:7777".into()] }
    }

    fn headers(name: &header::HeaderName, values: &[&str]) -> HeaderMap {
        let pairs = values.iter().map(|value| (name.clone(), HeaderValue::from_str(value).unwrap()));
        pairs.collect()
    }

    #[test]
    fn a_host_is_exactly_one_of_ours() {
        let uri = Uri::from_static("/v1/runs");
        let check = |values: &[&str]| check_host(&access(), &headers(&header::HOST, values), &uri);
        for ours in ["localhost:7777", "LOCALHOST:7777", "[::1]:7777"] {
            assert!(check(&[ours]).is_ok(), "{ours}");
        }
        for (values, code) in [
            (&[][..], Code::BadHost),
            (&["localhost:7777", "localhost:7777"], Code::BadHost),
            (&["localhost"], Code::ForeignHost),
            (&["localhost:7777."], Code::ForeignHost),
            (&["localhost.evil.com:7777"], Code::ForeignHost),
            (&["evil.com"], Code::ForeignHost),
        ] {
            assert_eq!(check(values).unwrap_err().0.code, code, "{values:?}");
        }
        let absolute = Uri::from_static("http://evil.com/v1/runs");
        let host = headers(&header::HOST, &["localhost:7777"]);
        assert_eq!(check_host(&access(), &host, &absolute).unwrap_err().0.code, Code::BadHost);
    }

    #[test]
    fn an_origin_is_a_page_of_ours_or_none_at_all() {
        let check = |values: &[&str]| check_origin(&access(), &headers(&header::ORIGIN, values)).is_ok();
        assert!(check(&[]) && check(&["http://localhost:7777"]) && check(&["https://[::1]:7777"]));
        for foreign in [
            "null",
            "",
            "http://localhost",
            "http://localhost:7777.evil.com",
            "file://localhost:7777",
            "localhost:7777",
        ] {
            assert!(!check(&[foreign]), "{foreign}");
        }
        assert!(!check(&["http://localhost:7777", "http://evil.com"]));
    }
}
