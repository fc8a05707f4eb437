//! Runners: how one comes, waits for work, lives, and reports.
//!
//! What a runner says of a run names the claim that it speaks for; one that is no longer the current one changes nothing.
//! Every report can be sent again: what was recorded before is answered as if it were new.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use session_core::affinity::RunnerProfile;
use session_core::budget::{Budget, Usage};
use session_core::runner::RunnerRecord;
use utoipa::ToSchema;

use crate::claims::{Amounts, ClaimView};
pub use crate::runner_reports::{
    AnswerWait, Answered, Asked, Ended, ExhaustedView, Move, Report, Reported, ReportedEvent, RunnerReport,
    SessionChange, SessionRead, SessionReport, SessionRequest, Settlement,
};

/// The longest wait of a request in milliseconds.
pub const WAIT_MAX: u64 = 60_000;
/// The most claims and orders of one request.
pub const HELD_MAX: usize = 1_000;

/// A runner that has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Its own id, which it made itself and keeps: `rnr_…`.
    pub id: String,
    /// Its machine's name: a label.
    pub hostname: String,
    /// The executors it has.
    pub executors: Vec<String>,
    /// The project directories it serves; any without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_dirs: Option<Vec<String>>,
    /// Which version of the program it is.
    pub version: String,
}

impl From<&RunnerProfile> for Register {
    fn from(profile: &RunnerProfile) -> Self {
        let directories = profile.project_dirs.as_ref();
        Self {
            id: profile.id.to_string(),
            hostname: profile.hostname.to_string(),
            executors: profile.executors.iter().map(ToString::to_string).collect(),
            project_dirs: directories.map(|dirs| dirs.iter().map(ToString::to_string).collect()),
            version: String::new(),
        }
    }
}

/// A runner is registered.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    /// It, as it is known from now on.
    pub runner: RunnerView,
    /// For how long a claim holds without a sign of life, in milliseconds.
    pub lease_ms: u64,
    /// The token that speaks for this runner alone, where it did not show one: shown this once and kept nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Says nothing of the secret: it may come into a log.
impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered").field("runner", &self.runner).finish_non_exhaustive()
    }
}

/// A runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunnerView {
    /// Its id.
    pub id: String,
    /// Its machine's name.
    pub hostname: String,
    /// The executors it has.
    pub executors: Vec<String>,
    /// The project directories it serves; any without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_dirs: Option<Vec<String>>,
    /// Which version of the program it is.
    pub version: String,
    /// How often it registered: the newest instance counts.
    pub instance: u32,
    /// It gets no more runs.
    pub draining: bool,
    /// It was seen within the time that a claim holds.
    pub live: bool,
    /// When it registered last.
    pub registered_at: Timestamp,
    /// When it was last seen.
    pub seen_at: Timestamp,
}

impl RunnerView {
    /// As it is known, and whether it is `live`.
    #[must_use]
    pub fn new(record: &RunnerRecord, live: bool) -> Self {
        let profile = Register::from(&record.profile);
        Self {
            id: profile.id,
            hostname: profile.hostname,
            executors: profile.executors,
            project_dirs: profile.project_dirs,
            version: record.version.to_string(),
            instance: record.instance.0,
            draining: record.draining,
            live,
            registered_at: record.registered_at,
            seen_at: record.seen_at,
        }
    }
}

/// All runners, in the order of their first start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunnerList {
    /// They.
    pub items: Vec<RunnerView>,
}

/// A runner is to take no more runs, or some again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// No more.
    pub draining: bool,
}

/// A runner is forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forgotten {
    /// The live sessions that are bound to it or have their files there, at most 1000. They can be resumed elsewhere without
    /// those, bound ones with `from_history`.
    pub bound: Vec<String>,
}

/// A runner waits for the next run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Its instance.
    pub instance: u32,
    /// A fresh id; the same again where the answer may have got lost: `clm_…`.
    pub claim_id: String,
    /// For how long it waits, in milliseconds, at most 60 000; less where the server lets no request take so long.
    #[serde(default)]
    pub wait_ms: u64,
}

/// What became of the wait.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Claimed {
    /// The run; nothing if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimView>,
}

/// The runs that a runner holds, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HeldRuns {
    /// They.
    pub items: Vec<ClaimView>,
}

/// One claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldClaim {
    /// The run.
    pub run_id: String,
    /// The claim's epoch.
    pub epoch: u32,
    /// What its run needs of the session's budget by now: what it has used, and is about to use. That much is given to nobody
    /// else. Only for a coordinator that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spending: Option<Amounts>,
}

/// A runner lives, and holds these claims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// Its instance.
    pub instance: u32,
    /// Each is prolonged. At most 1000.
    pub claims: Vec<HeldClaim>,
}

/// What becomes of the claims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeaten {
    /// The runner gets no more runs.
    pub draining: bool,
    /// Of each claim, in their order.
    pub claims: Vec<ClaimFate>,
    /// What the run of each may use in all by now, in the same order; nothing of one that does not go on.
    #[serde(default)]
    pub left: Vec<Option<Amounts>>,
    /// With the next sign of life claims may say what their runs need.
    #[serde(default)]
    pub asks_spending: bool,
}

impl Heartbeaten {
    /// What becomes of each claim, and what its run may use by now; `None` where that is not said, by an older coordinator of
    /// none.
    pub fn fates(&self) -> impl Iterator<Item = (ClaimFate, Option<Usage>)> {
        let left = self.left.iter().copied().chain(std::iter::repeat(None));
        self.claims.iter().copied().zip(left.map(|left| left.map(|left| Budget::from(left).limits())))
    }
}

/// What becomes of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClaimFate {
    /// It was prolonged.
    Continue,
    /// It was prolonged, and its run is to end: ask first, force after a grace.
    Stop,
    /// It was prolonged, and its run is to end at once.
    Kill,
    /// It counts no more: its processes are to end, and nothing that is said of it will be heard.
    Gone,
    /// Nobody could say: ask again.
    Unknown,
}

/// A runner waits for orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrdersRequest {
    /// Its instance.
    pub instance: u32,
    /// Those that it knows. At most 1000.
    pub known: Vec<OrderView>,
    /// For how long it waits for others, in milliseconds.
    #[serde(default)]
    pub wait_ms: u64,
}

/// An order to end a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrderView {
    /// The run.
    pub run_id: String,
    /// `graceful` or `kill`.
    pub mode: String,
}

/// The orders that the runner did not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orders {
    /// They; none if the wait is over.
    pub items: Vec<OrderView>,
}

/// A runner has started again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeOver {
    /// Its instance.
    pub instance: u32,
    /// The run that it held, and that it holds from now on under another epoch.
    pub run_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_coordinator_says_nothing_of_what_a_run_may_use() {
        let said = |text: &str| {
            let heard: Heartbeaten = serde_json::from_str(text).unwrap();
            heard.fates().collect::<Vec<_>>()
        };
        let older = said(r#"{"draining":false,"claims":["continue","gone"]}"#);
        assert_eq!(older, [(ClaimFate::Continue, None), (ClaimFate::Gone, None)]);
        // It asks for nothing that it would refuse, and gets nothing of it.
        let held = HeldClaim { run_id: "run_1".into(), epoch: 1, spending: None };
        assert_eq!(serde_json::to_string(&held).unwrap(), r#"{"run_id":"run_1","epoch":1}"#);
        let text = r#"{"draining":false,"claims":["continue","stop"],"left":[{"tokens":5,"tool_calls":0,"turns":1},null]}"#;
        let left = Usage { tokens: 5, tool_calls: 0, turns: 1, cost_micros: u64::MAX };
        assert_eq!(said(text), [(ClaimFate::Continue, Some(left)), (ClaimFate::Stop, None)]);
    }
}
