//! State machine of a chip as SVG, drawn from its commands: a state or an edge is drawn if a command leads to
//! it.

use spinor::{Action, Description};
use std::fmt::Write;

/// State: name, and x and y of its centre.
type Node = (&'static str, i32, i32);

const OFF: Node = ("Power-down", 120, 60);
const POWER_UP: Node = ("Power-up", 420, 60);
const STANDBY: Node = ("Standby", 420, 240);
const DEEP: Node = ("Deep power-down", 120, 240);
const CONTINUOUS: Node = ("Continuous read", 120, 420);
const QPI: Node = ("QPI", 120, 560);
const FOUR_BYTE: Node = ("4-byte addresses", 420, 560);
const ENABLED: Node = ("Write-enabled", 760, 240);
const AAI: Node = ("AAI programming", 760, 60);
const PROGRAMMING: Node = ("Programming", 1120, 140);
const ERASING: Node = ("Erasing", 1120, 340);
const WRITING: Node = ("Writing register", 760, 470);
const PROGRAM_SUSPENDED: Node = ("Program suspended", 1420, 140);
const ERASE_SUSPENDED: Node = ("Erase suspended", 1420, 340);

/// Width and height of the drawing.
const SIZE: (i32, i32) = (1540, 660);
/// Half the width and half the height of a state's box.
const HALF: (i32, i32) = (85, 24);
/// Default distance of an arc's middle from the straight line. Positive arcs bend to the right of their
/// direction, so the arcs of both directions don't overlap.
const BEND: f64 = 26.0;
/// Number of opcodes per line of a label.
const OPCODES_IN_A_LINE: usize = 3;
/// Width of a letter of a label.
const LETTER: f64 = 7.5;
/// Height of a line of a label.
const LINE: f64 = 14.0;

/// Trigger of an edge.
#[derive(Clone, Copy)]
enum Cause {
    /// Commands with one of these actions; without such a command the chip lacks the edge.
    Commands(&'static [Action]),
    /// Reads with a mode byte.
    ModeReads,
    /// Another event, on every chip.
    Event(&'static str),
    /// A mode byte, on chips with continuous reads.
    ModeByte,
}

use Cause::{Commands, Event};

/// Edges: from, to, cause, bend, and position of the label along the arc, 0.0 to 1.0.
const EDGES: &[(Node, Node, Cause, f64, f64)] = &[
    (OFF, POWER_UP, Event("supply on"), 0.0, 0.5),
    (POWER_UP, STANDBY, Event("tVSL"), 0.0, 0.5),
    (STANDBY, DEEP, Commands(&[Action::DeepPowerDown]), BEND, 0.5),
    (DEEP, STANDBY, Commands(&[Action::ReleasePowerDown]), BEND, 0.5),
    (STANDBY, CONTINUOUS, Cause::ModeReads, BEND, 0.65),
    (CONTINUOUS, STANDBY, Cause::ModeByte, BEND, 0.25),
    (STANDBY, QPI, Commands(&[Action::EnterQpi]), 0.0, 0.7),
    (QPI, STANDBY, Commands(&[Action::ExitQpi]), 2.0 * BEND, 0.3),
    (STANDBY, FOUR_BYTE, Commands(&[Action::EnterFourByte]), BEND, 0.6),
    (FOUR_BYTE, STANDBY, Commands(&[Action::ExitFourByte]), BEND, 0.4),
    (STANDBY, ENABLED, Commands(&[Action::WriteEnable]), BEND, 0.5),
    (ENABLED, STANDBY, Commands(&[Action::WriteDisable]), BEND, 0.5),
    (ENABLED, AAI, Commands(&[Action::AaiProgram]), 0.0, 0.6),
    (AAI, STANDBY, Commands(&[Action::WriteDisable]), BEND, 0.35),
    (ENABLED, PROGRAMMING, Commands(&[Action::Program, Action::ProgramSecurity]), 14.0, 0.5),
    (ENABLED, ERASING, Commands(&[Action::Erase, Action::ChipErase, Action::EraseSecurity]), -14.0, 0.55),
    (ENABLED, WRITING, Commands(&[Action::WriteRegisters]), 0.0, 0.75),
    // These arcs avoid Write-enabled, which is between their ends.
    (PROGRAMMING, STANDBY, Event("done"), 56.0, 0.25),
    (ERASING, STANDBY, Event("done"), -56.0, 0.25),
    (WRITING, STANDBY, Event("done"), -BEND, 0.4),
    (PROGRAMMING, PROGRAM_SUSPENDED, Commands(&[Action::Suspend]), BEND, 0.5),
    (PROGRAM_SUSPENDED, PROGRAMMING, Commands(&[Action::Resume]), BEND, 0.5),
    (ERASING, ERASE_SUSPENDED, Commands(&[Action::Suspend]), BEND, 0.5),
    (ERASE_SUSPENDED, ERASING, Commands(&[Action::Resume]), BEND, 0.5),
];

type Point = (f64, f64);
/// Rectangle: left, top, right, bottom.
type Area = (f64, f64, f64, f64);

/// Edge of a chip: an arc (a quadratic Bézier curve) between the borders of two boxes, with its label.
struct Edge {
    from: Node,
    to: Node,
    begin: Point,
    control: Point,
    end: Point,
    lines: Vec<String>,
    /// Centre of the label.
    label: Point,
}

impl Edge {
    fn new(from: Node, to: Node, lines: Vec<String>, bend: f64, at: f64) -> Edge {
        let centre = |node: Node| (f64::from(node.1), f64::from(node.2));
        let (start, end) = (centre(from), centre(to));
        let (dx, dy) = (end.0 - start.0, end.1 - start.1);
        let length = dx.hypot(dy).max(1.0);
        // The middle of the curve is half as far from the straight line as its control point.
        let away = (-dy / length * bend * 2.0, dx / length * bend * 2.0);
        let control = (start.0.midpoint(end.0) + away.0, start.1.midpoint(end.1) + away.1);
        let (begin, end) = (border(start, control), border(end, control));
        let mut edge = Edge { from, to, begin, control, end, lines, label: (0.0, 0.0) };
        edge.label = edge.point(at);
        edge
    }

    /// Returns the area of the label, for letters of usual width.
    fn label_area(&self) -> Area {
        let letters = self.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let half = (letters as f64 * LETTER / 2.0, self.lines.len() as f64 * LINE / 2.0);
        (self.label.0 - half.0, self.label.1 - half.1, self.label.0 + half.0, self.label.1 + half.1)
    }

    /// Returns a point of the arc; `at` is 0.0 at its start and 1.0 at its end.
    fn point(&self, at: f64) -> Point {
        let rest = 1.0 - at;
        let along = |a: f64, b: f64, c: f64| rest * rest * a + 2.0 * rest * at * b + at * at * c;
        (along(self.begin.0, self.control.0, self.end.0), along(self.begin.1, self.control.1, self.end.1))
    }
}

/// Returns the edges that a chip has.
fn edges(chip: &Description) -> Vec<Edge> {
    let opcodes = |chosen: &dyn Fn(&spinor::Command) -> bool| {
        let mut opcodes: Vec<u8> =
            chip.commands.iter().filter(|command| chosen(command)).map(|command| command.opcode).collect();
        opcodes.sort_unstable();
        opcodes.dedup();
        let words: Vec<String> = opcodes.iter().map(|opcode| format!("{opcode:02X}h")).collect();
        words.chunks(OPCODES_IN_A_LINE).map(|words| words.join(" ")).collect::<Vec<String>>()
    };
    // The mode byte of these reads enters and leaves continuous read mode.
    let moded = match chip.continuous {
        spinor::Continuous::None => Vec::new(),
        _ => opcodes(&|command| command.mode && command.action == Action::Read),
    };
    let mut edges: Vec<Edge> = Vec::new();
    for (from, to, cause, bend, at) in EDGES {
        let mut lines = match cause {
            Commands(actions) => opcodes(&|command| actions.contains(&command.action)),
            Event(event) => vec![(*event).to_owned()],
            Cause::ModeReads => moded.clone(),
            Cause::ModeByte if moded.is_empty() => Vec::new(),
            Cause::ModeByte => vec!["mode".to_owned()],
        };
        if lines.is_empty() {
            continue;
        }
        if let Cause::ModeReads = cause {
            lines.push("with mode".to_owned());
        }
        edges.push(Edge::new(*from, *to, lines, *bend, *at));
    }
    // States that are only reachable from states that this chip lacks aren't drawn, nor are their edges.
    let mut shown = vec![OFF.0];
    while let Some(edge) =
        edges.iter().find(|edge| shown.contains(&edge.from.0) && !shown.contains(&edge.to.0))
    {
        shown.push(edge.to.0);
    }
    edges.retain(|edge| shown.contains(&edge.from.0));
    edges
}

/// Returns the states at the ends of edges, without duplicates.
fn nodes(edges: &[Edge]) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for node in edges.iter().flat_map(|edge| [edge.from, edge.to]) {
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    nodes
}

/// Returns the drawing.
pub fn svg(chip: &Description) -> String {
    let edges = edges(chip);
    let (width, height) = SIZE;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">\
         <path d=\"M0,0 L8,4 L0,8 z\" fill=\"#456\"/></marker></defs>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n",
    );
    let _ = writeln!(
        text,
        "<text x=\"20\" y=\"{}\" fill=\"#456\">{} {}: states, and the opcodes that lead from one to another. Reset and loss of power \
         lead from every state to Standby and Power-down.</text>",
        height - 20,
        escaped(&chip.maker),
        escaped(&chip.name)
    );
    for Edge { begin, control, end, .. } in &edges {
        let _ = writeln!(
            text,
            "<path d=\"M{:.0},{:.0} Q{:.0},{:.0} {:.0},{:.0}\" fill=\"none\" stroke=\"#456\" marker-end=\"url(#tip)\"/>",
            begin.0, begin.1, control.0, control.1, end.0, end.1
        );
    }
    for (name, x, y) in nodes(&edges) {
        let (width, height) = HALF;
        let _ = writeln!(
            text,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"10\" fill=\"#e8f0f8\" stroke=\"#456\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
            x - width,
            y - height,
            2 * width,
            2 * height,
            y + 5
        );
    }
    // Labels are drawn last, over the lines.
    for edge in &edges {
        let (left, top, right, bottom) = edge.label_area();
        let _ = writeln!(
            text,
            "<rect x=\"{left:.0}\" y=\"{top:.0}\" width=\"{:.0}\" height=\"{:.0}\" fill=\"white\"/>",
            right - left,
            bottom - top
        );
        for (n, line) in (1u8..).zip(&edge.lines) {
            let _ = writeln!(
                text,
                "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#a33\" font-size=\"12\">{}</text>",
                edge.label.0,
                top + LINE * f64::from(n) - 3.0,
                escaped(line)
            );
        }
    }
    text.push_str("</svg>\n");
    text
}

/// Returns where the line from a box's centre to a point leaves the box.
fn border(centre: (f64, f64), towards: (f64, f64)) -> (f64, f64) {
    let (dx, dy) = (towards.0 - centre.0, towards.1 - centre.1);
    let scale = (f64::from(HALF.0) / dx.abs().max(1e-9)).min(f64::from(HALF.1) / dy.abs().max(1e-9));
    (centre.0 + dx * scale, centre.1 + dy * scale)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(a: Area, b: Area) -> bool {
        a.0 < b.2 && b.0 < a.2 && a.1 < b.3 && b.1 < a.3
    }

    fn of_node((_, x, y): Node) -> Area {
        let (x, y, half) = (f64::from(x), f64::from(y), (f64::from(HALF.0), f64::from(HALF.1)));
        (x - half.0, y - half.1, x + half.0, y + half.1)
    }

    #[test]
    fn nothing_in_the_drawing_of_a_chip_lies_over_anything_else() {
        let mut problems = Vec::new();
        for (name, text) in spinor::CHIPS {
            let edges = edges(&Description::parse(name, text).unwrap());
            let way = |edge: &Edge| format!("{name}: {} to {}", edge.from.0, edge.to.0);
            for (n, edge) in edges.iter().enumerate() {
                let label = edge.label_area();
                if label.0 < 0.0
                    || label.1 < 0.0
                    || label.2 > f64::from(SIZE.0)
                    || label.3 > f64::from(SIZE.1)
                {
                    problems.push(format!("{}: label outside", way(edge)));
                }
                for node in nodes(&edges) {
                    if overlap(label, of_node(node)) {
                        problems.push(format!("{}: label over {}", way(edge), node.0));
                    }
                    let is_end = [edge.from.0, edge.to.0].contains(&node.0);
                    let crosses = (0..=100).map(|step| edge.point(f64::from(step) / 100.0));
                    if !is_end && crosses.into_iter().any(|(x, y)| overlap((x, y, x, y), of_node(node))) {
                        problems.push(format!("{}: arc through {}", way(edge), node.0));
                    }
                }
                for other in &edges[n + 1..] {
                    if overlap(label, other.label_area()) {
                        problems.push(format!("{}: label over that of {}", way(edge), way(other)));
                    }
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
