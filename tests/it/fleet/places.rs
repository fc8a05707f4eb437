//! A fleet of machines that differ: what each has is its own, and runs go where it is.

use session_core::run::{EndKind, ReasonCode};
use session_tests::fleet::{Headquarters, RunnerProcess};
use session_tests::home::Home;

use super::{LEASE, install, kind, reason, with_programs};

#[test]
fn a_turn_goes_to_a_runner_that_has_the_agent() {
    let of = Headquarters::new(LEASE);
    let (plain, other) = (Home::new(), Home::new());
    let programs = other.path().join("bin");
    install("claude", &programs);
    let plain = plain.with("PATH", "/usr/bin:/bin");
    let other = other.with("PATH", &with_programs(&programs));
    let without = RunnerProcess::start(&plain, &of, &[]);
    let said = without.said();
    assert_eq!(said[0], "this runner has command, acp; not in PATH: claude-code, codex, gemini");
    let with = RunnerProcess::start(&other, &of, &[]);
    let said = with.said();
    assert_eq!(said[0], "this runner has command, claude-code, acp; not in PATH: codex, gemini");
    for _ in 0..3 {
        let turn = of.ended(of.ask("claude-code", &programs, "say one").id);
        assert_eq!(kind(&turn), Some(EndKind::Completed), "{turn:?}");
        assert_eq!(of.settled(turn.session).workspace.runner, Some(with.id));
    }
    let nobody = of.ended(of.ask("gemini", &programs, "say one").id);
    assert_eq!(reason(&nobody), Some(ReasonCode::NoMatchingRunner), "{nobody:?}");
    let message = &nobody.ended().unwrap().1.message;
    assert!(message.contains("gemini"), "{message}");
}
