//! What a request says, read with a bound and refused with the field and the reason.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query as AxumQuery, Request};
use axum::http::header;
use axum::http::request::Parts;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use session_api::Code;
use session_core::Id;

use crate::problem::Refusal;
use crate::state::State;

/// A JSON body.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A JSON body that may be left out.
#[derive(Debug)]
pub(crate) struct OptionalBody<T>(pub(crate) T);

/// The id in the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathId<T>(pub(crate) T);

/// The two ids in the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathIds<A, B>(pub(crate) A, pub(crate) B);

/// What stands behind the question mark.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<State> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &State) -> Result<Self, Refusal> {
        let is_json = is_json(request.headers());
        let bytes = read(request.into_body(), state).await?;
        if !is_json {
            return Err(Refusal::new(Code::UnsupportedMediaType, "send `Content-Type: application/json`"));
        }
        parse(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<State> for OptionalBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &State) -> Result<Self, Refusal> {
        let is_json = is_json(request.headers());
        let bytes = read(request.into_body(), state).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        if !is_json {
            return Err(Refusal::new(Code::UnsupportedMediaType, "send `Content-Type: application/json`"));
        }
        // As its description says it where there is nothing to say.
        if bytes.trim_ascii() == b"null" {
            return Ok(Self(T::default()));
        }
        parse(&bytes).map(Self)
    }
}

fn is_json(headers: &axum::http::HeaderMap) -> bool {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = given.and_then(|value| value.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

async fn read(body: Body, state: &State) -> Result<Bytes, Refusal> {
    let (most, mut came) = (state.limits().body_bytes, 0);
    let taken = tokio::time::timeout(state.limits().body_time, take(body, most, &mut came)).await;
    if came > most {
        return Err(Refusal::new(Code::TooLarge, format!("the body is larger than {most} bytes")));
    }
    let late = |_| Refusal::new(Code::RequestTimeout, "the body did not come in time");
    taken.map_err(late)?.map_err(|_| Refusal::new(Code::Malformed, "the body ended before its end"))
}

/// The body, and how much of it `came`. What is beyond `most` is thrown away, but taken up to a bound: whoever is still
/// sending would find the connection broken, and no answer.
async fn take(body: Body, most: usize, came: &mut usize) -> Result<Bytes, axum::Error> {
    /// So many times what is allowed is taken.
    const TIMES: usize = 16;
    let (mut pieces, mut bytes) = (body.into_data_stream(), Vec::new());
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        *came = came.saturating_add(piece.len());
        if *came <= most {
            bytes.extend_from_slice(&piece);
        } else if *came <= most.saturating_mul(TIMES) {
            bytes = Vec::new();
        } else {
            break;
        }
    }
    Ok(bytes.into())
}

/// The value that a text of JSON is.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Refusal::new(Code::Malformed, format!("the body is not UTF-8: {error}")))?;
    let malformed =
        |error: serde_json::Error| Refusal::new(Code::Malformed, format!("the body is not JSON: {error}"));
    if !text.trim_start().starts_with('{') {
        serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(malformed)?;
        // A list would be taken for the fields in their order.
        return Err(Refusal::new(Code::Invalid, "the body is not a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if inner.is_data() {
            let refusal = Refusal::new(Code::Invalid, inner.to_string());
            return if path == "." { refusal } else { Refusal(refusal.0.at(path)) };
        }
        malformed(inner)
    })?;
    json.end().map_err(malformed)?;
    Ok(value)
}

impl<T: Id> FromRequestParts<State> for PathId<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Refusal> {
        let text = Path::<String>::from_request_parts(parts, state).await;
        let Path(text) = text.map_err(|error| Refusal::new(Code::Malformed, error.body_text()))?;
        text.parse().map(Self).map_err(|error| Refusal::invalid("id", error.to_string()))
    }
}

impl<A: Id, B: Id> FromRequestParts<State> for PathIds<A, B> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Refusal> {
        let texts = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((a, b)) = texts.map_err(|error| Refusal::new(Code::Malformed, error.body_text()))?;
        let invalid = |error: session_core::ids::IdError| Refusal::invalid("id", error.to_string());
        Ok(Self(a.parse().map_err(invalid)?, b.parse().map_err(invalid)?))
    }
}

impl<T: DeserializeOwned> FromRequestParts<State> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Refusal> {
        let query = AxumQuery::<T>::from_request_parts(parts, state).await;
        let AxumQuery(query) = query.map_err(|error| Refusal::invalid("query", error.body_text()))?;
        Ok(Self(query))
    }
}

/// A field that is an id, a name or a code.
pub(crate) fn field<T>(name: &str, text: &str) -> Result<T, Refusal>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| Refusal::invalid(name, error.to_string()))
}

/// The same where it may be left out.
pub(crate) fn optional<T>(name: &str, text: Option<&str>) -> Result<Option<T>, Refusal>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.map(|text| field(name, text)).transpose()
}

/// How many entries a page has.
pub(crate) fn limit(given: Option<u32>, default: u32) -> Result<u32, Refusal> {
    match given {
        None => Ok(default),
        Some(limit @ 1..=1_000) => Ok(limit),
        Some(limit) => Err(Refusal::invalid("limit", format!("is {limit}, 1 to 1000 are allowed"))),
    }
}
