//! The API from the other side: one request, one typed answer, within a bound of time and size.
//!
//! The client tries nothing again by itself: whether the same request may be sent twice is known by whoever sends it. What
//! went wrong says whether trying again may help ([`ClientError::may_pass`]).

use std::fmt;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::paths;
use crate::problem::Problem;

/// The largest answer in bytes: a page of a log has at most a thousand events.
const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// How long a connection may take to be made.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long one request may take beyond what it says that it waits for.
const REQUEST_TIME: Duration = Duration::from_secs(20);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The address of the server is none.
    #[error("{address:?} is no address of a server, such as https://roomette.example.org: {reason}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The token cannot stand in a header.
    #[error("the token is not one line of text")]
    Token,
    /// This program cannot ask anybody.
    #[error("no client could be made")]
    Setup(#[source] reqwest::Error),
    /// Nobody answered, or the answer broke off. It may be done.
    #[error("the coordinator cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// The server said no.
    #[error("the coordinator refused it: {0}")]
    Refused(Problem),
    /// The answer is none of this API.
    #[error("the answer of the coordinator cannot be understood: {0}")]
    Garbled(String),
}

impl ClientError {
    /// Whether the same may succeed if it is tried again, although nothing else has changed.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused(problem) => problem.code.may_pass(),
            Self::Address { .. } | Self::Token | Self::Setup(_) | Self::Garbled(_) => false,
        }
    }
}

/// Asks one server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    server: Url,
    bearer: Option<HeaderValue>,
}

/// Without the token.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.server.as_str()).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the server at this address, `http://` or `https://`, with a token where there is one.
    pub fn new(address: &str, token: Option<&str>) -> Result<Self, ClientError> {
        let wrong =
            |reason: &str| ClientError::Address { address: address.into(), reason: reason.to_owned() };
        let server = Url::parse(address).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(server.scheme(), "http" | "https") {
            return Err(wrong("it begins with neither http:// nor https://"));
        }
        if !server.username().is_empty() || server.password().is_some() || server.query().is_some() {
            return Err(wrong("a token does not belong into an address"));
        }
        // The one provider of this program; the first call counts.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIME)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("roomette/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(ClientError::Setup)?;
        let client = Self { http, server, bearer: None };
        token.map_or(Ok(client.clone()), |token| client.with_token(token))
    }

    /// The same with this token.
    pub fn with_token(&self, token: &str) -> Result<Self, ClientError> {
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| ClientError::Token)?;
        bearer.set_sensitive(true);
        Ok(Self { bearer: Some(bearer), ..self.clone() })
    }

    /// The server's address.
    #[must_use]
    pub fn server(&self) -> &str {
        self.server.as_str()
    }

    /// Looks. May be asked again.
    pub async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        self.send(Method::GET, path, None, None, Duration::ZERO).await
    }

    /// Takes away. May be asked again.
    pub async fn delete<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        self.send(Method::DELETE, path, None, None, Duration::ZERO).await
    }

    /// Sends, and waits for the answer for `wait` longer than usual.
    pub async fn post<Q: Serialize + Sync, A: DeserializeOwned>(
        &self,
        path: &str,
        question: &Q,
        wait: Duration,
    ) -> Result<A, ClientError> {
        self.send(Method::POST, path, Some(body(question)?), None, wait).await
    }

    /// Makes something, at most once however often it is sent under this key.
    pub async fn create<Q: Serialize + Sync, A: DeserializeOwned>(
        &self,
        path: &str,
        question: &Q,
        key: &str,
    ) -> Result<A, ClientError> {
        self.send(Method::POST, path, Some(body(question)?), Some(key), Duration::ZERO).await
    }

    async fn send<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        key: Option<&str>,
        wait: Duration,
    ) -> Result<A, ClientError> {
        let mut url = self.server.clone();
        let below = self.server.path().trim_end_matches('/');
        url.set_path(&format!("{below}{path}"));
        let mut request =
            self.http.request(method, url).timeout(REQUEST_TIME + wait).header(ACCEPT, "application/json");
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer.clone());
        }
        if let Some(key) = key {
            request = request.header(paths::IDEMPOTENCY_KEY, key);
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let response = request.send().await.map_err(ClientError::Unreachable)?;
        let status = response.status();
        let bytes = read(response).await?;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| ClientError::Garbled(error.to_string()));
        }
        Err(refusal(status, &bytes))
    }
}

fn body<Q: Serialize>(question: &Q) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(question).map_err(|error| ClientError::Garbled(error.to_string()))
}

/// The answer's body, and no more of it than there may be.
async fn read(mut response: Response) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(ClientError::Unreachable)? {
        if bytes.len() + chunk.len() > ANSWER_MAX {
            return Err(ClientError::Garbled(format!("it has more than {ANSWER_MAX} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// A problem of this API; of whatever stands between, the status.
fn refusal(status: StatusCode, bytes: &[u8]) -> ClientError {
    match serde_json::from_slice(bytes) {
        Ok(problem) => ClientError::Refused(problem),
        Err(_) if matches!(status.as_u16(), 408 | 429 | 502 | 503 | 504) => {
            let detail = format!("whatever stands before the coordinator answered {status}");
            ClientError::Refused(Problem::new(crate::Code::Unavailable, detail))
        }
        Err(_) => ClientError::Garbled(format!("it has the status {status} and is no problem of this API")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn an_address_is_one_of_http_and_has_no_secret() {
        for address in ["http://localhost:7777", "https://fleet.example.org/base/"] {
            assert!(Client::new(address, Some("rmt_1")).is_ok(), "{address}");
        }
        for address in ["", "localhost:7777", "ftp://a", "http://a:b@c", "https://c?token=x"] {
            let error = Client::new(address, None).unwrap_err();
            assert!(matches!(error, ClientError::Address { .. }), "{address}: {error}");
        }
        assert!(matches!(Client::new("http://a", Some("a\nb")), Err(ClientError::Token)));
        let client = Client::new("http://a", Some("rmt_secret")).unwrap();
        assert!(!format!("{client:?}").contains("secret"));
    }

    #[test]
    fn a_refusal_says_whether_to_try_again() {
        let problem = serde_json::to_vec(&Problem::new(Code::StaleEpoch, "late")).unwrap();
        let refused = refusal(StatusCode::CONFLICT, &problem);
        assert!(!refused.may_pass() && refused.to_string().contains("late"));
        assert!(refusal(StatusCode::BAD_GATEWAY, b"<html>").may_pass());
        assert!(!refusal(StatusCode::IM_A_TEAPOT, b"<html>").may_pass());
    }
}
