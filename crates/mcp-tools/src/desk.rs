//! Who does what a tool is called for.

use async_trait::async_trait;
use serde_json::{Map, Value};
use session_core::token::Bearer;

use crate::context::Context;
use crate::refused::Refused;
use crate::tools::Call;

/// What a tool answers: an object of its answer's type.
pub type Answer = Map<String, Value>;

/// Who does what a tool is called for.
#[async_trait]
pub trait Desk: Send + Sync {
    /// Does it on behalf of this caller, which said this of itself.
    async fn call(&self, bearer: Bearer, context: Context, call: Call) -> Result<Answer, Refused>;
}
