//! What comes in pieces, put together: agents that stream tell a message by the word, and the log holds messages. One that
//! takes its time is told while it is being said, in entries that say that they belong together.

use session_core::event::EventKind;

use super::entry::{self, Joint};
use super::said::Said;

/// The longest text that is held before it is told, in bytes.
const HELD_MAX: usize = 32 << 10;
/// The longest last word that is kept, in bytes; all of it is in the log.
const LAST_MAX: usize = 1 << 20;

/// The message, or thought, that is being said.
#[derive(Debug, Default)]
pub(super) struct Speech {
    held: Option<(EventKind, String)>,
    /// What is being said, where some of it was told already.
    told: Option<EventKind>,
    /// The agent's last message, and whether it may still be going on.
    last: String,
    going_on: bool,
}

impl Speech {
    /// One more piece. What was held of another kind is told first.
    pub(super) fn piece(&mut self, kind: EventKind, piece: &str) -> Vec<Said> {
        let mut said = Vec::new();
        if self.saying().is_some_and(|saying| *saying != kind) {
            said = self.pause();
        }
        if piece.is_empty() {
            return said;
        }
        let message = kind == EventKind::Message;
        let (_, text) = self.held.get_or_insert_with(|| (kind, String::new()));
        text.push_str(piece);
        let long = text.len() >= HELD_MAX;
        if message {
            said.extend(entry::progress(text));
            if !std::mem::replace(&mut self.going_on, true) {
                self.last.clear();
            }
            self.last.push_str(entry::head(piece, LAST_MAX.saturating_sub(self.last.len())));
        }
        if long {
            said.extend(self.tell());
        }
        said
    }

    /// How much is held, in bytes.
    pub(super) fn held(&self) -> usize {
        self.held.as_ref().map_or(0, |(_, text)| text.len())
    }

    /// What is held is told, and may go on.
    pub(super) fn tell(&mut self) -> Vec<Said> {
        self.take(true, None)
    }

    /// Something else comes: what is held is told, and that was all of it.
    pub(super) fn pause(&mut self) -> Vec<Said> {
        self.going_on = false;
        let said = self.take(false, None);
        self.told = None;
        said
    }

    /// That was all of it, by the line that says all of it again: it goes with what was held, or, where all was told, with the
    /// entry that ends it.
    pub(super) fn end(&mut self, line: &str) -> Vec<Said> {
        self.going_on = false;
        let said = match &self.told {
            Some(kind) if self.held.is_none() => vec![entry::ended(kind, line)],
            Some(_) | None => self.take(false, Some(line)),
        };
        self.told = None;
        said
    }

    /// What is being said is said anew from its beginning: what was told of it counts no more, and what was held is not told.
    /// Of another kind it was all.
    pub(super) fn give_up(&mut self, kind: &EventKind) -> Vec<Said> {
        if self.saying() != Some(kind) {
            return self.pause();
        }
        self.held = None;
        if std::mem::take(&mut self.going_on) {
            self.last.clear();
        }
        self.told.take().iter().map(entry::given_up).collect()
    }

    /// The kind of what is being said.
    pub(super) fn saying(&self) -> Option<&EventKind> {
        self.held.as_ref().map(|(held, _)| held).or(self.told.as_ref())
    }

    fn take(&mut self, unfinished: bool, line: Option<&str>) -> Vec<Said> {
        let Some((kind, text)) = self.held.take() else { return Vec::new() };
        let continues = self.told.replace(kind.clone()).is_some();
        entry::told(&kind, &text, line, Joint { continues, unfinished })
    }

    /// The agent's last message; `None` where it said nothing.
    pub(super) fn last_word(&self) -> Option<String> {
        Some(self.last.clone()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::brief;
    use super::*;

    fn texts(said: &[Said]) -> Vec<(EventKind, String)> {
        let entry = |said: &Said| match said {
            Said::Event { kind, payload } => {
                Some((kind.clone(), payload.value().unwrap()["text"].as_str().unwrap().to_owned()))
            }
            Said::Bound(_) | Said::Resumable | Said::Usage(_) | Said::Degraded(_) | Said::Progress(_) => None,
        };
        said.iter().filter_map(entry).collect()
    }

    #[test]
    fn pieces_are_one_message_until_something_else_comes() {
        let mut speech = Speech::default();
        let mut said = speech.piece(EventKind::Thought, "hm");
        said.extend(speech.piece(EventKind::Message, "Hel"));
        said.extend(speech.piece(EventKind::Message, "lo"));
        assert_eq!(texts(&said), [(EventKind::Thought, "hm".into())]);
        assert!(said.contains(&Said::Progress("Hello".into())), "{said:?}");
        assert_eq!(texts(&speech.pause()), [(EventKind::Message, "Hello".into())]);
        assert_eq!(speech.pause(), []);
        assert_eq!(speech.last_word().as_deref(), Some("Hello"));
        speech.piece(EventKind::Message, "Bye");
        assert_eq!(speech.last_word().as_deref(), Some("Bye"));
    }

    #[test]
    fn what_is_told_while_it_is_said_says_so() {
        let mut speech = Speech::default();
        speech.piece(EventKind::Message, "Hel");
        assert_eq!(speech.held(), 3);
        let mut said = speech.tell();
        assert_eq!((speech.held(), speech.tell()), (0, Vec::new()));
        for piece in ["", "lo,"] {
            speech.piece(EventKind::Message, piece);
        }
        said.extend(speech.tell());
        speech.piece(EventKind::Message, " you");
        said.extend(speech.pause());
        // Another message, which goes on as another kind.
        speech.piece(EventKind::Message, "So");
        said.extend(speech.tell());
        said.extend(speech.piece(EventKind::Thought, "hm"));
        said.extend(speech.pause());
        assert_eq!(
            brief(&said),
            [
                r#"message {"role":"assistant","text":"Hel","unfinished":true}"#,
                r#"message {"continues":true,"role":"assistant","text":"lo,","unfinished":true}"#,
                r#"message {"continues":true,"role":"assistant","text":" you"}"#,
                r#"message {"role":"assistant","text":"So","unfinished":true}"#,
                r#"thought {"text":"hm"}"#,
            ]
        );
        assert_eq!(speech.last_word().as_deref(), Some("So"));
    }

    #[test]
    fn the_line_that_says_all_again_ends_what_was_told() {
        let line = r#"{"whole":"Hello"}"#;
        let mut speech = Speech::default();
        assert_eq!(speech.end(line), []);
        speech.piece(EventKind::Message, "Hel");
        let mut said = speech.tell();
        speech.piece(EventKind::Message, "lo");
        said.extend(speech.end(line));
        speech.piece(EventKind::Message, "Bye");
        said.extend(speech.tell());
        said.extend(speech.end(line));
        assert_eq!(speech.end(line), [], "once");
        let raw = |said: &Said| match said {
            Said::Event { payload, .. } => payload.value().unwrap()["raw"]["whole"].is_string(),
            Said::Bound(_) | Said::Resumable | Said::Usage(_) | Said::Degraded(_) | Said::Progress(_) => {
                false
            }
        };
        assert_eq!(said.iter().map(raw).collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!(
            brief(&said),
            [
                r#"message {"role":"assistant","text":"Hel","unfinished":true}"#,
                r#"message {"continues":true,"role":"assistant","text":"lo"}"#,
                r#"message {"role":"assistant","text":"Bye","unfinished":true}"#,
                r#"message {"continues":true,"role":"assistant","text":""}"#,
            ]
        );
        assert_eq!(speech.last_word().as_deref(), Some("Bye"));
    }

    #[test]
    fn what_is_said_anew_does_not_stand_twice() {
        let mut speech = Speech::default();
        speech.piece(EventKind::Message, "Before");
        speech.pause();
        speech.piece(EventKind::Thought, "h");
        assert_eq!(speech.give_up(&EventKind::Thought), [], "nothing was told of it");
        assert_eq!(speech.last_word().as_deref(), Some("Before"));
        speech.piece(EventKind::Message, "Hel");
        let mut said = speech.tell();
        speech.piece(EventKind::Message, "lo");
        said.extend(speech.give_up(&EventKind::Message));
        assert_eq!((speech.last_word(), speech.held()), (None, 0));
        speech.piece(EventKind::Message, "Good");
        said.extend(speech.give_up(&EventKind::Thought));
        assert_eq!(
            brief(&said),
            [
                r#"message {"role":"assistant","text":"Hel","unfinished":true}"#,
                r#"message {"abandoned":true,"continues":true,"role":"assistant","text":""}"#,
                r#"message {"role":"assistant","text":"Good"}"#,
            ]
        );
    }

    #[test]
    fn what_never_ends_is_told_in_between_and_nothing_of_it_is_lost() {
        let mut speech = Speech::default();
        let piece = "0123456789".repeat(100);
        let mut said = Vec::new();
        for _ in 0..100 {
            said.extend(speech.piece(EventKind::Message, &piece));
        }
        said.extend(speech.pause());
        let told = texts(&said);
        assert!(told.len() > 2, "{}", told.len());
        assert_eq!(speech.last_word(), Some(piece.repeat(100)));
        assert_eq!(told.into_iter().map(|(_, text)| text).collect::<String>(), piece.repeat(100));
    }
}
