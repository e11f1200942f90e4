//! Dependencies between parts: the order of building, cycles, parts that are used too often or not at all.
//!
//! The functions here don't recurse, so a hostile stack can't exhaust the thread's stack. Functions that
//! recurse over a stack later (drawing, writing it in one line) rely on [`MAX_LEVELS`].

use crate::contract::Contract;
use crate::kind::Kind;
use crate::problem::{Collector, Source, shown};
use crate::raw::Span;

/// Most levels of a stack.
pub(crate) const MAX_LEVELS: usize = 64;

/// Reference to another part.
#[derive(Debug, Clone)]
pub(crate) struct Reference {
    /// Key that holds the reference.
    pub key: &'static str,
    /// Number of the part in the stack.
    pub part: usize,
    /// Position of the reference in the text.
    pub span: Span,
}

/// Properties of a part for the checks.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub name: &'a str,
    pub name_span: Span,
    /// `None` for an unknown kind, which is reported elsewhere.
    pub kind: Option<&'static Kind>,
    pub references: &'a [Reference],
}

impl Node<'_> {
    fn contract(&self) -> Option<Contract> {
        self.kind.map(|kind| kind.contract)
    }
}

/// Reports problems, and returns the parts from the bottom up: each after all parts below it, otherwise in
/// the order of the stack.
pub(crate) fn check(source: &Source, nodes: &[Node<'_>], problems: &mut Collector) -> Vec<usize> {
    let (order, cyclic) = order(source, nodes, problems);
    if !cyclic {
        check_levels(source, nodes, &order, problems);
    }
    check_sharing(source, nodes, problems);
    // With other problems, a part may only seem to be unused.
    if problems.count() == 0 {
        check_unused(source, nodes, problems);
    }
    order
}

#[derive(Clone, Copy, PartialEq)]
enum Mark {
    New,
    Entered,
    Done,
}

fn order(source: &Source, nodes: &[Node<'_>], problems: &mut Collector) -> (Vec<usize>, bool) {
    let mut marks = vec![Mark::New; nodes.len()];
    let mut order = Vec::with_capacity(nodes.len());
    let mut cyclic = false;
    for start in 0..nodes.len() {
        // The path from `start` down, with the number of the next reference of each part.
        let mut path = vec![(start, 0)];
        while let Some((part, next)) = path.last_mut() {
            let part = *part;
            if *next == 0 {
                if marks[part] == Mark::Done {
                    path.pop();
                    continue;
                }
                marks[part] = Mark::Entered;
            }
            let Some(reference) = nodes[part].references.get(*next) else {
                marks[part] = Mark::Done;
                order.push(part);
                path.pop();
                continue;
            };
            *next += 1;
            match marks[reference.part] {
                Mark::New => path.push((reference.part, 0)),
                Mark::Done => {}
                Mark::Entered => {
                    cyclic = true;
                    let first = path.iter().position(|(part, _)| *part == reference.part).unwrap_or(0);
                    let parts = path[first..].iter().map(|(part, _)| *part).collect::<Vec<_>>();
                    report_cycle(source, nodes, &parts, reference, problems);
                }
            }
        }
    }
    (order, cyclic)
}

fn report_cycle(
    source: &Source,
    nodes: &[Node<'_>],
    parts: &[usize],
    closing: &Reference,
    problems: &mut Collector,
) {
    problems.add(|| {
        let names = parts.iter().chain([&closing.part]).map(|part| shown(nodes[*part].name));
        let circle = names.collect::<Vec<_>>().join(" -> ");
        source.problem(closing.span.clone(), format!("cycle: {circle}: no part can be below itself"))
    });
}

fn check_levels(source: &Source, nodes: &[Node<'_>], order: &[usize], problems: &mut Collector) {
    let mut levels = vec![0; nodes.len()];
    for part in order {
        let below = nodes[*part].references.iter().map(|reference| levels[reference.part]).max();
        levels[*part] = below.unwrap_or(0) + 1;
        if levels[*part] == MAX_LEVELS + 1 {
            problems.add(|| {
                let node = &nodes[*part];
                let message = format!(
                    "\"{}\" is on level {} of the stack; expected at most {MAX_LEVELS} levels",
                    shown(node.name),
                    MAX_LEVELS + 1
                );
                source.problem(node.name_span.clone(), message)
            });
        }
    }
}

/// Checks the number of users of each part: doors may share a device, but only one part may use another,
/// unless its kind allows more.
fn check_sharing(source: &Source, nodes: &[Node<'_>], problems: &mut Collector) {
    let mut users: Vec<Vec<(usize, &Reference)>> = vec![Vec::new(); nodes.len()];
    for (user, node) in nodes.iter().enumerate() {
        for reference in node.references {
            users[reference.part].push((user, reference));
        }
    }
    for (used, users) in nodes.iter().zip(users) {
        let is_door = |user: usize| nodes[user].contract() == Some(Contract::Door);
        let Some(kind) = used.kind.filter(|kind| !kind.shareable) else { continue };
        // A part that uses it has exclusive use: every other user, door or not, is an error.
        let Some((owner, _)) = users.iter().find(|(user, _)| !is_door(*user)) else { continue };
        let owner_at = users.iter().position(|(user, _)| user == owner);
        for (number, (user, reference)) in users.iter().enumerate() {
            if Some(number) == owner_at {
                continue;
            }
            problems.add(|| {
                let by = |user: usize| {
                    let door = if is_door(user) { "door " } else { "" };
                    format!("{door}\"{}\"", shown(nodes[user].name))
                };
                let again = if user == owner { "twice by" } else { "by" };
                let other = if user == owner { String::new() } else { format!(" and by {}", by(*owner)) };
                let message = format!(
                    "\"{}\" is used {again} {}{other}, but a part of kind \"{}\" takes only one user",
                    shown(used.name),
                    by(*user),
                    kind.name
                );
                source.problem(reference.span.clone(), message)
            });
        }
    }
}

/// Reports unused parts. Without doors, each part without users is a top, and the user of the stack selects
/// one. With doors, or beside a device, a part without users was forgotten.
fn check_unused(source: &Source, nodes: &[Node<'_>], problems: &mut Collector) {
    let mut used = vec![false; nodes.len()];
    for reference in nodes.iter().flat_map(|node| node.references) {
        used[reference.part] = true;
    }
    let any = |contract: Contract| nodes.iter().any(|node| node.contract() == Some(contract));
    let unused = |contract: Contract| {
        nodes.iter().zip(&used).filter(move |(node, used)| !**used && node.contract() == Some(contract))
    };
    let doors = any(Contract::Door);
    let device_on_top = unused(Contract::Device).next().is_some();
    let forgotten_devices = unused(Contract::Device).filter(|_| doors);
    let forgotten_zones = unused(Contract::Zones).filter(|_| doors || device_on_top);
    for (node, _) in forgotten_devices.chain(forgotten_zones) {
        problems.add(|| {
            let message = format!(
                "nothing uses \"{}\": name it in a key of another part or of a door, or take it out",
                shown(node.name)
            );
            source.problem(node.name_span.clone(), message)
        });
    }
}
