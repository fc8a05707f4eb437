//! Settings: built-in values < user file < project file < environment < flags. Unknown keys are errors.

mod layers;
mod schema;

pub use layers::{Layer, Sources, Trust, load};
pub use schema::{Config, Eviction, HostLoss, Net, SandboxConfig, Synchronous};
