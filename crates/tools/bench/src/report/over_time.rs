//! Charts of a workload over the time of its runs: operations per second, and their latencies.

use super::Palette;
use super::charts::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, class, label_ends};
use super::svg::{Anchor, Scale, Svg};
use crate::results::{Figure, Results, RunResult};
use crate::series::{Moment, Series};
use crate::units;

/// Returns a drawing with the seconds of the longest run on its axis, and their scale; `None` without
/// measurements.
fn over_seconds(results: &Results, workload: &str, what: &str) -> Option<(Svg, Scale)> {
    let runs = results.runs.iter().filter(|run| run.workload.name == workload);
    let seconds = runs.map(|run| run.measurement.seconds).fold(0.0, f64::max);
    if seconds <= 0.0 {
        return None;
    }
    let x = Scale::linear((0.0, seconds), (LEFT, RIGHT));
    let mut svg = Svg::new(WIDTH, HEIGHT, &format!("{what} over time, {workload}"));
    for tick in x.ticks(4) {
        svg.text(
            "tick",
            Anchor::Middle,
            (x.at(tick), BOTTOM + 17.0),
            format!("{} s", (tick * 1000.0).round() / 1000.0),
        );
    }
    svg.text("axis", Anchor::End, (RIGHT, BOTTOM + 33.0), "time since the start of measuring");
    Some((svg, x))
}

/// Draws operations per second over the time of a run, one line for each repetition; runs without a time
/// series are drawn with their mean.
pub(super) fn rates(results: &Results, workload: &str, palette: &Palette) -> Option<String> {
    let subjects = results.subjects(workload);
    let runs = || results.runs.iter().filter(|run| run.workload.name == workload);
    let of_run = |run: &RunResult| run.measurement.series.as_ref().map(Series::rates);
    let highest = runs().flat_map(|run| of_run(run).unwrap_or_default()).map(|(_, rate)| rate);
    let highest = highest.chain(runs().map(|run| run.measurement.iops)).fold(0.0, f64::max);
    if highest <= 0.0 {
        return None;
    }
    let (mut svg, x) = over_seconds(results, workload, "Operations per second")?;
    let y = Scale::linear((0.0, highest * 1.05), (BOTTOM, TOP));
    for tick in y.ticks(4) {
        svg.line("grid", (LEFT, y.at(tick)), (RIGHT, y.at(tick)));
        let text = units::count(tick).replace(".00", "").replace(".0 ", " ");
        svg.text("tick", Anchor::End, (LEFT - 6.0, y.at(tick) + 4.0), text);
    }
    let mut ends = Vec::new();
    for subject in &subjects {
        let Some(middle) = results.median_of(workload, subject, Figure::Iops) else { continue };
        let mut has_series = false;
        for run in results.of(workload, subject) {
            let Some(rates) = of_run(run).filter(|rates| rates.len() > 1) else { continue };
            has_series = true;
            let place = |(second, rate): &(f64, f64)| (x.at(*second), y.at(*rate));
            svg.polyline(&class("trace", palette, subject), &rates.iter().map(place).collect::<Vec<_>>());
            for point in rates.iter().step_by((rates.len() / 60).max(1)) {
                let tip = format!(
                    "{subject}, repetition {}: {} IOPS at {:.1} s",
                    run.repetition,
                    units::count(point.1),
                    point.0
                );
                svg.circle(&class("hit point hidden", palette, subject), place(point), 2.2, &tip);
            }
        }
        if !has_series {
            svg.line(&class("mean", palette, subject), (LEFT, y.at(middle)), (RIGHT, y.at(middle)));
            let tip = format!("{subject}: {} IOPS on average", units::count(middle));
            svg.circle(
                &class("hit point hidden", palette, subject),
                ((LEFT + RIGHT) / 2.0, y.at(middle)),
                2.2,
                &tip,
            );
        }
        ends.push((subject.as_str(), y.at(middle)));
    }
    label_ends(&mut svg, palette, &ends);
    Some(svg.finish())
}

/// Draws latency over the time of a run, on a logarithmic scale: the median as a strong line, the 99th
/// percentile as a weak one, the longest as dots, with gaps where no operation ended. `None` without time
/// series of latencies.
pub(super) fn latency_over_time(results: &Results, workload: &str, palette: &Palette) -> Option<String> {
    // Most intervals without ended operations that a line bridges.
    const PAUSE: f64 = 5.0;
    let moments = |run: &RunResult| run.measurement.series.as_ref().map(Series::moments).unwrap_or_default();
    let of_workload = results.runs.iter().filter(|run| run.workload.name == workload);
    let all: Vec<Moment> = of_workload.flat_map(moments).collect();
    let low = all.iter().map(|moment| moment.p50).min()?.max(1) as f64;
    let high = all.iter().map(|moment| moment.max).max()? as f64;
    let (mut svg, x) = over_seconds(results, workload, "Latency")?;
    let y = Scale::log((low * 0.9, high * 1.1), (BOTTOM, TOP));
    for tick in y.ticks(5) {
        svg.line("grid", (LEFT, y.at(tick)), (RIGHT, y.at(tick)));
        let text = units::nanoseconds(tick).replacen(".00", "", 1).replacen(".0 ", " ", 1);
        svg.text("tick", Anchor::End, (LEFT - 6.0, y.at(tick) + 4.0), text);
    }
    let mut ends = Vec::new();
    for subject in results.subjects(workload) {
        let mut last = None;
        for run in results.of(workload, &subject) {
            let interval = run.measurement.series.as_ref().map_or(0.0, Series::interval);
            let moments = moments(run);
            let place = |moment: &Moment, ns: u64| (x.at(moment.seconds), y.at(ns as f64));
            // Dots first, so that they don't hide lines.
            for moment in moments.iter().step_by((moments.len() / 200).max(1)) {
                svg.circle(&class("worst", palette, &subject), place(moment, moment.max), 1.0, "");
            }
            for part in moments.chunk_by(|one, next| next.seconds - one.seconds < interval * (PAUSE + 0.5)) {
                for (kind, figure) in [("tail", true), ("trace", false)] {
                    let of = |it: &Moment| if figure { it.p99 } else { it.p50 };
                    let points: Vec<_> = part.iter().map(|it| place(it, of(it))).collect();
                    svg.polyline(&class(kind, palette, &subject), &points);
                    if let [alone] = points[..] {
                        svg.circle(&class("point", palette, &subject), alone, 1.2, "");
                    }
                }
            }
            for moment in moments.iter().step_by((moments.len() / 60).max(1)) {
                let [p50, p99, max] =
                    [moment.p50, moment.p99, moment.max].map(|ns| units::nanoseconds(ns as f64));
                let tip = format!(
                    "{subject}, repetition {}, at {:.1} s: median {p50}, p99 {p99}, longest {max}",
                    run.repetition, moment.seconds
                );
                let class = class("hit point hidden", palette, &subject);
                svg.circle(&class, place(moment, moment.p50), 2.2, &tip);
            }
            last = moments.last().map(|moment| y.at(moment.p50 as f64)).or(last);
        }
        ends.extend(last.map(|y| (subject, y)));
    }
    let ends: Vec<(&str, f64)> = ends.iter().map(|(subject, y)| (subject.as_str(), *y)).collect();
    label_ends(&mut svg, palette, &ends);
    Some(svg.finish())
}
