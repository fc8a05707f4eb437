//! Who is let in: tokens by their digests, and the key of those that are signed.

use futures_util::future::{join, join_all};
use jiff::SignedDuration;

use super::fixture::assert_refused;
use super::{ALL, Fixture, TICK};
use crate::digest::Digest;
use crate::error::{Conflict, StoreError};
use crate::ids::TokenId;
use crate::token::{NewToken, Secret, SigningKey, Stronger, Subject, TokenRecord, Verb, Verbs};

async fn issue(f: &Fixture, new: NewToken) -> TokenRecord {
    f.store.issue(new, f.now()).await.unwrap()
}

async fn token(f: &Fixture, digest: Digest) -> Option<TokenRecord> {
    f.store.token(digest).await.unwrap()
}

/// What is issued is found by its digest as it was given, and by nothing else.
pub async fn a_token_is_there_as_it_was_issued(f: &Fixture) {
    let secret = Secret::new(f.env.secret());
    let new = NewToken {
        digest: secret.digest(),
        subject: Subject::Runner(f.env.runner_id()),
        verbs: Verbs::all(),
        expires_at: Some(f.now() + SignedDuration::from_hours(1)),
        ..f.new_token()
    };
    let issued = issue(f, new.clone()).await;
    assert_eq!(issued, new.issued(f.now()));
    assert_eq!(token(f, secret.digest()).await, Some(issued));
    assert_eq!(token(f, Digest::of("rmt_")).await, None);
    let plain = f.new_token();
    let issued = issue(f, plain.clone()).await;
    assert_eq!((token(f, plain.digest).await, issued.expires_at), (Some(issued.clone()), None));
}

/// An id or a digest that is taken is refused, and what is there stays.
pub async fn a_taken_token_is_refused(f: &Fixture) {
    let first = issue(f, f.new_token()).await;
    let twice = [
        NewToken { id: first.id, ..f.new_token() },
        NewToken { digest: first.digest, ..f.new_token() },
        NewToken { id: first.id, digest: first.digest, verbs: Verbs::all(), ..f.new_token() },
    ];
    for new in twice {
        assert_refused!(f.store.issue(new, f.now()), StoreError::Conflict(Conflict::Exists(_)));
    }
    assert_eq!(f.store.tokens(None, None, ALL).await.unwrap(), [first]);
}

/// A child is never stronger than its parent, and ends with it where it has no end of its own.
pub async fn a_child_is_never_stronger(f: &Fixture) {
    let verbs: Verbs = "read run".parse().unwrap();
    let end = f.now() + SignedDuration::from_hours(1);
    let parent = issue(f, NewToken { verbs, expires_at: Some(end), ..f.new_token() }).await;
    let child = NewToken { verbs, parent: Some(parent.id), ..f.new_token() };
    let issued = issue(f, child.clone()).await;
    assert_eq!((issued.expires_at, issued.parent), (Some(end), Some(parent.id)));
    assert_eq!(token(f, child.digest).await, Some(issued));
    let more = [Verb::Admin].into_iter().collect();
    let refused = [
        (NewToken { verbs: more, ..f.new_token() }, Stronger::Verbs(more)),
        (
            NewToken { expires_at: Some(end + TICK), ..f.new_token() },
            Stronger::Expiry { wanted: end + TICK, end },
        ),
        (
            NewToken { principal: "bob".parse().unwrap(), ..f.new_token() },
            Stronger::Principal("bob".parse().unwrap()),
        ),
        (NewToken { subject: Subject::Runner(f.env.runner_id()), ..f.new_token() }, Stronger::Subject),
    ];
    for (new, reason) in refused {
        let new = NewToken { parent: Some(parent.id), ..new };
        assert_refused!(
            f.store.issue(new.clone(), f.now()),
            StoreError::Conflict(Conflict::Stronger { parent: of, why }) if *of == parent.id && *why == reason
        );
        assert_eq!(token(f, new.digest).await, None);
    }
}

/// Nothing is issued with a token that is unknown, revoked or over.
pub async fn only_a_token_that_counts_issues(f: &Fixture) {
    let end = f.now() + TICK;
    let over = issue(f, NewToken { expires_at: Some(end), ..f.new_token() }).await.id;
    let revoked = issue(f, f.new_token()).await.id;
    f.store.revoke(revoked, f.now()).await.unwrap();
    f.advance(TICK);
    for parent in [over, revoked] {
        let new = NewToken { parent: Some(parent), ..f.new_token() };
        assert_refused!(
            f.store.issue(new, f.now()),
            StoreError::Conflict(Conflict::TokenEnded(of)) if *of == parent
        );
    }
    let unknown = f.env.token_id();
    let new = NewToken { parent: Some(unknown), ..f.new_token() };
    assert_refused!(f.store.issue(new, f.now()), StoreError::UnknownToken(of) if *of == unknown);
    assert_refused!(f.store.revoke(unknown, f.now()), StoreError::UnknownToken(of) if *of == unknown);
}

/// A revocation takes along all that was issued with it, however far, and nothing else. The first time stays.
pub async fn a_revocation_takes_along_what_was_issued(f: &Fixture) {
    let root = issue(f, f.new_token()).await;
    let other = issue(f, f.new_token()).await;
    let below = |parent: TokenId| NewToken { parent: Some(parent), ..f.new_token() };
    let left = issue(f, below(root.id)).await;
    let right = issue(f, below(root.id)).await;
    let grandchild = issue(f, below(left.id)).await;
    f.advance(TICK);
    let first = f.now();
    assert_eq!(f.store.revoke(left.id, first).await.unwrap().revoked_at, Some(first));
    let times = async || {
        let mut times = Vec::new();
        for known in [&root, &left, &right, &grandchild, &other] {
            times.push(token(f, known.digest).await.unwrap().revoked_at);
        }
        times
    };
    assert_eq!(times().await, [None, Some(first), None, Some(first), None]);
    f.advance(TICK);
    let second = f.now();
    f.store.revoke(root.id, second).await.unwrap();
    let expected = [Some(second), Some(first), Some(second), Some(first), None];
    assert_eq!(times().await, expected);
    f.advance(TICK);
    assert_eq!(f.store.revoke(root.id, f.now()).await.unwrap().revoked_at, Some(second));
    assert_eq!(times().await, expected);
}

/// Tokens are listed newest first, in pages, of everybody or of one principal, also those that count no more.
pub async fn tokens_are_listed_newest_first(f: &Fixture) {
    let mut issued = Vec::new();
    for place in 0..5 {
        let principal = if place % 2 == 0 { "alice" } else { "bob" };
        issued.insert(0, issue(f, NewToken { principal: principal.parse().unwrap(), ..f.new_token() }).await);
    }
    issued[0] = f.store.revoke(issued[0].id, f.now()).await.unwrap();
    assert_eq!(f.store.tokens(None, None, ALL).await.unwrap(), issued);
    let page = f.store.tokens(None, Some(issued[1].id), 2).await.unwrap();
    assert_eq!(page, issued[2..4]);
    let bob = "bob".parse().unwrap();
    let of_bob = f.store.tokens(Some(&bob), None, ALL).await.unwrap();
    assert_eq!(of_bob, [issued[1].clone(), issued[3].clone()]);
    let rest = f.store.tokens(Some(&bob), Some(issued[1].id), ALL).await.unwrap();
    assert_eq!(rest, [issued[3].clone()]);
}

/// What is issued while its parent is revoked is refused or revoked.
pub async fn a_revocation_and_an_issue_agree(f: &Fixture) {
    for _ in 0..16 {
        let root = issue(f, f.new_token()).await;
        let parent = issue(f, NewToken { parent: Some(root.id), ..f.new_token() }).await;
        let children: Vec<_> =
            (0..4).map(|_| NewToken { parent: Some(parent.id), ..f.new_token() }).collect();
        let issuing = join_all(children.iter().map(|new| f.store.issue(new.clone(), f.now())));
        let revoking = join(f.store.revoke(root.id, f.now()), f.store.revoke(parent.id, f.now()));
        let (issued, (root, parent)) = join(issuing, revoking).await;
        root.unwrap();
        parent.unwrap();
        for (new, issued) in children.iter().zip(issued) {
            let found = token(f, new.digest).await;
            let refused = matches!(issued, Err(StoreError::Conflict(Conflict::TokenEnded(_))));
            assert!(issued.is_ok() || refused, "{issued:?}");
            assert_eq!(found.map(|token| token.is_valid(f.now())), issued.ok().map(|_| false));
        }
    }
}

/// There is one key, whoever proposes one, and it stays.
pub async fn the_first_signing_key_wins(f: &Fixture) {
    let proposals: Vec<_> = (0..16).map(|_| SigningKey::new(f.env.secret())).collect();
    let keys = join_all(proposals.iter().map(|key| f.store.signing_key(key.clone()))).await;
    let keys: Vec<_> = keys.into_iter().map(Result::unwrap).collect();
    assert!(proposals.contains(&keys[0]) && keys.iter().all(|key| *key == keys[0]));
    assert_eq!(f.store.signing_key(SigningKey::new(f.env.secret())).await.unwrap(), keys[0]);
}
