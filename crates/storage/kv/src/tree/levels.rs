//! Tables of a tree by level.

use super::tables::Table;
use std::rc::Rc;

/// Tables of a shard, by level. Level 0 has overlapping tables, newest first; tables of other levels are
/// sorted and disjoint.
#[derive(Debug, Clone, Default)]
pub struct Levels(pub Vec<Vec<Rc<Table>>>);

impl Levels {
    /// Sorts tables into levels.
    pub fn of(tables: impl IntoIterator<Item = Rc<Table>>) -> Self {
        let mut levels = Levels::default();
        for table in tables {
            let level = usize::from(table.meta.level);
            if levels.0.len() <= level {
                levels.0.resize_with(level + 1, Vec::new);
            }
            levels.0[level].push(table);
        }
        for (number, level) in levels.0.iter_mut().enumerate() {
            match number {
                0 => level.sort_by_key(|table| std::cmp::Reverse(table.meta.id)),
                _ => level.sort_by(|a, b| a.meta.summary.smallest.cmp(&b.meta.summary.smallest)),
            }
        }
        levels
    }

    /// All tables, level by level.
    pub fn all(&self) -> impl Iterator<Item = &Rc<Table>> {
        self.0.iter().flatten()
    }
}
