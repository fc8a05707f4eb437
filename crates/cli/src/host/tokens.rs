//! The tokens by which the HTTP API knows whom it lets in: issued here, and known by their digests alone after that.

use session_api::tokens::{TokenCreated, TokenView};
use session_core::env::whole_milliseconds;
use session_core::names::{Label, Principal};
use session_core::ports::TokenStore as _;
use session_core::token::{NewToken, Secret, Subject, TokenRecord, Verbs};

use super::operations::{Operations, bad_name};
use super::protocol::{IssueToken, Reply};
use crate::failure::{Failure, Kind, Outcome};

impl Operations {
    /// Issues a token for whoever may do everything here: the user whose host this is.
    pub(super) async fn issue(&self, request: IssueToken) -> Outcome<Reply> {
        let IssueToken { name, principal, verbs, expires_at } = request;
        let verbs: Verbs = verbs.parse().map_err(|error| Failure::of(Kind::Usage, &error))?;
        if verbs == Verbs::NONE {
            return Err(Failure::usage("a token with no verb lets nobody in"));
        }
        let secret = Secret::new(self.context().env.secret());
        let new = NewToken {
            id: self.context().env.token_id(),
            digest: secret.digest(),
            name: Label::new(&name).map_err(bad_name)?,
            subject: Subject::Principal,
            principal: Principal::new(&principal).map_err(bad_name)?,
            verbs,
            expires_at: expires_at.map(whole_milliseconds),
            parent: None,
        };
        let token = self.store().issue(new, self.now()).await?;
        Ok(Reply::Issued(Box::new(TokenCreated { secret: secret.reveal(), token: TokenView::from(&token) })))
    }
}

/// What belongs to a host that serves.
#[cfg(target_os = "linux")]
impl Operations {
    /// Lets in whoever shows this very token, as the user whose host this is, with every verb.
    pub(super) async fn admit(&self, secret: &Secret, name: &str) -> Outcome<TokenRecord> {
        if let Some(found) = self.store().token(secret.digest()).await? {
            return Ok(found);
        }
        let new = NewToken {
            id: self.context().env.token_id(),
            digest: secret.digest(),
            name: Label::new(name).map_err(bad_name)?,
            subject: Subject::Principal,
            principal: self.context().principal()?,
            verbs: Verbs::all(),
            expires_at: None,
            parent: None,
        };
        Ok(self.store().issue(new, self.now()).await?)
    }

    /// Whether there is a token that lets somebody in.
    pub(super) async fn has_tokens(&self) -> Outcome<bool> {
        const PAGE: u32 = 1_000;
        let (now, mut after) = (self.now(), None);
        loop {
            let page = self.store().tokens(None, after, PAGE).await?;
            if page.iter().any(|token| token.is_valid(now)) {
                return Ok(true);
            }
            match page.last() {
                Some(last) if page.len() == PAGE as usize => after = Some(last.id),
                Some(_) | None => return Ok(false),
            }
        }
    }
}
