//! Systems without a sandbox of ours: nothing is started there, and these say so under the names that Linux has.

pub mod doctor;
pub mod process;
pub(crate) mod recover;
pub(crate) mod refusal;
