//! The memory of a process and of what it has started, but for the servers.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

/// In kilobytes, what is shared parted among those who share it (PSS).
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Of the process.
    pub own: f64,
    /// With that of all it has started, but for the servers.
    pub all: f64,
}

/// The memory of a process and of its tree.
pub fn of_tree(root: u32) -> Memory {
    let servers = std::env::current_exe().unwrap();
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let own = pss(root);
    let (mut all, mut left) = (own, children.remove(&root).unwrap_or_default());
    while let Some(pid) = left.pop() {
        left.extend(children.remove(&pid).unwrap_or_default());
        if program(pid).is_some_and(|program| program != servers) {
            all += pss(pid);
        }
    }
    Memory { own, all }
}

fn program(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Nothing of what has gone meanwhile.
fn pss(pid: u32) -> f64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = smaps.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
