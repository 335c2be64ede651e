//! Which CPU slots of the pool are given to whom: exact indices, because a task is pinned to the CPUs behind them.

/// The slots of a pool, by index.
#[derive(Debug, Clone)]
pub struct Pool {
    free: Vec<bool>,
    left: usize,
}

impl Pool {
    /// A pool of `size` free slots.
    pub fn new(size: usize) -> Self {
        Self { free: vec![true; size], left: size }
    }

    /// How many are free.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Takes `count` free slots, ascending. Side by side where there is such a gap, beginning at an even index if it
    /// can be, and as low as possible: CPUs are listed with the threads of a core beside each other, so that a task of
    /// two gets a whole core, not halves of two. At most `left` may be asked for.
    pub fn take(&mut self, count: usize) -> Vec<usize> {
        assert!(count <= self.left, "{count} slots asked for, {} are free", self.left);
        // gap[i]: how many slots are free from i on.
        let mut gap = vec![0; self.free.len() + 1];
        for i in (0..self.free.len()).rev() {
            gap[i] = if self.free[i] { gap[i + 1] + 1 } else { 0 };
        }
        let fits = |i: &usize| gap[*i] >= count;
        let whole_cores = (0..self.free.len()).step_by(2).find(fits).filter(|_| count > 1);
        let taken: Vec<usize> = match whole_cores.or_else(|| (0..self.free.len()).find(fits)) {
            Some(first) => (first..first + count).collect(),
            None => (0..self.free.len()).filter(|&i| self.free[i]).take(count).collect(),
        };
        taken.iter().for_each(|&i| self.free[i] = false);
        self.left -= count;
        taken
    }

    /// Gives slots back.
    pub fn give(&mut self, slots: &[usize]) {
        for &i in slots {
            assert!(!self.free[i], "slot {i} is given back twice");
            self.free[i] = true;
        }
        self.left += slots.len();
    }
}
