//! Which agents are here, what each can do, and what is missing.

use session_runner::doctor::program as place_of;
use session_runner::{Cancelling, Capabilities, Framework, Support};

use super::{Finding, Level};

/// One finding for each agent that brings a program of its own, looked for in this `PATH`.
pub(super) fn look(path: &str) -> Vec<Finding> {
    let brings = |framework: Framework| framework.program().map(|program| (framework, program));
    Framework::ALL
        .into_iter()
        .filter_map(brings)
        .map(|(framework, program)| finding(framework, program, path))
        .collect()
}

fn finding(framework: Framework, program: &str, path: &str) -> Finding {
    let check = framework.as_str();
    match place_of(path, program) {
        Some(file) => Finding {
            check,
            level: Level::Ok,
            found: format!("{file}: {}", abilities(framework.capabilities())),
            hint: None,
        },
        None => Finding {
            check,
            level: Level::Absent,
            found: format!("no program {program:?} in PATH"),
            hint: Some(format!("to use it: {}", remedy(framework))),
        },
    }
}

/// What is to be done about an agent that is not here.
fn remedy(framework: Framework) -> &'static str {
    match framework {
        Framework::ClaudeCode => {
            "npm install -g @anthropic-ai/claude-code, then name its key with --env ANTHROPIC_API_KEY"
        }
        Framework::Codex => "npm install -g @openai/codex, then name its key with --env OPENAI_API_KEY",
        Framework::Gemini => "npm install -g @google/gemini-cli, then name its key with --env GEMINI_API_KEY",
        Framework::Acp => "name its command behind --",
    }
}

/// What can be expected of an agent, in a few words.
fn abilities(capabilities: Capabilities) -> String {
    let Capabilities { resume, portable: _, usage, approvals, cancelling, chosen_id: _ } = capabilities;
    let can = |support, what: &str| match support {
        Support::Yes => what.to_owned(),
        Support::No => format!("no {what}"),
        Support::Announced => format!("{what} if it says so"),
    };
    let interrupts = match cancelling {
        Cancelling::Message => "can be interrupted",
        Cancelling::Processes => "is ended to interrupt it",
    };
    [
        can(resume, "resume"),
        can(approvals, "approvals"),
        format!("usage {}", usage.as_str()),
        interrupts.into(),
    ]
    .join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_agent_is_found_in_the_path_or_it_is_said_how_to_get_it() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("claude"), "").unwrap();
        std::fs::set_permissions(directory.path().join("claude"), Permissions::from_mode(0o755)).unwrap();
        let path = format!("/no/such/place::{}", directory.path().display());
        let found = look(&path);
        let told: Vec<_> = found.iter().map(|finding| (finding.check, finding.level)).collect();
        let expected = [("claude-code", Level::Ok), ("codex", Level::Absent), ("gemini", Level::Absent)];
        assert_eq!(told, expected);
        assert!(
            found[0].found.ends_with("claude: resume, approvals, usage exact, can be interrupted"),
            "{}",
            found[0].found
        );
        assert!(found[1].hint.as_ref().is_some_and(|hint| hint.contains("@openai/codex")));
    }
}
