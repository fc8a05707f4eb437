//! Tokens: who was let in, with what leave, and until when.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::digest::Digest;
use crate::error::StoreResult;
use crate::ids::TokenId;
use crate::names::Principal;
use crate::token::{NewToken, SigningKey, TokenRecord};

/// The opaque tokens, by their digests alone, and the key under which the tokens of runs are signed.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Issues a token. One with a parent is as [`weaken`](crate::token::weaken) makes it, with the parent as it is in the
    /// same transaction: a parent that is revoked meanwhile issues nothing.
    ///
    /// `Conflict::Exists` if the id or the digest is taken; `UnknownToken`, `Conflict::TokenEnded` or `Conflict::Stronger`
    /// for the sake of the parent.
    async fn issue(&self, new: NewToken, now: Timestamp) -> StoreResult<TokenRecord>;

    /// The token with this digest, also one that counts no more: [`TokenRecord::is_valid`].
    async fn token(&self, digest: Digest) -> StoreResult<Option<TokenRecord>>;

    /// The tokens of everybody or of one principal, newest first by their ids, which sort by their time: those behind
    /// `after`, at most `limit` and never more than [`TOKENS_PAGE_MAX`].
    async fn tokens(
        &self,
        principal: Option<&Principal>,
        after: Option<TokenId>,
        limit: u32,
    ) -> StoreResult<Vec<TokenRecord>>;

    /// Revokes a token and all that were issued with it, and with those. The first time stays. `UnknownToken`.
    async fn revoke(&self, id: TokenId, now: Timestamp) -> StoreResult<TokenRecord>;

    /// The key under which the tokens of runs are signed: of all that ever propose one to this store the first wins.
    async fn signing_key(&self, candidate: SigningKey) -> StoreResult<SigningKey>;
}

/// The most tokens that one call returns.
pub const TOKENS_PAGE_MAX: u32 = 1_000;
