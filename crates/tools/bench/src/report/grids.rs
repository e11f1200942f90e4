//! Large matrices: bars of the corners, grids of every point, and a table of all figures.
//!
//! A grid has a cell for each point: its text is the figure, and the strength of its colour the ratio to the
//! best subject at the same point. A subject that is only a baseline has no colour, and isn't considered for
//! the best.

use super::Palette;
use super::charts::{WIDTH, class, short};
use super::svg::{Anchor, Scale, Svg, escape};
use crate::matrix::{Labelled, Matrix, Value};
use crate::results::Results;
use std::fmt::Write;

/// Renders a whole matrix.
pub(super) fn section(results: &Results, matrix: &Matrix, palette: &Palette) -> String {
    let lists = matrix.axes.iter().map(|axis| format!("{}={}", axis.option, axis.values.join(",")));
    let mut html = format!(
        "<section>\n<h2>{}</h2>\n<p class=\"about\">{} points: <code>{}</code></p>\n",
        escape(&matrix.section),
        matrix.workloads().count(),
        escape(&lists.collect::<Vec<_>>().join(" "))
    );
    html.push_str(&corners(results, matrix, palette));
    html.push_str(LEGEND);
    let panels = matrix.panel_axes();
    // The first list makes groups, the others the grids of a group; a single list makes the grids.
    let (first, rest) = panels.split_at(usize::from(panels.len() > 1));
    for chosen in matrix.combinations(first) {
        let title = matrix.words(first, &chosen);
        if !first.is_empty() {
            let _ = writeln!(html, "<h3 class=\"group\">{}</h3>", escape(&title));
        }
        let grids = |value: Value| {
            let mut cards = String::from("<div class=\"cards\">\n");
            for others in matrix.combinations(rest) {
                let panel = [chosen.as_slice(), &others].concat();
                let words = matrix.words(rest, &others);
                let name = format!("{}{}{words}", value.title(), if words.is_empty() { "" } else { ", " });
                let picture = grid(results, matrix, palette, value, (&panels, &panel));
                let _ = writeln!(cards, "<div class=\"card\"><h3>{}</h3>{picture}</div>", escape(&name));
            }
            cards + "</div>\n"
        };
        html.push_str(&grids(Value::Iops));
        let _ = writeln!(
            html,
            "<details><summary>{}p99.99 of the same points, and every figure</summary>\n{}\
             <div class=\"cards\"><div class=\"card wide\"><div class=\"scroll\">{}</div></div></div>\n</details>",
            if title.is_empty() { String::new() } else { format!("{}: ", escape(&title)) },
            grids(Value::P9999),
            table(results, matrix, palette, (first, &chosen))
        );
    }
    html + "</section>\n"
}

/// Legend of the grids.
const LEGEND: &str = "<h3 class=\"group\">Every point</h3>\n<p class=\"about\">A cell is a point. The stronger its colour, the \
     nearer it comes to the best at the same point, whose figure is bold. What has no colours is the baseline.</p>\n";

fn corners(results: &Results, matrix: &Matrix, palette: &Palette) -> String {
    let corners = matrix.corners();
    let [(most, heavy), (least, light)] = &corners[..] else { return String::new() };
    let mut html = String::from("<div class=\"cards\">\n");
    for (value, load, points) in
        [(Value::Iops, most, heavy), (Value::P9999, most, heavy), (Value::P9999, least, light)]
    {
        let title = format!("{} at {load}", value.title());
        if let Some(picture) = grouped_bars(results, palette, (value, &title), points) {
            let _ = writeln!(html, "<div class=\"card\"><h3>{}</h3>{picture}</div>", escape(&title));
        }
    }
    html + "</div>\n"
}

/// Draws bars per subject, in groups that each have a scale of their own.
fn grouped_bars(
    results: &Results,
    palette: &Palette,
    (value, title): (Value, &str),
    points: &[Labelled],
) -> Option<String> {
    const HEAD: f64 = 22.0;
    const ROW: f64 = 16.0;
    const FROM: f64 = 92.0;
    const TO: f64 = WIDTH - 66.0;
    let groups: Vec<(&str, Vec<(&str, f64)>)> = points
        .iter()
        .map(|(words, workload)| {
            let found = |(name, _): &'_ (String, bool)| value.median(results, workload, name);
            let bars = palette.subjects.iter().filter_map(|it| Some((it.0.as_str(), found(it)?))).collect();
            (words.as_str(), bars)
        })
        .collect();
    let rows: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    if rows == 0 {
        return None;
    }
    let mut svg = Svg::new(WIDTH, HEAD * groups.len() as f64 + ROW * rows as f64 + 2.0, title);
    let mut top = 0.0;
    for (words, bars) in groups {
        svg.text("label strong", Anchor::Start, (0.0, top + 15.0), words);
        top += HEAD;
        let x = Scale::linear((0.0, bars.iter().fold(0.0, |most: f64, bar| most.max(bar.1))), (FROM, TO));
        for (subject, figure) in bars {
            let said = value.say(figure);
            svg.text("tick", Anchor::Start, (6.0, top + 11.0), short(subject, 13));
            svg.rect("track", (FROM, top + 1.0), (TO - FROM, ROW - 4.0), "");
            let tip = format!("{subject}, {words}: {} {said}", value.title());
            let class = class("bar", palette, subject);
            svg.rect(&class, (FROM, top + 1.0), ((x.at(figure) - FROM).max(1.0), ROW - 4.0), &tip);
            svg.text("tick ink", Anchor::End, (WIDTH, top + 11.0), said);
            top += ROW;
        }
    }
    Some(svg.finish())
}

/// Draws a small grid of one panel for each subject.
fn grid(
    results: &Results,
    matrix: &Matrix,
    palette: &Palette,
    value: Value,
    (panels, panel): (&[usize], &[usize]),
) -> String {
    const GAP: f64 = 14.0;
    const HEAD: f64 = 18.0;
    const CELL: f64 = 21.0;
    const LEFT: f64 = 18.0;
    let (rows, columns) = matrix.grid_axes();
    let values = |axis: Option<usize>| {
        axis.map_or_else(|| vec![String::new()], |axis| matrix.axes[axis].values.clone())
    };
    let (row_values, column_values) = (values(rows), values(columns));
    let workload = |row: usize, column: usize| {
        let axes: Vec<usize> = panels.iter().copied().chain(rows).chain(columns).collect();
        let ends = rows.map(|_| row).into_iter().chain(columns.map(|_| column));
        matrix.workload(&axes, &panel.iter().copied().chain(ends).collect::<Vec<_>>())
    };
    let figures = |subject: &str| -> Vec<Vec<Option<f64>>> {
        let figure = |row, column| value.median(results, workload(row, column)?, subject);
        let of_row = |row| (0..column_values.len()).map(|column| figure(row, column)).collect();
        (0..row_values.len()).map(of_row).collect()
    };
    let all: Vec<_> = palette.subjects.iter().map(|(name, _)| (name.as_str(), figures(name))).collect();
    let has_any = |grid: &Vec<Vec<Option<f64>>>| grid.iter().flatten().any(Option::is_some);
    let all: Vec<_> = all.into_iter().filter(|(_, grid)| has_any(grid)).collect();
    let best = |row: usize, column: usize| {
        let rivals = all.iter().filter(|(subject, _)| !palette.is_baseline(subject));
        rivals.filter_map(|(_, grid)| grid[row][column]).reduce(|one, other| value.better(one, other))
    };
    let across = if column_values.len() > 4 { 1 } else { 2 };
    let width = (WIDTH - GAP * (across - 1) as f64) / across as f64;
    let height = HEAD + CELL * row_values.len() as f64 + 14.0;
    let step = height + 10.0;
    let lines = all.len().div_ceil(across);
    let mut svg = Svg::new(
        WIDTH,
        step * lines as f64 + 12.0,
        &format!("{}, {}", value.title(), matrix.words(panels, panel)),
    );
    let cell = (width - LEFT) / column_values.len() as f64;
    for (number, (subject, figures)) in all.iter().enumerate() {
        let (left, top) = ((number % across) as f64 * (width + GAP), (number / across) as f64 * step);
        let is_baseline = palette.is_baseline(subject);
        svg.rect(&class("bar", palette, subject), (left, top + 3.0), (9.0, 9.0), "");
        svg.text("label strong", Anchor::Start, (left + 14.0, top + 12.0), short(subject, 20));
        for (row, row_value) in row_values.iter().enumerate() {
            let y = top + HEAD + CELL * row as f64;
            svg.text("tick", Anchor::End, (left + LEFT - 5.0, y + 14.0), row_value);
            for (column, column_value) in column_values.iter().enumerate() {
                let x = left + LEFT + cell * column as f64;
                let figure = figures[row][column];
                let said = figure.map_or_else(|| "–".into(), |figure| value.say(figure));
                let share = match (figure, best(row, column)) {
                    (Some(figure), Some(best)) if !is_baseline => Some(value.share(figure, best)),
                    _ => None,
                };
                let percent =
                    share.map_or_else(String::new, |it| format!(", {:.0} % of the best", it * 100.0));
                let tip = format!(
                    "{subject}, {}: {} {said}{percent}",
                    words(matrix, (rows, row_value), (columns, column_value)),
                    value.title()
                );
                let size = (cell - 2.0, CELL - 2.0);
                svg.rect("track", (x, y), size, if share.is_none() { &tip } else { "" });
                if let Some(share) = share {
                    svg.shade("heat", (x, y), size, share.clamp(0.0, 1.0).powi(2) * 0.62, &tip);
                }
                let is_best = share.is_some_and(|share| share >= 1.0);
                let weight = if is_best { "cell strong" } else { "cell" };
                svg.text(weight, Anchor::Middle, (x + size.0 / 2.0, y + 14.0), said);
            }
        }
        let bottom = top + HEAD + CELL * row_values.len() as f64 + 10.0;
        for (column, column_value) in column_values.iter().enumerate() {
            svg.text(
                "tick",
                Anchor::Middle,
                (left + LEFT + cell * (column as f64 + 0.5), bottom),
                column_value,
            );
        }
    }
    let name = |axis: Option<usize>| axis.map(|axis| matrix.axes[axis].option.clone());
    let axes = match (name(rows), name(columns)) {
        (Some(rows), Some(columns)) => format!("down: {rows}, across: {columns}"),
        (_, Some(columns)) => format!("across: {columns}"),
        _ => String::new(),
    };
    svg.text("axis", Anchor::End, (WIDTH, step * lines as f64 + 8.0), axes);
    svg.finish()
}

/// Label of a cell.
fn words(matrix: &Matrix, row: (Option<usize>, &str), column: (Option<usize>, &str)) -> String {
    let word = |(axis, value): (Option<usize>, &str)| {
        axis.map(|axis| format!("{}={value}", matrix.axes[axis].option))
    };
    [word(row), word(column)].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Renders every figure of one group.
fn table(
    results: &Results,
    matrix: &Matrix,
    palette: &Palette,
    (group, chosen): (&[usize], &[usize]),
) -> String {
    let rest: Vec<usize> = (0..matrix.axes.len()).filter(|axis| !group.contains(axis)).collect();
    let heads = rest.iter().map(|axis| matrix.axes[*axis].option.as_str());
    let heads = std::iter::once("").chain(heads).chain(Value::ALL.map(Value::title));
    let heads: String = heads.map(|head| format!("<th scope=\"col\">{}</th>", escape(head))).collect();
    let mut html = format!("<table><tr>{heads}</tr>");
    for values in matrix.combinations(&rest) {
        let axes = [group, &rest].concat();
        let Some(workload) = matrix.workload(&axes, &[chosen, &values].concat()) else { continue };
        for (subject, _) in &palette.subjects {
            if results.of(workload, subject).next().is_none() {
                continue;
            }
            let point =
                rest.iter().zip(&values).map(|(axis, value)| matrix.axes[*axis].values[*value].clone());
            let figures = Value::ALL.map(|value| {
                value.median(results, workload, subject).map_or_else(|| "–".into(), |it| value.say(it))
            });
            let cells: String =
                point.chain(figures).map(|cell| format!("<td>{}</td>", escape(&cell))).collect();
            let _ = write!(
                html,
                "<tr><td class=\"s{}\">{}</td>{cells}</tr>",
                palette.index(subject),
                escape(subject)
            );
        }
    }
    html + "</table>"
}

#[cfg(test)]
mod tests {
    use crate::matrix::tests::with_matrix;
    use crate::report::render;

    #[test]
    fn grids_bars_and_tables_instead_of_sections() {
        let page = render(&with_matrix());
        for part in [
            "IOPS at bs=8KiB numjobs=8 iodepth=32",
            "p99.99 at bs=8KiB numjobs=1 iodepth=1",
            "<h3 class=\"group\">rw=randwrite</h3>",
            "radix, numjobs=8 iodepth=32: IOPS 257 k, 100 % of the best",
            "hash, numjobs=8 iodepth=32: IOPS 231 k, 90 % of the best",
            "down: numjobs, across: iodepth",
            "24 points: <code>rw=randread,randwrite bs=4KiB,8KiB,64KiB numjobs=1,8 iodepth=1,32</code>",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<h2>every rw="), "no section for a single point");
        assert!(!page.contains("ram, numjobs=8 iodepth=32: IOPS 1.03 M, 100"), "a baseline is no rival");
        // The sample's own cards, three for the corners, and a grid per group and size for two figures.
        assert_eq!(page.matches("<svg").count(), 2 + 2 * 5 + 3 + 2 * 3 * 2);
        assert!(!page.contains("radix compared with ram"), "no card for each point");
    }

    #[test]
    fn points_that_failed_are_dashes() {
        let mut results = with_matrix();
        results.runs.retain(|run| !(run.subject == "hash" && run.workload.name.contains("bs=8KiB")));
        for run in results.runs.iter_mut().filter(|run| run.workload.name.contains("64KiB numjobs=8")) {
            run.measurement.errors = 1;
        }
        let page = render(&results);
        assert!(page.contains("hash, numjobs=8 iodepth=32: IOPS –") && !page.contains("NaN"));
    }
}
