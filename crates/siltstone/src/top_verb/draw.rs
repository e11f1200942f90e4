//! Drawing of the screen of `siltstone top`. All texts of the server are made plain before they are drawn.
//!
//! Colours only repeat what the text says; the terminal shows none if `NO_COLOR` is set.

use super::app::{App, Page};
use super::columns::{Layout, count, layout, mebibytes, shortened};
use super::details;
use super::rows::{Row, total};
use crate::table::plain;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use serde_json::Value;

/// Height from which on the screen has all lines of the head, and the line of keys.
const TALL: u16 = 10;

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const HEADING: Style = Style::new().add_modifier(Modifier::REVERSED);
const WARNING: Style = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// A part of the screen, whose lines are written from the top.
struct Pen<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    line: u16,
}

impl Pen<'_> {
    fn is_full(&self) -> bool {
        self.line >= self.area.height
    }

    /// Writes a text at a column of the present line, cut at the edge.
    fn put(&mut self, column: usize, text: &str, style: Style) {
        let column = u16::try_from(column).unwrap_or(u16::MAX);
        if !self.is_full() && column < self.area.width {
            let (x, y) = (self.area.x + column, self.area.y + self.line);
            self.buffer.set_stringn(x, y, text, usize::from(self.area.width - column), style);
        }
    }

    /// Writes a text that ends before a column.
    fn put_right(&mut self, end: usize, text: &str, style: Style) {
        self.put(end.saturating_sub(text.chars().count()), text, style);
    }

    fn next_line(&mut self) {
        self.line = self.line.saturating_add(1);
    }

    fn line(&mut self, text: &str, style: Style) {
        self.put(0, text, style);
        self.next_line();
    }
}

/// Draws the screen.
pub fn draw(app: &mut App, buffer: &mut Buffer) {
    let area = buffer.area;
    app.width = area.width;
    let is_tall = area.height >= TALL;
    let foot = u16::from(is_tall);
    let mut pen = Pen { buffer, area: Rect { height: area.height - foot, ..area }, line: 0 };
    head(app, &mut pen, is_tall);
    match app.page.clone() {
        Page::Table | Page::Interval(_) => table(app, &mut pen),
        Page::Details { name, is_door, scroll } => {
            let lines = details::lines(app, &name, is_door, usize::from(area.width));
            let scroll = page(&mut pen, &lines, scroll);
            app.page = Page::Details { name, is_door, scroll };
        }
        Page::Help(scroll) => app.page = Page::Help(page(&mut pen, &details::help(), scroll)),
    }
    if is_tall {
        let mut pen = Pen { buffer, area: Rect { y: area.bottom() - 1, height: 1, ..area }, line: 0 };
        pen.line(keys(app), FAINT);
    }
}

fn keys(app: &App) -> &'static str {
    match &app.page {
        Page::Table => "q quit  h help  enter details  < > sort  t tree  i idle  s interval  space pause",
        Page::Interval(_) => "enter sets the interval, such as 500ms or 2; esc leaves it",
        Page::Details { .. } => "q back  ↑ ↓ scroll  z count latencies from now  space pause",
        Page::Help(_) => "q back  ↑ ↓ scroll",
    }
}

/// Writes the lines from line `scroll` that fit. Returns `scroll`, limited so that the page is full.
fn page(pen: &mut Pen<'_>, lines: &[String], scroll: u16) -> u16 {
    let height = pen.area.height.saturating_sub(pen.line);
    let last = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(height);
    let scroll = scroll.min(last);
    for line in lines.iter().skip(usize::from(scroll)).take(usize::from(height)) {
        let style = if line.starts_with(' ') || line.is_empty() { PLAIN } else { BOLD };
        pen.line(line, style);
    }
    scroll
}

/// Writes the name of the stack, its server, the total of the doors, and a message.
fn head(app: &App, pen: &mut Pen<'_>, is_tall: bool) {
    let width = usize::from(pen.area.width);
    let order = match app.sort {
        None => "tree".to_owned(),
        Some(column) => format!("{} {}", column.title, if app.is_reversed { "▲" } else { "▼" }),
    };
    let pause = if app.is_paused { "paused, " } else { "" };
    let right = format!("{pause}{order}, every {}", stack::format_duration(app.interval));
    let room = width.saturating_sub(right.chars().count() + 2);
    pen.put(0, &shortened(&title(app), if room > 20 { room } else { width }, false), BOLD);
    if room > 20 {
        pen.put_right(width, &right, if app.is_paused { WARNING } else { PLAIN });
    }
    pen.next_line();
    let message = message(app);
    if is_tall {
        pen.line(&shortened(&server(app), width, false), PLAIN);
        pen.line(&shortened(&totals(app), width, false), PLAIN);
    }
    match message {
        Some((text, style)) => pen.line(&shortened(&text, width, false), style),
        None if is_tall => pen.next_line(),
        None => {}
    }
}

fn title(app: &App) -> String {
    let stack = app.sample.as_ref().and_then(|sample| sample.server("stack")?.as_str());
    format!("siltstone top  {}", plain(stack.unwrap_or("")))
}

fn server(app: &App) -> String {
    let Some(sample) = &app.sample else { return "waiting for the server".to_owned() };
    let number = |key| sample.server(key).and_then(Value::as_u64);
    let mut words = Vec::new();
    words.extend(number("process").map(|process| format!("process {process}")));
    words.extend(number("up_seconds").map(|seconds| format!("up {}", age(seconds))));
    words.extend(number("shards").map(|shards| match shards {
        1 => "1 shard".to_owned(),
        several => format!("{several} shards"),
    }));
    words.join(", ")
}

/// Formats an age: `42 s`, `3 min`, `5:07 h`, `3 d 5:07 h`.
fn age(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min"),
        3600..86_400 => format!("{hours}:{minutes:02} h"),
        _ => format!("{days} d {hours}:{minutes:02} h"),
    }
}

/// Rates of the doors together.
fn totals(app: &App) -> String {
    if app.rows.iter().all(|row| row.rates.is_none()) {
        return "the first rates follow".to_owned();
    }
    let sum = total(&app.rows);
    let errors = if sum.errors > 0.0 { format!("   {} errors/s", count(sum.errors)) } else { String::new() };
    format!(
        "read {}/s {} MiB/s   write {}/s {} MiB/s   other {}/s{errors}",
        count(sum.reads),
        mebibytes(sum.read_bytes),
        count(sum.writes),
        mebibytes(sum.write_bytes),
        count(sum.others),
    )
}

/// Most urgent message: the interval that is typed, a late server, a note, errors, fullness.
fn message(app: &App) -> Option<(String, Style)> {
    if let Page::Interval(typed) = &app.page {
        return Some((format!("interval [{}]: {typed}▏", stack::format_duration(app.interval)), BOLD));
    }
    if let Some(seconds) = app.late {
        return Some((format!("no answer for {seconds} s: is the server stopped?"), ALARM));
    }
    if let Some(note) = &app.note {
        return Some((plain(note), WARNING));
    }
    let warned = app.rows.iter().filter_map(|row| {
        let fullness = row.fullness.as_ref()?;
        let at = fullness.warned_at.as_ref()?;
        Some(format!("{} is {:.1} % full, warning level {at}", plain(&row.name), fullness.percent))
    });
    let warned: Vec<String> = warned.collect();
    (!warned.is_empty()).then(|| (warned.join("; "), WARNING))
}

fn table(app: &App, pen: &mut Pen<'_>) {
    let width = usize::from(pen.area.width);
    let shown = app.shown();
    // The first column has the mark of the selected row.
    let layout = layout(width.saturating_sub(1), &app.rows);
    heading(app, pen, &layout);
    let height = usize::from(pen.area.height.saturating_sub(pen.line));
    let first = (app.selected + 1).saturating_sub(height);
    for (number, row) in shown.iter().enumerate().skip(first).take(height) {
        line(app, pen, &layout, row, number == app.selected);
    }
    if shown.is_empty() && app.sample.is_some() {
        pen.line(if app.hides_idle { " no part has calls: i shows all" } else { " no parts" }, FAINT);
    }
}

fn heading(app: &App, pen: &mut Pen<'_>, layout: &Layout) {
    let width = usize::from(pen.area.width);
    pen.put(0, &" ".repeat(width), HEADING);
    pen.put(1, "part", HEADING);
    let mut end = 1 + layout.name;
    if layout.kind > 0 {
        pen.put(end + 1, "kind", HEADING);
        end += 1 + layout.kind;
    }
    for column in &layout.columns {
        end += 1 + column.width;
        let is_sorted = app.sort == Some(column);
        let style = if is_sorted { BOLD.add_modifier(Modifier::UNDERLINED) } else { HEADING };
        pen.put_right(end, column.title, style);
    }
    pen.next_line();
}

fn line(app: &App, pen: &mut Pen<'_>, layout: &Layout, row: &Row, is_selected: bool) {
    let base = if is_selected { BOLD } else { PLAIN };
    if is_selected {
        pen.put(0, "›", BOLD);
    }
    let is_tree = app.sort.is_none();
    let name = plain(&row.name);
    let branch = if is_tree { row.branch.as_str() } else { "" };
    let room = layout.name.saturating_sub(branch.chars().count());
    pen.put(1, &shortened(branch, layout.name, false), FAINT);
    let style = if row.is_repeated { FAINT } else { base };
    pen.put(1 + branch.chars().count(), &shortened(&name, room, row.is_door), style);
    let mut end = 1 + layout.name;
    if row.is_repeated {
        pen.put(end + 1, "see above", FAINT);
        return pen.next_line();
    }
    if layout.kind > 0 {
        pen.put(end + 1, &shortened(&plain(&row.kind), layout.kind, false), FAINT);
        end += 1 + layout.kind;
    }
    for column in &layout.columns {
        end += 1 + column.width;
        let figure = (column.figure)(row);
        let style = match (column.title, figure) {
            (_, None | Some(0.0)) => FAINT,
            ("err/s", Some(_)) => ALARM,
            ("full", Some(_)) => fullness_style(row).patch(base),
            _ => base,
        };
        pen.put_right(end, &figure.map_or_else(|| "-".to_owned(), column.text), style);
    }
    if let (true, Some(fullness)) = (layout.bar > 0, &row.fullness) {
        let filled = (fullness.percent.clamp(0.0, 100.0) / 100.0 * layout.bar as f64).round() as usize;
        pen.put(end + 1, &"█".repeat(filled), fullness_style(row));
        pen.put(end + 1 + filled, &"░".repeat(layout.bar - filled), FAINT);
    }
    pen.next_line();
}

fn fullness_style(row: &Row) -> Style {
    match &row.fullness {
        Some(fullness) if fullness.percent >= 99.0 => ALARM,
        Some(fullness) if fullness.warned_at.is_some() => WARNING,
        _ => PLAIN,
    }
}

#[cfg(test)]
mod tests;
