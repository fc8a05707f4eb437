//! The body of a request: bounded in bytes and in time, and copied once.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::reply::Failure;
use crate::shares::Share;

/// Not more room than this is made for a body that only says how long it is.
const TRUSTED: usize = 1024 * 1024;

/// The whole body, with the share of the memory that it has.
pub(super) async fn read(
    body: Body,
    length: Option<usize>,
    max: usize,
    limit: Duration,
    mut share: Share,
) -> Result<(Vec<u8>, Share), Failure> {
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
            if !share.grow(piece.len()) {
                return Err(Failure::busy("as much as may waits to be passed on already"));
            }
            whole.extend_from_slice(&piece);
        }
        Ok((whole, share))
    };
    timeout(limit, gathered).await.unwrap_or_else(|_| {
        Err(Failure::new(StatusCode::REQUEST_TIMEOUT, format!("the body was not there within {limit:?}")))
    })
}
