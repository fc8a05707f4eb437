//! Which workspaces a cleanup removes: a pure decision.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::worktree::WorktreeState;

/// How long after its end a session's workspace is kept, unless it is said otherwise.
pub const DEFAULT_OLDER_THAN: SignedDuration = SignedDuration::from_hours(24);

/// What is known of a session whose workspace might go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanupCandidate {
    /// Where the session is in its life.
    pub session: SessionEnd,
    /// The state of its worktree, where it has one.
    pub worktree: Option<WorktreeState>,
}

/// Whether and when a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// A run of it is in flight, or waits to be.
    Running,
    /// It can still be used.
    Open,
    /// It is over since then.
    Ended(Timestamp),
}

/// By what to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanupRules {
    /// Counted from the end of the session.
    pub older_than: SignedDuration,
    /// Whether unsaved work in a worktree may go too.
    pub force: bool,
    /// The time.
    pub now: Timestamp,
}

/// What to do with a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It goes.
    Remove,
    /// It stays.
    Keep(KeepReason),
}

/// Why a workspace stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepReason {
    /// The session is at work.
    Running,
    /// The session can still be used.
    Open,
    /// It has ended too short a time ago.
    TooYoung {
        /// How long ago.
        age: SignedDuration,
        /// How long it is kept.
        older_than: SignedDuration,
    },
    /// Its worktree holds work, or may hold work, that is saved nowhere else.
    Unsaved(WorktreeState),
}

impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("it is running"),
            Self::Open => f.write_str("it has not ended"),
            Self::TooYoung { age, older_than } => {
                let whole_seconds = SignedDuration::from_secs(age.as_secs());
                write!(f, "it ended {whole_seconds:#} ago, and is kept for {older_than:#}")
            }
            Self::Unsaved(state) => write!(f, "{state} (--force removes it nevertheless)"),
        }
    }
}

/// Decides. Force overrules only the care for unsaved work: whatever runs is kept at any age.
#[must_use]
pub fn decide(candidate: &CleanupCandidate, rules: &CleanupRules) -> Verdict {
    let ended_at = match candidate.session {
        SessionEnd::Running => return Verdict::Keep(KeepReason::Running),
        SessionEnd::Open => return Verdict::Keep(KeepReason::Open),
        SessionEnd::Ended(ended_at) => ended_at,
    };
    let age = rules.now.duration_since(ended_at);
    if age < rules.older_than {
        return Verdict::Keep(KeepReason::TooYoung { age, older_than: rules.older_than });
    }
    match &candidate.worktree {
        Some(state @ (WorktreeState::Unsaved { .. } | WorktreeState::Unknown { .. })) if !rules.force => {
            Verdict::Keep(KeepReason::Unsaved(state.clone()))
        }
        Some(_) | None => Verdict::Remove,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_ended_long_ago_and_is_saved_goes() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let ended = |ago: i64| SessionEnd::Ended(now - SignedDuration::from_secs(ago));
        let rules = |hours, force| CleanupRules { older_than: SignedDuration::from_hours(hours), force, now };
        let unsaved = WorktreeState::Unsaved { files: 1, commits: 0 };
        let unknown = WorktreeState::Unknown { why: "no".into() };
        let check = |session, worktree: Option<&WorktreeState>, rules, expect: Option<&str>| {
            let candidate = CleanupCandidate { session, worktree: worktree.cloned() };
            let kept = match decide(&candidate, &rules) {
                Verdict::Remove => None,
                Verdict::Keep(reason) => Some(reason.to_string()),
            };
            match (&kept, expect) {
                (Some(kept), Some(expect)) => assert!(kept.contains(expect), "{kept}"),
                (kept, expect) => assert_eq!(kept.as_deref(), expect, "{candidate:?}"),
            }
        };
        check(SessionEnd::Running, None, rules(0, true), Some("running"));
        check(SessionEnd::Open, None, rules(0, true), Some("not ended"));
        check(ended(86_399), None, rules(24, true), Some("kept for 24h"));
        check(ended(86_400), None, rules(24, false), None);
        // A clock that was set back must not make a session old.
        check(ended(-5), None, rules(0, false), Some("ended"));
        check(ended(86_400), Some(&WorktreeState::Saved), rules(24, false), None);
        check(ended(86_400), Some(&WorktreeState::Gone), rules(24, false), None);
        check(ended(86_400), Some(&unsaved), rules(24, false), Some("1 changed or new files"));
        check(ended(86_400), Some(&unknown), rules(24, false), Some("cannot tell"));
        check(ended(86_400), Some(&unsaved), rules(24, true), None);
        check(ended(60), Some(&unsaved), rules(24, true), Some("kept for"));
    }
}
