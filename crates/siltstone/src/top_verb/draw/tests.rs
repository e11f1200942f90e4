use super::*;
use crate::top_verb::app::{Effect, column};
use crate::top_verb::sample::Sample;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;
use std::time::Duration;

fn recorded(text: &str) -> Sample {
    Sample::parse(serde_json::from_str(text).unwrap()).unwrap()
}

/// Screen after two samples; the disk is nearly full.
fn app() -> App {
    let mut app = App::new(Duration::from_secs(2));
    let fullness = json!({ "used_bytes": 87, "limit_bytes": 100, "percent": 87, "warned_at": "80%" });
    for text in [include_str!("../rows/first.json"), include_str!("../rows/second.json")] {
        let mut sample = recorded(text);
        sample.status["devices"]["disk"]["fullness"] = fullness.clone();
        app.take(sample);
    }
    app
}

fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(app, frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let cells = buffer.content().chunks(usize::from(width).max(1));
    cells
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned())
        .collect()
}

fn press(app: &mut App, code: KeyCode) -> Effect {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn names(app: &App) -> Vec<&str> {
    app.shown().iter().map(|row| row.name.as_str()).collect()
}

#[test]
fn eighty_columns() {
    let text = screen(&mut app(), 80, 24).join("\n");
    assert_eq!(text.trim_end(), include_str!("screen.txt").trim_end(), "{text}");
}

#[test]
fn a_wide_screen_has_kinds_and_a_bar() {
    let lines = screen(&mut app(), 120, 40);
    assert!(lines[4].contains("kind") && lines[4].contains("aqu"), "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.contains("ram") && line.contains("87%") && line.contains('█')),
        "{lines:#?}"
    );
    let mut app = app();
    press(&mut app, KeyCode::Down);
    assert!(screen(&mut app, 120, 40)[6].starts_with('›'));
    press(&mut app, KeyCode::Enter);
    let details = screen(&mut app, 120, 40).join("\n");
    for expected in ["part \"vol\", log", "calls in the last interval", "latency of read", "█", "status"] {
        assert!(details.contains(expected), "{expected}: {details}");
    }
}

#[test]
fn a_tiny_screen_has_rows() {
    let lines = screen(&mut app(), 20, 5);
    assert!(lines[0].starts_with("siltstone top") && lines[2].contains("part"), "{lines:#?}");
    assert!(lines[1].contains("87.0 %") || lines[1].contains("full"), "{lines:#?}");
    assert!(lines[4].contains("vol") && lines[2].contains("r/s"), "{lines:#?}");
}

/// Every size and page is drawn without a panic, with hostile names as well.
#[test]
fn any_size_of_any_page() {
    let mut hostile = app();
    let mut sample = recorded(include_str!("../rows/second.json"));
    sample.parts[0].part = "\u{1b}[2J\u{301}漢字漢字漢字漢字漢字漢字漢字\n".repeat(20);
    sample.nanoseconds += 1;
    hostile.take(sample);
    hostile.late = Some(7);
    for key in [KeyCode::F(1), KeyCode::Enter, KeyCode::Char('h'), KeyCode::Char('s')] {
        for mut app in [app(), App::new(Duration::from_secs(1))]
            .into_iter()
            .chain([std::mem::replace(&mut hostile, self::app())])
        {
            press(&mut app, key);
            press(&mut app, KeyCode::PageDown);
            for (width, height) in
                (0..130).step_by(7).flat_map(|width| (0..14).map(move |height| (width, height)))
            {
                let lines = screen(&mut app, width, height);
                assert!(lines.iter().all(|line| !line.contains('\u{1b}')));
            }
        }
    }
}

#[test]
fn names_are_shortened() {
    let cut = |width, is_door| shortened("unix:/tmp/book/vol.sock", width, is_door);
    assert_eq!((cut(23, true), cut(16, true)), ("unix:/tmp/book/vol.sock".into(), "…/book/vol.sock".into()));
    assert_eq!((cut(5, true), cut(5, false), cut(0, true)), ("…sock".into(), "unix…".into(), "".into()));
}

#[test]
fn keys_sort_and_hide() {
    let mut app = app();
    screen(&mut app, 120, 40);
    assert_eq!(names(&app)[1..], ["vol", "disk"], "the order of the stack");
    press(&mut app, KeyCode::Char('<'));
    assert_eq!(app.sort, None);
    press(&mut app, KeyCode::Char('>'));
    press(&mut app, KeyCode::Char('>'));
    assert_eq!(app.sort, Some(column("w/s")));
    let figures =
        |app: &App| app.shown().iter().map(|row| (column("w/s").figure)(row).unwrap()).collect::<Vec<_>>();
    assert!(figures(&app).is_sorted_by(|one, other| one >= other), "{:?}", figures(&app));
    press(&mut app, KeyCode::Char('r'));
    assert!(figures(&app).is_sorted(), "{:?}", figures(&app));
    assert!(screen(&mut app, 80, 24)[0].contains("w/s ▲"));
    press(&mut app, KeyCode::Char('t'));
    assert_eq!((app.sort, app.is_reversed), (None, false));
    for row in &mut app.rows {
        (row.rates, row.in_flight) = (None, None);
    }
    press(&mut app, KeyCode::Char('i'));
    assert!(app.shown().is_empty() && screen(&mut app, 80, 24).join("").contains("i shows all"));
}

#[test]
fn intervals_are_typed() {
    let mut app = app();
    let typed = |app: &mut App, text: &str| {
        press(app, KeyCode::Char('s'));
        for letter in text.chars() {
            press(app, KeyCode::Char(letter));
        }
        press(app, KeyCode::Enter)
    };
    assert_eq!((typed(&mut app, "500ms"), app.interval), (Effect::Interval, Duration::from_millis(500)));
    assert_eq!((typed(&mut app, "1.5"), app.interval), (Effect::Interval, Duration::from_millis(1500)));
    for wrong in ["", "50ms", "2h", "q", "-1", "1e300"] {
        assert_eq!(
            (typed(&mut app, wrong), app.interval),
            (Effect::Nothing, Duration::from_millis(1500)),
            "{wrong}"
        );
        assert!(app.note.as_ref().is_some_and(|note| note.contains("expected")), "{wrong}");
    }
}

#[test]
fn a_pause_keeps_the_figures_and_messages_tell_what_is_wrong() {
    let mut app = app();
    let before = app.rows.clone();
    press(&mut app, KeyCode::Char(' '));
    app.take(recorded(include_str!("../rows/first.json")));
    assert_eq!(app.rows, before);
    app.late = Some(5);
    let lines = screen(&mut app, 80, 24);
    assert!(lines[0].contains("paused") && lines[3].contains("no answer for 5 s"), "{lines:#?}");
    press(&mut app, KeyCode::Char(' '));
    app.late = None;
    app.take(recorded(include_str!("../rows/first.json")));
    let lines = screen(&mut app, 80, 24);
    assert!(lines[3].contains("started again") && lines[2].contains("the first rates follow"), "{lines:#?}");
    let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
    assert_eq!([app.key(control('c')), app.key(control('z'))], [Effect::Interrupt, Effect::Suspend]);
    assert_eq!(press(&mut app, KeyCode::Char('q')), Effect::Quit);
}
