//! State of the screen of `siltstone top`: rows, their order, and the keys. Nothing here waits.

use super::columns::{Column, layout};
use super::rows::{Row, rows};
use super::sample::Sample;
use crate::arguments::parse_interval;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::time::Duration;

/// Longest text of a new interval.
const MAX_TYPED: usize = 12;

/// State of the screen.
pub struct App {
    /// Interval between two samples.
    pub interval: Duration,
    /// Newest sample that is shown.
    pub sample: Option<Sample>,
    /// Sample before it.
    pub before: Option<Sample>,
    /// Newest sample while the screen is paused.
    pub held: Option<Sample>,
    /// Sample from which on the latencies of the details are counted.
    pub origin: Option<Sample>,
    /// Rows in the order of the tree.
    pub rows: Vec<Row>,
    /// Column by which the rows are sorted; `None` for the order of the tree.
    pub sort: Option<&'static Column>,
    /// Whether the smallest comes first.
    pub is_reversed: bool,
    /// Whether parts without calls are hidden.
    pub hides_idle: bool,
    /// Whether the shown figures stay.
    pub is_paused: bool,
    /// Number of the selected row, as shown.
    pub selected: usize,
    /// Shown page.
    pub page: Page,
    /// Message about the server, or about a wrong key.
    pub note: Option<String>,
    /// Seconds for which the server hasn't answered.
    pub late: Option<u64>,
    /// Width of the screen.
    pub width: u16,
}

/// Shown page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Page {
    /// Table of the parts.
    Table,
    /// Table, and a new interval that is being typed.
    Interval(String),
    /// A door or a part, and the first shown line.
    Details { name: String, is_door: bool, scroll: u16 },
    /// Keys and columns, and the first shown line.
    Help(u16),
}

/// Effect of a key outside of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// None.
    Nothing,
    /// The interval has changed.
    Interval,
    /// The selected server is chosen.
    Chosen,
    /// End, with q.
    Quit,
    /// End, with Ctrl-C.
    Interrupt,
    /// Stop until the shell continues the program.
    Suspend,
}

impl App {
    /// Creates the state before the first sample.
    pub fn new(interval: Duration) -> App {
        App {
            interval,
            sample: None,
            before: None,
            held: None,
            origin: None,
            rows: Vec::new(),
            sort: None,
            is_reversed: false,
            hides_idle: false,
            is_paused: false,
            selected: 0,
            page: Page::Table,
            note: None,
            late: None,
            width: 80,
        }
    }

    /// Takes a sample, unless the screen is paused.
    pub fn take(&mut self, sample: Sample) {
        self.note = None;
        if self.is_paused {
            self.held = Some(sample);
            return;
        }
        // Rates after a pause are those of one interval.
        self.sample = self.held.take().or(self.sample.take());
        if self.sample.as_ref().is_some_and(|before| !sample.continues(before)) {
            self.note = Some("the server was started again: counting from then on".to_owned());
            self.origin = None;
        }
        self.rows = rows(self.sample.as_ref(), &sample);
        self.origin.get_or_insert_with(|| sample.clone());
        self.before = self.sample.replace(sample);
        self.select(self.selected);
    }

    /// Returns the rows as shown: in the order of the tree or sorted, without hidden ones.
    pub fn shown(&self) -> Vec<&Row> {
        let is_idle =
            |row: &Row| row.rates.is_none_or(|rates| rates.is_idle()) && row.in_flight.unwrap_or(0) == 0;
        let mut shown: Vec<&Row> =
            self.rows.iter().filter(|row| !(self.hides_idle && is_idle(row))).collect();
        let Some(column) = self.sort else { return shown };
        shown.retain(|row| !row.is_repeated);
        let figure = |row: &Row| (column.figure)(row).unwrap_or(-1.0);
        shown.sort_by(|one, other| figure(other).total_cmp(&figure(one)));
        if self.is_reversed {
            shown.reverse();
        }
        shown
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.shown().len().saturating_sub(1));
    }

    /// Carries out a key.
    pub fn key(&mut self, key: KeyEvent) -> Effect {
        if key.kind == KeyEventKind::Release {
            return Effect::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Effect::Interrupt,
                KeyCode::Char('z') => Effect::Suspend,
                _ => Effect::Nothing,
            };
        }
        self.note = None;
        match &mut self.page {
            Page::Table => self.key_of_table(key.code),
            Page::Interval(_) => self.key_of_interval(key.code),
            Page::Details { scroll, .. } | Page::Help(scroll) => {
                match key.code {
                    KeyCode::Down | KeyCode::Char('j') => *scroll = scroll.saturating_add(1),
                    KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
                    KeyCode::PageDown => *scroll = scroll.saturating_add(10),
                    KeyCode::PageUp => *scroll = scroll.saturating_sub(10),
                    KeyCode::Home => *scroll = 0,
                    KeyCode::Char('z') => self.origin = self.sample.clone(),
                    KeyCode::Char(' ') => self.is_paused = !self.is_paused,
                    KeyCode::Char('q' | 'h' | '?') | KeyCode::Esc | KeyCode::Left | KeyCode::Enter => {
                        self.page = Page::Table;
                    }
                    _ => {}
                }
                Effect::Nothing
            }
        }
    }

    fn key_of_table(&mut self, key: KeyCode) -> Effect {
        match key {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('h' | '?') => self.page = Page::Help(0),
            KeyCode::Char('s' | 'd') => self.page = Page::Interval(String::new()),
            KeyCode::Char('<') => self.move_sort(-1),
            KeyCode::Char('>') => self.move_sort(1),
            KeyCode::Char('r' | 'R') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('t') => (self.sort, self.is_reversed) = (None, false),
            KeyCode::Char('i') => self.hides_idle = !self.hides_idle,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('z') => self.origin = self.sample.clone(),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::PageDown => self.select(self.selected + 10),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Enter | KeyCode::Right => {
                if let Some(row) = self.shown().get(self.selected) {
                    self.page = Page::Details { name: row.name.clone(), is_door: row.is_door, scroll: 0 };
                }
            }
            KeyCode::Char(other) => {
                self.note = Some(format!("key {:?} has no meaning here: h for help", other));
            }
            _ => {}
        }
        self.select(self.selected);
        Effect::Nothing
    }

    fn key_of_interval(&mut self, key: KeyCode) -> Effect {
        let Page::Interval(typed) = &mut self.page else { return Effect::Nothing };
        match key {
            KeyCode::Char(letter) if typed.len() < MAX_TYPED && !letter.is_control() => typed.push(letter),
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Esc => self.page = Page::Table,
            KeyCode::Enter => {
                let interval = parse_interval(typed.trim());
                self.page = Page::Table;
                match interval {
                    Ok(interval) => {
                        self.interval = interval;
                        return Effect::Interval;
                    }
                    Err(what) => self.note = Some(what),
                }
            }
            _ => {}
        }
        Effect::Nothing
    }

    /// Moves the sort column among the visible ones; the order of the tree is left of the first.
    fn move_sort(&mut self, step: isize) {
        let visible = layout(usize::from(self.width).saturating_sub(1), &self.rows).columns;
        let position = self.sort.and_then(|sort| visible.iter().position(|column| *column == sort));
        let at = position.map_or(0, |position| position as isize + 1);
        let at = (at + step).clamp(0, visible.len() as isize);
        self.sort = usize::try_from(at - 1).ok().map(|column| visible[column]);
    }
}

/// Returns the column with this title.
#[cfg(test)]
pub fn column(title: &str) -> &'static Column {
    super::columns::COLUMNS.iter().find(|column| column.title == title).unwrap()
}
