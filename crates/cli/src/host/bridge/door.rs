//! Whose requests they are: by the tokens that the HTTP API knows as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mcp_bridge::http::access::{Authenticator, Unavailable};
use session_core::Digest;
use session_core::names::Principal;
use session_core::ports::TokenStore as _;
use session_core::token::{Secret, Subject, Verb};
use tokio::time::Instant;

use crate::host::operations::Operations;

/// For so long a token counts after it was looked up: it is revoked as much later.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// How many are known.
const KNOWN_MAX: usize = 1_024;

/// Looks tokens up. A token lets in as the principal whose it is, if it is for runs.
#[derive(Debug)]
pub(super) struct Tokens {
    operations: Arc<Operations>,
    known: Mutex<HashMap<Digest, (Principal, Instant)>>,
}

impl Tokens {
    pub(super) fn new(operations: Arc<Operations>) -> Self {
        Self { operations, known: Mutex::default() }
    }

    fn known(&self, digest: Digest, now: Instant) -> Option<Principal> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (principal, until) = known.get(&digest)?;
        (now < *until).then(|| principal.clone())
    }

    fn learn(&self, digest: Digest, principal: &Principal, now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(digest, (principal.clone(), now + KNOWN_FOR));
    }
}

#[async_trait]
impl Authenticator for Tokens {
    async fn principal(&self, token: &str) -> Result<Option<Principal>, Unavailable> {
        let Ok(secret) = token.parse::<Secret>() else { return Ok(None) };
        let (digest, now) = (secret.digest(), Instant::now());
        if let Some(principal) = self.known(digest, now) {
            return Ok(Some(principal));
        }
        let found = self.operations.store().token(digest).await;
        let found = found.map_err(|error| Unavailable(error.to_string()))?;
        let at = self.operations.now();
        let counts = found.filter(|token| {
            token.is_valid(at) && token.subject == Subject::Principal && token.verbs.has(Verb::Run)
        });
        let Some(token) = counts else { return Ok(None) };
        self.learn(digest, &token.principal, now);
        Ok(Some(token.principal))
    }
}
