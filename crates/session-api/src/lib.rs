//! The HTTP API as types: what is asked, what is answered, and what is refused.
//!
//! The types of `session-core` are not serialised as they are: these here are the contract, and the types behind them
//! may change. Requests refuse fields that they do not know; answers may gain fields, and words may gain further ones,
//! so a client skips what it does not know.
//!
//! ```
//! use session_api::problem::{Code, Problem};
//!
//! let problem = Problem::new(Code::StaleEpoch, "run run_… is at epoch 4, this write speaks for epoch 3");
//! assert_eq!((problem.status, problem.code), (409, Code::StaleEpoch));
//! ```

#![forbid(unsafe_code)]

pub mod approvals;
pub mod claims;
#[cfg(feature = "client")]
pub mod client;
pub mod events;
mod held_runs;
pub mod paths;
pub mod problem;
pub mod reports;
mod runner_reports;
pub mod runners;
pub mod runs;
pub mod sandbox;
pub mod sessions;
pub mod sse;
pub mod tokens;
pub mod tools;

pub use problem::{Code, Problem};
