//! What comes in pieces, put together: agents that stream tell a message by the word, and the log holds messages.

use session_core::event::EventKind;

use super::entry;
use super::said::Said;

/// The longest text that is held before it is told, in bytes.
const HELD_MAX: usize = 32 << 10;
/// The longest last word that is kept, in bytes; all of it is in the log.
const LAST_MAX: usize = 1 << 20;

/// The message, or thought, that is being said.
#[derive(Debug, Default)]
pub(super) struct Speech {
    held: Option<(EventKind, String)>,
    /// The agent's last message, and whether it may still be going on.
    last: String,
    going_on: bool,
}

impl Speech {
    /// One more piece. What was held of another kind is told first.
    pub(super) fn piece(&mut self, kind: EventKind, piece: &str) -> Vec<Said> {
        let mut said = Vec::new();
        if self.held.as_ref().is_some_and(|(held, _)| *held != kind) {
            said = self.pause();
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

    /// Something else comes: what is held is told.
    pub(super) fn pause(&mut self) -> Vec<Said> {
        self.going_on = false;
        self.tell()
    }

    fn tell(&mut self) -> Vec<Said> {
        let Some((kind, text)) = self.held.take() else { return Vec::new() };
        let mut said = entry::words(&kind, &text, None);
        // It was told piece by piece.
        said.retain(|said| !matches!(said, Said::Progress(_)));
        said
    }

    /// The agent's last message; `None` where it said nothing.
    pub(super) fn last_word(&self) -> Option<String> {
        Some(self.last.clone()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
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
