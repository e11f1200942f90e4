//! Report: one self-contained HTML file.
//!
//! It has its own SVG, a style sheet for light, dark, phones and paper, and a small script that shows the
//! label of the point under the pointer. Text from a plan, a peer or a machine is escaped, and the page's
//! content security policy prevents it from loading anything. The figures are those of [`Results`].

mod beside;
mod charts;
mod grids;
mod lines;
mod over_time;
mod svg;

use crate::latency::Latency;
use crate::matrix;
use crate::results::{DIRECTIONS, DirectionFigures, Figure, HitRatio, Results, RunResult, Table, median};
use crate::units;
use std::collections::BTreeMap;
use std::fmt::Write;
use svg::escape;

/// Colour of each subject, the same in every chart, and whether it is a peer.
pub(crate) struct Palette {
    subjects: Vec<(String, bool)>,
    /// Subjects that are only baselines of comparisons.
    baselines: Vec<String>,
}

/// Number of colours that can be distinguished in light and dark, and by the colour-blind.
const COLOURS: usize = 6;

impl Palette {
    fn of(results: &Results) -> Self {
        let mut subjects: Vec<(String, bool)> = Vec::new();
        // Stacks first, so that their colours are the same in every report.
        for peer in [false, true] {
            for run in results.runs.iter().filter(|run| run.peer == peer) {
                if !subjects.iter().any(|(name, _)| *name == run.subject) {
                    subjects.push((run.subject.clone(), peer));
                }
            }
        }
        let compared = |name: &str| results.comparisons.iter().any(|it| it.subject == name);
        let is_baseline = |name: &str| results.comparisons.iter().any(|it| it.baseline == name);
        let names = subjects.iter().map(|(name, _)| name);
        let baselines = names.filter(|name| is_baseline(name) && !compared(name)).cloned().collect();
        Palette { subjects, baselines }
    }

    fn is_baseline(&self, subject: &str) -> bool {
        self.baselines.iter().any(|name| name == subject)
    }

    fn index(&self, subject: &str) -> usize {
        self.subjects.iter().position(|(name, _)| name == subject).unwrap_or(0) % COLOURS
    }

    fn is_peer(&self, subject: &str) -> bool {
        self.subjects.iter().any(|(name, peer)| name == subject && *peer)
    }
}

/// Renders the whole page.
pub fn render(results: &Results) -> String {
    let palette = Palette::of(results);
    let mut content = String::new();
    if results.interrupted {
        content.push_str("<p class=\"warning\">Stopped before the end: these are the completed runs.</p>\n");
    }
    if !results.notes.is_empty() {
        let items: String = results.notes.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
        let _ = writeln!(content, "<ul class=\"notes\">{items}</ul>");
    }
    let others = matrix::others(results);
    content.push_str(&beside::section(results, &palette));
    content.push_str(&at_a_glance(results, &others));
    for table in &results.tables {
        content.push_str(&printed(table));
    }
    for matrix in matrix::large(results) {
        content.push_str(&grids::section(results, &matrix, &palette));
    }
    for workload in others {
        content.push_str(&section(results, &workload, &palette));
    }
    content.push_str(&surroundings(results));
    let title = results.title.as_ref().unwrap_or(&results.name);
    let footer = format!(
        "{}, schema {}. The figures are in results.json.",
        escape(&results.name),
        escape(&results.schema)
    );
    let parts = BTreeMap::from([
        ("title", escape(title)),
        ("lead", escape(&lead(results))),
        ("style", include_str!("report/style.css").to_owned()),
        ("script", include_str!("report/script.js").to_owned()),
        ("content", content),
        ("footer", footer),
    ]);
    fill(include_str!("report/page.html"), &parts)
}

/// Replaces the names in braces by the parts, in one pass: parts are not expanded again.
fn fill(template: &str, parts: &BTreeMap<&str, String>) -> String {
    let mut page = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        page.push_str(before);
        match after.split_once('}').and_then(|(name, tail)| Some((parts.get(name)?, tail))) {
            Some((part, tail)) => {
                page.push_str(part);
                rest = tail;
            }
            None => {
                page.push('{');
                rest = after;
            }
        }
    }
    page + rest
}

fn lead(results: &Results) -> String {
    let environment = &results.environment;
    let mut words = vec![format!("{} UTC", units::date(results.started))];
    let cores = match environment.cores {
        1 => "1 core".to_owned(),
        cores => format!("{cores} cores"),
    };
    words.push(if environment.cpu.is_empty() { cores } else { format!("{}, {cores}", environment.cpu) });
    if environment.memory > 0 {
        words.push(format!("{} of memory", units::bytes(environment.memory as f64)));
    }
    words.push(environment.kernel.clone());
    words.retain(|word| !word.is_empty());
    words.join(" · ")
}

/// Renders the table that a command has printed.
fn printed(table: &Table) -> String {
    let title = table.title.as_ref().unwrap_or(&table.name);
    let about = table.about.as_ref().map_or_else(String::new, |about| format!("{}<br>", escape(about)));
    let chart = lines::chart(table).map_or_else(String::new, |it| format!("<div class=\"card\">{it}</div>"));
    let mut html = format!(
        "<section>\n<h2>{}</h2>\n<p class=\"about\">{about}<code>{}</code></p>\n<div class=\"cards\">{chart}<div \
         class=\"card wide\"><div class=\"scroll\"><table class=\"printed\"><tr>",
        escape(title),
        escape(&table.command)
    );
    for column in &table.columns {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(&column.title));
    }
    for row in &table.rows {
        let cells = table.columns.iter().map(|column| column.unit.say(row.get(&column.name)));
        let cells: String = cells.map(|cell| format!("<td>{}</td>", escape(&cell))).collect();
        let _ = write!(html, "</tr>\n<tr>{cells}");
    }
    html + "</tr></table></div></div></div>\n</section>\n"
}

fn at_a_glance(results: &Results, workloads: &[String]) -> String {
    let comparisons: Vec<_> =
        results.comparisons.iter().filter(|it| workloads.contains(&it.workload)).collect();
    if comparisons.is_empty() {
        return String::new();
    }
    let pairs = comparisons.iter().flat_map(|it| it.ratios.values()).map(|it| it.pairs.len()).max();
    let mut html = format!(
        "<h2>At a glance</h2>\n<p class=\"about\">Ratios of pairs that ran right after each other, up to {} per \
         comparison. The large dot is their median; within 2 % counts as the same, and pairs that contradict each other give no verdict (unclear).</p>\n<div class=\"cards\">\n",
        pairs.unwrap_or(0)
    );
    for comparison in comparisons {
        let _ = writeln!(
            html,
            "<div class=\"card\"><b class=\"title\">{}</b><h3>{} compared with {}</h3>{}</div>",
            escape(&comparison.workload),
            escape(&comparison.subject),
            escape(&comparison.baseline),
            charts::ratios(comparison)
        );
    }
    html + "</div>\n"
}

fn section(results: &Results, workload: &str, palette: &Palette) -> String {
    let mut html = format!("<section>\n<h2>{}</h2>\n", escape(workload));
    if let Some(run) = results.runs.iter().find(|run| run.workload.name == workload) {
        let options: Vec<String> =
            run.workload.options.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let acknowledged = match &run.workload.acknowledged {
            Some(when) => format!("<br>Writes are acknowledged {}.", escape(when)),
            None => String::new(),
        };
        let _ = writeln!(
            html,
            "<p class=\"about\"><code>{}</code>{acknowledged}</p>",
            escape(&options.join(" "))
        );
    }
    for subject in results.subjects(workload) {
        for (repetition, iops) in crate::table::outliers(results, workload, &subject) {
            let _ = writeln!(
                html,
                "<p class=\"about\">Repetition {repetition} of {} is far from the others: {} IOPS.</p>",
                escape(&subject),
                crate::units::count(iops)
            );
        }
    }
    html.push_str("<div class=\"cards\">\n");
    let mut card = |title: &str, picture: Option<String>| {
        if let Some(picture) = picture {
            let _ = writeln!(html, "<div class=\"card\"><h3>{title}</h3>{picture}</div>");
        }
    };
    let iops = charts::bars(results, workload, palette, Figure::Iops);
    let server = charts::bars(results, workload, palette, Figure::ServerCpuPerOperation);
    let (name, cpu) = match server {
        Some(server) => ("Server CPU time per operation", Some(server)),
        None => ("CPU time per operation", charts::bars(results, workload, palette, Figure::CpuPerOperation)),
    };
    let cpu = cpu.map_or_else(String::new, |cpu| format!("<h3 class=\"second\">{name}</h3>{cpu}"));
    let amplification = charts::bars(results, workload, palette, Figure::WriteAmplification);
    let amplification = amplification
        .map_or_else(String::new, |it| format!("<h3 class=\"second\">Write amplification</h3>{it}"));
    let cpu = cpu + &amplification;
    card("IOPS: median, and a dot per repetition", iops.map(|iops| iops + &cpu));
    card("Latency: median and range of repetitions", charts::latency(results, workload, palette));
    card("IOPS over time, a line per repetition", over_time::rates(results, workload, palette));
    card(
        "Latency over time: median, p99 (thin), longest (dots)",
        over_time::latency_over_time(results, workload, palette),
    );
    let _ = writeln!(
        html,
        "<div class=\"card wide\"><div class=\"scroll\">{}</div></div>\n</div>\n</section>",
        figures(results, workload, palette)
    );
    html
}

fn figures(results: &Results, workload: &str, palette: &Palette) -> String {
    let runs = || results.runs.iter().filter(|run| run.workload.name == workload);
    let has_server = runs().any(|run| run.measurement.server_cpu_seconds.is_some());
    let has_amplification = runs().any(|run| run.measurement.write_amplification.is_some());
    let has_errors = runs().any(|run| run.measurement.errors > 0);
    let mut heading = vec!["median", "IOPS", "bandwidth", "mean", "p50", "p90", "p99", "p99.9", "max"];
    heading.push("CPU/op");
    heading.extend(has_server.then_some("server CPU/op"));
    if has_amplification {
        heading.extend(["write amp.", "with metadata"]);
    }
    let has_hits = results.has_hits(workload);
    if has_hits {
        heading.extend(["hits", "read hits", "write hits"]);
    }
    heading.extend(has_errors.then_some("errors"));
    let cells: String = heading.iter().map(|cell| format!("<th scope=\"col\">{cell}</th>")).collect();
    let mut html = format!("<table><tr>{cells}</tr>");
    for subject in results.subjects(workload) {
        let of_all = |value: &dyn Fn(&RunResult) -> Option<f64>, say: &dyn Fn(f64) -> String| {
            let values: Vec<f64> = results.of(workload, &subject).filter_map(value).collect();
            median(&values).map_or_else(|| "–".to_owned(), say)
        };
        let latency = |pick: fn(&Latency) -> f64| {
            of_all(&|run| run.measurement.latency_ns.as_ref().map(pick), &units::nanoseconds)
        };
        let per_operation = |figure: Figure| {
            of_all(&|run| figure.of(&run.measurement), &|seconds| units::nanoseconds(seconds * 1e9))
        };
        let mut cells = vec![
            of_all(&|run| Some(run.measurement.iops), &units::count),
            of_all(&|run| Some(run.measurement.bandwidth), &units::bandwidth),
            latency(|it| it.mean),
            latency(|it| it.p50 as f64),
            latency(|it| it.p90 as f64),
            latency(|it| it.p99 as f64),
            latency(|it| it.p99_9 as f64),
            latency(|it| it.max as f64),
            per_operation(Figure::CpuPerOperation),
        ];
        cells.extend(has_server.then(|| per_operation(Figure::ServerCpuPerOperation)));
        if has_amplification {
            cells.push(of_all(&|run| Some(run.measurement.write_amplification?.data), &units::number));
            cells.push(of_all(&|run| Some(run.measurement.write_amplification?.all), &units::number));
        }
        if has_hits {
            let say =
                |pick: fn(&HitRatio) -> Option<f64>| escape(&results.say_hits(workload, &subject, pick));
            cells.extend([say(|ratio| Some(ratio.all)), say(|ratio| ratio.reads), say(|ratio| ratio.writes)]);
        }
        let errors: u64 = results.of(workload, &subject).map(|run| run.measurement.errors).sum();
        cells.extend(has_errors.then(|| errors.to_string()));
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let _ = write!(
            html,
            "<tr><td class=\"s{}\">{}</td>{cells}</tr>",
            palette.index(&subject),
            escape(&subject)
        );
        html.push_str(&directions(results, workload, &subject, heading.len() - 1));
        html.push_str(&published(results, workload, &subject, heading.len() - 1));
    }
    html + "</table>"
}

/// Renders rows below a subject's with the figures of reads and of writes, if the workload has both.
fn directions(results: &Results, workload: &str, subject: &str, columns: usize) -> String {
    let mut html = String::new();
    for (name, of) in DIRECTIONS {
        let median = |figure: &dyn Fn(&DirectionFigures) -> Option<f64>, say: fn(f64) -> String| {
            results.median_of_direction(workload, subject, of, figure).map(say)
        };
        let latency =
            |pick: fn(&Latency) -> f64| median(&|it| it.latency_ns.as_ref().map(pick), units::nanoseconds);
        let Some(iops) = median(&|it| Some(it.iops), units::count) else { continue };
        let others = [
            median(&|it| Some(it.bandwidth), units::bandwidth),
            latency(|it| it.mean),
            latency(|it| it.p50 as f64),
            latency(|it| it.p90 as f64),
            latency(|it| it.p99 as f64),
            latency(|it| it.p99_9 as f64),
            latency(|it| it.max as f64),
        ];
        let mut cells = vec![iops];
        cells.extend(others.into_iter().map(|cell| cell.unwrap_or_else(|| "–".to_owned())));
        cells.resize(columns, String::new());
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let _ = write!(html, "<tr><td>{name}</td>{cells}</tr>");
    }
    html
}

/// Renders a row with published figures of others below a subject's row.
fn published(results: &Results, workload: &str, subject: &str, columns: usize) -> String {
    let of = |figure| results.published_of(workload, subject, figure);
    let places = [(0, Figure::Iops), (1, Figure::Bandwidth), (3, Figure::P50), (5, Figure::P99)];
    let mut cells = vec![String::new(); columns];
    let mut is_any = false;
    for (place, figure) in places {
        if let Some(found) = of(figure) {
            cells[place] = format!("{} ({})", figure.say(found.published), units::ratio(found.ratio));
            is_any = true;
        }
    }
    let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    if is_any { format!("<tr class=\"said\"><td>published</td>{cells}</tr>") } else { String::new() }
}

/// Renders the machine, the versions, and the commands.
fn surroundings(results: &Results) -> String {
    let environment = &results.environment;
    let mut facts: Vec<(String, String)> = Vec::new();
    let virtual_machine = if environment.virtual_machine { " (virtual machine)" } else { "" };
    facts.push((
        "Processor".into(),
        format!("{}, {} cores{virtual_machine}", environment.cpu, environment.cores),
    ));
    facts.push(("Memory".into(), units::bytes(environment.memory as f64)));
    facts.push(("Kernel".into(), environment.kernel.clone()));
    facts.push(("System".into(), environment.system.clone()));
    facts.extend(environment.file_systems.iter().map(|(file, kind)| (file.clone(), kind.clone())));
    facts.extend(environment.versions.iter().map(|(program, version)| (program.clone(), version.clone())));
    let list = |facts: &[(String, String)], code: bool| -> String {
        let said = facts.iter().filter(|(_, value)| !value.is_empty());
        let item = |(name, value): &(String, String)| {
            let value = escape(value);
            let value = if code { format!("<code>{value}</code>") } else { value };
            format!("<dt>{}</dt><dd>{value}</dd>", escape(name))
        };
        format!("<dl>{}</dl>", said.map(item).collect::<String>())
    };
    let mut subjects: Vec<(String, String)> = Vec::new();
    for run in &results.runs {
        if !subjects.iter().any(|(name, _)| *name == run.subject) {
            subjects.push((run.subject.clone(), run.stack.clone()));
        }
    }
    format!(
        "<h2>Where this was measured</h2>\n<div class=\"cards\"><div class=\"card wide\">{}</div></div>\n\
         <h2>What was run</h2>\n<div class=\"cards\"><div class=\"card wide\">{}</div></div>\n",
        list(&facts, false),
        list(&subjects, true)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{run, sample};
    use proptest::prelude::*;

    #[test]
    fn everything_is_inside_and_nothing_is_loaded() {
        let page = render(&sample());
        for part in [
            "At a glance",
            "randread iodepth=32",
            "<svg",
            "×1.10 ▲ better",
            "prefers-color-scheme",
            "</html>",
        ] {
            assert!(page.contains(part), "{part}");
        }
        for foreign in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf\""), "only numbers in the pictures");
        assert_eq!(page.matches("<svg").count(), 2 + 2 * 5);
    }

    #[test]
    fn names_are_only_words() {
        let evil = "<script>alert('x')</script>\" onload=\"{title}";
        let mut results = sample();
        results.title = Some(evil.into());
        results.notes.push(evil.into());
        results.environment.cpu = evil.into();
        for run in &mut results.runs {
            run.subject = format!("{evil}{}", run.peer);
            run.workload.name = evil.into();
            run.stack = evil.into();
        }
        results.compare(&[(format!("{evil}false"), format!("{evil}true"))]);
        let page = render(&results);
        assert!(!page.contains("<script>alert") && !page.contains("\" onload"), "escaped");
        assert_eq!(page.matches("<script>").count(), 1, "only ours");
        assert!(page.contains("{title}"), "a part's own braces stay");
    }

    #[test]
    fn what_was_published_is_drawn() {
        let mut results = sample();
        let figures = vec![(Figure::Iops, 88_016.0), (Figure::P50, 700_000.0)];
        let published = crate::plan::Published { subject: "file".into(), workload: None, figures };
        results.set_beside(&[published]);
        results.published_in = Some("Table <1>".into());
        let page = render(&results);
        for part in [
            "Beside what was published",
            "Table &lt;1&gt;",
            "class=\"published\"",
            "44.0 k  ◇ 88.0 k  ×0.50",
            "<td>published</td><td>88.0 k (×0.12)</td><td></td><td></td><td>700 µs (",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<svg").count(), 2 + 2 * 5 + 2 * 2);
    }

    #[test]
    fn reads_and_writes_of_a_mixed_workload_have_rows() {
        let mut results = sample();
        assert!(!render(&results).contains("<td>reads</td>"));
        crate::results::tests::mix(&mut results);
        let page = render(&results);
        let rows = page.matches("<td>reads</td><td>7.00 k</td>").count();
        assert!(rows > 0 && rows == page.matches("<td>writes</td><td>3.00 k</td>").count(), "{rows}");
    }

    #[test]
    fn nothing_measured_is_a_page_too() {
        let mut results = sample();
        results.runs.clear();
        results.compare(&[]);
        results.interrupted = true;
        assert!(render(&results).contains("Stopped before the end"));
    }

    proptest! {
        #[test]
        fn odd_figures_never_break_a_picture(iops in prop_oneof![0.001..10.0f64, 1e3..1e7], operations in 0..3u64) {
            let mut results = sample();
            let mut odd = run("file", "odd", 1, iops);
            odd.measurement.operations = operations;
            results.runs.push(odd.clone());
            odd.measurement.latency_ns = None;
            odd.measurement.curve.clear();
            odd.subject = "fio".into();
            odd.measurement.iops = 0.0;
            results.runs.push(odd);
            results.compare(&[("file".into(), "fio".into())]);
            let page = render(&results);
            prop_assert!(!page.contains("NaN") && !page.contains("inf\""));
        }
    }
}
