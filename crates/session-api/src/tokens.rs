//! Tokens: issued once, listed without their secrets, revoked.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use session_core::token::{Subject, TokenRecord};
use utoipa::ToSchema;

/// A token that is asked for. It is never stronger than the one with which it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// What people call it.
    pub name: String,
    /// What it is for: some of `read`, `run`, `control`, `approve`, `runner` and `admin`.
    pub verbs: Vec<String>,
    /// Whose it is; the caller's without this. Others' only with the verb `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The one runner that it speaks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<String>,
    /// From when on it counts no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// A token that was just issued.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// Its secret, shown this once and kept nowhere.
    pub secret: String,
    /// What is known of it.
    pub token: TokenView,
}

/// Says nothing of the secret: it may come into a log.
impl std::fmt::Debug for TokenCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenCreated").field("token", &self.token).finish_non_exhaustive()
    }
}

/// One page of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenPage {
    /// The tokens, newest first.
    pub items: Vec<TokenView>,
    /// Where the next page begins; nothing at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Its id, which is no secret.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Whose it is.
    pub principal: String,
    /// What it is for.
    pub verbs: Vec<String>,
    /// The one runner that it speaks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<String>,
    /// When it was issued.
    pub created_at: Timestamp,
    /// From when on it counts no more; nothing for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Since when it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// The token with which it was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

impl From<&TokenRecord> for TokenView {
    fn from(token: &TokenRecord) -> Self {
        Self {
            id: token.id.to_string(),
            name: token.name.to_string(),
            principal: token.principal.to_string(),
            verbs: token.verbs.iter().map(|verb| verb.code().to_owned()).collect(),
            runner_id: match token.subject {
                Subject::Principal => None,
                Subject::Runner(id) => Some(id.to_string()),
            },
            created_at: token.created_at,
            expires_at: token.expires_at,
            revoked_at: token.revoked_at,
            parent: token.parent.map(|id| id.to_string()),
        }
    }
}
