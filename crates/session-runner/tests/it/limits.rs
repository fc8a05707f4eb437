//! What a whole tree may use up, in a sandbox or not.

use std::fs;

use sandbox::{Gap, Holder, Level};
use session_runner::process::protocol::SpecError;
use session_runner::process::{
    Applied, CgroupPreference, EndCause, Exit, Hold, KeeperSpec, LimitHit, RunEnd, SpawnError, Supervised,
    TreeLimits, usable_cgroups,
};

use crate::fixture::{Place, block_on, end, keeper_program, living, own, start};

const MIB: u64 = 1 << 20;
/// Where a run is: without a sandbox, or at a level.
const SETTINGS: [Option<Level>; 3] = [None, Some(Level::Floor), Some(Level::Full)];

/// Whether nobody here is root with a cgroup to write to: some containers have none.
fn no_group_for_root() -> bool {
    !rustix::process::getuid().is_root() || usable_cgroups().is_empty()
}

pub(crate) fn memory_of_the_whole_tree_is_held() {
    for setting in SETTINGS {
        let limits = TreeLimits { memory_bytes: Some(96 * MIB), ..TreeLimits::default() };
        // Each of them alone would have room.
        let script = "\"$0\" __program allocate 64 1; exit 3";
        let (_place, spec) = scripted(setting, limits, script);
        let (applied, end) = run(&spec);
        assert_eq!(living(spec.run), [], "{setting:?}");
        match applied.cgroup.memory {
            Hold::Held { group } => {
                assert_eq!(end.limit, Some(LimitHit::Memory), "{setting:?} {end:?}");
                assert!(!group.exists(), "{group} is removed");
                let gaps = applied.report.map(|report| report.gaps).unwrap_or_default();
                assert!(!gaps.contains(&Gap::MemorySum), "{gaps:?}");
            }
            Hold::Missing { why } => {
                assert_eq!((end.exit, end.limit), (Some(Exit::Code(3)), None));
                assert!(no_group_for_root(), "root can have a cgroup: {why}");
            }
            Hold::NotAsked => panic!("it was asked for"),
        }
    }
}

pub(crate) fn processes_of_the_whole_tree_are_held() {
    for setting in SETTINGS {
        let limits = TreeLimits { processes: Some(20), ..TreeLimits::default() };
        let script =
            "i=0; while [ $i -lt 60 ]; do i=$((i+1)); sleep 1000 & done 2>/dev/null; echo started; exit 0";
        let (place, spec) = scripted(setting, limits, script);
        let (applied, end) = run(&spec);
        assert_eq!((end.survivors, living(spec.run)), (0, vec![]), "{setting:?}");
        match applied.cgroup.processes {
            Hold::Held { .. } => {
                assert_ne!(
                    end.exit,
                    Some(Exit::Code(0)),
                    "a shell that cannot fork gives up: {}",
                    place.stdout()
                );
                assert!(!place.stdout().contains("started"));
                if let Some(report) = applied.report {
                    assert_eq!(report.processes_held_by, Holder::Cgroup);
                }
            }
            Hold::Missing { why } => {
                assert_eq!(end.exit, Some(Exit::Code(0)));
                assert!(no_group_for_root(), "root can have a cgroup: {why}");
            }
            Hold::NotAsked => panic!("it was asked for"),
        }
    }
}

pub(crate) fn a_tree_that_writes_too_much_is_killed() {
    for setting in SETTINGS {
        for by in ["itself", "children", "daemons"] {
            let limits = TreeLimits { write_bytes: Some(64 * MIB), ..TreeLimits::default() };
            let (_place, mut spec) = scripted(setting, limits, "");
            spec.argv = own(&["fill-disk", by, "8", "and-wait"]);
            let (applied, end) = run(&spec);
            assert!(applied.write_budget);
            assert_eq!(end.limit, Some(LimitHit::Writes), "{setting:?} {by}: {end:?}");
            assert_eq!((end.exit, end.cause), (Some(Exit::Signal(9)), EndCause::Limit), "{setting:?} {by}");
            assert_eq!((end.survivors, living(spec.run)), (0, vec![]), "{setting:?} {by}");
        }
    }
}

pub(crate) fn what_is_within_its_limits_is_left_alone() {
    for setting in SETTINGS {
        let limits =
            TreeLimits { memory_bytes: Some(512 * MIB), processes: Some(100), write_bytes: Some(256 * MIB) };
        let (place, mut spec) = scripted(setting, limits, "");
        spec.argv = own(&["fill-disk", "children", "2", "and-end"]);
        let (_, end) = run(&spec);
        assert_eq!(
            (end.exit, end.cause, end.limit),
            (Some(Exit::Code(0)), EndCause::Exited, None),
            "{setting:?}"
        );
        assert_eq!(place.stdout(), "filled\n");
        // What the keeper writes to the log is not the program's.
        let limits = TreeLimits { write_bytes: Some(MIB), ..TreeLimits::default() };
        let (_place, mut spec) = scripted(setting, limits, "");
        spec.argv = own(&["lines", "20"]);
        let (_, end) = run(&spec);
        assert_eq!((end.exit, end.limit), (Some(Exit::Code(0)), None), "{setting:?}");
    }
}

pub(crate) fn limits_that_are_not_held_say_why() {
    let place = Place::new();
    let limits = TreeLimits { memory_bytes: Some(64 * MIB), processes: Some(50), write_bytes: None };
    let spec = KeeperSpec { limits, cgroup: CgroupPreference::Off, ..place.script("exit 0") };
    let (applied, end) = run(&spec);
    assert_eq!((end.exit, applied.write_budget), (Some(Exit::Code(0)), false));
    for hold in [applied.cgroup.memory, applied.cgroup.processes] {
        assert_eq!(hold, Hold::Missing { why: "cgroups are switched off for this run".into() });
    }
    let limits = TreeLimits { processes: Some(1), ..limits };
    match block_on(Supervised::start(&keeper_program(), &KeeperSpec { limits, ..spec })) {
        Err(SpawnError::Spec(SpecError::Limit { name: "processes", given: 1, min: 8 })) => {}
        other => panic!("nothing can run in one process: {other:?}"),
    }
}

fn scripted(setting: Option<Level>, limits: TreeLimits, script: &str) -> (Place, KeeperSpec) {
    let place = Place::new();
    let program = own(&[]).remove(0);
    let spec = place.spec(&["sh", "-c", script, &program]);
    let spec = match setting {
        None => spec,
        Some(level) => place.in_sandbox(level, spec),
    };
    fs::create_dir_all(place.work()).unwrap();
    (place, KeeperSpec { limits, ..spec })
}

fn run(spec: &KeeperSpec) -> (Applied, RunEnd) {
    block_on(async {
        let mut run = start(spec).await;
        let applied = run.applied().unwrap().clone();
        (applied, end(&mut run).await)
    })
}
