//! The headers that the protocol gives a meaning: each at most once, and each what it may be.

use axum::http::{HeaderMap, HeaderName, StatusCode, header};

use super::reply::Failure;

/// Which session.
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// Which revision.
pub(super) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The last event that a client has seen.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What the headers of a request say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) session: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) last_event_id: Option<String>,
    pub(crate) takes_json: bool,
    pub(crate) takes_events: bool,
    pub(crate) is_json: bool,
    pub(crate) length: Option<usize>,
}

impl Head {
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, Failure> {
        let content_type = once(headers, &header::CONTENT_TYPE)?.unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        let length = once(headers, &header::CONTENT_LENGTH)?;
        Ok(Self {
            session: once(headers, &SESSION)?.map(str::to_owned),
            version: once(headers, &VERSION)?.map(str::to_owned),
            last_event_id: once(headers, &LAST_EVENT_ID)?.map(str::to_owned),
            takes_json: takes(headers, "application", "json"),
            takes_events: takes(headers, "text", "event-stream"),
            is_json: media_type.eq_ignore_ascii_case("application/json"),
            length: length.and_then(|length| length.parse().ok()),
        })
    }
}

/// A header that may come once, and is text.
pub(super) fn once<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Failure> {
    let bad = |why: &str| Failure::new(StatusCode::BAD_REQUEST, format!("the header `{name}` {why}"));
    let mut given = headers.get_all(name).iter();
    match (given.next(), given.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => match value.to_str() {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(bad("is not visible ASCII")),
        },
        (Some(_), Some(_)) => Err(bad("comes twice")),
    }
}

/// Whether `Accept` lists a media type, by its name or by a range, and not with a weight of nothing.
fn takes(headers: &HeaderMap, kind: &str, of_kind: &str) -> bool {
    let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let (of, name) = name.split_once('/').unwrap_or_default();
        let fits = of.eq_ignore_ascii_case(kind) && (name.eq_ignore_ascii_case(of_kind) || name == "*");
        let no_weight = parts.any(|part| {
            let weight = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
            weight.and_then(|weight| weight.parse::<f32>().ok()).is_some_and(|weight| weight <= 0.0)
        });
        (fits || (of == "*" && name == "*")) && !no_weight
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_is_accepted_is_listed_or_in_a_range() {
        for (accept, json, events) in [
            ("application/json, text/event-stream", true, true),
            ("application/json;q=0.9,TEXT/Event-Stream", true, true),
            ("*/*", true, true),
            ("application/*", true, false),
            ("text/event-stream", false, true),
            ("text/event-stream;q=0, application/json", true, false),
            ("text/html", false, false),
            ("", false, false),
        ] {
            let head = Head::read(&headers(&[("accept", accept)])).unwrap();
            assert_eq!((head.takes_json, head.takes_events), (json, events), "{accept}");
        }
        let twice = headers(&[("accept", "application/json"), ("accept", "text/event-stream")]);
        let head = Head::read(&twice).unwrap();
        assert!(head.takes_json && head.takes_events, "a list in two headers is one list");
    }

    #[test]
    fn what_may_come_once_does_not_come_twice() {
        for name in ["mcp-session-id", "mcp-protocol-version", "last-event-id", "content-type"] {
            let refused = Head::read(&headers(&[(name, "1"), (name, "1")])).unwrap_err();
            assert_eq!(refused.status(), 400, "{name}");
        }
        let json = Head::read(&headers(&[("content-type", "Application/JSON; charset=utf-8")])).unwrap();
        assert!(json.is_json);
        let text = Head::read(&headers(&[("content-type", "text/plain")])).unwrap();
        assert!(!text.is_json);
    }
}
