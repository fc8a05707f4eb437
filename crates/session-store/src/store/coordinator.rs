//! What only a coordinator needs: which way each of its methods takes.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use session_core::StoreResult;
use session_core::affinity::RunnerProfile;
use session_core::digest::Digest;
use session_core::family::Callback;
use session_core::ids::{RunId, RunnerId, SessionId, TokenId};
use session_core::names::{Principal, ProgramVersion};
use session_core::ports::{FamilyStore, RunnerStore, TokenStore};
use session_core::run::Epoch;
use session_core::runner::RunnerRecord;
use session_core::token::{NewToken, SigningKey, TokenRecord};

use super::SqlStore;
use crate::{families, runners, tokens};

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

#[async_trait]
impl RunnerStore for SqlStore {
    async fn register(
        &self,
        profile: RunnerProfile,
        version: ProgramVersion,
        now: Timestamp,
    ) -> StoreResult<RunnerRecord> {
        change!(self, [profile, version], tx => runners::register(tx, &profile, &version, now)).await
    }

    async fn seen(&self, id: RunnerId, instance: Epoch, now: Timestamp) -> StoreResult<RunnerRecord> {
        let looked = runners::look(&mut self.connection().await?.conn(), id, instance, now).await?;
        match looked {
            Some(runner) => Ok(runner),
            None => change!(self, [], tx => runners::seen(tx, id, instance, now)).await,
        }
    }

    async fn drain(&self, id: RunnerId, draining: bool) -> StoreResult<RunnerRecord> {
        change!(self, [], tx => runners::drain(tx, id, draining)).await
    }

    async fn forget(&self, id: RunnerId) -> StoreResult<Vec<SessionId>> {
        change!(self, [], tx => runners::forget(tx, id)).await
    }

    async fn runner(&self, id: RunnerId) -> StoreResult<Option<RunnerRecord>> {
        runners::runner(&mut self.connection().await?.conn(), id).await
    }

    async fn runners(&self) -> StoreResult<Vec<RunnerRecord>> {
        runners::runners(&mut self.connection().await?.conn()).await
    }
}

#[async_trait]
impl FamilyStore for SqlStore {
    async fn callbacks_due(&self, limit: u32) -> StoreResult<Vec<SessionId>> {
        families::due(&mut self.connection().await?.conn(), limit).await
    }

    async fn callbacks(&self, parent: SessionId, limit: u32) -> StoreResult<Vec<Callback>> {
        families::callbacks(&mut self.connection().await?.conn(), parent, limit).await
    }

    async fn callbacks_heard(&self, parent: SessionId, ends: &[RunId]) -> StoreResult<()> {
        let ends = ends.to_vec();
        change!(self, [ends], tx => families::heard(tx, parent, &ends)).await
    }

    async fn hold_callbacks(&self, sessions: &[SessionId]) -> StoreResult<()> {
        let sessions = sessions.to_vec();
        change!(self, [sessions], tx => families::hold(tx, &sessions)).await
    }

    async fn orphaned(&self, limit: u32) -> StoreResult<Vec<SessionId>> {
        families::orphaned(&mut self.connection().await?.conn(), limit).await
    }
}
