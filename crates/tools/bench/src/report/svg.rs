//! Drawing: a string of SVG elements, scales that map values to positions, and round ticks.

use std::fmt::{Display, Write};

/// Escapes text for HTML, in an element or in a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Browsers refuse the other control characters in any notation.
            letter if letter.is_control() && !letter.is_whitespace() => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// A drawing. Its unit is about a pixel: cards are as wide as a phone's screen.
pub(super) struct Svg {
    body: String,
    width: f64,
    height: f64,
    label: String,
}

/// Position of a text relative to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// Empty drawing; the label is for screen readers.
    pub fn new(width: f64, height: f64, label: &str) -> Self {
        Svg { body: String::new(), width, height, label: escape(label) }
    }

    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = write!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    pub fn text(&mut self, class: &str, anchor: Anchor, (x, y): (f64, f64), text: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(&text.to_string());
        let _ = write!(
            self.body,
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
        );
    }

    /// Draws a rectangle with this opacity, from 0 to 1.
    pub fn shade(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        strength: f64,
        tip: &str,
    ) {
        let tip = tip_attribute(tip);
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"2\" fill-opacity=\"{strength:.2}\"{tip}/>"
        );
    }

    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), tip: &str) {
        let tip = tip_attribute(tip);
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"2\"{tip}/>"
        );
    }

    pub fn circle(&mut self, class: &str, (x, y): (f64, f64), radius: f64, tip: &str) {
        let tip = tip_attribute(tip);
        let _ =
            write!(self.body, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"{tip}/>");
    }

    /// Draws a line through points; nothing for fewer than two.
    pub fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        if points.len() > 1 {
            let _ = write!(self.body, "<polyline class=\"{class}\" points=\"{}\"/>", joined(points));
        }
    }

    /// Draws a filled shape between points.
    pub fn polygon(&mut self, class: &str, points: &[(f64, f64)]) {
        if points.len() > 2 {
            let _ = write!(self.body, "<polygon class=\"{class}\" points=\"{}\"/>", joined(points));
        }
    }

    pub fn finish(self) -> String {
        format!(
            "<svg viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            self.width, self.height, self.label, self.body
        )
    }
}

fn joined(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn tip_attribute(tip: &str) -> String {
    if tip.is_empty() { String::new() } else { format!(" data-tip=\"{}\"", escape(tip)) }
}

/// Maps values to positions, linearly or by their logarithm.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    pub fn linear((low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        Scale { low, high: if high > low { high } else { low + 1.0 }, from, to, is_log: false }
    }

    /// Logarithmic scale of values above 0.
    pub fn log((low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        let low = low.max(f64::MIN_POSITIVE);
        Scale { low, high: if high > low { high } else { low * 10.0 }, from, to, is_log: true }
    }

    pub fn at(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round values, about `wanted` of them.
    pub fn ticks(&self, wanted: usize) -> Vec<f64> {
        match self.is_log {
            true => self.log_ticks(wanted),
            false => {
                let step = nice_step((self.high - self.low) / wanted.max(1) as f64);
                let first = (self.low / step).ceil() as i64;
                let last = (self.high / step + 1e-9).floor() as i64;
                (first..=last.min(first + 50)).map(|index| index as f64 * step).collect()
            }
        }
    }

    fn log_ticks(&self, wanted: usize) -> Vec<f64> {
        let mut best: Vec<f64> = Vec::new();
        // Denser sets, up to the wanted number.
        for mantissas in [&[1.0][..], &[1.0, 3.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]] {
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let all = decades.flat_map(|decade| mantissas.iter().map(move |it| it * 10f64.powi(decade)));
            let ticks: Vec<f64> = all.filter(|tick| (self.low..=self.high).contains(tick)).collect();
            if best.is_empty() || ticks.len() <= wanted {
                best = ticks;
            }
        }
        best
    }
}

/// Returns 1, 2 or 5 times a power of ten, at least `raw`.
pub(super) fn nice_step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.max(f64::MIN_POSITIVE).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= raw * 0.999);
    step.unwrap_or(10.0) * power
}

/// Moves labels apart so that they are at least `distance` apart, keeping their order. Returns their
/// positions.
pub(super) fn spread_out(places: &[f64], distance: f64, (low, high): (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    let mut moved = places.to_vec();
    let mut least = low;
    for index in &order {
        moved[*index] = moved[*index].max(least);
        least = moved[*index] + distance;
    }
    let mut most = high;
    for index in order.iter().rev() {
        moved[*index] = moved[*index].min(most);
        most = moved[*index] - distance;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(Scale::linear((0.0, 23.0), (0.0, 1.0)).ticks(5), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!(Scale::log((900.0, 110_000.0), (0.0, 1.0)).ticks(4), [1e3, 1e4, 1e5]);
        assert_eq!(Scale::log((100.0, 450.0), (0.0, 1.0)).ticks(4), [100.0, 200.0]);
        assert_eq!(Scale::linear((5.0, 5.0), (0.0, 1.0)).ticks(2).len(), 3);
    }

    #[test]
    fn labels_keep_their_distance() {
        assert_eq!(spread_out(&[10.0, 9.0, 50.0], 12.0, (0.0, 100.0)), [21.0, 9.0, 50.0]);
        assert_eq!(spread_out(&[99.0, 98.0], 12.0, (0.0, 100.0)), [100.0, 88.0]);
    }

    #[test]
    fn nothing_gets_out_of_an_attribute() {
        assert_eq!(escape("<a b='c' d=\"e\">&\u{1}"), "&lt;a b=&#39;c&#39; d=&quot;e&quot;&gt;&amp;\u{fffd}");
    }
}
