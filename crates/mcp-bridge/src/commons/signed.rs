//! The ids of clients that share a process. Such a client is in no record, and yet the next bridge goes on with it: its id says by
//! itself that it was given here, to whom, and for which revision.

use session_core::ids::Id as _;
use session_core::names::Principal;
use session_core::{Digest, SessionId};

use crate::host::ServerName;
use crate::revision::Revision;

/// The bits of an id that are the same in all of them: it is a random one (v4) to everybody else.
const FIXED: u128 = 0x0000_0000_0000_f000_c000_0000_0000_0000;
/// The random half.
const RANDOM: u128 = 0xffff_ffff_ffff_ffff_0000_0000_0000_0000;

/// To what an id is bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound<'b> {
    /// The session of the process, which another bridge calls the same, until it is over.
    pub(crate) common: SessionId,
    pub(crate) server: &'b ServerName,
    pub(crate) principal: &'b Principal,
}

impl Bound<'_> {
    /// This random id as one of a client that speaks this revision.
    pub(crate) fn sign(&self, random: SessionId, revision: Revision) -> SessionId {
        let drawn = random.uuid().as_u128();
        let signed = (drawn & (RANDOM | FIXED)) | (self.seal(drawn & RANDOM, revision) & !(RANDOM | FIXED));
        // Never nil, since the version is in it.
        format!("{}_{signed:032x}", SessionId::PREFIX).parse().unwrap_or(random)
    }

    /// For which revision this id was given, if it was, to this one.
    pub(crate) fn revision(&self, session: SessionId) -> Option<Revision> {
        let told = session.uuid().as_u128();
        Revision::ALL
            .into_iter()
            .find(|revision| (self.seal(told & RANDOM, *revision) ^ told) & !(RANDOM | FIXED) == 0)
    }

    /// Only who knows the session of the process can say it; and who could would only join what it may join anyhow.
    fn seal(&self, random: u128, revision: Revision) -> u128 {
        let mut said = Vec::new();
        said.extend_from_slice(&self.common.uuid().as_u128().to_be_bytes());
        said.extend_from_slice(&random.to_be_bytes());
        for field in [revision.name(), self.server.as_str(), self.principal.as_str()] {
            said.extend_from_slice(&(field.len() as u64).to_be_bytes());
            said.extend_from_slice(field.as_bytes());
        }
        let digest = Digest::of(&said).to_bytes();
        digest[..16].iter().fold(0, |seal, byte| (seal << 8) | u128::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use session_core::env::Env;

    use super::*;

    #[test]
    fn an_id_says_whose_it_is_and_nobody_elses() {
        let env = Env::system();
        let (ada, bob): (Principal, Principal) = ("ada".parse().unwrap(), "bob".parse().unwrap());
        let (one, two): (ServerName, ServerName) = ("one".parse().unwrap(), "two".parse().unwrap());
        let bound = Bound { common: env.session_id(), server: &one, principal: &ada };
        for revision in Revision::ALL {
            let random = env.session_id();
            let signed = bound.sign(random, revision);
            assert_eq!(bound.revision(signed), Some(revision));
            assert_eq!(signed.uuid().get_version_num(), 4);
            assert_eq!(signed.to_string().parse(), Ok(signed));
            assert_eq!(bound.revision(random), None);
            for other in [
                Bound { common: env.session_id(), ..bound },
                Bound { server: &two, ..bound },
                Bound { principal: &bob, ..bound },
            ] {
                assert_eq!(other.revision(signed), None);
            }
        }
    }
}
