//! Plans: stacks whose parts fit together, and their construction.

use crate::arguments::{Arguments, Child};
use crate::built::BuiltStack;
use crate::claims::{Claim, LockedFile};
use crate::contract::{Built, BuiltPart, Contract};
use crate::draw;
use crate::graph::Reference;
use crate::model::{Part, Stack};
use crate::problem::{Collector, Problem, Problems};
use crate::shape::Shape;
use block::{Call, Error, Result};
use std::cell::{Cell, RefCell};

/// Parts to format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// No part: one that doesn't exist is an error.
    Nothing,
    /// All parts.
    Everything,
    /// The parts with these names.
    Only(Vec<String>),
}

impl From<bool> for Format {
    fn from(everything: bool) -> Self {
        if everything { Format::Everything } else { Format::Nothing }
    }
}

impl Format {
    fn is_for(&self, part: &Part) -> bool {
        match self {
            Format::Nothing => false,
            Format::Everything => true,
            Format::Only(names) => names.contains(&part.name),
        }
    }
}

impl Stack {
    /// Runs [`Kind::plan`](crate::Kind::plan) of every part from the bottom up, so that the parts of the
    /// resulting plan fit together. `format` names the parts to format; `true` selects all.
    ///
    /// # Errors
    /// All problems, each at its key or section.
    pub fn check(&self, format: impl Into<Format>) -> Result<Plan, Problems> {
        let (stack, format) = (self.clone(), format.into());
        let mut problems = Collector::default();
        let mut shapes: Vec<Option<Shape>> = vec![None; stack.parts.len()];
        let mut claims: Vec<(usize, Claim)> = Vec::new();
        let must_exist = must_exist(&stack, &format);
        for number in &stack.order {
            let part = &stack.parts[*number];
            let children = part.references.iter().map(|reference| {
                let shape = shapes[reference.part].clone()?;
                Some(child(&stack, reference, shape, None))
            });
            // A part above one that doesn't fit can't be checked.
            let Some(children) = children.collect::<Option<Vec<_>>>() else { continue };
            let arguments = arguments(&stack, part, children, &format, must_exist[*number]);
            match (part.kind.plan)(&arguments) {
                Ok(shape) => shapes[*number] = Some(shape),
                Err(error) => problems.add(|| {
                    let message = format!("{}: {}", title(part), error.detail());
                    stack.source.problem(part.place_of(arguments.refused.get()), message)
                }),
            }
            for claim in arguments.claims.into_inner() {
                if let Some((other, its)) = claims.iter().find(|(_, other)| other.excludes(&claim)) {
                    problems.add(|| claimed_twice(&stack, (*number, &claim), (*other, its)));
                }
                claims.push((*number, claim));
            }
        }
        let shapes = shapes.into_iter().map(Option::unwrap_or_default).collect();
        problems.finish(Plan { stack, shapes, format, claims })
    }
}

/// Function through which [`Plan::build_observed`] passes devices and zones.
pub type Observe<'a> = dyn Fn(User<'_>, Built) -> Built + 'a;

/// Users of a device or of zones that are built.
#[derive(Debug, Clone, Copy)]
pub enum User<'a> {
    /// All users of this part.
    All(&'a Part),
    /// One door.
    Door {
        /// The door.
        door: &'a Part,
        /// The part that it gets.
        part: &'a Part,
    },
}

/// Result of [`Stack::check`]. It can be built any number of times.
#[derive(Debug, Clone)]
pub struct Plan {
    stack: Stack,
    /// Shapes by the number of the part.
    shapes: Vec<Shape>,
    format: Format,
    /// Files that parts open, with the numbers of the parts.
    claims: Vec<(usize, Claim)>,
}

/// Files of a part that were locked before the stack was built, by key; or the error of the first one that
/// couldn't be.
type Locked = Result<Vec<(&'static str, LockedFile)>>;

impl Plan {
    /// Stack of this plan.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Shape of the device or zones with this name.
    pub fn shape(&self, name: &str) -> Option<Shape> {
        let is_it = |part: &Part| part.name == name && part.kind.contract != Contract::Door;
        self.stack.parts.iter().position(is_it).map(|number| self.shapes[number].clone())
    }

    /// Draws the stack with sizes as text.
    pub fn draw(&self) -> String {
        draw::draw(&self.stack, Some(&self.shapes))
    }

    /// As [`Stack::to_json`], with `bytes` and `block_size` of each part, null if they aren't known.
    pub fn to_json(&self) -> serde_json::Value {
        draw::to_json(&self.stack, Some(&self.shapes))
    }

    /// Builds every part from the bottom up; doors are built and not started. Runs on a shard of the runtime
    /// if the kinds need it. The files of all parts are locked before the first part is built, and therefore
    /// before any file changes.
    ///
    /// A part that can't be built is omitted if its users can be built without it
    /// ([`Key::may_be_missing`](crate::Key::may_be_missing)).
    ///
    /// # Errors
    /// The error of the first needed part that can't be built, with its name. The parts built before it have
    /// been closed, from the top down.
    pub fn build(&self) -> Call<'_, Result<BuiltStack>> {
        self.build_observed(&|_, part| part)
    }

    /// Builds as [`build`](Self::build) does, and passes devices and zones through `observe`, which returns
    /// them with observed handles, or as they are: each once for all of its users, and once more for each
    /// door above it. The result has the same contract.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_observed<'a>(&'a self, observe: &'a Observe<'a>) -> Call<'a, Result<BuiltStack>> {
        Call::new(self.build_wanted(self.stack.tops(), vec![true; self.stack.parts.len()], observe))
    }

    /// Builds the wanted parts, by number, each with the parts below it.
    async fn build_wanted(
        &self,
        tops: Vec<usize>,
        wanted: Vec<bool>,
        observe: &Observe<'_>,
    ) -> Result<BuiltStack> {
        let needed = self.needed(&tops, &wanted);
        let mut locked = self.lock(&wanted, &needed).await?;
        let mut stack = BuiltStack::new(tops);
        for number in self.stack.order.iter().filter(|number| wanted[**number]) {
            let part = &self.stack.parts[*number];
            let files = std::mem::replace(&mut locked[*number], Ok(Vec::new()));
            match self.build_part(*number, files, &stack, observe).await {
                Ok(mut built) => {
                    if part.kind.contract != Contract::Door {
                        built.built = observe(User::All(part), built.built);
                    }
                    let below = part.references.iter().map(|reference| reference.part).collect();
                    stack.push(*number, built, below);
                }
                Err(error) if needed[*number] => {
                    // The error of building has the remedy; those of closing are only consequences.
                    let _ = stack.close().await;
                    return Err(error.in_context(title(part)));
                }
                Err(error) => stack.push_missing(*number, part, error.in_context(title(part))),
            }
        }
        Ok(stack)
    }

    /// Locks the files of the wanted parts, by the numbers of the parts.
    async fn lock(&self, wanted: &[bool], needed: &[bool]) -> Result<Vec<Locked>> {
        let mut locked: Vec<Locked> = self.stack.parts.iter().map(|_| Ok(Vec::new())).collect();
        for (number, claim) in self.claims.iter().filter(|(number, _)| wanted[*number]) {
            let Ok(files) = &mut locked[*number] else { continue };
            match (claim.lock)(claim.path.clone(), claim.alone).await {
                Ok(file) => files.extend(file.map(|file| (claim.key, file))),
                Err(error) if needed[*number] => {
                    return Err(error.in_context(title(&self.stack.parts[*number])));
                }
                Err(error) => locked[*number] = Err(error),
            }
        }
        Ok(locked)
    }

    /// Whether each part is needed: by a wanted part above it through a key whose parts may not be missing,
    /// or by the caller.
    fn needed(&self, tops: &[usize], wanted: &[bool]) -> Vec<bool> {
        let parts = &self.stack.parts;
        let mut needed: Vec<bool> = parts.iter().map(|part| part.kind.contract == Contract::Door).collect();
        tops.iter().for_each(|top| needed[*top] = true);
        // In reverse order, users precede the parts below them.
        for user in self.stack.order.iter().rev().copied().filter(|user| wanted[*user]) {
            let is_formatted = self.format.is_for(&parts[user]);
            for reference in &parts[user].references {
                let key = parts[user].kind.key(reference.key);
                let can_do_without = !is_formatted && key.is_some_and(|key| key.may_be_missing);
                needed[reference.part] |= needed[user] && !can_do_without;
            }
        }
        needed
    }

    /// Builds only the parts below the device or zones with this name, from the bottom up: to inspect the
    /// contents below the part without opening it. The tops of the result are the parts directly below it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the part doesn't exist; else as [`build`](Self::build).
    pub fn build_below<'a>(&'a self, name: &str) -> Call<'a, Result<BuiltStack>> {
        let is_it = |part: &Part| part.name == name && part.kind.contract != Contract::Door;
        let Some(number) = self.stack.parts.iter().position(is_it) else {
            let known = self.stack.parts.iter().filter(|part| part.kind.contract != Contract::Door);
            let known = known.map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ");
            return Call::ready(Err(Error::not_found(format!("part \"{name}\": expected one of {known}"))));
        };
        let (tops, wanted) = self.below(number);
        Call::new(self.build_wanted(tops, wanted, &|_, part| part))
    }

    /// Builds only the parts below the door with this name, and returns them with the arguments for building
    /// the door: to use the door's devices without serving them.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the door doesn't exist; else as [`build`](Self::build).
    pub fn build_below_door<'a>(&'a self, name: &str) -> Call<'a, Result<(BuiltStack, Arguments)>> {
        let is_it = |part: &Part| part.name == name && part.kind.contract == Contract::Door;
        let Some(number) = self.stack.parts.iter().position(is_it) else {
            return Call::ready(Err(Error::not_found(format!(
                "door \"{name}\": this stack has no such door"
            ))));
        };
        Call::new(async move {
            let (tops, wanted) = self.below(number);
            let below = self.build_wanted(tops, wanted, &|_, part| part).await?;
            let arguments = self.arguments_on(number, &below, &|_, part| part);
            Ok((below, arguments))
        })
    }

    /// Returns the arguments of the device or zones with this name as while planning, to use what they name
    /// without opening any part.
    pub fn arguments_of(&self, name: &str) -> Option<Arguments> {
        let part = self.stack.part(name)?;
        let child_of =
            |reference: &Reference| child(&self.stack, reference, self.shapes[reference.part].clone(), None);
        let children = part.references.iter().map(child_of).collect();
        Some(arguments(&self.stack, part, children, &self.format, false))
    }

    /// Numbers of the parts directly below a part, and for each part whether it is below this one.
    fn below(&self, number: usize) -> (Vec<usize>, Vec<bool>) {
        let tops: Vec<usize> =
            self.stack.parts[number].references.iter().map(|reference| reference.part).collect();
        let mut wanted = vec![false; self.stack.parts.len()];
        tops.iter().for_each(|top| wanted[*top] = true);
        // In reverse order, users precede the parts below them.
        for user in self.stack.order.iter().rev() {
            if wanted[*user] {
                let below = self.stack.parts[*user].references.iter();
                below.for_each(|reference| wanted[reference.part] = true);
            }
        }
        (tops, wanted)
    }

    /// Arguments of a part, with the parts below it.
    fn arguments_on(&self, number: usize, below: &BuiltStack, observe: &Observe<'_>) -> Arguments {
        let user = &self.stack.parts[number];
        let for_user = |number: usize, built: BuiltPart| match user.kind.contract {
            Contract::Door => {
                let one = User::Door { door: user, part: &self.stack.parts[number] };
                Ok(BuiltPart { built: observe(one, built.built), ..built })
            }
            _ => Ok(built),
        };
        let children = user
            .references
            .iter()
            .map(|reference| {
                let shape = self.shapes[reference.part].clone();
                let built = below.by_number(reference.part).cloned();
                let built = built.map(|built| for_user(reference.part, built));
                let error = || below.error_of(reference.part).cloned().map(Err);
                child(&self.stack, reference, shape, built.or_else(error))
            })
            .collect();
        arguments(&self.stack, user, children, &self.format, must_exist(&self.stack, &self.format)[number])
    }

    async fn build_part(
        &self,
        number: usize,
        locked: Locked,
        below: &BuiltStack,
        observe: &Observe<'_>,
    ) -> Result<BuiltPart> {
        let part = &self.stack.parts[number];
        let locked = locked?;
        for reference in &part.references {
            if let Some(error) = below.error_of(reference.part)
                && part.kind.key(reference.key).is_none_or(|key| !key.may_be_missing)
            {
                return Err(error.clone());
            }
        }
        let arguments = self.arguments_on(number, below, observe);
        *arguments.locked.borrow_mut() = locked;
        let warning = arguments.fullness_warning()?;
        let built = (part.kind.build)(arguments).await?;
        if built.contract() != part.kind.contract {
            let (found, expected) = (built.contract().noun(), part.kind.contract.noun());
            let _ = built.part().close().await;
            return Err(Error::invalid(format!("it was built as {found}, but its kind declares {expected}")));
        }
        Ok(BuiltPart { name: part.name.clone(), kind: part.kind.name, built, warning })
    }
}

/// Whether each part has contents of a part above it, by the numbers of the parts: of the part directly above
/// it, or through parts that pass the contents on. A part that is formatted has none below it.
fn must_exist(stack: &Stack, format: &Format) -> Vec<bool> {
    let mut must = vec![false; stack.parts.len()];
    // Parts above come later in the order.
    for user in stack.order.iter().rev().copied().filter(|user| !format.is_for(&stack.parts[*user])) {
        let part = &stack.parts[user];
        for reference in &part.references {
            let holds = part.kind.key(reference.key).is_some_and(|key| key.holds_contents);
            must[reference.part] |= holds || must[user];
        }
    }
    must
}

/// Returns the problem of two parts with conflicting claims on a file, at the one that is later in the text.
fn claimed_twice(stack: &Stack, one: (usize, &Claim), other: (usize, &Claim)) -> Problem {
    let place = |(number, claim): (usize, &Claim)| stack.parts[number].place_of(Some(claim.key));
    let (first, second) = match place(one).start < place(other).start {
        true => (one, other),
        false => (other, one),
    };
    let opens = |(_, claim): (usize, &Claim)| if claim.alone { "writes to" } else { "reads" };
    let spelled = match first.1.path == second.1.path {
        true => "it".to_owned(),
        false => format!("it as {}", first.1.path.display()),
    };
    let message = format!(
        "{}: {} is already taken by {}, which {} {spelled}: expected another file; only parts that don't write may share one",
        title(&stack.parts[second.0]),
        second.1.path.display(),
        title(&stack.parts[first.0]),
        opens(first),
    );
    stack.source.problem(place(second), message)
}

/// Title of a part in errors: `file "disk"`.
fn title(part: &Part) -> String {
    format!("{} \"{}\"", part.kind.name, part.name)
}

fn child(stack: &Stack, reference: &Reference, shape: Shape, built: Option<Result<BuiltPart>>) -> Child {
    let part = &stack.parts[reference.part];
    Child { key: reference.key, name: part.name.clone(), contract: part.kind.contract, shape, built }
}

fn arguments(
    stack: &Stack,
    part: &Part,
    children: Vec<Child>,
    format: &Format,
    must_exist: bool,
) -> Arguments {
    Arguments {
        name: part.name.clone(),
        kind: part.kind.name,
        keys: part.kind.keys,
        values: part.values.iter().map(|given| (given.key, given.value.clone())).collect(),
        children,
        base_directory: stack.base_directory.clone(),
        format: format.is_for(part),
        must_exist,
        shards: stack.shards,
        refused: Cell::new(None),
        claims: RefCell::default(),
        locked: RefCell::default(),
    }
}
