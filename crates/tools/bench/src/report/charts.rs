//! Charts of a workload: bars, latency curves, and the ratios to a baseline.
//!
//! Every card is as wide as a phone's screen and is placed beside others if there is space. Lines and bars
//! are labelled directly; peers are dashed, so that they don't differ only by colour.

use super::Palette;
use super::svg::{Anchor, Scale, Svg, spread_out};
use crate::latency::CurvePoint;
use crate::results::{Comparison, Figure, Results, RunResult, median};
use crate::table::Verdict;
use crate::units;

pub(super) const WIDTH: f64 = 360.0;
pub(super) const HEIGHT: f64 = 232.0;
/// Plotting area of charts with axes. The labels of the lines are at its right.
pub(super) const LEFT: f64 = 54.0;
pub(super) const RIGHT: f64 = WIDTH - 76.0;
pub(super) const TOP: f64 = 16.0;
pub(super) const BOTTOM: f64 = HEIGHT - 40.0;

/// Class of a line: its colour, and dashes for peers.
pub(super) fn class(kind: &str, palette: &Palette, subject: &str) -> String {
    let dashed = if palette.is_peer(subject) { " peer" } else { "" };
    format!("{kind} s{}{dashed}", palette.index(subject))
}

/// Shortens a name to fit beside a line.
pub(super) fn short(name: &str, letters: usize) -> String {
    match name.chars().count() <= letters {
        true => name.into(),
        false => name.chars().take(letters - 1).chain(['…']).collect(),
    }
}

/// Shortens a name but keeps its end: for names with a common beginning.
fn both_ends(name: &str, letters: usize) -> String {
    let count = name.chars().count();
    let (begin, end) = ((letters - 1) / 2, letters / 2);
    match count <= letters {
        true => name.into(),
        false => name.chars().take(begin).chain(['…']).chain(name.chars().skip(count - end)).collect(),
    }
}

/// Draws bars of the median of a figure, with a dot for every repetition; `None` if no subject has the
/// figure.
pub(super) fn bars(results: &Results, workload: &str, palette: &Palette, figure: Figure) -> Option<String> {
    const ROW: f64 = 42.0;
    let say = |value: f64| figure.say(value);
    let subjects = results.subjects(workload);
    let of_runs = results.runs.iter().filter(|run| run.workload.name == workload);
    let highest = of_runs.filter_map(|run| figure.of(&run.measurement)).fold(0.0, f64::max);
    if highest <= 0.0 {
        return None;
    }
    let mut svg =
        Svg::new(WIDTH, 4.0 + ROW * subjects.len() as f64, &format!("{}, {workload}", figure.title()));
    let x = Scale::linear((0.0, highest), (0.0, WIDTH - 8.0));
    for (row, subject) in subjects.iter().enumerate() {
        let top = ROW * row as f64;
        let runs: Vec<_> = results
            .of(workload, subject)
            .filter_map(|run| Some((run.repetition, figure.of(&run.measurement)?)))
            .collect();
        svg.text("label strong", Anchor::Start, (0.0, top + 13.0), short(subject, 26));
        let Some(middle) = results.median_of(workload, subject, figure) else {
            svg.text("label soft", Anchor::End, (WIDTH - 8.0, top + 13.0), "no figure");
            continue;
        };
        let spread = crate::table::spread(results, workload, subject, figure);
        let spread = spread.map_or_else(String::new, |spread| format!("  ±{spread:.1} %"));
        svg.text("label", Anchor::End, (WIDTH - 8.0, top + 13.0), format!("{}{spread}", say(middle)));
        let tip = format!("{subject}: {} {}, median of {}", figure.title(), say(middle), runs.len());
        svg.rect("track", (0.0, top + 18.0), (WIDTH - 8.0, 16.0), "");
        svg.rect(&class("bar", palette, subject), (0.0, top + 18.0), (x.at(middle), 16.0), &tip);
        for (repetition, value) in runs {
            let tip = format!("{subject}, repetition {repetition}: {} {}", figure.title(), say(value));
            svg.circle("dot hit", (x.at(value), top + 26.0), 3.0, &tip);
        }
    }
    Some(svg.finish())
}

/// Position of a percentile: each nine has the same width.
fn nines(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).max(1e-9).log10()
}

/// Median of the repetitions' curves, with the lowest and the highest, point by point.
fn pooled(runs: &[&RunResult]) -> Vec<(CurvePoint, u64, u64)> {
    let Some(first) = runs.iter().map(|run| &run.measurement.curve).max_by_key(|curve| curve.len()) else {
        return Vec::new();
    };
    let at = |percent: f64| -> Vec<f64> {
        let curves = runs.iter().flat_map(|run| &run.measurement.curve);
        curves.filter(|point| point.percent == percent).map(|point| point.ns as f64).collect()
    };
    let point = |percent: f64| {
        let values = at(percent);
        let (low, high) =
            values.iter().fold((f64::MAX, 0.0_f64), |(low, high), it| (low.min(*it), high.max(*it)));
        median(&values).map(|ns| (CurvePoint { percent, ns: ns as u64 }, low as u64, high as u64))
    };
    first.iter().filter_map(|it| point(it.percent)).collect()
}

/// Draws latency over percentiles, both axes logarithmic.
pub(super) fn latency(results: &Results, workload: &str, palette: &Palette) -> Option<String> {
    let subjects = results.subjects(workload);
    let curves: Vec<_> = subjects
        .iter()
        .map(|subject| (subject, pooled(&results.of(workload, subject).collect::<Vec<_>>())))
        .filter(|(_, curve)| curve.len() > 1)
        .collect();
    let all = || curves.iter().flat_map(|(_, curve)| curve);
    let low = all().map(|(_, low, _)| *low).min()?.max(1) as f64;
    let high = all().map(|(_, _, high)| *high).max()? as f64;
    let last = all().map(|(point, ..)| point.percent).fold(0.0, f64::max);
    let x = Scale::linear((0.0, nines(last)), (LEFT, RIGHT));
    let y = Scale::log((low * 0.9, high * 1.1), (BOTTOM, TOP));
    let mut svg = Svg::new(WIDTH, HEIGHT, &format!("Latency percentiles, {workload}"));
    for tick in y.ticks(5) {
        svg.line("grid", (LEFT, y.at(tick)), (RIGHT, y.at(tick)));
        svg.text(
            "tick",
            Anchor::End,
            (LEFT - 6.0, y.at(tick) + 4.0),
            units::nanoseconds(tick).replacen(".00", "", 1),
        );
    }
    for tick in [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999] {
        if tick <= last {
            svg.line("tickmark", (x.at(nines(tick)), BOTTOM), (x.at(nines(tick)), BOTTOM + 4.0));
            svg.text("tick", Anchor::Middle, (x.at(nines(tick)), BOTTOM + 17.0), tick);
        }
    }
    svg.text("axis", Anchor::End, (RIGHT, BOTTOM + 33.0), "percentile");
    for (subject, curve) in &curves {
        let upper = curve.iter().map(|(point, _, high)| (x.at(nines(point.percent)), y.at(*high as f64)));
        let lower = curve.iter().rev().map(|(point, low, _)| (x.at(nines(point.percent)), y.at(*low as f64)));
        svg.polygon(&class("band", palette, subject), &upper.chain(lower).collect::<Vec<_>>());
    }
    let mut ends = Vec::new();
    for (subject, curve) in &curves {
        let place = |point: &CurvePoint| (x.at(nines(point.percent)), y.at(point.ns as f64));
        let points: Vec<(f64, f64)> = curve.iter().map(|(point, ..)| place(point)).collect();
        svg.polyline(&class("curve", palette, subject), &points);
        for (point, low, high) in curve {
            let [ns, low, high] = [point.ns, *low, *high].map(|ns| units::nanoseconds(ns as f64));
            let tip = format!("{subject}: {} % within {ns} ({low} to {high})", point.percent);
            svg.circle(&class("hit point", palette, subject), place(point), 2.2, &tip);
        }
        ends.push((subject.as_str(), points.last().map_or(BOTTOM, |point| point.1)));
    }
    label_ends(&mut svg, palette, &ends);
    Some(svg.finish())
}

/// Puts names at the right of lines, moved apart if they would overlap.
pub(super) fn label_ends(svg: &mut Svg, palette: &Palette, ends: &[(&str, f64)]) {
    const LETTERS: usize = 10;
    let wanted: Vec<f64> = ends.iter().map(|(_, y)| *y).collect();
    let begin = |name: &str| short(name, LETTERS);
    let is_alone = |name: &str| ends.iter().filter(|(other, _)| begin(other) == begin(name)).count() == 1;
    let shown = |name: &str| if is_alone(name) { begin(name) } else { both_ends(name, LETTERS) };
    for ((subject, y), moved) in ends.iter().zip(spread_out(&wanted, 14.0, (TOP, BOTTOM))) {
        svg.line(&class("leader", palette, subject), (RIGHT + 1.0, *y), (RIGHT + 6.0, moved));
        let name = format!("label name s{}", palette.index(subject));
        svg.text(&name, Anchor::Start, (RIGHT + 8.0, moved + 4.0), shown(subject));
    }
}

/// Draws a comparison: for each figure a dot per pair and the median, with better values always at the right.
pub(super) fn ratios(comparison: &Comparison) -> String {
    const ROW: f64 = 34.0;
    const FROM: f64 = 92.0;
    const TO: f64 = 246.0;
    let rows = comparison.ratios.len() as f64;
    let advantage = |figure: Figure, ratio: f64| if figure.more_is_better() { ratio } else { 1.0 / ratio };
    let all = comparison.ratios.iter().flat_map(|(figure, ratios)| {
        ratios.pairs.iter().chain([&ratios.median]).map(|ratio| advantage(*figure, *ratio))
    });
    // The same distance on both sides of 1, with a minimum, so that noise doesn't look large.
    let limit = all.map(|it| it.ln().abs()).filter(|it| it.is_finite()).fold(1.12_f64.ln(), f64::max) * 1.06;
    let x = Scale::linear((-limit, limit), (FROM, TO));
    let label = format!("{} compared with {}", comparison.subject, comparison.baseline);
    let bottom = 4.0 + ROW * rows;
    let mut svg = Svg::new(WIDTH, bottom + 20.0, &label);
    svg.rect("better", (x.at(0.0), 2.0), (TO - x.at(0.0), bottom), "");
    svg.line("one", (x.at(0.0), 2.0), (x.at(0.0), bottom + 2.0));
    svg.text("axis", Anchor::Start, (FROM, bottom + 16.0), "← worse");
    svg.text("axis", Anchor::Middle, (x.at(0.0), bottom + 16.0), "equal");
    svg.text("axis", Anchor::End, (TO, bottom + 16.0), "better →");
    for (row, (figure, ratios)) in comparison.ratios.iter().enumerate() {
        let middle = 4.0 + ROW * (row as f64 + 0.5);
        let verdict = Verdict::of(*figure, ratios);
        let class = verdict.word();
        let place = |ratio: f64| x.at(advantage(*figure, ratio).ln());
        svg.text("label", Anchor::Start, (0.0, middle + 4.0), figure.title());
        svg.line(&format!("stem {class}"), (x.at(0.0), middle), (place(ratios.median), middle));
        for (pair, ratio) in ratios.pairs.iter().enumerate() {
            let tip = format!("{}, pair {}: {}", figure.title(), pair + 1, units::ratio(*ratio));
            svg.circle("pair hit", (place(*ratio), middle), 2.6, &tip);
        }
        let tip = format!(
            "{}: median {} of {} pairs",
            figure.title(),
            units::ratio(ratios.median),
            ratios.pairs.len()
        );
        svg.circle(&format!("median hit {class}"), (place(ratios.median), middle), 5.5, &tip);
        let words = format!("{} {} {class}", units::ratio(ratios.median), verdict.sign());
        svg.text(&format!("label strong {class}"), Anchor::End, (WIDTH - 2.0, middle + 4.0), words);
    }
    svg.finish()
}
