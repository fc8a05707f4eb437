//! Who is let in: by which name a request calls the bridge, from which page it may come, and whose token it shows.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use session_core::names::Principal;
use thiserror::Error;

use super::reply::Failure;

/// Who is let in.
#[derive(Debug, Clone)]
pub struct Access {
    /// By which names the bridge answers: `host:port`, exactly, case aside.
    pub hosts: Vec<String>,
    /// Which pages may speak to it: `scheme://host:port`, exactly. Pages of the bridge's own hosts always may.
    pub origins: Vec<String>,
    /// Whose requests they are.
    pub door: Door,
    /// Who issues tokens, for clients that ask: URLs of authorization servers. None where tokens come from the operator.
    pub issuers: Vec<String>,
    /// How the bridge is reached from outside: `scheme://host[:port]` without a path. Otherwise what a request calls it.
    pub url: Option<String>,
}

/// Whose a request is.
#[derive(Clone)]
pub enum Door {
    /// Everybody's is this one's: on loopback alone.
    Open(Principal),
    /// The bearer token says.
    Tokens(Arc<dyn Authenticator>),
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(principal) => f.debug_tuple("Open").field(principal).finish(),
            Self::Tokens(_) => f.write_str("Tokens"),
        }
    }
}

/// Knows tokens.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Whose token this is; `None` where it is nobody's, was revoked, or its time is over.
    async fn principal(&self, token: &str) -> Result<Option<Principal>, Unavailable>;
}

/// Whose token it is could not be found out, for now.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("tokens cannot be checked: {0}")]
pub struct Unavailable(pub String);

impl Access {
    /// Refuses what is not for this bridge, or comes from a page that may not speak to it.
    pub(super) fn admit(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Failure> {
        let bad = |why: &str| Failure::new(StatusCode::BAD_REQUEST, why);
        let mut given = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (given.next(), given.next()) else {
            return Err(bad("there must be one `Host` header"));
        };
        let host = host.to_str().map_err(|_| bad("the `Host` header is no text"))?;
        if uri.authority().is_some_and(|authority| authority.as_str() != host) {
            return Err(bad("the request line and the `Host` header differ"));
        }
        if !self.is_ours(host) {
            let why = format!("this bridge does not answer by the name {host:?}");
            return Err(Failure::new(StatusCode::FORBIDDEN, why));
        }
        for origin in headers.get_all(header::ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            let is_known = self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin));
            if !is_known && !own.is_some_and(|host| self.is_ours(host)) {
                let why = format!("the page {origin:?} may not speak to this bridge");
                return Err(Failure::new(StatusCode::FORBIDDEN, why));
            }
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        self.hosts.iter().any(|ours| ours.eq_ignore_ascii_case(host))
    }

    /// How the bridge is reached, by what this request calls it.
    pub(super) fn base(&self, headers: &HeaderMap) -> String {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        self.url.clone().unwrap_or_else(|| format!("http://{host}"))
    }

    /// Whose request it is.
    pub(super) async fn who(&self, headers: &HeaderMap) -> Result<Principal, Failure> {
        let authenticator = match &self.door {
            Door::Open(principal) => return Ok(principal.clone()),
            Door::Tokens(authenticator) => authenticator,
        };
        let refused = |why: &str| Failure::new(StatusCode::UNAUTHORIZED, why);
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let value = match (given.next(), given.next()) {
            (Some(value), None) => value,
            (None, _) => return Err(refused("show a token: `Authorization: Bearer …`")),
            (Some(_), Some(_)) => return Err(refused("there is more than one `Authorization` header")),
        };
        let pair = value.to_str().ok().and_then(|value| value.split_once(' '));
        let (_, token) = pair
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .ok_or_else(|| refused("the header is not `Authorization: Bearer` and a token"))?;
        match authenticator.principal(token.trim()).await {
            Ok(Some(principal)) => Ok(principal),
            Ok(None) => Err(refused("the token is nobody's here, was revoked, or its time is over")),
            Err(error) => {
                tracing::warn!(%error, "a token could not be checked");
                Err(Failure::busy("tokens cannot be checked just now"))
            }
        }
    }
}

/// A page that may speak to the bridge may read what it answers.
pub(super) fn let_pages_read(response: &mut Response, origin: HeaderValue, asked: Option<&HeaderValue>) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    let exposed = "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After";
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(exposed));
    let methods = HeaderValue::from_static("POST, GET, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    let mut known = String::from(
        "Authorization, Content-Type, Accept, Mcp-Session-Id, MCP-Protocol-Version, Last-Event-ID, \
         Mcp-Method, Mcp-Name",
    );
    // Those of arguments have names of their own.
    let asked = asked.and_then(|asked| asked.to_str().ok()).unwrap_or_default();
    let of_arguments =
        |name: &&str| name.get(..PARAM.len()).is_some_and(|start| start.eq_ignore_ascii_case(PARAM));
    for name in asked.split(',').map(str::trim).filter(of_arguments).take(PARAMS_MAX) {
        known.push_str(", ");
        known.push_str(name);
    }
    if let Ok(known) = HeaderValue::try_from(known) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, known);
    }
}

/// How the header of an argument begins.
const PARAM: &str = "mcp-param-";
/// As many headers of arguments are allowed at once.
const PARAMS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access {
            hosts: vec!["localhost:7777".into(), "[::1]:7777".into()],
            origins: vec!["https://inspector.example".into()],
            door: Door::Open("ada".parse().unwrap()),
            issuers: Vec::new(),
            url: None,
        }
    }

    #[test]
    fn a_page_may_send_the_headers_of_arguments() {
        let mut response = Response::new(axum::body::Body::empty());
        let asked = HeaderValue::from_static("authorization, mcp-param-who,Mcp-Param-x, cookie");
        let_pages_read(&mut response, HeaderValue::from_static("http://localhost:7777"), Some(&asked));
        let allowed = response.headers()[header::ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap();
        assert!(allowed.ends_with("Mcp-Name, mcp-param-who, Mcp-Param-x"), "{allowed}");
    }

    fn admit(host: &[&str], origin: &[&str]) -> u16 {
        let mut headers = HeaderMap::new();
        for (name, values) in [(header::HOST, host), (header::ORIGIN, origin)] {
            for value in values {
                headers.append(&name, HeaderValue::from_str(value).unwrap());
            }
        }
        let refused = access().admit(&headers, &Uri::from_static("/mcp")).err();
        refused.map_or(200, |refused| refused.status().as_u16())
    }

    #[test]
    fn a_host_is_exactly_one_of_ours() {
        for ours in ["localhost:7777", "LOCALHOST:7777", "[::1]:7777"] {
            assert_eq!(admit(&[ours], &[]), 200, "{ours}");
        }
        for (hosts, status) in [
            (&[][..], 400),
            (&["localhost:7777", "localhost:7777"], 400),
            (&["localhost"], 403),
            (&["localhost:7777."], 403),
            (&["localhost.evil.com:7777"], 403),
            (&["evil.com"], 403),
        ] {
            assert_eq!(admit(hosts, &[]), status, "{hosts:?}");
        }
    }

    #[test]
    fn an_origin_is_a_page_of_ours_or_one_that_the_operator_named() {
        let host = &["localhost:7777"];
        for known in ["http://localhost:7777", "https://[::1]:7777", "https://inspector.example"] {
            assert_eq!(admit(host, &[known]), 200, "{known}");
        }
        for foreign in [
            "null",
            "",
            "http://localhost",
            "http://localhost:7777.evil.com",
            "https://inspector.example.evil.com",
            "http://inspector.example",
        ] {
            assert_eq!(admit(host, &[foreign]), 403, "{foreign}");
        }
        assert_eq!(admit(host, &["http://localhost:7777", "http://evil.com"]), 403);
    }
}
