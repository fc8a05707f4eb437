//! What was said of the session that a key names, from the words of the command.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;
use session_core::SandboxSpec;
use session_core::asked::AskedSandbox;
use session_core::budget::{BudgetPatch, LimitChange};

use super::protocol::{BudgetWire, SandboxWire};

/// The limits that were said.
pub(super) fn limits_asked(wire: BudgetWire) -> BudgetPatch {
    let limit = |limit: Option<u64>| limit.map_or(LimitChange::Keep, LimitChange::To);
    BudgetPatch {
        tokens_max: wire.tokens,
        tool_calls_max: wire.tool_calls,
        turns_max: limit(wire.turns),
        cost_micros_max: limit(wire.cost_micros),
    }
}

/// What was said of a sandbox, as it was settled.
pub(super) fn sandbox_asked(
    wire: &SandboxWire,
    settled: &SandboxSpec,
    tools: &BTreeSet<Utf8PathBuf>,
) -> AskedSandbox {
    let limits = [wire.memory_bytes, wire.processes, wire.file_size_bytes, wire.write_bytes];
    let network = wire.net.is_some() || !wire.net_allow.is_empty();
    let named = |named: &[Utf8PathBuf], settled: &BTreeSet<Utf8PathBuf>| match named {
        [] => BTreeSet::new(),
        _ => settled.difference(tools).cloned().collect(),
    };
    AskedSandbox {
        level: wire.level.is_some().then_some(settled.level),
        network: network.then(|| settled.network.clone()),
        read: named(&wire.allow_read, &settled.read),
        write: named(&wire.allow_write, &settled.write),
        limits: limits.iter().any(Option::is_some).then_some(settled.limits),
    }
}
