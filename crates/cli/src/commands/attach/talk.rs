//! What an attached command does with what is typed and with what happens in the session: decisions over values, nothing is
//! read or sent here.

use std::collections::{BTreeSet, VecDeque};

use session_core::RunId;
use session_core::ids::ApprovalId;
use session_core::run::RunPhase;

/// The most prompts that wait for the turn in flight.
pub(super) const QUEUE_MAX: usize = 100;

/// What can be typed beside prompts.
pub(super) const HELP: &str = "a line is the next prompt; /stop interrupts the turn (twice: at once), /detach or Ctrl-D leaves \
                               and lets it go on; a question is answered by y, a (always in this session) or n, `n TEXT` says \
                               why; //text is the prompt /text";

/// Who types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Typist {
    /// A person at a terminal, at any time.
    Person,
    /// A script: its next line is read when it can be dealt with.
    Script,
}

/// What was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    /// A line was typed.
    Line(String),
    /// Nothing more is typed.
    End,
    /// A prompt became this run.
    Sent(RunId),
    /// A prompt found the session busy with somebody else's run.
    Busy(String),
    /// A run came this far.
    Run(RunId, RunPhase),
    /// The agent asks for leave.
    Asked(ApprovalId),
    /// A question is closed, whoever answered it.
    Closed(ApprovalId),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// Make this prompt the next run.
    Send(String),
    /// End the turn in flight.
    Stop {
        /// Without asking first.
        now: bool,
    },
    /// Answer a question.
    Answer {
        /// Which.
        approval: ApprovalId,
        /// Yes or no.
        allow: bool,
        /// For the rest of the session.
        lasting: bool,
        /// What the agent is told with it.
        message: Option<String>,
    },
    /// Show this question.
    Ask(ApprovalId),
    /// Tell whoever types.
    Tell(String),
    /// End, and leave everything as it is.
    Leave,
}

/// Where the talk stands.
#[derive(Debug)]
pub(super) struct Talk {
    typist: Typist,
    /// Prompts that were not sent yet.
    queue: VecDeque<String>,
    /// The run that is not over.
    run: Option<RunId>,
    /// The next prompt is on its way.
    sending: bool,
    /// The last run that came of a prompt of this talk.
    own: Option<RunId>,
    /// Open questions, in the order in which they were asked.
    questions: VecDeque<ApprovalId>,
    /// Those that were answered, until the log says that they are closed.
    answered: BTreeSet<ApprovalId>,
    stop_asked: bool,
    ended: bool,
}

impl Talk {
    /// A talk in a session where this run is not over yet.
    pub(super) fn new(typist: Typist, run: Option<RunId>) -> Self {
        Self {
            typist,
            queue: VecDeque::new(),
            run,
            sending: false,
            own: None,
            questions: VecDeque::new(),
            answered: BTreeSet::new(),
            stop_asked: false,
            ended: false,
        }
    }

    /// Whether the next line may be read.
    pub(super) fn wants_line(&self) -> bool {
        match self.typist {
            _ if self.ended => false,
            Typist::Person => true,
            Typist::Script => self.is_quiet() || !self.questions.is_empty(),
        }
    }

    /// The last run that came of a prompt of this talk.
    pub(super) fn own(&self) -> Option<RunId> {
        self.own
    }

    /// What was typed and not sent.
    pub(super) fn unsent(&self) -> impl Iterator<Item = &str> {
        self.queue.iter().map(String::as_str)
    }

    fn is_quiet(&self) -> bool {
        self.run.is_none() && !self.sending && self.queue.is_empty()
    }

    /// What is to be done about what was heard, in order.
    pub(super) fn hear(&mut self, heard: Heard) -> Vec<Act> {
        let mut acts = match heard {
            Heard::Line(line) => self.line(line.trim()),
            Heard::End => {
                self.ended = true;
                if self.typist == Typist::Person { vec![Act::Leave] } else { Vec::new() }
            }
            Heard::Sent(run) => {
                (self.run, self.own, self.sending) = (Some(run), Some(run), false);
                Vec::new()
            }
            Heard::Busy(prompt) => {
                self.sending = false;
                self.queue.push_front(prompt);
                // Its own end says when to try again.
                return Vec::new();
            }
            Heard::Run(run, phase) => self.run(run, phase),
            Heard::Asked(approval) => self.asked(approval),
            Heard::Closed(approval) => self.closed(approval),
        };
        if acts.contains(&Act::Leave) {
            return acts;
        }
        if self.run.is_none() && !self.sending {
            if let Some(prompt) = self.queue.pop_front() {
                self.sending = true;
                acts.push(Act::Send(prompt));
            } else if self.ended {
                acts.push(Act::Leave);
            }
        }
        acts
    }

    fn line(&mut self, line: &str) -> Vec<Act> {
        if let Some(act) = self.answer(line) {
            let next = self.questions.front().copied().map(Act::Ask);
            return std::iter::once(act).chain(next).collect();
        }
        match line {
            "" => Vec::new(),
            "/help" => vec![Act::Tell(HELP.into())],
            "/detach" => vec![Act::Leave],
            "/stop" => self.stop(),
            prompt => {
                self.prompt(prompt.strip_prefix('/').filter(|rest| rest.starts_with('/')).unwrap_or(prompt))
            }
        }
    }

    /// What the line answers, where a question is open and it is an answer.
    fn answer(&mut self, line: &str) -> Option<Act> {
        let approval = *self.questions.front()?;
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let message = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned);
        let (allow, lasting) = match word {
            "y" | "yes" => (true, false),
            "a" | "always" => (true, true),
            "n" | "no" => (false, false),
            _ => return None,
        };
        // A yes has nothing to explain: what goes on behind it is a prompt that begins so.
        if allow && message.is_some() {
            return None;
        }
        self.questions.pop_front();
        self.answered.insert(approval);
        Some(Act::Answer { approval, allow, lasting, message })
    }

    fn prompt(&mut self, prompt: &str) -> Vec<Act> {
        if self.queue.len() >= QUEUE_MAX {
            return vec![Act::Tell(format!("not taken: {QUEUE_MAX} prompts wait already"))];
        }
        let waits = self.run.is_some() || self.sending;
        self.queue.push_back(prompt.to_owned());
        if !waits {
            return Vec::new();
        }
        let mut told = format!("(queued, {} before it) {prompt}", self.queue.len() - 1);
        if !self.questions.is_empty() {
            told.push_str("  (the question is answered by y, a or n)");
        }
        vec![Act::Tell(told)]
    }

    fn stop(&mut self) -> Vec<Act> {
        if self.run.is_none() {
            return vec![Act::Tell("nothing is running".into())];
        }
        let now = std::mem::replace(&mut self.stop_asked, true);
        let told = if now { "ending it at once …" } else { "stopping … (/stop again ends it at once)" };
        vec![Act::Tell(told.into()), Act::Stop { now }]
    }

    fn run(&mut self, run: RunId, phase: RunPhase) -> Vec<Act> {
        if !phase.is_ended() {
            self.run = Some(run);
        } else if self.run == Some(run) {
            (self.run, self.stop_asked) = (None, false);
        }
        Vec::new()
    }

    fn asked(&mut self, approval: ApprovalId) -> Vec<Act> {
        if self.questions.contains(&approval) || self.answered.contains(&approval) {
            return Vec::new();
        }
        self.questions.push_back(approval);
        if self.questions.len() == 1 { vec![Act::Ask(approval)] } else { Vec::new() }
    }

    fn closed(&mut self, approval: ApprovalId) -> Vec<Act> {
        self.answered.remove(&approval);
        let was_first = self.questions.front() == Some(&approval);
        self.questions.retain(|question| *question != approval);
        match self.questions.front() {
            Some(next) if was_first => vec![Act::Ask(*next)],
            Some(_) | None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use session_core::testing;

    use super::*;

    fn runs() -> [RunId; 2] {
        let (env, _) = testing::env();
        [env.run_id(), env.run_id()]
    }

    fn line(text: &str) -> Heard {
        Heard::Line(text.into())
    }

    fn send(text: &str) -> Act {
        Act::Send(text.into())
    }

    #[test]
    fn a_prompt_waits_for_the_turn_in_flight() {
        let [first, second] = runs();
        let mut talk = Talk::new(Typist::Person, Some(first));
        let told = talk.hear(line("more"));
        assert!(matches!(&told[..], [Act::Tell(text)] if text.contains("queued") && text.contains("more")));
        assert_eq!(talk.hear(Heard::Run(second, RunPhase::Completed)), [], "another one's end is nothing");
        assert_eq!(talk.hear(Heard::Run(first, RunPhase::Completed)), [send("more")]);
        assert!(matches!(&talk.hear(line("and"))[..], [Act::Tell(_)]));
        assert_eq!(talk.hear(Heard::Sent(second)), []);
        assert_eq!((talk.own(), talk.unsent().collect::<Vec<_>>()), (Some(second), vec!["and"]));
        assert_eq!(talk.hear(Heard::End), [Act::Leave], "a person leaves at once");
    }

    #[test]
    fn who_finds_the_session_busy_tries_again_in_order() {
        let [own, other] = runs();
        let mut talk = Talk::new(Typist::Person, None);
        assert_eq!(talk.hear(line("one")), [send("one")]);
        talk.hear(line("two"));
        assert_eq!(talk.hear(Heard::Busy("one".into())), []);
        assert_eq!(talk.hear(Heard::Run(other, RunPhase::Pending)), []);
        assert_eq!(talk.hear(Heard::Run(other, RunPhase::Failed)), [send("one")]);
        talk.hear(Heard::Sent(own));
        assert_eq!(talk.hear(Heard::Run(own, RunPhase::Completed)), [send("two")]);
    }

    #[test]
    fn a_script_says_its_next_line_when_it_can_be_dealt_with_and_ends_with_its_last_answer() {
        let [run, _] = runs();
        let (env, _) = testing::env();
        let question = env.approval_id();
        let mut talk = Talk::new(Typist::Script, None);
        assert!(talk.wants_line());
        assert_eq!(talk.hear(line("go")), [send("go")]);
        assert!(!talk.wants_line());
        talk.hear(Heard::Sent(run));
        assert_eq!(talk.hear(Heard::Asked(question)), [Act::Ask(question)]);
        assert!(talk.wants_line());
        let yes = Act::Answer { approval: question, allow: true, lasting: true, message: None };
        assert_eq!(talk.hear(line("a")), [yes]);
        assert!(!talk.wants_line(), "it is answered, whether or not the log says so yet");
        assert_eq!(talk.hear(Heard::Asked(question)), []);
        talk.hear(Heard::Closed(question));
        assert!(!talk.wants_line());
        assert_eq!(talk.hear(Heard::Run(run, RunPhase::Completed)), []);
        assert!(talk.wants_line());
        assert_eq!(talk.hear(Heard::End), [Act::Leave]);
        let mut early = Talk::new(Typist::Script, Some(run));
        assert_eq!(early.hear(Heard::End), []);
        assert_eq!(early.hear(Heard::Run(run, RunPhase::Stopped)), [Act::Leave]);
    }

    #[test]
    fn answers_are_told_from_prompts() {
        let [run, _] = runs();
        let (env, _) = testing::env();
        let (one, two) = (env.approval_id(), env.approval_id());
        let mut talk = Talk::new(Typist::Person, Some(run));
        assert!(matches!(&talk.hear(line("y"))[..], [Act::Tell(_)]), "nothing was asked");
        assert_eq!(talk.hear(Heard::Asked(one)), [Act::Ask(one)]);
        assert_eq!(talk.hear(Heard::Asked(two)), [], "one at a time");
        let no =
            Act::Answer { approval: one, allow: false, lasting: false, message: Some("not here".into()) };
        assert_eq!(talk.hear(line("n not here")), [no, Act::Ask(two)]);
        assert!(
            matches!(&talk.hear(line("yes we can"))[..], [Act::Tell(text)] if text.contains("y, a or n"))
        );
        assert_eq!(talk.hear(Heard::Closed(one)), []);
        assert_eq!(talk.hear(Heard::Closed(two)), []);
    }

    #[test]
    fn what_begins_with_a_slash_is_ours_or_the_agents() {
        let [run, _] = runs();
        let mut talk = Talk::new(Typist::Person, None);
        assert_eq!(talk.hear(line("/help")), [Act::Tell(HELP.into())]);
        assert!(matches!(&talk.hear(line("/stop"))[..], [Act::Tell(_)]));
        assert_eq!(talk.hear(line("/compact")), [send("/compact")]);
        talk.hear(Heard::Sent(run));
        assert!(matches!(&talk.hear(line("/stop"))[..], [Act::Tell(_), Act::Stop { now: false }]));
        assert!(matches!(&talk.hear(line("/stop"))[..], [Act::Tell(_), Act::Stop { now: true }]));
        talk.hear(line("//stop"));
        assert_eq!(talk.hear(Heard::Run(run, RunPhase::Stopped)), [send("/stop")]);
        assert_eq!(talk.hear(line("/detach")), [Act::Leave]);
    }

    proptest! {
        /// Whatever happens, no prompt is lost or said twice, and none is sent while a run is not over.
        #[test]
        fn every_prompt_is_sent_once_in_order_or_is_left(steps in proptest::collection::vec(0u8..5, 1..80)) {
            let (env, _) = testing::env();
            let mut talk = Talk::new(Typist::Person, None);
            let (mut typed, mut sent, mut running, mut on_its_way) = (0, Vec::new(), None, None);
            for step in steps {
                let heard = match step {
                    0 => {
                        typed += 1;
                        Heard::Line(format!("p{typed}"))
                    }
                    1 => match on_its_way.take() {
                        Some(prompt) => {
                            sent.push(prompt);
                            let run = env.run_id();
                            running = Some(run);
                            Heard::Sent(run)
                        }
                        None => continue,
                    },
                    2 => match on_its_way.take() {
                        Some(prompt) => {
                            talk.hear(Heard::Busy(prompt));
                            let run = env.run_id();
                            running = Some(run);
                            Heard::Run(run, RunPhase::Running)
                        }
                        None => continue,
                    },
                    3 => match running.take() {
                        Some(run) => Heard::Run(run, RunPhase::Failed),
                        None => continue,
                    },
                    _ => Heard::Line("/stop".into()),
                };
                for act in talk.hear(heard) {
                    if let Act::Send(prompt) = act {
                        prop_assert!(running.is_none() && on_its_way.is_none());
                        on_its_way = Some(prompt);
                    }
                }
            }
            let left = on_its_way.into_iter().chain(talk.unsent().map(str::to_owned));
            let all: Vec<String> = sent.into_iter().chain(left).collect();
            let expected: Vec<String> = (1..=typed).map(|number| format!("p{number}")).collect();
            prop_assert_eq!(all, expected);
        }
    }
}
