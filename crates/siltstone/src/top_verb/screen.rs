//! The screen of `siltstone top` on a terminal: it is drawn, waits for keys, samples and signals at the same
//! time, and leaves the terminal as it was, however it ends.
//!
//! Ctrl-C and Ctrl-Z are keys, as the terminal is in raw mode. SIGTERM, SIGTSTP and SIGCONT from elsewhere
//! are noted by their handlers and carried out here within a second. A terminal that is closed ends the
//! program, by SIGHUP or by the error of [`Screen::key`]: crossterm would read its end for ever.

use super::app::{App, Effect};
use super::choice::{Candidate, Choice};
use super::draw;
use super::link::wait;
use super::sampler::{News, Sampler};
use crate::failure::Failure;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, disable_raw_mode, enable_raw_mode};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use signal_hook::consts::{SIGCONT, SIGTERM, SIGTSTP};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time to the first rates: the first of all intervals is no longer.
const FIRST: Duration = Duration::from_millis(500);

/// Whether keys can be read and a screen be drawn.
pub fn is_possible() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Terminal in raw mode, restored when this is dropped. A panic restores it before its message.
pub struct Screen {
    terminal: DefaultTerminal,
    signals: Signals,
}

struct Signals {
    stop: Arc<AtomicBool>,
    suspend: Arc<AtomicBool>,
    continued: Arc<AtomicBool>,
}

/// Reason for which waiting ended.
enum Woken {
    /// Time, bytes of the server, or a changed size of the terminal.
    Turn,
    Key(KeyEvent),
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.terminal.show_cursor();
        ratatui::restore();
    }
}

fn terminal_failed(error: &std::io::Error) -> Failure {
    Failure::World(format!(
        "standard output: {error}; expected a terminal that can be drawn on; --batch prints plain lines"
    ))
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn new() -> Result<Screen, Failure> {
        let flag = |signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, flag.clone())?;
            std::io::Result::Ok(flag)
        };
        let signals = || -> std::io::Result<Signals> {
            Ok(Signals { stop: flag(SIGTERM)?, suspend: flag(SIGTSTP)?, continued: flag(SIGCONT)? })
        };
        let signals = signals().map_err(|error| terminal_failed(&error))?;
        let terminal = ratatui::try_init().map_err(|error| {
            ratatui::restore();
            terminal_failed(&error)
        })?;
        Ok(Screen { terminal, signals })
    }

    /// Waits for a key, the server, a signal, or the time `until`.
    fn wait(&mut self, sampler: Option<&Sampler>) -> Result<Woken, Failure> {
        if let Some(key) = self.key()? {
            return Ok(Woken::Key(key));
        }
        let stdin = rustix::stdio::stdin();
        let until = sampler.map_or_else(|| runtime::now() + FIRST, Sampler::wake_at);
        let server = sampler.and_then(Sampler::descriptor);
        let descriptors: Vec<_> = [stdin].into_iter().chain(server).collect();
        wait(&descriptors, until)?;
        let taken = |flag: &AtomicBool| flag.swap(false, Ordering::Relaxed);
        if taken(&self.signals.stop) {
            return Err(Failure::Interrupted);
        }
        if taken(&self.signals.suspend) {
            self.suspend(false)?;
        } else if taken(&self.signals.continued) {
            self.resume().map_err(|error| terminal_failed(&error))?;
        }
        Ok(self.key()?.map_or(Woken::Turn, Woken::Key))
    }

    /// Returns the next key that has been typed. A changed size is found when drawing.
    fn key(&self) -> Result<Option<KeyEvent>, Failure> {
        let mut polled = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
        let _ = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        if polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Err(Failure::World("standard input: the terminal has been closed".into()));
        }
        let next = || {
            while event::poll(Duration::ZERO)? {
                if let Event::Key(key) = event::read()? {
                    return Ok(Some(key));
                }
            }
            Ok(None)
        };
        next().map_err(|error: std::io::Error| terminal_failed(&error))
    }

    /// Gives the terminal back to the shell until it continues the program. `of_key` stops the whole group,
    /// as the terminal's own key would.
    fn suspend(&mut self, of_key: bool) -> Result<(), Failure> {
        let _ = self.terminal.show_cursor();
        ratatui::restore();
        if of_key {
            let _ = rustix::process::kill_current_process_group(Signal::TSTP);
        }
        // The handler has noted SIGTSTP instead of stopping.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        self.signals.suspend.store(false, Ordering::Relaxed);
        self.signals.continued.store(false, Ordering::Relaxed);
        self.resume().map_err(|error| terminal_failed(&error))
    }

    /// Takes the terminal again, whose modes the shell may have changed.
    fn resume(&mut self) -> std::io::Result<()> {
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(std::io::stdout(), EnterAlternateScreen)?;
        self.terminal.clear()
    }

    /// Lets users choose one of several servers; `None` if they quit.
    ///
    /// # Errors
    /// [`Failure::Interrupted`]; errors of the terminal.
    pub fn choose(&mut self, candidates: Vec<Candidate>) -> Result<Option<Candidate>, Failure> {
        let mut choice = Choice::new(candidates);
        loop {
            let drawn = self.terminal.draw(|frame| choice.draw(frame.buffer_mut()));
            drawn.map_err(|error| terminal_failed(&error))?;
            let Woken::Key(key) = self.wait(None)? else { continue };
            match choice.key(key) {
                Effect::Nothing | Effect::Interval => {}
                Effect::Interrupt => return Err(Failure::Interrupted),
                Effect::Suspend => self.suspend(true)?,
                Effect::Quit => return Ok(None),
                Effect::Chosen => return Ok(choice.into_selected()),
            }
        }
    }

    /// Shows a server until it ends or users quit.
    ///
    /// # Errors
    /// The server has ended, or answers with something else; [`Failure::Interrupted`]; errors of the
    /// terminal.
    pub fn show(&mut self, sampler: &mut Sampler) -> Result<(), Failure> {
        let mut app = App::new(sampler.interval());
        loop {
            match sampler.turn()? {
                News::Nothing => {}
                News::Sample(sample) => {
                    let is_first = app.sample.is_none();
                    app.take(*sample);
                    if is_first {
                        sampler.hasten(FIRST);
                    }
                }
                News::Refused(why) => app.note = Some(why),
            }
            app.late = sampler.late();
            let drawn = self.terminal.draw(|frame| draw::draw(&mut app, frame.buffer_mut()));
            drawn.map_err(|error| terminal_failed(&error))?;
            let Woken::Key(key) = self.wait(Some(sampler))? else { continue };
            match app.key(key) {
                Effect::Nothing | Effect::Chosen => {}
                Effect::Interval => sampler.set_interval(app.interval),
                Effect::Suspend => self.suspend(true)?,
                Effect::Quit => return Ok(()),
                Effect::Interrupt => return Err(Failure::Interrupted),
            }
        }
    }
}
