//! Several messages in one request, as the oldest revision has them: they are posted in their order, and answered in any. What
//! was done is told, also where something after it could not be.

use std::convert::Infallible;

use axum::body::Bytes;
use axum::http::StatusCode;
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use super::reply::{Failure, JSON};
use super::session::{Answered, Client, DEAF, Delivered, Replied, acceptable, accepted, refusal_line};
use super::sse::Pass;
use super::{sse, text};
use crate::board::From;
use crate::conversation::{Parcel, Reply};
use crate::envelope::Kind;

/// A message of the batch that is a request, by its id.
struct Member {
    id: Option<String>,
    /// Of a request.
    pass: Option<Pass>,
}

impl Client<'_> {
    /// Several messages at once.
    pub(super) async fn batch(&self, parcels: Vec<Parcel>) -> Answered {
        let bad = |why: &str| Err(Failure::new(StatusCode::BAD_REQUEST, why));
        if parcels.iter().any(|parcel| parcel.message.method() == Some("initialize")) {
            return bad("`initialize` stands alone");
        }
        for parcel in &parcels {
            acceptable(&parcel.message)?;
        }
        let (_, revision) = self.entry().await?;
        if !revision.has_batches() {
            return bad("this revision has no batches: post one message at a time");
        }
        // Before anything is done: whoever is told to come again has lost nothing.
        let members: Result<Vec<Member>, Failure> =
            parcels.iter().map(|parcel| self.member(parcel)).collect();
        let (mut posted, mut answers) = (Vec::with_capacity(parcels.len()), Vec::new());
        // One time for all of them: where the server reads nothing, not each is waited for.
        let until = Instant::now() + self.limit();
        for (parcel, member) in parcels.into_iter().zip(members?) {
            let is_late = Instant::now() >= until;
            let delivered =
                if is_late { Err(Failure::busy(DEAF)) } else { self.deliver(parcel, until).await };
            match delivered {
                Ok(delivered) => posted.push((member, delivered)),
                Err(failure) if posted.is_empty() => return Err(failure),
                Err(failure) => answers.push(failure.of(member.id.as_deref()).line()),
            }
        }
        self.answered(posted, answers).await
    }

    fn member(&self, parcel: &Parcel) -> Result<Member, Failure> {
        let is_request = parcel.message.kind() == Kind::Request;
        let pass = is_request.then(|| self.pass()).transpose()?;
        Ok(Member { id: parcel.message.id_text().map(str::to_owned), pass })
    }

    /// What becomes of them, with the answers that there are already.
    async fn answered(&self, posted: Vec<(Member, Delivered)>, mut answers: Vec<String>) -> Answered {
        let (mut streams, until) = (Vec::new(), Instant::now() + self.limit() * 2);
        for (Member { id, pass }, delivered) in posted {
            let Some(pass) = pass else {
                let _told = self.replied(delivered, until).await;
                continue;
            };
            match self.replied(delivered, until).await {
                Ok(Replied { reply: Reply::Answer(line), .. }) => answers.push(line),
                Ok(Replied { reply: Reply::Stream(stream), entry, revision }) => {
                    let from = From::Unread(stream);
                    streams.push(sse::follow(self.shell, &entry.board, from, revision, pass));
                }
                Ok(Replied { reply, .. }) => answers.push(refusal_line(reply, id.as_deref())),
                Err(failure) => answers.push(failure.of(id.as_deref()).line()),
            }
        }
        if !streams.is_empty() {
            let first: Vec<Result<Bytes, Infallible>> =
                answers.iter().map(|line| Ok(sse::alone(line))).collect();
            let all = stream::iter(first).chain(stream::select_all(streams));
            return Ok(sse::response(all.boxed()));
        }
        if answers.is_empty() {
            return Ok(accepted());
        }
        Ok(text(StatusCode::OK, JSON, format!("[{}]", answers.join(","))))
    }
}
