//! The derivation of an identity's key.

use camino::Utf8Path;
use session_core::identity::{AgentContext, RepoRoot, Scope, SessionIdentity};
use sha2::{Digest as _, Sha256};

use crate::files;
use crate::measure::{Bench, Named, Outcome, Shown, Target, ensure, timed};

const DERIVATIONS: usize = 20_000;
/// How deep the repository lies below the directory of the bench.
const REPOSITORY: &str = "home/alice/src/project";
const MACHINE: &str = "laptop";
const EXECUTION: &str = "fix-42";

pub(crate) async fn derivation(bench: &mut Bench) -> Outcome {
    let directory = files::directory()?;
    let path = directory.path().join(REPOSITORY);
    std::fs::create_dir_all(&path)?;
    let path = Utf8Path::from_path(&path).ok_or("the path is not UTF-8")?;
    let (by_hand, ours) = (by_hand(path)?, derived(path)?);
    ensure!(by_hand == ours, "the floor has {by_hand} and the program {ours}");
    let calls = bench.sized(DERIVATIONS);
    let named = Named { path: "identity derivation", floor: "realpath + SHA-256 by hand" };
    let measured = |key: fn(&Utf8Path) -> Outcome<String>, expected: &str| {
        timed(calls, |_| {
            ensure!(key(path)? == expected, "another key");
            Ok(())
        })
    };
    let floor = async |_| measured(self::by_hand, &ours);
    bench.compare(named, Shown::Time, Target::AtMost(1.5), floor, async |_| measured(derived, &ours)).await?;
    Ok(())
}

fn derived(path: &Utf8Path) -> Outcome<String> {
    let identity = SessionIdentity {
        machine: MACHINE.parse()?,
        repo_root: RepoRoot::resolve(path)?,
        scope: Scope::Project { execution_id: EXECUTION.parse()? },
        agent: AgentContext::default().key(false)?,
    };
    Ok(identity.key().to_string())
}

fn by_hand(path: &Utf8Path) -> Outcome<String> {
    let real = std::fs::canonicalize(path)?;
    let real = real.to_str().ok_or("the path is not UTF-8")?;
    let mut hash = Sha256::new_with_prefix(b"roomette.identity.v1");
    for field in [MACHINE, real, "project", EXECUTION, "default"] {
        hash.update(u64::try_from(field.len())?.to_be_bytes());
        hash.update(field);
    }
    let digits = b"0123456789abcdef";
    let mut hex = String::with_capacity(64);
    for byte in hash.finalize() {
        hex.push(char::from(digits[usize::from(byte >> 4)]));
        hex.push(char::from(digits[usize::from(byte & 15)]));
    }
    Ok(hex)
}
