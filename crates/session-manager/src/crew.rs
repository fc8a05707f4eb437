//! The order of a crew: tasks that wait for each other by name.

use std::collections::{HashMap, VecDeque};

use thiserror::Error;

/// Why tasks cannot be ordered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CrewError {
    /// Two tasks have one name.
    #[error("two tasks are named {0:?}")]
    DuplicateName(String),
    /// A task waits for one that is not there.
    #[error("task {task:?} is to come after {after:?}, and there is no task of that name")]
    UnknownName {
        /// The one that waits.
        task: String,
        /// The name it waits for.
        after: String,
    },
    /// Tasks wait for each other in a circle.
    #[error("tasks wait for each other in a circle: {}", .0.join(" after "))]
    Cycle(Vec<String>),
}

/// A task as far as its order is concerned.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Its name; tasks without one cannot be waited for.
    pub name: Option<&'a str>,
    /// The names of the tasks that must complete before it.
    pub after: &'a [String],
}

/// Where a task stands in the order, and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Its index among the tasks as given.
    pub task: usize,
    /// The places in the order (all before its own) that it waits for.
    pub after: Vec<usize>,
}

/// An order in which every task stands behind those it waits for; otherwise the given order is kept.
pub fn order(nodes: &[Node<'_>]) -> Result<Vec<Placed>, CrewError> {
    let waits_for = resolve(nodes)?;
    let mut missing: Vec<usize> = waits_for.iter().map(Vec::len).collect();
    let mut waited_by: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (task, dependencies) in waits_for.iter().enumerate() {
        for &dependency in dependencies {
            waited_by[dependency].push(task);
        }
    }
    let mut ready: VecDeque<usize> = (0..nodes.len()).filter(|&task| missing[task] == 0).collect();
    let mut place = vec![None; nodes.len()];
    let mut placed = Vec::with_capacity(nodes.len());
    while let Some(task) = ready.pop_front() {
        place[task] = Some(placed.len());
        let after = waits_for[task].iter().filter_map(|&dependency| place[dependency]).collect();
        placed.push(Placed { task, after });
        for &next in &waited_by[task] {
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.push_back(next);
            }
        }
    }
    if placed.len() < nodes.len() {
        return Err(CrewError::Cycle(circle(nodes, &waits_for, &place)));
    }
    Ok(placed)
}

/// Names to indexes; a name that is given twice in one `after` counts once.
fn resolve(nodes: &[Node<'_>]) -> Result<Vec<Vec<usize>>, CrewError> {
    let mut by_name = HashMap::new();
    for (task, node) in nodes.iter().enumerate() {
        if let Some(name) = node.name
            && by_name.insert(name, task).is_some()
        {
            return Err(CrewError::DuplicateName(name.into()));
        }
    }
    let resolve_one = |(task, node): (usize, &Node<'_>)| {
        let mut dependencies = Vec::new();
        for after in node.after {
            let &dependency = by_name
                .get(after.as_str())
                .ok_or_else(|| CrewError::UnknownName { task: name_of(nodes, task), after: after.clone() })?;
            if !dependencies.contains(&dependency) {
                dependencies.push(dependency);
            }
        }
        Ok(dependencies)
    };
    nodes.iter().enumerate().map(resolve_one).collect()
}

/// One circle among the tasks that could not be placed, from a task back to itself.
fn circle(nodes: &[Node<'_>], waits_for: &[Vec<usize>], place: &[Option<usize>]) -> Vec<String> {
    let unplaced = |task: &usize| place[*task].is_none();
    let Some(start) = (0..nodes.len()).find(|task| unplaced(task)) else { return Vec::new() };
    let mut path = vec![start];
    // Each task that could not be placed waits for another such one, so the walk meets itself.
    while let Some(next) = path.last().and_then(|&task| waits_for[task].iter().copied().find(unplaced)) {
        if let Some(from) = path.iter().position(|&task| task == next) {
            path.push(next);
            return path[from..].iter().map(|&task| name_of(nodes, task)).collect();
        }
        path.push(next);
    }
    Vec::new()
}

fn name_of(nodes: &[Node<'_>], task: usize) -> String {
    nodes[task].name.map_or_else(|| format!("#{}", task + 1), Into::into)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(tasks: &[(&str, &[&str])], expect: Result<&[&str], &str>) {
        let afters: Vec<Vec<String>> =
            tasks.iter().map(|(_, after)| after.iter().map(|&name| name.into()).collect()).collect();
        let nodes: Vec<_> =
            tasks.iter().zip(&afters).map(|((name, _), after)| Node { name: Some(name), after }).collect();
        match (order(&nodes), expect) {
            (Ok(placed), Ok(names)) => {
                let got: Vec<_> = placed.iter().map(|placed| tasks[placed.task].0).collect();
                assert_eq!(got, names);
            }
            (Err(error), Err(reason)) => assert_eq!(error.to_string(), reason),
            (got, want) => panic!("{got:?}, expected {want:?}"),
        }
    }

    #[test]
    fn tasks_come_after_what_they_wait_for() {
        check(&[("a", &[]), ("b", &[])], Ok(&["a", "b"]));
        check(&[("c", &["a", "b"]), ("a", &[]), ("b", &["a", "a"])], Ok(&["a", "b", "c"]));
        check(&[("a", &["a"])], Err("tasks wait for each other in a circle: a after a"));
        check(
            &[("x", &[]), ("a", &["b"]), ("b", &["c"]), ("c", &["a"])],
            Err("tasks wait for each other in a circle: a after b after c after a"),
        );
        check(&[("a", &["z"])], Err("task \"a\" is to come after \"z\", and there is no task of that name"));
        check(&[("a", &[]), ("a", &[])], Err("two tasks are named \"a\""));
    }

    proptest! {
        #[test]
        fn every_order_is_complete_and_sound(edges in prop::collection::vec((0_usize..12, 0_usize..12), 0..30)) {
            let names: Vec<String> = (0..12).map(|n| n.to_string()).collect();
            // Edges that lead to smaller numbers only: no circle is possible.
            let after: Vec<Vec<String>> = (0..12)
                .map(|n| edges.iter().filter(|&&(a, b)| a == n && b < n).map(|&(_, b)| names[b].clone()).collect())
                .collect();
            let nodes: Vec<_> =
                names.iter().zip(&after).map(|(name, after)| Node { name: Some(name), after }).rev().collect();
            let placed = order(&nodes).unwrap();
            prop_assert_eq!(placed.len(), nodes.len());
            for (place, task) in placed.iter().enumerate() {
                prop_assert!(task.after.iter().all(|&before| before < place));
                for wanted in nodes[task.task].after {
                    prop_assert!(task.after.iter().any(|&at| nodes[placed[at].task].name == Some(wanted)));
                }
            }
        }
    }
}
