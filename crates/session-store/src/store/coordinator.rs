//! What only a coordinator needs: which way each of its methods takes.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use session_core::StoreResult;
use session_core::digest::Digest;
use session_core::ids::TokenId;
use session_core::names::Principal;
use session_core::ports::TokenStore;
use session_core::token::{NewToken, SigningKey, TokenRecord};

use super::SqlStore;
use crate::tokens;

#[async_trait]
impl TokenStore for SqlStore {
    async fn issue(&self, new: NewToken, now: Timestamp) -> StoreResult<TokenRecord> {
        change!(self, [new], tx => tokens::issue(tx, &new, now)).await
    }

    async fn token(&self, digest: Digest) -> StoreResult<Option<TokenRecord>> {
        tokens::token(&mut self.connection().await?.conn(), digest).await
    }

    async fn tokens(
        &self,
        principal: Option<&Principal>,
        after: Option<TokenId>,
        limit: u32,
    ) -> StoreResult<Vec<TokenRecord>> {
        tokens::list(&mut self.connection().await?.conn(), principal, after, limit).await
    }

    async fn revoke(&self, id: TokenId, now: Timestamp) -> StoreResult<TokenRecord> {
        change!(self, [], tx => tokens::revoke(tx, id, now)).await
    }

    async fn signing_key(&self, candidate: SigningKey) -> StoreResult<SigningKey> {
        // After the first time there is nothing to write.
        let known = tokens::signing_key(&mut self.connection().await?.conn()).await?;
        match known {
            Some(key) => Ok(key),
            None => change!(self, [candidate], tx => tokens::propose_key(tx, &candidate)).await,
        }
    }
}
