//! What a turn used up, as far as the agent says: agents say it in several places, and not all of it in any.

use serde_json::{Value, json};

use super::super::protocol::{count, micros, text};
use crate::agents::entry;
use crate::agents::said::{Reported, UsageQuality};
use crate::agents::turn::Totals;

/// Adapters whose answer to the prompt sums up the whole turn. Others tell of the last call of the model only.
const EXACT: &[&str] = &["claude-agent-acp", "codex-acp"];

/// Counts one turn.
#[derive(Debug)]
pub(super) struct Meter {
    totals: Totals,
    exact: bool,
    /// What the agent has counted up as the cost of its session.
    cost: Option<u64>,
    /// What pieces of messages said, where nothing else does.
    pieces: u64,
}

impl Meter {
    pub(super) fn new(totals: Totals) -> Self {
        Self { totals, exact: false, cost: None, pieces: 0 }
    }

    /// Which agent it is, by its own name.
    pub(super) fn of_agent(&mut self, name: &str) {
        self.exact = EXACT.iter().any(|exact| name.ends_with(exact));
    }

    /// How full the context is, and what the session has cost so far.
    pub(super) fn update(&mut self, update: &Value) {
        let cost = &update["cost"];
        if text(cost, "currency") == "USD" {
            self.cost = Some(micros(cost.get("amount")));
        }
    }

    /// A piece of a message, with which some agents tell what it took.
    pub(super) fn chunk(&mut self, update: &Value) {
        self.pieces = self.pieces.saturating_add(count(&update["_meta"]["usage"], "totalTokens"));
    }

    /// What the turn used up, with the agent's answer to the prompt.
    pub(super) fn report(&mut self, result: &Value) -> Reported {
        let (usage, quota) = (&result["usage"], &result["_meta"]["quota"]);
        let models = quota["model_usage"].as_array().map(Vec::as_slice).unwrap_or_default();
        let of_models = models.iter().map(|model| count(&model["token_count"], "totalTokens"));
        let of_models = of_models.fold(0, u64::saturating_add);
        let counted = ["input_tokens", "output_tokens"].map(|field| count(&quota["token_count"], field));
        let counted = counted.into_iter().fold(0, u64::saturating_add);
        // The sum over the models counts calls that the turn's own sum leaves out.
        let said = of_models.max(count(usage, "totalTokens")).max(counted);
        let tokens = if said == 0 { self.pieces } else { said };
        let quality = match (tokens, self.exact) {
            (0, _) => UsageQuality::Unknown,
            (_, true) => UsageQuality::Exact,
            (_, false) => UsageQuality::LastCall,
        };
        let cost_micros = match self.cost {
            // An agent that began to count anew has counted this much since.
            Some(cost) if cost < self.totals.cost_micros => cost,
            Some(cost) => cost - self.totals.cost_micros,
            None => 0,
        };
        self.totals = Totals {
            tokens: self.totals.tokens.saturating_add(tokens),
            cost_micros: self.cost.unwrap_or(self.totals.cost_micros),
        };
        let raw = json!({ "usage": usage, "quota": quota, "cost_micros": self.cost });
        Reported { tokens, cost_micros, totals: self.totals, quality, raw: entry::payload(&raw) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, before: u64, cost: Option<f64>, result: &Value) -> (u64, u64, UsageQuality) {
        let mut meter = Meter::new(Totals { tokens: 0, cost_micros: before });
        meter.of_agent(name);
        if let Some(amount) = cost {
            meter.update(&json!({ "used": 1, "cost": { "amount": amount, "currency": "USD" } }));
        }
        let reported = meter.report(result);
        (reported.tokens, reported.cost_micros, reported.quality)
    }

    #[test]
    fn the_most_that_an_agent_tells_counts() {
        let models =
            json!([{ "token_count": { "totalTokens": 30 } }, { "token_count": { "totalTokens": 5 } }]);
        let claude =
            json!({ "usage": { "totalTokens": 30 }, "_meta": { "quota": { "model_usage": models } } });
        let gemini =
            json!({ "_meta": { "quota": { "token_count": { "input_tokens": 4, "output_tokens": 3 } } } });
        let goose = json!({ "usage": { "totalTokens": 9 } });
        for (name, result, expected) in [
            ("@agentclientprotocol/claude-agent-acp", claude, (35, 0, UsageQuality::Exact)),
            ("gemini-cli", gemini, (7, 0, UsageQuality::LastCall)),
            ("goose", goose, (9, 0, UsageQuality::LastCall)),
            ("codex-acp", json!({ "usage": null }), (0, 0, UsageQuality::Unknown)),
            ("", json!(null), (0, 0, UsageQuality::Unknown)),
        ] {
            assert_eq!(report(name, 0, None, &result), expected, "{name}");
        }
    }

    #[test]
    fn cost_is_what_came_since_the_last_turn() {
        assert_eq!(report("", 0, Some(0.02), &json!({})).1, 20_000);
        assert_eq!(report("", 19_000, Some(0.02), &json!({})).1, 1_000);
        assert_eq!(report("", 30_000, Some(0.02), &json!({})).1, 20_000, "it counts anew");
    }
}
