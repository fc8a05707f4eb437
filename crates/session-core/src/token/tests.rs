//! What opaque tokens are, and that none issues a stronger one.

use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::testing;

fn record(verbs: &str, expires_at: Option<i64>) -> TokenRecord {
    let (env, _) = testing::env();
    let new = NewToken {
        id: env.token_id(),
        digest: Secret::new(env.secret()).digest(),
        name: "laptop".parse().unwrap(),
        subject: Subject::Principal,
        principal: "alice".parse().unwrap(),
        verbs: verbs.parse().unwrap(),
        expires_at: expires_at.map(at),
        parent: None,
    };
    new.issued(env.now())
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn wanted(parent: &TokenRecord) -> NewToken {
    let TokenRecord { id, digest, name, subject, principal, verbs, expires_at, .. } = parent.clone();
    NewToken { id, digest, name, subject, principal, verbs, expires_at, parent: None }
}

#[test]
fn a_secret_is_its_text_and_shows_nothing_else() {
    let secret = Secret::new([0xab; 32]);
    let text = format!("rmt_{}", "ab".repeat(32));
    assert_eq!(secret.reveal(), text);
    assert_eq!(text.parse::<Secret>().unwrap().digest(), secret.digest());
    assert_eq!(secret.digest(), Digest::of(&text));
    assert!(!format!("{secret:?}").contains("ab"));
    for wrong in ["", "rmt_", "rmt_ab", &text[4..], &text.replace("rmt", "rmr"), &format!("{text}0")] {
        assert_eq!(wrong.parse::<Secret>().unwrap_err(), SecretError, "{wrong}");
    }
}

#[test]
fn secrets_of_one_world_differ() {
    let env = crate::Env::system();
    assert_ne!(env.secret(), env.secret());
}

#[test]
fn verbs_are_a_set_with_names() {
    let verbs: Verbs = "run  read".parse().unwrap();
    assert_eq!((verbs.to_string().as_str(), format!("{verbs:?}").as_str()), ("read run", "[read run]"));
    assert!(verbs.has(Verb::Read) && !verbs.has(Verb::Admin));
    assert!(verbs.is_within(Verbs::all()) && !Verbs::all().is_within(verbs));
    assert_eq!(Verbs::all().iter().collect::<Vec<_>>(), Verb::ALL);
    assert_eq!("".parse::<Verbs>().unwrap(), Verbs::NONE);
    assert_eq!("read write".parse::<Verbs>().unwrap_err().to_string(), "\"write\" is no verb of a token");
}

#[test]
fn a_token_counts_until_its_end_or_its_revocation() {
    let record = record("read", Some(10));
    assert!(record.is_valid(at(9)) && !record.is_valid(at(10)));
    let endless = TokenRecord { expires_at: None, ..record.clone() };
    assert!(endless.is_valid(Timestamp::MAX));
    assert!(!TokenRecord { revoked_at: Some(at(1)), ..record }.is_valid(at(2)));
}

#[test]
fn what_would_be_stronger_is_named() {
    let parent = record("read run", Some(100));
    let refused = |new: NewToken| weaken(&parent, new).unwrap_err();
    let verbs = Verbs::all();
    assert_eq!(
        refused(NewToken { verbs, ..wanted(&parent) }),
        Stronger::Verbs("control approve runner admin".parse().unwrap())
    );
    let (expires_at, end) = (Some(at(101)), at(100));
    assert_eq!(
        refused(NewToken { expires_at, ..wanted(&parent) }),
        Stronger::Expiry { wanted: at(101), end }
    );
    let bob: Principal = "bob".parse().unwrap();
    assert_eq!(
        refused(NewToken { principal: bob.clone(), ..wanted(&parent) }),
        Stronger::Principal(bob.clone())
    );
    let runner = Subject::Runner(testing::env().0.runner_id());
    assert_eq!(refused(NewToken { subject: runner, ..wanted(&parent) }), Stronger::Subject);
    let given = weaken(&parent, NewToken { expires_at: None, ..wanted(&parent) }).unwrap();
    assert_eq!((given.expires_at, given.parent), (Some(at(100)), Some(parent.id)));
    // An administrator issues for others and lets runners in; a runner issues for itself alone.
    let admin = TokenRecord { verbs: Verbs::all(), ..parent };
    let new = NewToken { principal: bob, subject: runner, ..wanted(&admin) };
    assert_eq!(weaken(&admin, new.clone()).unwrap().subject, runner);
    let of_runner = TokenRecord { subject: runner, ..admin };
    assert!(weaken(&of_runner, NewToken { subject: runner, ..new.clone() }).is_ok());
    let refused = weaken(&of_runner, NewToken { subject: Subject::Principal, ..new });
    assert_eq!(refused, Err(Stronger::Subject));
}

proptest! {
    #[test]
    fn no_chain_of_tokens_grows_stronger(steps in prop::collection::vec((any::<u8>(), 0_i64..200), 1..8)) {
        let mut parent = record("read run control approve", Some(100));
        for (bits, end) in steps {
            let verbs = Verb::ALL.iter().copied().filter(|verb| bits & bit(*verb) != 0).collect();
            let expires_at = (end > 0).then(|| at(end));
            let new = NewToken { verbs, expires_at, ..wanted(&parent) };
            if let Ok(new) = weaken(&parent, new) {
                let child = new.issued(at(0));
                prop_assert!(child.verbs.is_within(parent.verbs));
                prop_assert!(child.expires_at <= parent.expires_at && child.expires_at.is_some());
                let later = at(0) + SignedDuration::from_secs(end);
                prop_assert!(!child.is_valid(later) || parent.is_valid(later));
                parent = child;
            }
        }
    }
}
