//! The tools of one session: which ones its agent can call, and how much each can break.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::event::Payload;
use crate::names::ToolName;

crate::state::code_enum! {
    /// How much a tool can break, from nothing to everything.
    RiskTier ("risk tier") {
        /// Reads inside the session's room.
        Safe = "safe",
        /// Changes things inside the session's room.
        Moderate = "moderate",
        /// Reaches beyond the room, or runs programs in it.
        Elevated = "elevated",
        /// Cannot be undone.
        Dangerous = "dangerous",
    }
}

/// The most tools of one session.
pub const TOOLS_MAX: usize = 1_000;

/// One tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSpec {
    /// Its name, unique within the session.
    pub name: ToolName,
    /// What it does, for the agent.
    pub description: String,
    /// A JSON Schema of its input.
    pub input_schema: Payload,
    /// How much it can break.
    pub tier: RiskTier,
}

/// The tools of one session. Belongs to that session alone: it is never cloned into another's.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ToolRegistry {
    tools: BTreeMap<ToolName, ToolSpec>,
}

impl ToolRegistry {
    /// Adds a tool. A name is never taken over by another tool: what was approved under it would pass on.
    pub fn register(&mut self, tool: ToolSpec) -> Result<(), ToolError> {
        if self.tools.contains_key(&tool.name) {
            return Err(ToolError::Taken(tool.name));
        }
        if self.tools.len() >= TOOLS_MAX {
            return Err(ToolError::Full);
        }
        self.tools.insert(tool.name.clone(), tool);
        Ok(())
    }

    /// One tool.
    #[must_use]
    pub fn get(&self, name: &ToolName) -> Option<&ToolSpec> {
        self.tools.get(name)
    }

    /// Every tool, by name.
    pub fn iter(&self) -> impl Iterator<Item = &ToolSpec> {
        self.tools.values()
    }

    /// How many tools there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// There is no tool.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }
}

/// Why a tool cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ToolError {
    /// Another one has its name.
    #[error("the session has a tool {0} already")]
    Taken(ToolName),
    /// The session has as many as it may.
    #[error("the session has {TOOLS_MAX} tools already")]
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, tier: RiskTier) -> ToolSpec {
        ToolSpec {
            name: ToolName::new(name).unwrap(),
            description: String::new(),
            input_schema: Payload::parse("{}").unwrap(),
            tier,
        }
    }

    #[test]
    fn a_name_is_never_taken_over() {
        let mut tools = ToolRegistry::default();
        tools.register(tool("write", RiskTier::Moderate)).unwrap();
        let taken = ToolError::Taken(ToolName::new("write").unwrap());
        assert_eq!(tools.register(tool("write", RiskTier::Safe)), Err(taken));
        let held = tools.get(&ToolName::new("write").unwrap()).unwrap();
        assert_eq!(held.tier, RiskTier::Moderate);
        for number in 1..TOOLS_MAX {
            tools.register(tool(&format!("t{number}"), RiskTier::Safe)).unwrap();
        }
        assert_eq!(tools.register(tool("one more", RiskTier::Safe)), Err(ToolError::Full));
        assert_eq!((tools.len(), tools.iter().count()), (TOOLS_MAX, TOOLS_MAX));
    }

    #[test]
    fn tiers_are_ordered_by_what_they_can_break() {
        assert!(RiskTier::ALL.is_sorted());
        assert_eq!("elevated".parse(), Ok(RiskTier::Elevated));
    }
}
