//! Approvals: what a person allowed or forbade in one session, once and for all of that session and for no other.
//!
//! Two caches, one by tool and one by command; a refusal in either beats a permission in the other. They are a fold
//! over the session's `grant` events, so that a session that is resumed knows what was granted to it. A session that was
//! forked or imported knows nothing of what its log says was granted to another.

use std::collections::BTreeMap;
use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::grants::Access;
use crate::names::ToolName;

/// The most answers that one session remembers of each kind.
pub const APPROVALS_MAX: usize = 1_000;

crate::state::code_enum! {
    /// What a person answered for the rest of the session.
    Verdict ("verdict") {
        /// Always in this session.
        Allow = "allow",
        /// Never in this session.
        Deny = "deny",
    }
}

/// One command, exactly: every argument and the directory. Another argument is another command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandSignature {
    digest: [u8; 32],
    argv: Vec<String>,
    cwd: Utf8PathBuf,
}

impl CommandSignature {
    /// The signature of this argv in this directory.
    #[must_use]
    pub fn new(argv: Vec<String>, cwd: &Utf8Path) -> Self {
        let mut hasher = Sha256::new();
        // Length-prefixed: ["a b"] and ["a", "b"] are two commands.
        for part in std::iter::once(cwd.as_str()).chain(argv.iter().map(String::as_str)) {
            hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        Self { digest: hasher.finalize().into(), argv, cwd: cwd.into() }
    }

    /// The program and its arguments.
    #[must_use]
    pub fn argv(&self) -> &[String] {
        &self.argv
    }

    /// The directory.
    #[must_use]
    pub fn cwd(&self) -> &Utf8Path {
        &self.cwd
    }
}

impl fmt::Display for CommandSignature {
    /// The digest in hex.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One answer that holds for the rest of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// About every call of a tool.
    Tool {
        /// The tool.
        name: ToolName,
        /// The answer.
        verdict: Verdict,
    },
    /// About one command.
    Command {
        /// The command.
        signature: CommandSignature,
        /// The answer.
        verdict: Verdict,
    },
    /// A directory is open to the session.
    Directory {
        /// The directory, absolute.
        path: Utf8PathBuf,
        /// What may be done in it.
        access: Access,
    },
}

/// What was answered in one session. Belongs to that session alone: it is never cloned into another's.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Approvals {
    tools: BTreeMap<ToolName, Verdict>,
    commands: BTreeMap<CommandSignature, Verdict>,
}

impl Approvals {
    /// Remembers an answer about a tool. A refusal stays: a later permission does not undo it.
    pub fn answer_tool(&mut self, name: ToolName, verdict: Verdict) -> Result<(), ApprovalsFull> {
        remember(&mut self.tools, name, verdict)
    }

    /// Remembers an answer about a command. A refusal stays: a later permission does not undo it.
    pub fn answer_command(
        &mut self,
        signature: CommandSignature,
        verdict: Verdict,
    ) -> Result<(), ApprovalsFull> {
        remember(&mut self.commands, signature, verdict)
    }

    /// Whether an answer about this tool would be remembered.
    #[must_use]
    pub fn has_room_for_tool(&self, name: &ToolName) -> bool {
        has_room(&self.tools, name)
    }

    /// Whether an answer about this command would be remembered.
    #[must_use]
    pub fn has_room_for_command(&self, signature: &CommandSignature) -> bool {
        has_room(&self.commands, signature)
    }

    /// What was answered about this call; `None` when somebody has to be asked. A refusal of the tool or of the command
    /// beats a permission of the other.
    #[must_use]
    pub fn verdict(&self, tool: &ToolName, command: Option<&CommandSignature>) -> Option<Verdict> {
        let of_tool = self.tools.get(tool);
        let of_command = command.and_then(|command| self.commands.get(command));
        // `Deny` is the greater of the two.
        of_tool.max(of_command).copied()
    }

    /// How many answers are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tools.len() + self.commands.len()
    }

    /// Nothing was answered yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn has_room<K: Ord>(answers: &BTreeMap<K, Verdict>, key: &K) -> bool {
    answers.len() < APPROVALS_MAX || answers.contains_key(key)
}

fn remember<K: Ord>(
    answers: &mut BTreeMap<K, Verdict>,
    key: K,
    verdict: Verdict,
) -> Result<(), ApprovalsFull> {
    if !has_room(answers, &key) {
        return Err(ApprovalsFull);
    }
    let held = answers.entry(key).or_insert(verdict);
    *held = (*held).max(verdict);
    Ok(())
}

/// The session remembers as many answers as it may; ask each time from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the session remembers {APPROVALS_MAX} answers already; this one holds only once")]
pub struct ApprovalsFull;

#[cfg(test)]
mod tests {
    use super::*;

    fn command(argv: &[&str], cwd: &str) -> CommandSignature {
        CommandSignature::new(argv.iter().map(|&argument| argument.into()).collect(), Utf8Path::new(cwd))
    }

    fn tool(name: &str) -> ToolName {
        ToolName::new(name).unwrap()
    }

    #[test]
    fn a_refusal_beats_a_permission_wherever_it_was_given() {
        let (shell, rm) = (tool("shell"), command(&["rm", "-rf", "build"], "/p"));
        let mut approvals = Approvals::default();
        assert_eq!(approvals.verdict(&shell, Some(&rm)), None);
        approvals.answer_tool(shell.clone(), Verdict::Allow).unwrap();
        assert_eq!(approvals.verdict(&shell, Some(&rm)), Some(Verdict::Allow));
        approvals.answer_command(rm.clone(), Verdict::Deny).unwrap();
        assert_eq!(approvals.verdict(&shell, Some(&rm)), Some(Verdict::Deny));
        approvals.answer_command(rm.clone(), Verdict::Allow).unwrap();
        assert_eq!(approvals.verdict(&shell, Some(&rm)), Some(Verdict::Deny), "a refusal stays");
        assert_eq!(approvals.verdict(&shell, None), Some(Verdict::Allow));
        approvals.answer_tool(shell.clone(), Verdict::Deny).unwrap();
        let other = command(&["ls"], "/p");
        approvals.answer_command(other.clone(), Verdict::Allow).unwrap();
        assert_eq!(approvals.verdict(&shell, Some(&other)), Some(Verdict::Deny));
        assert_eq!(approvals.len(), 3);
    }

    #[test]
    fn a_command_is_all_of_its_arguments_and_its_directory() {
        let one = command(&["git", "status"], "/p");
        assert_eq!(one.to_string().len(), 64);
        for other in [
            command(&["git", "status", "-s"], "/p"),
            command(&["git status"], "/p"),
            command(&["git", "status"], "/q"),
            command(&["git", "statu", "s"], "/p"),
        ] {
            assert_ne!(one.to_string(), other.to_string());
        }
        assert_eq!(one, command(&["git", "status"], "/p"));
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let mut approvals = Approvals::default();
        for number in 0..APPROVALS_MAX {
            approvals.answer_tool(tool(&format!("t{number}")), Verdict::Allow).unwrap();
        }
        assert_eq!(approvals.answer_tool(tool("one more"), Verdict::Allow), Err(ApprovalsFull));
        assert_eq!(
            approvals.answer_tool(tool("t0"), Verdict::Deny),
            Ok(()),
            "a known one can still be changed"
        );
    }
}
