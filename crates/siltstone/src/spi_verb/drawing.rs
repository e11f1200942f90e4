//! The state machine of a chip as SVG, drawn from its commands: a state or an edge is there if a command leads to it.

use spinor::{Action, Description};
use std::fmt::Write;

/// State: name, centre.
type Node = (&'static str, i32, i32);

const OFF: Node = ("Power-down", 120, 60);
const POWER_UP: Node = ("Power-up", 380, 60);
const STANDBY: Node = ("Standby", 380, 240);
const DEEP: Node = ("Deep power-down", 120, 240);
const CONTINUOUS: Node = ("Continuous read", 120, 400);
const QPI: Node = ("QPI", 120, 540);
const FOUR_BYTE: Node = ("4-byte addresses", 380, 540);
const ENABLED: Node = ("Write-enabled", 720, 240);
const AAI: Node = ("AAI programming", 720, 60);
const PROGRAMMING: Node = ("Programming", 1060, 120);
const ERASING: Node = ("Erasing", 1060, 300);
const WRITING: Node = ("Writing register", 1060, 460);
const PROGRAM_SUSPENDED: Node = ("Program suspended", 1400, 120);
const ERASE_SUSPENDED: Node = ("Erase suspended", 1400, 300);

/// Half the width and the height of a state's box.
const HALF: (i32, i32) = (85, 24);

/// Edges: from, to, actions of the commands that lead along it; an empty list and a label for what isn't a command.
const EDGES: &[(Node, Node, &[Action], &str)] = &[
    (OFF, POWER_UP, &[], "supply on"),
    (POWER_UP, STANDBY, &[], "tVSL"),
    (STANDBY, DEEP, &[Action::DeepPowerDown], ""),
    (DEEP, STANDBY, &[Action::ReleasePowerDown], ""),
    (STANDBY, QPI, &[Action::EnterQpi], ""),
    (QPI, STANDBY, &[Action::ExitQpi], ""),
    (STANDBY, FOUR_BYTE, &[Action::EnterFourByte], ""),
    (FOUR_BYTE, STANDBY, &[Action::ExitFourByte], ""),
    (STANDBY, ENABLED, &[Action::WriteEnable], ""),
    (ENABLED, STANDBY, &[Action::WriteDisable], ""),
    (ENABLED, AAI, &[Action::AaiProgram], ""),
    (AAI, STANDBY, &[Action::WriteDisable], ""),
    (ENABLED, PROGRAMMING, &[Action::Program, Action::ProgramSecurity], ""),
    (ENABLED, ERASING, &[Action::Erase, Action::ChipErase, Action::EraseSecurity], ""),
    (ENABLED, WRITING, &[Action::WriteRegisters], ""),
    (PROGRAMMING, STANDBY, &[], "done"),
    (ERASING, STANDBY, &[], "done"),
    (WRITING, STANDBY, &[], "done"),
    (PROGRAMMING, PROGRAM_SUSPENDED, &[Action::Suspend], ""),
    (PROGRAM_SUSPENDED, PROGRAMMING, &[Action::Resume], ""),
    (ERASING, ERASE_SUSPENDED, &[Action::Suspend], ""),
    (ERASE_SUSPENDED, ERASING, &[Action::Resume], ""),
];

/// Returns the drawing.
pub fn svg(chip: &Description) -> String {
    let mut edges: Vec<(Node, Node, String)> = Vec::new();
    for (from, to, actions, label) in EDGES {
        let commands = chip.commands.iter().filter(|command| actions.contains(&command.action));
        let mut opcodes: Vec<String> = commands.map(|command| format!("{:02X}h", command.opcode)).collect();
        opcodes.dedup();
        let label = if actions.is_empty() { (*label).to_owned() } else { opcodes.join(" ") };
        if !label.is_empty() {
            edges.push((*from, *to, label));
        }
    }
    // The mode byte of these reads begins and ends it.
    let moded = chip.commands.iter().filter(|command| command.mode && command.action == Action::Read);
    let moded: Vec<String> = moded.map(|command| format!("{:02X}h", command.opcode)).collect();
    if !moded.is_empty() && chip.continuous != spinor::Continuous::None {
        edges.push((STANDBY, CONTINUOUS, format!("{} with mode", moded.join(" "))));
        edges.push((CONTINUOUS, STANDBY, "mode".to_owned()));
    }
    // A state whose only way in comes from a state that this chip lacks isn't drawn, nor are its edges.
    let mut shown = vec![OFF.0];
    while let Some((_, to, _)) =
        edges.iter().find(|(from, to, _)| shown.contains(&from.0) && !shown.contains(&to.0))
    {
        shown.push(to.0);
    }
    edges.retain(|(from, _, _)| shown.contains(&from.0));
    let mut text = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1520 640\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">\
         <path d=\"M0,0 L8,4 L0,8 z\" fill=\"#456\"/></marker></defs>\n\
         <rect width=\"1520\" height=\"640\" fill=\"white\"/>\n",
    );
    let _ = writeln!(
        text,
        "<text x=\"20\" y=\"620\" fill=\"#456\">{} {}: states, and the opcodes that lead from one to another. Reset and loss of power \
         lead from every state to Standby and Power-down.</text>",
        escaped(&chip.maker),
        escaped(&chip.name)
    );
    for (from, to, label) in &edges {
        edge(&mut text, *from, *to, label);
    }
    let mut drawn: Vec<&str> = Vec::new();
    for (from, to, _) in &edges {
        for (name, x, y) in [*from, *to] {
            if drawn.contains(&name) {
                continue;
            }
            drawn.push(name);
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
    }
    text.push_str("</svg>\n");
    text
}

/// Draws an arc between the borders of two boxes; the arcs of both directions bend away from each other.
fn edge(text: &mut String, from: Node, to: Node, label: &str) {
    let (start, end) = ((f64::from(from.1), f64::from(from.2)), (f64::from(to.1), f64::from(to.2)));
    let (dx, dy) = (end.0 - start.0, end.1 - start.1);
    let length = dx.hypot(dy).max(1.0);
    let normal = (-dy / length, dx / length);
    let bend = 26.0;
    let middle =
        ((start.0 + end.0) / 2.0 + normal.0 * bend * 2.0, (start.1 + end.1) / 2.0 + normal.1 * bend * 2.0);
    let a = border(start, middle);
    let b = border(end, middle);
    let at = ((a.0 + 2.0 * middle.0 + b.0) / 4.0, (a.1 + 2.0 * middle.1 + b.1) / 4.0);
    let _ = writeln!(
        text,
        "<path d=\"M{:.0},{:.0} Q{:.0},{:.0} {:.0},{:.0}\" fill=\"none\" stroke=\"#456\" marker-end=\"url(#tip)\"/>\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#a33\" font-size=\"12\">{}</text>",
        a.0,
        a.1,
        middle.0,
        middle.1,
        b.0,
        b.1,
        at.0,
        at.1 - 4.0,
        escaped(label)
    );
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
