//! What an import of a legacy coordinator's database needs of the store.

use std::sync::Arc;

use jiff::Timestamp;
use session_core::token::SigningKey;
use session_core::{StoreError, StoreResult};

use super::SqlStore;
use crate::legacy::{LegacyImport, import};

impl SqlStore {
    /// The key that goes into the ids of this store's imports. A trial keeps none.
    pub(crate) async fn legacy_key(&self, wish: &LegacyImport) -> StoreResult<SigningKey> {
        if let Some(key) = import::key(&mut self.connection().await?.conn()).await? {
            return Ok(key);
        }
        let secret = wish.secret;
        if wish.dry_run {
            return Ok(SigningKey::new(secret));
        }
        change!(self, [], tx => import::propose(tx, secret)).await?;
        let kept = import::key(&mut self.connection().await?.conn()).await?;
        kept.ok_or_else(|| StoreError::Backend("the key of imports was not kept".into()))
    }

    /// Makes a session of theirs, all of it or nothing.
    pub(crate) async fn make_legacy(&self, made: import::Made, now: Timestamp) -> StoreResult<()> {
        change!(self, [made], tx => import::make(tx, &made, now)).await
    }
}
