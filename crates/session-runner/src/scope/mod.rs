//! What a session's processes may touch and reach: settled once when the session is made ([`settle`]), and turned into
//! what the kernel enforces for each run ([`policy`]). Where any runner may execute the session, it is recorded [`by_name`] and
//! settled by the machine that opens the session first ([`Settlement`]).
//!
//! Invariant: a policy is made of the session's record and of its own directories alone, so that no run has a wider one
//! than the run before.

mod pending;
mod policy;
mod settle;
mod toolchains;

pub use pending::{Machine, Settlement, by_name};
pub use policy::{Grounds, network, policy, wanted, watched};
pub use settle::{Asked, Bounds, InPlace, ScopeError, settle};
pub use toolchains::{Toolchains, toolchains};
