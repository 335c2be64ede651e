//! Cycles and longest paths in a graph of needs: for each task, by index, the tasks that it needs.

use std::time::Duration;

/// One cycle for each knot of tasks that need each other, as the indices along it: `[a, b]` for a -> b -> a. A task on
/// none of them needs none of them, or only from outside.
pub fn cycles(needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        Not,
        OnPath,
        Done,
    }
    let mut seen = vec![Seen::Not; needs.len()];
    let mut cycles = Vec::new();
    for root in 0..needs.len() {
        // The path from the root to where the walk stands, and which need of each is next. No recursion: a suite may
        // be one long chain.
        let mut path = if seen[root] == Seen::Not { vec![(root, 0)] } else { Vec::new() };
        while let Some((task, next)) = path.last_mut() {
            seen[*task] = Seen::OnPath;
            let Some(&need) = needs[*task].get(*next) else {
                seen[*task] = Seen::Done;
                path.pop();
                continue;
            };
            *next += 1;
            match seen[need] {
                Seen::Not => path.push((need, 0)),
                Seen::OnPath => {
                    let from = path.iter().position(|&(task, _)| task == need).expect("what is on the path is in it");
                    cycles.push(path[from..].iter().map(|&(task, _)| task).collect());
                }
                Seen::Done => {}
            }
        }
    }
    cycles
}

/// The longest path by the sum of `lengths`, first task first, and that sum. `needs` must be free of cycles.
pub fn longest_path(needs: &[Vec<usize>], lengths: &[Duration]) -> (Vec<usize>, Duration) {
    let mut ends: Vec<Option<(Duration, Option<usize>)>> = vec![None; needs.len()];
    for root in 0..needs.len() {
        let mut open = vec![root];
        while let Some(&task) = open.last() {
            let missing: Vec<usize> = needs[task].iter().copied().filter(|&need| ends[need].is_none()).collect();
            if missing.is_empty() {
                let before = needs[task].iter().filter_map(|&need| Some((ends[need]?.0, need))).max();
                let (start, from) = before.map_or((Duration::ZERO, None), |(end, need)| (end, Some(need)));
                ends[task] = Some((start.saturating_add(lengths[task]), from));
                open.pop();
            }
            open.extend(missing);
        }
    }
    let at = |task: usize| ends[task].expect("every task has its end by now");
    let mut path = Vec::new();
    let mut next = (0..needs.len()).max_by_key(|&task| (at(task).0, std::cmp::Reverse(task)));
    let length = next.map_or(Duration::ZERO, |task| at(task).0);
    while let Some(task) = next {
        path.push(task);
        next = at(task).1;
    }
    path.reverse();
    (path, length)
}
