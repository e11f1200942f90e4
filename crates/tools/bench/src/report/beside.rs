//! Measurements beside published figures of others: a card for each figure, on a logarithmic scale, because
//! published figures may differ by orders of magnitude.

use super::Palette;
use super::charts::{WIDTH, class, short};
use super::svg::{Anchor, Scale, Svg, escape};
use crate::results::{Figure, Published, Results};
use crate::units;
use std::fmt::Write;

/// Renders the section; empty without published figures.
pub(super) fn section(results: &Results, palette: &Palette) -> String {
    if results.published.is_empty() {
        return String::new();
    }
    let place =
        results.published_in.as_ref().map_or_else(String::new, |place| format!("{}<br>", escape(place)));
    let mut html = format!(
        "<section>\n<h2>Beside what was published</h2>\n<p class=\"about\">{place}Bars: measured, the median of the \
         repetitions. Diamonds: published. Ratios: measured divided by published.</p>\n<div class=\"cards\">\n"
    );
    let mut workloads: Vec<&str> = Vec::new();
    for published in &results.published {
        if !workloads.contains(&published.workload.as_str()) {
            workloads.push(&published.workload);
        }
    }
    for workload in workloads {
        let rows: Vec<&Published> = results.published.iter().filter(|it| it.workload == workload).collect();
        for figure in Figure::ALL {
            if let Some(picture) = picture(&rows, figure, palette) {
                let _ = writeln!(
                    html,
                    "<div class=\"card\"><b class=\"title\">{}</b><h3>{}</h3>{picture}</div>",
                    escape(workload),
                    figure.title()
                );
            }
        }
    }
    html + "</div>\n</section>\n"
}

fn picture(rows: &[&Published], figure: Figure, palette: &Palette) -> Option<String> {
    const ROW: f64 = 42.0;
    let rows: Vec<_> =
        rows.iter().filter_map(|it| Some((it.subject.as_str(), it.figures.get(&figure)?))).collect();
    let values = || rows.iter().flat_map(|(_, found)| [found.measured, found.published]);
    let (low, high) = values().fold((f64::MAX, 0.0_f64), |(low, high), it| (low.min(it), high.max(it)));
    if high <= 0.0 {
        return None;
    }
    let x = Scale::log((low / 4.0, high * 1.3), (0.0, WIDTH - 8.0));
    let mut svg = Svg::new(
        WIDTH,
        4.0 + ROW * rows.len() as f64,
        &format!("{}, measured and published", figure.title()),
    );
    for (row, (subject, found)) in rows.iter().enumerate() {
        let top = ROW * row as f64;
        let [measured, published] = [found.measured, found.published].map(|value| figure.say(value));
        let ratio = units::ratio(found.ratio);
        svg.text("label strong", Anchor::Start, (0.0, top + 13.0), short(subject, 22));
        svg.text(
            "label",
            Anchor::End,
            (WIDTH - 8.0, top + 13.0),
            format!("{measured}  ◇ {published}  {ratio}"),
        );
        let tip = format!("{subject}: {} {measured}, published {published}, {ratio}", figure.title());
        svg.rect("track", (0.0, top + 18.0), (WIDTH - 8.0, 16.0), "");
        svg.rect(&class("bar", palette, subject), (0.0, top + 18.0), (x.at(found.measured), 16.0), &tip);
        let (at, middle) = (x.at(found.published), top + 26.0);
        let diamond = [(at - 6.0, middle), (at, middle - 7.0), (at + 6.0, middle), (at, middle + 7.0)];
        svg.polygon("published", &diamond);
    }
    Some(svg.finish())
}
