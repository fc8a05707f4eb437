//! Turns rules about system calls into a program that the kernel runs for each of them.
//!
//! It finds what becomes of a call by halving the numbers, in ranges that are treated alike, so a call without rules costs
//! a few comparisons. The kernel checks and translates each instruction when the program is installed, and tries it with
//! every number, so as to skip it later for those that are always let through: a short program is a quick start.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{BpfProgram, sock_filter};

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_NOT_LESS: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Where the kernel puts what a program is asked about: the call, the architecture, and the arguments.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;
const ARGUMENT_BYTES: u32 = 8;

/// "There is no such call".
const MISSING: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
/// "It is not permitted".
const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();

/// What an argument is compared with: its lower 32 bits, which are all that the kernel reads of those in question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Is(u32),
    IsNot(u32),
    /// Any of these bits is set.
    Has(u32),
    /// The bits of the mask are these.
    Masked {
        mask: u32,
        value: u32,
    },
}

/// Conditions on arguments by their number, which must all hold.
pub(super) type Rule = Vec<(u8, Condition)>;

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Treatment {
    /// It does not exist.
    Missing,
    /// It is not permitted.
    Refused,
    /// It is not permitted where one of the rules holds.
    RefusedIf(Vec<Rule>),
}

/// The calls that are not simply let through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Calls(BTreeMap<u32, Treatment>);

impl Calls {
    pub(super) fn set(&mut self, call: c_long, treatment: Treatment) {
        // The numbers of calls are small, and none is negative.
        self.0.insert(u32::try_from(call).unwrap_or(u32::MAX), treatment);
    }

    /// Adds a rule to a call. One that is refused anyway stays so.
    pub(super) fn refuse_if(&mut self, call: c_long, rule: Rule) {
        let call = u32::try_from(call).unwrap_or(u32::MAX);
        match self.0.entry(call).or_insert(Treatment::RefusedIf(vec![])) {
            Treatment::RefusedIf(rules) => rules.push(rule),
            Treatment::Missing | Treatment::Refused => {}
        }
    }

    /// The program for one architecture: another one ends the process. Calls beyond `newest` do not exist.
    pub(super) fn program(&self, architecture: u32, newest: u32) -> BpfProgram {
        let mut program = vec![
            step(LOAD, ARCHITECTURE_AT, 0, 0),
            step(JUMP_EQUAL, architecture, 1, 0),
            done(libc::SECCOMP_RET_KILL_PROCESS),
            step(LOAD, NUMBER_AT, 0, 0),
            step(JUMP_GREATER, newest, 0, 1),
            done(MISSING),
        ];
        program.extend(tree(&self.ranges()));
        program
    }

    /// The first number of each range whose calls are treated alike, up to the next one; `None` lets them through.
    fn ranges(&self) -> Vec<Range<'_>> {
        let mut ranges: Vec<Range<'_>> = vec![(0, None)];
        let mut begin = |first, treatment| {
            ranges.pop_if(|last| last.0 == first);
            if ranges.last().is_none_or(|last| last.1 != treatment) {
                ranges.push((first, treatment));
            }
        };
        for (call, treatment) in &self.0 {
            begin(*call, Some(treatment));
            begin(call.saturating_add(1), None);
        }
        ranges
    }
}

/// Where a range begins, and how its calls are treated.
type Range<'c> = (u32, Option<&'c Treatment>);

/// Finds the range of a call, and does with it what is done there.
fn tree(ranges: &[Range<'_>]) -> BpfProgram {
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let (Some(_), Some((first, _))) = (lower.first(), upper.first()) else {
        return block(upper.first().and_then(|(_, treatment)| *treatment));
    };
    let (lower, upper) = (tree(lower), tree(upper));
    let over = u32::try_from(lower.len()).unwrap_or(u32::MAX);
    let mut program = u8::try_from(over).map_or_else(
        // Further than a comparison can jump.
        |_| vec![step(JUMP_NOT_LESS, *first, 0, 1), step(JUMP, over, 0, 0)],
        |over| vec![step(JUMP_NOT_LESS, *first, over, 0)],
    );
    program.extend(lower);
    program.extend(upper);
    program
}

fn block(treatment: Option<&Treatment>) -> BpfProgram {
    match treatment {
        None => vec![done(libc::SECCOMP_RET_ALLOW)],
        Some(Treatment::Missing) => vec![done(MISSING)],
        Some(Treatment::Refused) => vec![done(REFUSED)],
        Some(Treatment::RefusedIf(rules)) => {
            let mut program: BpfProgram = rules.iter().flat_map(|rule| compare(rule)).collect();
            program.push(done(libc::SECCOMP_RET_ALLOW));
            program
        }
    }
}

/// Refuses if all conditions hold, and goes on behind itself otherwise. Made from its end: each comparison jumps over
/// what follows it.
fn compare(rule: &[(u8, Condition)]) -> BpfProgram {
    let mut backwards = vec![done(REFUSED)];
    for (argument, condition) in rule.iter().rev() {
        // A rule has six conditions at most, of three instructions each.
        let past = u8::try_from(backwards.len()).unwrap_or(u8::MAX);
        match *condition {
            Condition::Is(value) => backwards.push(step(JUMP_EQUAL, value, 0, past)),
            Condition::IsNot(value) => backwards.push(step(JUMP_EQUAL, value, past, 0)),
            Condition::Has(bits) => backwards.push(step(JUMP_ANY_BIT, bits, 0, past)),
            Condition::Masked { mask, value } => {
                backwards.extend([step(JUMP_EQUAL, value, 0, past), step(AND, mask, 0, 0)]);
            }
        }
        backwards.push(step(LOAD, ARGUMENTS_AT + ARGUMENT_BYTES * u32::from(*argument), 0, 0));
    }
    backwards.reverse();
    backwards
}

const fn step(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

const fn done(action: u32) -> sock_filter {
    step(RETURN, action, 0, 0)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    const ARCHITECTURE: u32 = 7;

    /// What the kernel does with a program.
    fn run(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let jump = |holds| usize::from(if holds { jt } else { jf });
            match code {
                LOAD => {
                    value = match k {
                        NUMBER_AT => number,
                        ARCHITECTURE_AT => architecture,
                        at => u32::try_from(arguments[(at as usize - 16) / 8] & 0xffff_ffff).unwrap(),
                    }
                }
                AND => value &= k,
                JUMP => at += k as usize,
                JUMP_EQUAL => at += jump(value == k),
                JUMP_GREATER => at += jump(value > k),
                JUMP_NOT_LESS => at += jump(value >= k),
                JUMP_ANY_BIT => at += jump(value & k != 0),
                RETURN => return k,
                other => panic!("no such instruction: {other}"),
            }
        }
    }

    /// The same, straight from the rules.
    fn expected(calls: &Calls, newest: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let holds = |(argument, condition): &(u8, Condition)| {
            let value = u32::try_from(arguments[usize::from(*argument)] & 0xffff_ffff).unwrap();
            match *condition {
                Condition::Is(other) => value == other,
                Condition::IsNot(other) => value != other,
                Condition::Has(bits) => value & bits != 0,
                Condition::Masked { mask, value: wanted } => value & mask == wanted,
            }
        };
        match calls.0.get(&number) {
            _ if number > newest => MISSING,
            Some(Treatment::Missing) => MISSING,
            Some(Treatment::Refused) => REFUSED,
            Some(Treatment::RefusedIf(rules)) if rules.iter().any(|rule| rule.iter().all(holds)) => REFUSED,
            Some(Treatment::RefusedIf(_)) | None => libc::SECCOMP_RET_ALLOW,
        }
    }

    /// Checks a program against its rules, for each of these calls.
    pub(crate) fn check(calls: &Calls, newest: u32, asked: impl IntoIterator<Item = (u32, [u64; 6])>) {
        let program = calls.program(ARCHITECTURE, newest);
        for (number, arguments) in asked {
            let got = run(&program, ARCHITECTURE, number, arguments);
            assert_eq!(got, expected(calls, newest, number, arguments), "{number} {arguments:x?}");
            assert_eq!(run(&program, ARCHITECTURE + 1, number, arguments), libc::SECCOMP_RET_KILL_PROCESS);
        }
    }

    fn condition() -> impl Strategy<Value = Condition> {
        let value = || 0_u32..8;
        prop_oneof![
            value().prop_map(Condition::Is),
            value().prop_map(Condition::IsNot),
            value().prop_map(Condition::Has),
            (value(), value()).prop_map(|(mask, value)| Condition::Masked { mask, value }),
        ]
    }

    fn treatment() -> impl Strategy<Value = Treatment> {
        let rule = proptest::collection::vec((0_u8..6, condition()), 0..4);
        prop_oneof![
            Just(Treatment::Missing),
            Just(Treatment::Refused),
            proptest::collection::vec(rule, 0..6).prop_map(Treatment::RefusedIf),
        ]
    }

    proptest! {
        #[test]
        fn a_program_does_what_its_rules_say(
            calls in proptest::collection::btree_map(0_u32..60, treatment(), 0..60),
            asked in proptest::collection::vec((0_u32..64, proptest::array::uniform6(0_u64..8)), 20),
        ) {
            check(&Calls(calls), 50, asked);
        }
    }

    #[test]
    fn the_upper_half_of_an_argument_does_not_count() {
        let mut calls = Calls::default();
        calls.refuse_if(3, vec![(1, Condition::Is(5))]);
        let program = calls.program(ARCHITECTURE, 9);
        for high in [0, 1 << 32, u64::MAX << 32] {
            assert_eq!(run(&program, ARCHITECTURE, 3, [0, high | 5, 0, 0, 0, 0]), REFUSED);
        }
    }

    #[test]
    fn neighbours_that_are_treated_alike_are_one_range() {
        let length = |numbers: std::ops::Range<c_long>| {
            let mut calls = Calls::default();
            numbers.for_each(|call| calls.set(call, Treatment::Refused));
            calls.program(ARCHITECTURE, 50).len()
        };
        assert_eq!(length(3..4), length(3..30));
        assert!(length(0..4) < length(3..4), "there is nothing before the first");
    }

    #[test]
    fn what_is_refused_stays_so() {
        let mut calls = Calls::default();
        calls.set(3, Treatment::Refused);
        calls.refuse_if(3, vec![(0, Condition::Is(1))]);
        check(&calls, 9, [(3, [0; 6])]);
        assert_eq!(calls.0.get(&3), Some(&Treatment::Refused));
    }
}
