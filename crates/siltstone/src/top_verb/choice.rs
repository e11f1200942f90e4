//! Servers of this user, and the choice of one of them.

use super::app::Effect;
use super::link::{Heard, Link, wait};
use crate::control::place;
use crate::control::protocol::Request;
use crate::failure::Failure;
use crate::table::plain;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Modifier, Style};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Time within which servers have to answer to be described.
const LIMIT: Duration = Duration::from_secs(2);

/// Server that listens on a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Control socket.
    pub path: PathBuf,
    /// Stack and process, or the reason for which they aren't known.
    pub text: String,
}

/// Asks all servers of this user at the same time.
///
/// # Errors
/// Errors of the kernel.
pub fn servers() -> Result<Vec<Candidate>, Failure> {
    let mut links: Vec<Link> =
        place::stack_sockets().into_iter().map(|path| Link::new(path, Request::Status)).collect();
    links.iter_mut().for_each(Link::ask);
    let until = runtime::now() + LIMIT;
    let mut found = Vec::new();
    while !links.is_empty() && runtime::now() < until {
        links.retain_mut(|link| {
            let text = match link.turn() {
                // A killed server has left its socket.
                Ok(Heard::Nothing) => return !link.is_lost(),
                Ok(Heard::Ended) => return false,
                Ok(Heard::Answer(status)) => described(&status),
                Ok(Heard::Refused(why)) => why,
                Err(failure) => failure.to_string(),
            };
            found.push(Candidate { path: link.path().to_owned(), text: plain(&text) });
            false
        });
        let descriptors: Vec<_> = links.iter().filter_map(Link::descriptor).collect();
        if !links.is_empty() {
            wait(&descriptors, runtime::now() + Duration::from_millis(50))?;
        }
    }
    let silent = links.iter().map(|link| Candidate {
        path: link.path().to_owned(),
        text: "a server that doesn't answer".to_owned(),
    });
    found.extend(silent);
    found.sort_by(|one, other| (&one.text, &one.path).cmp(&(&other.text, &other.path)));
    Ok(found)
}

fn described(status: &Value) -> String {
    let server = &status["server"];
    let stack = server["stack"].as_str().unwrap_or("a stack");
    format!("{stack}, process {}", server["process"])
}

/// List of servers on a terminal.
pub struct Choice {
    candidates: Vec<Candidate>,
    selected: usize,
}

impl Choice {
    /// Creates the list, with the first one selected.
    pub fn new(candidates: Vec<Candidate>) -> Choice {
        Choice { candidates, selected: 0 }
    }

    /// Returns the selected server.
    pub fn into_selected(mut self) -> Option<Candidate> {
        (self.selected < self.candidates.len()).then(|| self.candidates.swap_remove(self.selected))
    }

    /// Carries out a key.
    pub fn key(&mut self, key: KeyEvent) -> Effect {
        if key.kind == KeyEventKind::Release {
            return Effect::Nothing;
        }
        match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            (KeyCode::Char('c'), true) => return Effect::Interrupt,
            (KeyCode::Char('z'), true) => return Effect::Suspend,
            (KeyCode::Char('q') | KeyCode::Esc, _) => return Effect::Quit,
            (KeyCode::Enter | KeyCode::Right, _) => return Effect::Chosen,
            (KeyCode::Down | KeyCode::Char('j'), _) => self.selected += 1,
            (KeyCode::Up | KeyCode::Char('k'), _) => self.selected = self.selected.saturating_sub(1),
            (KeyCode::Home, _) => self.selected = 0,
            (KeyCode::End, _) => self.selected = usize::MAX,
            _ => {}
        }
        self.selected = self.selected.min(self.candidates.len().saturating_sub(1));
        Effect::Nothing
    }

    /// Draws the list.
    pub fn draw(&self, buffer: &mut Buffer) {
        let area = buffer.area;
        let width = usize::from(area.width);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut put = |line: usize, text: &str, style: Style| {
            if line < usize::from(area.height) {
                buffer.set_stringn(area.x, area.y + line as u16, text, width, style);
            }
        };
        put(0, "siltstone top  choose a server: ↑ ↓, enter; q quits", bold);
        let height = usize::from(area.height).saturating_sub(2);
        let first = (self.selected + 1).saturating_sub(height);
        for (number, candidate) in self.candidates.iter().enumerate().skip(first).take(height) {
            let is_selected = number == self.selected;
            let mark = if is_selected { "›" } else { " " };
            let style = if is_selected { bold } else { Style::new() };
            put(2 + number - first, &format!("{mark} {}", candidate.text), style);
        }
    }
}
