//! How the events of a session are shown to a person who is attached to it.

use serde_json::Value;
use session_core::event::{Event, EventKind};

use crate::output;

/// The longest line that tells of something beside what is said, in columns.
const LINE_MAX: usize = 200;

/// What is told where a message was broken off.
const ANEW: &str = "(that was broken off, and is said anew)";

/// What is shown, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shown {
    /// What the agent says: to stdout.
    Said {
        /// The text, whole lines or not.
        text: String,
        /// It goes on where what was said before it ended.
        continues: bool,
        /// It is shown while it is being said.
        unfinished: bool,
    },
    /// A line of what goes on besides: to stderr.
    Told(String),
}

/// Where text can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// Data.
    Out,
    /// What people are told.
    Err,
}

/// What was written, as far as it matters for what comes next.
#[derive(Debug)]
pub(super) struct Screen {
    /// Stdout is a terminal, which shows stderr as well.
    terminal: bool,
    /// The last thing on stdout is not at the end of its line.
    open: bool,
}

impl Screen {
    pub(super) fn new(terminal: bool) -> Self {
        Self { terminal, open: false }
    }

    /// What is written for this, exactly.
    pub(super) fn write(&mut self, shown: Shown) -> Vec<(Stream, String)> {
        match shown {
            // The end of what was shown.
            Shown::Said { text, continues: true, unfinished: false } if text.is_empty() => self.end(),
            Shown::Said { text, continues, unfinished } => {
                let mut written = if continues { Vec::new() } else { self.end() };
                let mut text = if self.terminal { obedient(&text, unfinished) } else { text };
                self.open = unfinished;
                if !unfinished {
                    text.push('\n');
                }
                written.push((Stream::Out, text));
                written
            }
            Shown::Told(line) => {
                // On a terminal they would stand in one line; apart from each other they do not meet.
                let mut written = if self.terminal { self.end() } else { Vec::new() };
                written.push((Stream::Err, format!("{line}\n")));
                written
            }
        }
    }

    /// Ends the line that is open.
    pub(super) fn end(&mut self) -> Vec<(Stream, String)> {
        let open = std::mem::replace(&mut self.open, false);
        if open { vec![(Stream::Out, "\n".into())] } else { Vec::new() }
    }
}

/// A text that steers no terminal; without the end of its last line, unless more of it is to come.
fn obedient(text: &str, unfinished: bool) -> String {
    let text = if unfinished { text } else { text.strip_suffix('\n').unwrap_or(text) };
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    lines.map(|line| output::harmless(line, usize::MAX)).collect::<Vec<_>>().join("\n")
}

/// What is shown of an event.
pub(super) fn shown(event: &Event) -> Vec<Shown> {
    let payload = event.body.payload.value().unwrap_or_default();
    let text = |field: &str| payload[field].as_str().unwrap_or_default();
    let told = |line: String| vec![Shown::Told(output::harmless(&line, LINE_MAX))];
    match &event.body.kind {
        EventKind::Message => match text("role") {
            "assistant" => {
                let said = Shown::Said {
                    text: text("text").to_owned(),
                    continues: payload["continues"] == true,
                    unfinished: payload["unfinished"] == true,
                };
                let anew = (payload["abandoned"] == true).then(|| Shown::Told(ANEW.into()));
                std::iter::once(said).chain(anew).collect()
            }
            role => whole(if role == "user" { "> " } else { "| " }, text("text")),
        },
        EventKind::Thought => whole("~ ", text("text")),
        EventKind::ToolCall => told(call(text("name"), &payload["input"])),
        EventKind::ToolResult if payload["is_error"] == true => {
            told(format!("  failed: {}", first_line(&payload["output"])))
        }
        EventKind::PermissionAnswered => told(format!(
            "  {}: {}",
            if text("verdict") == "allow" { "allowed by" } else { "refused by" },
            text("by")
        )),
        EventKind::PermissionWithdrawn => told(format!("  the question is withdrawn ({})", text("why"))),
        EventKind::RunState => match text("to") {
            "failed" | "stopped" | "lost" => told(format!(
                "the turn {}: {}",
                text("to"),
                [text("message"), text("reason")].join(" ").trim()
            )),
            _ => Vec::new(),
        },
        EventKind::Error => told(format!("error: {}", text("message"))),
        EventKind::Warning => {
            told(format!("warning: {}% of its {} are used", payload["percent"], text("resource")))
        }
        EventKind::ChildEnded => told(format!("its child {} {}", text("child"), text("state"))),
        EventKind::Plan => plan(&payload["entries"]),
        EventKind::Entry => told(format!("entry: {}", first_line(&payload["text"]))),
        EventKind::Project => told(format!("project: {}", text("name"))),
        EventKind::Other(kind) if kind.as_str() == "agent.handed_over" => {
            let lost = payload["not_carried_over"].as_array().map(Vec::as_slice).unwrap_or_default();
            let why = lost.iter().filter_map(|not| not["why"].as_str());
            why.flat_map(|why| told(format!("not carried over: {why}"))).collect()
        }
        EventKind::SessionCreated
        | EventKind::SessionState
        | EventKind::SessionLabel
        | EventKind::SessionBudget
        | EventKind::SessionForked
        | EventKind::RunSandbox
        | EventKind::Bound
        | EventKind::ToolResult
        | EventKind::Usage
        | EventKind::Permission
        | EventKind::Result
        | EventKind::Summary
        | EventKind::SessionResume
        | EventKind::Grant
        | EventKind::Other(_) => Vec::new(),
    }
}

/// A question, as one line with the answers that it takes.
pub(super) fn question(tool: &str, what: &str) -> String {
    format!("? {tool}: {}  [y]es, [a]lways in this session, [n]o", output::harmless(what, LINE_MAX))
}

fn whole(mark: &str, text: &str) -> Vec<Shown> {
    text.lines().map(|line| Shown::Told(format!("{mark}{}", output::harmless(line, usize::MAX)))).collect()
}

fn call(name: &str, input: &Value) -> String {
    let fields = ["command", "file_path", "path", "url", "pattern", "query", "description"];
    let what = fields.into_iter().find_map(|field| input[field].as_str());
    let what = what.map_or_else(|| input.to_string(), |what| first_line(&what.into()));
    format!("* {name}: {what}")
}

fn first_line(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.lines().next().unwrap_or_default().to_owned()
}

fn plan(entries: &Value) -> Vec<Shown> {
    let entries = entries.as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |entry: &Value| {
        let mark = if entry["status"] == "completed" { "x" } else { " " };
        let text = entry["content"].as_str().unwrap_or_default();
        Shown::Told(output::harmless(&format!("[{mark}] {text}"), LINE_MAX))
    };
    entries.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;
    use session_core::event::{NewEvent, Seq};

    use super::*;

    fn event(kind: EventKind, payload: &Value) -> Vec<Shown> {
        let (env, _) = session_core::testing::env();
        let body = NewEvent::internal(kind, None, payload);
        shown(&Event { session: env.session_id(), seq: Seq(1), at: Timestamp::UNIX_EPOCH, body })
    }

    fn said_so(text: &str, continues: bool, unfinished: bool) -> Shown {
        Shown::Said { text: text.into(), continues, unfinished }
    }

    fn told(lines: &[&str]) -> Vec<Shown> {
        lines.iter().map(|&line| Shown::Told(line.into())).collect()
    }

    #[test]
    fn what_the_agent_says_is_data_and_all_else_is_told() {
        let said = event(EventKind::Message, &json!({ "role": "assistant", "text": "a\nb" }));
        assert_eq!(said, [said_so("a\nb", false, false)]);
        assert_eq!(
            event(EventKind::Message, &json!({ "role": "user", "text": "go\non" })),
            told(&["> go", "> on"])
        );
        let call = json!({ "id": "1", "name": "Bash", "input": { "command": "ls\nrm x" } });
        assert_eq!(event(EventKind::ToolCall, &call), told(&["* Bash: ls"]));
        assert_eq!(event(EventKind::ToolResult, &json!({ "output": "fine" })), []);
        let failed = json!({ "output": "no\nway", "is_error": true });
        assert_eq!(event(EventKind::ToolResult, &failed), told(&["  failed: no"]));
        let ended = json!({ "from": "running", "to": "failed", "reason": "timeout", "message": "too long" });
        assert_eq!(event(EventKind::RunState, &ended), told(&["the turn failed: too long timeout"]));
        assert_eq!(event(EventKind::RunState, &json!({ "to": "completed" })), []);
    }

    #[test]
    fn what_is_being_said_goes_on_in_its_line() {
        let payload = json!({ "role": "assistant", "text": "Hel", "unfinished": true });
        assert_eq!(event(EventKind::Message, &payload), [said_so("Hel", false, true)]);
        let shown = || {
            [
                said_so("Hel", false, true),
                said_so("lo,\r\n\u{7}", true, true),
                Shown::Told("* ls".into()),
                said_so("you\n", true, false),
                said_so("And", false, true),
                said_so("then\n", false, false),
            ]
        };
        let written = |terminal: bool, stream: Stream| {
            let mut screen = Screen::new(terminal);
            let mut all: Vec<_> = shown().into_iter().flat_map(|shown| screen.write(shown)).collect();
            all.extend(screen.end());
            all.retain(|(to, _)| *to == stream);
            all.into_iter().map(|(_, text)| text).collect::<String>()
        };
        assert_eq!(written(true, Stream::Out), "Hello,\n\u{fffd}\nyou\nAnd\nthen\n");
        assert_eq!(written(false, Stream::Out), "Hello,\r\n\u{7}you\n\nAnd\nthen\n\n");
        assert_eq!(written(false, Stream::Err), "* ls\n");
    }

    #[test]
    fn what_ended_and_what_was_broken_off_ends_its_line() {
        let end = json!({ "role": "assistant", "text": "", "continues": true });
        let given_up = json!({ "role": "assistant", "text": "", "continues": true, "abandoned": true });
        let ended = said_so("", true, false);
        assert_eq!(event(EventKind::Message, &end), std::slice::from_ref(&ended));
        let anew = event(EventKind::Message, &given_up);
        assert_eq!(anew, [ended.clone(), Shown::Told(ANEW.into())]);
        let mut screen = Screen::new(true);
        let shown = [said_so("Hel", false, true), ended.clone(), ended];
        let written: Vec<_> = shown.into_iter().flat_map(|shown| screen.write(shown)).collect();
        assert_eq!(written, [(Stream::Out, "Hel".into()), (Stream::Out, "\n".into())]);
    }

    #[test]
    fn a_damaged_event_says_little_and_breaks_nothing() {
        for kind in [
            EventKind::Message,
            EventKind::ToolCall,
            EventKind::Plan,
            EventKind::RunState,
            EventKind::Warning,
        ] {
            let shown = event(kind, &json!(["\u{1b}[2J"]));
            assert!(!format!("{shown:?}").contains("\\u{1b}"), "{shown:?}");
        }
    }
}
