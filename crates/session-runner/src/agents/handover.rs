//! What does not come along where an agent takes a session over from our log: said beforehand, and recorded when it happens.

use std::fmt;

use session_core::event::{Event, EventKind};
use session_core::history::reconstruct_messages;
use session_core::names::ExecutorType;
use session_core::session::Binding;
use session_core::turn::Turn;

use super::capabilities::Support;
use super::framework::Framework;
use super::primer::account;

/// One thing that does not come along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotCarried {
    /// Its name, for scripts.
    pub what: &'static str,
    /// A sentence about it.
    pub why: String,
}

impl fmt::Display for NotCarried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// A session that is handed over: what is known of it before.
#[derive(Debug, Clone, Copy)]
pub struct Handover<'h> {
    /// Its log.
    pub log: &'h [Event],
    /// The conversation that it is bound to.
    pub binding: Option<&'h Binding>,
    /// With what its last run was executed.
    pub from: Option<&'h ExecutorType>,
    /// What that was asked for.
    pub last: Option<&'h Turn>,
    /// The arguments of the user's that it had.
    pub arguments: &'h [String],
    /// With what the next one is.
    pub to: &'h ExecutorType,
}

impl Handover<'_> {
    /// What the next agent will not have of what was there, by its log and by what both agents can do. Nothing where nothing
    /// was said before.
    #[must_use]
    pub fn not_carried(&self) -> Vec<NotCarried> {
        let mut list = Vec::new();
        let mut add = |what, why: Option<String>| list.extend(why.map(|why| NotCarried { what, why }));
        let history = reconstruct_messages(self.log);
        let Some(account) = account(&history) else { return list };
        let before = self.binding.map(|binding| &binding.executor).or(self.from);
        let name = before.map_or("the agent before", ExecutorType::as_str);
        add("conversation", self.binding.map(|binding| {
            format!(
                "the conversation {} of {name} stays where it is, with what {name} remembers beside it: its memory, its caches, \
                 the state of its tools",
                binding.executor_session_id
            )
        }));
        let some = |count: usize, told: &str| (count > 0).then(|| format!("{count} {told}"));
        add("earlier_messages", some(account.left_out, "messages at the beginning: the account is too long"));
        add(
            "tool_results",
            some(account.cut, "calls and answers of tools are longer than what is told of one, and cut"),
        );
        add("thoughts", some(self.of_kind(&EventKind::Thought), "thoughts"));
        add(
            "plan",
            some(self.of_kind(&EventKind::Plan).min(1), "plan: what is left of it is for the agent to see"),
        );
        add("attachments", some(self.attachments(), "pictures and other files that are no text"));
        if before.is_none_or(|before| before == self.to) {
            return list;
        }
        add(
            "model",
            self.last.and_then(|turn| turn.model.as_ref()).map(|model| {
                format!("the model {model}: {} takes its own unless --model names one", self.to)
            }),
        );
        let tools = self.last.map_or(0, |turn| turn.permissions.allow.len());
        add("allowed_tools", some(tools, "tools that --allow-tool names, by the names of the agent before"));
        let answers = self.of_kind(&EventKind::Grant);
        add(
            "answers",
            some(answers, "answers that hold in this session, where the next agent's tools have other names"),
        );
        add(
            "permission_mode",
            Some(format!("what {name} was allowed by its own settings, and the mode it worked in")),
        );
        add("arguments", some(self.arguments.len(), "arguments of its own"));
        let asks = |executor| Framework::of(executor).map(|framework| framework.capabilities().approvals);
        let asked = before.and_then(asks).is_some_and(|asks| asks != Support::No);
        add(
            "questions",
            (asked && asks(self.to) == Some(Support::No))
                .then(|| format!("questions: {} asks nobody, and does what its sandbox lets it do", self.to)),
        );
        list
    }

    fn of_kind(&self, kind: &EventKind) -> usize {
        self.log.iter().filter(|event| event.body.kind == *kind).count()
    }

    /// Blocks in what was said and answered that are no text.
    fn attachments(&self) -> usize {
        let carries = |event: &&Event| {
            matches!(event.body.kind, EventKind::Message | EventKind::ToolResult)
                && [
                    "\"type\":\"image\"",
                    "\"type\":\"audio\"",
                    "\"type\":\"resource\"",
                    "\"type\":\"document\"",
                ]
                .iter()
                .any(|block| event.body.payload.as_str().contains(block))
        };
        self.log.iter().filter(carries).count()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};
    use session_core::event::{NewEvent, Seq};
    use session_core::turn::Permissions;

    use super::*;

    fn log(entries: &[(EventKind, Value)]) -> Vec<Event> {
        let (env, _) = session_core::testing::env();
        let session = env.session_id();
        let event = |((kind, payload), number): (&(EventKind, Value), u64)| {
            let body = NewEvent::internal(kind.clone(), None, payload);
            Event { session, seq: Seq(number), at: Timestamp::UNIX_EPOCH, body }
        };
        entries.iter().zip(1..).map(event).collect()
    }

    fn named(list: &[NotCarried]) -> Vec<&str> {
        list.iter().map(|not| not.what).collect()
    }

    fn said() -> (EventKind, Value) {
        (EventKind::Message, json!({ "role": "user", "text": "fix it" }))
    }

    fn bound(executor: &ExecutorType) -> Binding {
        let (env, _) = session_core::testing::env();
        Binding {
            runner: Some(env.runner_id()),
            hostname: "box".parse().unwrap(),
            executor: executor.clone(),
            executor_session_id: "c1".parse().unwrap(),
            project_dir: "/p".into(),
            resumable: true,
        }
    }

    #[test]
    fn another_agent_has_nothing_of_the_first_ones_own() {
        let (claude, codex): (ExecutorType, ExecutorType) =
            ("claude-code".parse().unwrap(), "codex".parse().unwrap());
        let image = json!({ "id": "1", "output": [{ "type": "image", "data": "x" }] });
        let log = log(&[
            said(),
            (EventKind::Thought, json!({ "text": "hm" })),
            (EventKind::ToolCall, json!({ "id": "1", "name": "Read", "input": {} })),
            (EventKind::ToolResult, image),
            (EventKind::ToolCall, json!({ "id": "2", "name": "Bash", "input": {} })),
            (EventKind::ToolResult, json!({ "id": "2", "output": "y".repeat(5_000) })),
            (EventKind::Plan, json!({ "entries": [] })),
            (EventKind::Grant, json!({ "scope": "tool" })),
        ]);
        let (binding, mut turn) = (bound(&claude), Turn::new("go"));
        turn.model = Some("large".into());
        turn.permissions = Permissions { allow: vec!["Read".parse().unwrap()], ..Permissions::default() };
        let arguments = ["--add-dir".to_owned(), "/x".to_owned()];
        let handover = Handover {
            log: &log,
            binding: Some(&binding),
            from: Some(&claude),
            last: Some(&turn),
            arguments: &arguments,
            to: &codex,
        };
        let list = handover.not_carried();
        let all = [
            "conversation",
            "tool_results",
            "thoughts",
            "plan",
            "attachments",
            "model",
            "allowed_tools",
            "answers",
            "permission_mode",
            "arguments",
            "questions",
        ];
        assert_eq!(named(&list), all);
        assert!(list[0].why.contains("c1") && list[5].why.contains("large"), "{list:#?}");
        let again = Handover { to: &claude, ..handover }.not_carried();
        assert_eq!(named(&again), all[..5], "the same agent keeps its model, its tools and its mode");
    }

    #[test]
    fn of_what_was_never_said_nothing_is_missing() {
        let claude = "claude-code".parse().unwrap();
        let handover =
            Handover { log: &[], binding: None, from: None, last: None, arguments: &[], to: &claude };
        assert_eq!(handover.not_carried(), []);
        let log = log(&[said()]);
        assert_eq!(Handover { log: &log, ..handover }.not_carried(), []);
    }
}
