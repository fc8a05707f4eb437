//! Tokens in memory.

use async_trait::async_trait;
use jiff::Timestamp;

use super::MemoryStore;
use super::draft::Draft;
use crate::digest::Digest;
use crate::error::{Conflict, StoreError, StoreResult};
use crate::ids::TokenId;
use crate::names::Principal;
use crate::ports::{TOKENS_PAGE_MAX, TokenStore};
use crate::token::{NewToken, SigningKey, TokenRecord, weaken};

#[async_trait]
impl TokenStore for MemoryStore {
    async fn issue(&self, new: NewToken, now: Timestamp) -> StoreResult<TokenRecord> {
        self.write(|draft| {
            let new = match new.parent {
                Some(id) => {
                    let parent = draft.token(id)?;
                    if !parent.is_valid(now) {
                        return Err(Conflict::TokenEnded(id).into());
                    }
                    weaken(parent, new).map_err(|why| Conflict::Stronger { parent: id, why })?
                }
                None => new,
            };
            let tokens = &mut draft.data.tokens;
            if tokens.values().any(|known| known.id == new.id || known.digest == new.digest) {
                return Err(Conflict::Exists(new.id.to_string()).into());
            }
            let token = new.issued(now);
            tokens.insert(token.id, token.clone());
            Ok(token)
        })
    }

    async fn token(&self, digest: Digest) -> StoreResult<Option<TokenRecord>> {
        Ok(self.read(|data| data.tokens.values().find(|token| token.digest == digest).cloned()))
    }

    async fn tokens(
        &self,
        principal: Option<&Principal>,
        after: Option<TokenId>,
        limit: u32,
    ) -> StoreResult<Vec<TokenRecord>> {
        let shows = |token: &&TokenRecord| {
            after.is_none_or(|after| token.id < after)
                && principal.is_none_or(|principal| token.principal == *principal)
        };
        let limit = usize::try_from(limit.min(TOKENS_PAGE_MAX)).unwrap_or(usize::MAX);
        Ok(self.read(|data| data.tokens.values().rev().filter(shows).take(limit).cloned().collect()))
    }

    async fn revoke(&self, id: TokenId, now: Timestamp) -> StoreResult<TokenRecord> {
        self.write(|draft| {
            let mut revoked = vec![id];
            while let Some(id) = revoked.pop() {
                draft.token(id)?.revoked_at.get_or_insert(now);
                let children = draft.data.tokens.values().filter(|token| token.parent == Some(id));
                revoked.extend(children.map(|token| token.id));
            }
            draft.wake_tokens();
            Ok(draft.token(id)?.clone())
        })
    }

    async fn signing_key(&self, candidate: SigningKey) -> StoreResult<SigningKey> {
        self.write(|draft| Ok(draft.data.signing_key.get_or_insert(candidate).clone()))
    }
}

impl Draft {
    fn token(&mut self, id: TokenId) -> StoreResult<&mut TokenRecord> {
        self.data.tokens.get_mut(&id).ok_or(StoreError::UnknownToken(id))
    }
}
