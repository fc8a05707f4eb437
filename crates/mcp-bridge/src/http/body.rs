//! The body of a request: bounded in bytes and in time, and copied once.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::reply::Failure;

/// Not more room than this is made for a body that only says how long it is.
const TRUSTED: usize = 1024 * 1024;

/// The whole body.
pub(super) async fn read(
    body: Body,
    length: Option<usize>,
    max: usize,
    limit: Duration,
) -> Result<Vec<u8>, Failure> {
    let large = || {
        let why = format!("a message may have {max} bytes");
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, why)
    };
    if length.is_some_and(|length| length > max) {
        return Err(large());
    }
    let gathered = async {
        let mut whole = Vec::with_capacity(length.unwrap_or_default().min(TRUSTED));
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece
                .map_err(|_| Failure::new(StatusCode::BAD_REQUEST, "the body broke off before its end"))?;
            if whole.len() + piece.len() > max {
                return Err(large());
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    };
    timeout(limit, gathered).await.unwrap_or_else(|_| {
        Err(Failure::new(StatusCode::REQUEST_TIMEOUT, format!("the body was not there within {limit:?}")))
    })
}
