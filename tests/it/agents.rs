//! The conformance kit: what holds for every executor, asked of each in the same way and judged from outside.
//!
//! A scenario says what an executor must be able to do for it to make sense; an executor says what it can do. Which
//! scenarios an executor takes follows from that, and [`every_executor_takes_what_it_can_do`] holds the lists below to it.

mod asking;
mod attached;
mod crashes;
mod executor;
mod legacy;
mod oddities;
mod resuming;
mod room;
mod turns;

use self::executor::Can::{Ask, Converse, Count, Interrupt, Misbehave, Remember, Stream};
use self::executor::{Can, Executor};
use self::room::Room;

/// The scenarios, and what an executor must be able to do for each.
const SCENARIOS: &[(&str, &[Can])] = &[
    ("starts", &[]),
    ("streams", &[]),
    ("calls_a_tool", &[]),
    ("fails", &[]),
    ("leaves_without_a_word", &[Misbehave]),
    ("is_stopped", &[]),
    ("ends_its_turn_when_it_is_stopped", &[Interrupt]),
    ("is_killed_for_good", &[]),
    ("spends_its_tokens", &[Count]),
    ("spends_its_tool_calls", &[Ask]),
    ("is_allowed", &[Ask]),
    ("is_refused", &[Ask]),
    ("is_allowed_always", &[Ask]),
    ("is_refused_always", &[Ask]),
    ("waits_until_the_deadline", &[Ask]),
    ("asks_nobody", &[Ask]),
    ("asks_until_it_is_stopped", &[Ask]),
    ("is_talked_to", &[Converse]),
    ("is_answered_by_who_is_attached", &[Ask]),
    ("is_visited_by_a_person", &[Converse]),
    ("is_heard_by_the_word", &[Stream]),
    ("is_asked_over_stdin", &[Converse]),
    ("prints_long_lines", &[Misbehave]),
    ("prints_garbage", &[Misbehave]),
    ("dies", &[]),
    ("dies_in_mid_sentence", &[Stream]),
    ("loses_its_keeper", &[]),
    ("loses_its_host", &[]),
    ("loses_its_host_in_mid_sentence", &[Stream]),
    ("loses_its_host_while_it_asks", &[Ask]),
    ("remembers", &[Remember]),
    ("remembers_what_was_interrupted", &[Remember]),
    ("has_forgotten", &[Remember]),
    ("is_handed_over", &[Remember]),
    ("takes_up_another_conversation", &[Misbehave]),
    ("loses_its_directory", &[]),
];

/// The tests of one executor: the scenarios that it takes, each under its name.
macro_rules! conforms {
    ($name:ident, $executor:ident: $($module:ident::$scenario:ident)*) => {
        mod $name {
            $(
                #[test]
                fn $scenario() {
                    super::perform(&super::executor::$executor, super::$module::$scenario);
                }
            )*

            pub(super) const TAKEN: &[&str] = &[$(stringify!($scenario)),*];
        }
    };
}

conforms! { claude_code, CLAUDE_CODE:
    turns::starts turns::streams turns::calls_a_tool turns::fails turns::leaves_without_a_word turns::is_stopped
    turns::ends_its_turn_when_it_is_stopped turns::is_killed_for_good turns::spends_its_tokens
    turns::spends_its_tool_calls
    asking::is_allowed asking::is_refused asking::is_allowed_always asking::is_refused_always
    asking::waits_until_the_deadline asking::asks_nobody asking::asks_until_it_is_stopped
    attached::is_talked_to attached::is_answered_by_who_is_attached attached::is_visited_by_a_person
    attached::is_heard_by_the_word
    oddities::is_asked_over_stdin oddities::prints_long_lines oddities::prints_garbage
    crashes::dies crashes::dies_in_mid_sentence crashes::loses_its_keeper crashes::loses_its_host
    crashes::loses_its_host_in_mid_sentence crashes::loses_its_host_while_it_asks
    resuming::remembers resuming::remembers_what_was_interrupted resuming::has_forgotten resuming::is_handed_over
    resuming::takes_up_another_conversation resuming::loses_its_directory
}

conforms! { acp, ACP:
    turns::starts turns::streams turns::calls_a_tool turns::fails turns::leaves_without_a_word turns::is_stopped
    turns::ends_its_turn_when_it_is_stopped turns::is_killed_for_good turns::spends_its_tokens
    turns::spends_its_tool_calls
    asking::is_allowed asking::is_refused asking::is_allowed_always asking::is_refused_always
    asking::waits_until_the_deadline asking::asks_nobody asking::asks_until_it_is_stopped
    attached::is_talked_to attached::is_answered_by_who_is_attached attached::is_visited_by_a_person
    attached::is_heard_by_the_word
    oddities::is_asked_over_stdin oddities::prints_long_lines oddities::prints_garbage
    crashes::dies crashes::dies_in_mid_sentence crashes::loses_its_keeper crashes::loses_its_host
    crashes::loses_its_host_in_mid_sentence crashes::loses_its_host_while_it_asks
    resuming::remembers resuming::remembers_what_was_interrupted resuming::has_forgotten resuming::is_handed_over
    resuming::takes_up_another_conversation resuming::loses_its_directory
}

conforms! { real_claude_code, REAL_CLAUDE_CODE:
    turns::starts turns::streams turns::calls_a_tool turns::fails turns::is_stopped
    turns::ends_its_turn_when_it_is_stopped turns::is_killed_for_good turns::spends_its_tokens
    turns::spends_its_tool_calls
    asking::is_allowed asking::is_refused asking::is_allowed_always asking::is_refused_always
    asking::waits_until_the_deadline asking::asks_nobody asking::asks_until_it_is_stopped
    attached::is_talked_to attached::is_answered_by_who_is_attached attached::is_visited_by_a_person
    attached::is_heard_by_the_word
    oddities::is_asked_over_stdin
    crashes::dies crashes::dies_in_mid_sentence crashes::loses_its_keeper crashes::loses_its_host
    crashes::loses_its_host_in_mid_sentence crashes::loses_its_host_while_it_asks
    resuming::remembers resuming::remembers_what_was_interrupted resuming::has_forgotten resuming::is_handed_over
    resuming::loses_its_directory
}

conforms! { real_codex, REAL_CODEX:
    turns::starts turns::streams turns::calls_a_tool turns::fails turns::is_stopped turns::is_killed_for_good
    turns::spends_its_tokens attached::is_talked_to attached::is_visited_by_a_person oddities::is_asked_over_stdin
    crashes::dies crashes::loses_its_keeper crashes::loses_its_host
    resuming::remembers resuming::remembers_what_was_interrupted resuming::has_forgotten resuming::is_handed_over
    resuming::loses_its_directory
}

conforms! { real_gemini, REAL_GEMINI:
    turns::starts turns::streams turns::calls_a_tool turns::fails turns::is_stopped turns::is_killed_for_good
    turns::spends_its_tokens attached::is_talked_to attached::is_visited_by_a_person
    attached::is_heard_by_the_word oddities::is_asked_over_stdin
    crashes::dies crashes::dies_in_mid_sentence crashes::loses_its_keeper crashes::loses_its_host
    crashes::loses_its_host_in_mid_sentence
    resuming::remembers resuming::remembers_what_was_interrupted resuming::has_forgotten resuming::is_handed_over
    resuming::loses_its_directory
}

conforms! { real_claude_acp, REAL_CLAUDE_ACP:
    turns::starts turns::streams turns::calls_a_tool turns::fails turns::is_stopped
    turns::ends_its_turn_when_it_is_stopped turns::is_killed_for_good turns::spends_its_tokens
    turns::spends_its_tool_calls
    asking::is_allowed asking::is_refused asking::is_allowed_always asking::is_refused_always
    asking::waits_until_the_deadline asking::asks_nobody asking::asks_until_it_is_stopped
    attached::is_talked_to attached::is_answered_by_who_is_attached attached::is_visited_by_a_person
    attached::is_heard_by_the_word
    oddities::is_asked_over_stdin
    crashes::dies crashes::dies_in_mid_sentence crashes::loses_its_keeper crashes::loses_its_host
    crashes::loses_its_host_in_mid_sentence crashes::loses_its_host_while_it_asks
    resuming::remembers resuming::remembers_what_was_interrupted resuming::has_forgotten resuming::is_handed_over
    resuming::loses_its_directory
}

conforms! { real_goose, REAL_GOOSE:
    turns::starts turns::streams turns::calls_a_tool turns::fails turns::is_stopped
    turns::ends_its_turn_when_it_is_stopped turns::is_killed_for_good turns::spends_its_tokens
    turns::spends_its_tool_calls
    asking::is_allowed asking::is_refused asking::is_allowed_always asking::is_refused_always
    asking::waits_until_the_deadline asking::asks_nobody asking::asks_until_it_is_stopped
    attached::is_talked_to attached::is_answered_by_who_is_attached attached::is_visited_by_a_person
    attached::is_heard_by_the_word
    oddities::is_asked_over_stdin
    crashes::dies crashes::dies_in_mid_sentence crashes::loses_its_keeper crashes::loses_its_host
    crashes::loses_its_host_in_mid_sentence crashes::loses_its_host_while_it_asks
    resuming::remembers resuming::remembers_what_was_interrupted resuming::has_forgotten resuming::is_handed_over
    resuming::loses_its_directory
}

conforms! { command, COMMAND:
    turns::starts turns::streams turns::calls_a_tool turns::fails turns::is_stopped turns::is_killed_for_good
    crashes::dies crashes::loses_its_keeper crashes::loses_its_host resuming::loses_its_directory
}

#[test]
fn a_command_that_is_attached_to_takes_no_input() {
    perform(&executor::COMMAND, attached::takes_no_input);
}

/// Performs a scenario, and looks whether anything is left of it.
fn perform(executor: &'static Executor, scenario: fn(&Room)) {
    if executor.real && session_tests::agents().is_none() {
        println!("not asked for: tests with the real {} (scripts/test --agents)", executor.name);
        return;
    }
    let room = Room::new(executor);
    scenario(&room);
    room.nothing_is_left();
}

#[test]
fn every_executor_takes_what_it_can_do() {
    let all = [
        (&executor::CLAUDE_CODE, claude_code::TAKEN),
        (&executor::ACP, acp::TAKEN),
        (&executor::REAL_CLAUDE_CODE, real_claude_code::TAKEN),
        (&executor::REAL_CODEX, real_codex::TAKEN),
        (&executor::REAL_GEMINI, real_gemini::TAKEN),
        (&executor::REAL_CLAUDE_ACP, real_claude_acp::TAKEN),
        (&executor::REAL_GOOSE, real_goose::TAKEN),
        (&executor::COMMAND, command::TAKEN),
    ];
    for (executor, taken) in all {
        let makes_sense = |needs: &[Can]| needs.iter().all(|needed| executor.can.contains(needed));
        for (scenario, needs) in SCENARIOS {
            let says = if makes_sense(needs) { "must take" } else { "cannot take" };
            assert_eq!(
                taken.contains(scenario),
                makes_sense(needs),
                "{} {says} {scenario}, which needs {needs:?}",
                executor.name
            );
        }
        let unknown = taken.iter().find(|taken| !SCENARIOS.iter().any(|(name, _)| name == *taken));
        assert_eq!(unknown, None, "{}: no scenario has this name", executor.name);
    }
}
