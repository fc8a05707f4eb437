//! What is left when a host or a keeper dies, and how it is found and ended.

use rustix::process::Signal;
use session_runner::process::orphans::end_run;
use session_runner::process::{
    EndCause, Exit, KeeperSpec, KeeperState, LivingKeeper, OnHostLoss, RunEnd, RunOutcome, RunReport,
    recover_keeper,
};

use crate::fixture::{
    Place, block_on, ids, living, named_in, other_host, run, settled, start, this_program, until_ended,
    until_line,
};

/// How many processes of the tree stay at the least.
const STAY: usize = 4;
/// Three processes and a daemon, all of them deaf.
const TREE: &str = "trap '' TERM; sleep 1000 & sleep 1000 & ( setsid sh -c 'trap \"\" TERM; echo ok; sleep 1000; :' & ) | \
    { read ok; echo ready; }; wait";

pub(crate) fn the_death_of_the_host_ends_the_tree() {
    let place = Place::new();
    let mut spec = place.script("echo ready; ( setsid sleep 1000 & ); while :; do sleep 1000 & wait; done");
    spec.grace_ms = 5_000;
    let (mut host, keeper) = other_host(this_program(), &place, &spec, "ready");
    assert!(matches!(recover_keeper(&spec.state_file, spec.run).unwrap(), KeeperState::Alive(_)));
    host.kill();
    until_ended(&keeper);
    let end = recorded(&spec);
    assert_eq!((end.exit, end.cause, end.survivors), (Some(Exit::Signal(15)), EndCause::HostLost, 0));
    assert_eq!(living(spec.run), []);
}

pub(crate) fn an_adopted_run_outlives_its_host_and_can_be_stopped() {
    for kill in [false, true] {
        let place = Place::new();
        let mut spec = place.script("trap 'exit 9' TERM; echo ready; while :; do sleep 1000 & wait; done");
        spec.on_host_loss = OnHostLoss::Adopt;
        let (mut host, _) = other_host(this_program(), &place, &spec, "ready");
        host.kill();
        let keeper = alive(&spec);
        assert!(keeper.record().child.as_ref().unwrap().is_alive().unwrap());
        let state = block_on(async {
            assert!(if kill { keeper.kill() } else { keeper.stop() }.unwrap());
            keeper.wait().await.unwrap()
        });
        let KeeperState::Ended(RunOutcome::Ended(end)) = state else { panic!("{state:?}") };
        let expect =
            if kill { (Exit::Signal(9), EndCause::Killed) } else { (Exit::Code(9), EndCause::Stopped) };
        assert_eq!((end.exit, end.cause), (Some(expect.0), expect.1));
        assert!(!keeper.stop().unwrap(), "it has ended");
        assert_eq!(living(spec.run), []);
    }
}

pub(crate) fn an_adopted_run_ends_by_itself_and_is_recorded() {
    let place = Place::new();
    let mut spec = place.script("echo ready; read wait < go; echo after; exit 2");
    spec.on_host_loss = OnHostLoss::Adopt;
    assert!(crate::fixture::program("mkfifo").arg(place.path.join("go")).status().unwrap().success());
    let (mut host, _) = other_host(this_program(), &place, &spec, "ready");
    host.kill();
    let keeper = alive(&spec);
    std::fs::write(place.path.join("go"), "\n").unwrap();
    let state = block_on(keeper.wait()).unwrap();
    assert!(matches!(state, KeeperState::Ended(RunOutcome::Ended(_))), "{state:?}");
    let end = recorded(&spec);
    assert_eq!((end.exit, end.cause), (Some(Exit::Code(2)), EndCause::Exited));
    assert_eq!(end.output.last_line.as_deref(), Some("after"), "no output is lost with the host");
    assert!(place.stdout().ends_with("after\n"));
}

pub(crate) fn a_killed_keeper_is_noticed_and_its_tree_ended() {
    let place = Place::new();
    let spec = place.script(&format!(
        "( setsid env -i PATH=/usr/bin:/bin sh -c 'echo $$ > bare.tmp; mv bare.tmp bare; sleep 1000; :' >/dev/null 2>&1 & ); \
         while [ ! -e bare ]; do :; done; {TREE}"
    ));
    block_on(async {
        let mut run = start(&spec).await;
        until_line(&mut run, "ready").await;
        let bare = named_in(&place.path.join("bare")).remove(0);
        // These stay; others are on their way, and may have gone by themselves when they are looked for.
        settled(spec.run, STAY);
        assert!(run.keeper().signal(Signal::KILL).unwrap());
        let ended = loop {
            match run.next_report().await.unwrap() {
                Some(RunReport::KeeperLost(ended)) => break ended,
                Some(RunReport::Progress(_)) => {}
                other => panic!("{other:?}"),
            }
        };
        assert!(ended.killed >= STAY && ended.survivors == 0, "{ended:?}");
        assert_eq!(run.next_report().await.unwrap(), None);
        assert_eq!(living(spec.run), []);
        // One that has cleared its environment and left its parents is found by the cgroup alone.
        if run.cgroups().is_empty() {
            bare.signal(Signal::KILL).unwrap();
        } else {
            assert!(!bare.is_alive().unwrap());
        }
        assert!(run.cgroups().iter().all(|group| !group.exists()), "the cgroup is gone too");
    });
}

pub(crate) fn the_death_of_host_and_keeper_leaves_what_recovery_ends() {
    let place = Place::new();
    let spec = place.script(TREE);
    let (mut host, keeper) = other_host(this_program(), &place, &spec, "ready");
    // First the host is held, so that it cannot see what happens to its keeper.
    let host_identity =
        session_runner::process::ProcessIdentity::of(i32::try_from(host.0.id()).unwrap()).unwrap().unwrap();
    host_identity.signal(Signal::STOP).unwrap();
    keeper.signal(Signal::KILL).unwrap();
    until_ended(&keeper);
    host.kill();
    let state = recover_keeper(&spec.state_file, spec.run).unwrap();
    let KeeperState::Gone(Some(record)) = state else { panic!("{state:?}") };
    // These stay; others are on their way, and may have gone by themselves when they are looked for.
    settled(spec.run, STAY);
    let ended = end_run(spec.run, &record.cgroups).unwrap();
    assert!(ended.killed >= STAY && ended.survivors == 0, "{ended:?}");
    assert_eq!(living(spec.run), []);
    let again = end_run(spec.run, &record.cgroups).unwrap();
    assert_eq!((again.killed, again.survivors), (0, 0));
}

pub(crate) fn a_state_file_of_another_run_says_nothing() {
    let place = Place::new();
    let spec = place.script("exit 1");
    assert_eq!(recover_keeper(&spec.state_file, spec.run).unwrap(), KeeperState::Never);
    let end = run(&spec);
    assert_eq!(recorded(&spec), end);
    assert_eq!(recover_keeper(&spec.state_file, ids().1).unwrap(), KeeperState::Never);
    std::fs::write(&spec.state_file, "{\"v\":1,").unwrap();
    assert_eq!(recover_keeper(&spec.state_file, spec.run).unwrap(), KeeperState::Gone(None));
}

fn alive(spec: &KeeperSpec) -> LivingKeeper {
    let state = recover_keeper(&spec.state_file, spec.run).unwrap();
    let KeeperState::Alive(keeper) = state else { panic!("{state:?}") };
    keeper
}

fn recorded(spec: &KeeperSpec) -> RunEnd {
    let state = recover_keeper(&spec.state_file, spec.run).unwrap();
    let KeeperState::Ended(RunOutcome::Ended(end)) = state else { panic!("{state:?}") };
    end
}
