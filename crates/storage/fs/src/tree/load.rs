//! Loading trees from the medium, without I/O: the caller reads the wanted pages, level by level.
//!
//! Any deviation from the format is refused. Memory is bounded by the expected number of items of the tree:
//! each page has at least one item, and is counted when its parent lists it.

use super::branch::Branch;
use super::leaf::Leaf;
use super::node::{Family, Node, Released};
use super::page::{MAX_LEVEL, PAGE, strange};
use super::read::last_of;
use super::store::Stored;
use super::{Key, Tree};
use block::{Error, Result, ZoneBlock};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A tree that is being loaded from the medium.
///
/// ```
/// use block::ZoneBlock;
/// use siltstone_fs::tree::{Load, PAGE, Released, Stored, Tree};
///
/// fn load(stored: &Stored, read: impl Fn(ZoneBlock) -> block::Result<[u8; PAGE]>) -> block::Result<Tree> {
///     let mut load = Load::new(stored, &Released::new())?;
///     while !load.wanted().is_empty() {
///         // Pages of one level may be read at the same time.
///         for (index, place) in load.wanted().to_vec().into_iter().enumerate() {
///             load.supply(index, &read(place)?)?;
///         }
///     }
///     load.finish()
/// }
/// ```
#[derive(Debug)]
pub struct Load {
    stored: Stored,
    family: Rc<Family>,
    /// Nodes of the trees beside which this one is loaded, with their levels.
    known: BTreeMap<ZoneBlock, (u8, Node)>,
    /// Places of all pages found so far.
    reached: BTreeSet<ZoneBlock>,
    /// Completed levels, beginning with the root's.
    above: Vec<Vec<Loaded>>,
    /// Level of the wanted pages.
    level: u8,
    /// Nodes of this level, in ascending order of keys.
    expected: Vec<Expected>,
    /// Places of the nodes of this level that aren't in memory, and their indexes in `expected`.
    wanted: Vec<ZoneBlock>,
    wanted_indexes: Vec<usize>,
    missing: usize,
    /// Number of nodes of the next level below that have been found so far.
    named: u64,
    items: u64,
    pages: usize,
}

/// Pages of trees in memory by their places, for trees that may share them.
#[derive(Debug, Default)]
pub struct Known(BTreeMap<ZoneBlock, (u8, Node)>);

impl Known {
    /// Adds the pages of a tree. Pages below a known page aren't visited.
    pub fn add(&mut self, tree: &Tree) {
        tree.root.iter().for_each(|root| remember(root, tree.level, &mut self.0));
    }
}

/// Node that a parent lists.
#[derive(Debug)]
struct Expected {
    place: ZoneBlock,
    lower: Key,
    upper: Option<Key>,
    loaded: Option<Loaded>,
}

/// Node that has been loaded.
#[derive(Debug)]
enum Loaded {
    Leaf(ZoneBlock, Rc<Leaf>),
    Branch(ZoneBlock, Vec<Key>, Vec<ZoneBlock>),
    /// A node that another tree has in memory, with all nodes below it.
    Shared(Node),
}

impl Load {
    /// Begins to load a tree that shares no pages with trees in memory. Places of its pages will be released
    /// to `released`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `stored` contradicts itself.
    pub fn new(stored: &Stored, released: &Released) -> Result<Self> {
        Self::begin(stored, Family::new(released), BTreeMap::new())
    }

    /// Begins to load a tree that may share pages with trees in memory, as a snapshot does. These pages are
    /// shared in memory, and aren't read.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `stored` contradicts itself; [`Error::Invalid`] if `trees` is empty, or if they
    /// aren't of one family.
    pub fn beside(stored: &Stored, trees: &[&Tree]) -> Result<Self> {
        let Some(first) = trees.first() else {
            return Err(Error::invalid("load beside no tree; expected at least one; use Load::new"));
        };
        if trees.iter().any(|tree| !Rc::ptr_eq(&tree.family, &first.family)) {
            return Err(Error::invalid(
                "load beside trees of several families; expected clones of one, or trees loaded beside it",
            ));
        }
        let mut known = BTreeMap::new();
        for tree in trees {
            tree.root.iter().for_each(|root| remember(root, tree.level, &mut known));
        }
        Self::begin(stored, first.family.clone(), known)
    }

    /// As [`beside`](Self::beside), for trees of the family of `tree` whose pages are in `known`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `stored` contradicts itself.
    pub fn beside_known(stored: &Stored, tree: &Tree, known: Known) -> Result<Self> {
        Self::begin(stored, tree.family.clone(), known.0)
    }

    fn begin(stored: &Stored, family: Rc<Family>, known: BTreeMap<ZoneBlock, (u8, Node)>) -> Result<Self> {
        let Stored { root, level, items } = *stored;
        if root.is_some() != (items > 0) || level > 0 && root.is_none() {
            let root = root.map_or("no root".to_owned(), |root| format!("a root at {root}"));
            return Err(Error::corrupt(format!(
                "tree with {root}, level {level} and {items} items; expected no root, level 0 and 0 items, or a root and items"
            )));
        }
        if level > MAX_LEVEL {
            return Err(Error::corrupt(format!("tree with level {level}; expected at most {MAX_LEVEL}")));
        }
        let mut load = Load {
            stored: *stored,
            family,
            known,
            reached: BTreeSet::new(),
            above: Vec::new(),
            level,
            expected: Vec::new(),
            wanted: Vec::new(),
            wanted_indexes: Vec::new(),
            missing: 0,
            named: 0,
            items: 0,
            pages: 0,
        };
        if let Some(place) = root {
            load.reached.insert(place);
            load.expect(vec![Expected { place, lower: Key::MIN, upper: None, loaded: None }])?;
            load.descend()?;
        }
        Ok(load)
    }

    /// Places of the pages of the current level, in ascending order of keys. Once all have been supplied,
    /// those of the next level below; empty when the tree is complete.
    pub fn wanted(&self) -> &[ZoneBlock] {
        &self.wanted
    }

    /// Supplies the page at the place `wanted()[index]`. Pages of a level may be supplied in any order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the page has an invalid format, or isn't the one that its parent lists;
    /// [`Error::Invalid`] if it isn't wanted or was supplied before. After an error, the tree can't be
    /// loaded.
    pub fn supply(&mut self, index: usize, page: &[u8; PAGE]) -> Result<()> {
        let wanted = self.wanted.len();
        let expected = self.wanted_indexes.get(index).and_then(|&at| self.expected.get_mut(at));
        let Some(Expected { place, lower, upper, loaded: loaded @ None }) = expected else {
            return Err(Error::invalid(format!(
                "tree page {index} supplied; expected each of 0..{wanted} once, as wanted() lists them"
            )));
        };
        let (place, lower, upper) = (*place, *lower, *upper);
        let seen = if self.level == 0 {
            let leaf = Leaf::decode(&self.family, page, place, lower, upper)?;
            self.items += leaf.len() as u64;
            *loaded = Some(Loaded::Leaf(place, leaf));
            self.items
        } else {
            let (keys, places) = Branch::decode(page, place, self.level, lower, upper)?;
            if self.level == self.stored.level && places.len() < 2 {
                return Err(strange(place, "a root with one child; expected at least 2"));
            }
            if let Some(twice) = places.iter().find(|&&place| !self.reached.insert(place)) {
                return Err(strange(place, format_args!("child at {twice} is named a second time")));
            }
            self.named += places.len() as u64;
            *loaded = Some(Loaded::Branch(place, keys, places));
            self.items + self.named
        };
        if seen > self.stored.items {
            let items = self.stored.items;
            return Err(strange(
                place,
                format_args!("at least {seen} items up to here; expected {items} in the tree"),
            ));
        }
        self.pages += 1;
        self.missing -= 1;
        self.descend()
    }

    /// Returns the tree.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the number of items isn't the expected one; [`Error::Invalid`] if pages are
    /// still wanted.
    pub fn finish(mut self) -> Result<Tree> {
        if !self.wanted.is_empty() {
            return Err(Error::invalid(format!(
                "tree with {} pages missing; expected all that are wanted to be supplied",
                self.missing
            )));
        }
        let Stored { level, items, .. } = self.stored;
        if self.items != items {
            return Err(Error::corrupt(format!("tree with {} items; expected {items}", self.items)));
        }
        // From the leaves upwards: a branch takes its children from the front of the level below.
        let mut below = Vec::new().into_iter();
        while let Some(loaded) = self.above.pop() {
            let mut nodes = Vec::with_capacity(loaded.len());
            for loaded in loaded {
                let (place, node) = match loaded {
                    Loaded::Leaf(place, leaf) => (place, Node::Leaf(leaf)),
                    Loaded::Branch(place, keys, places) => {
                        let mut branch = Branch::new(&self.family);
                        branch.children.extend(below.by_ref().take(places.len()));
                        branch.keys = keys;
                        (place, Node::Branch(Rc::new(branch)))
                    }
                    Loaded::Shared(node) => {
                        nodes.push(node);
                        continue;
                    }
                };
                node.slot().set(place);
                nodes.push(node);
            }
            below = nodes.into_iter();
        }
        Ok(Tree { root: below.next(), level, items, pages: self.pages, ..Tree::empty(self.family) })
    }

    /// Returns the tree, and the known pages including those of this tree.
    ///
    /// # Errors
    /// Errors of [`finish`](Self::finish).
    pub fn finish_known(mut self) -> Result<(Tree, Known)> {
        let mut known = Known(std::mem::take(&mut self.known));
        let tree = self.finish()?;
        known.add(&tree);
        Ok((tree, known))
    }

    /// Sets the nodes of the current level, and takes those that are in memory from other trees.
    fn expect(&mut self, expected: Vec<Expected>) -> Result<()> {
        self.expected = expected;
        self.wanted.clear();
        self.wanted_indexes.clear();
        for index in 0..self.expected.len() {
            let Expected { place, lower, upper, .. } = self.expected[index];
            match self.known.get(&place).cloned() {
                None => {
                    self.wanted.push(place);
                    self.wanted_indexes.push(index);
                }
                Some((level, node)) => {
                    self.share(place, level, &node, lower, upper)?;
                    self.expected[index].loaded = Some(Loaded::Shared(node));
                }
            }
        }
        self.missing = self.wanted.len();
        Ok(())
    }

    /// Checks that a node in memory is the expected one, and counts the nodes below it.
    fn share(
        &mut self,
        place: ZoneBlock,
        level: u8,
        node: &Node,
        lower: Key,
        upper: Option<Key>,
    ) -> Result<()> {
        if level != self.level {
            return Err(strange(
                place,
                format_args!("level {level} in another tree; expected {}", self.level),
            ));
        }
        let first = node.first_key();
        let is_first = if level == 0 { first >= lower } else { first == lower };
        let is_below = upper.is_none_or(|upper| last_of(node).is_some_and(|(last, _)| last < upper));
        if !is_first || !is_below {
            return Err(strange(
                place,
                format_args!("keys from {first} in another tree; expected from {lower}"),
            ));
        }
        self.count(node)?;
        if self.items > self.stored.items {
            let (seen, items) = (self.items, self.stored.items);
            return Err(strange(
                place,
                format_args!("at least {seen} items up to here; expected {items} in the tree"),
            ));
        }
        Ok(())
    }

    /// Counts the pages and items of a node in memory. Recurses to the height of the tree.
    fn count(&mut self, node: &Node) -> Result<()> {
        self.pages += 1;
        match node {
            Node::Leaf(leaf) => self.items += leaf.len() as u64,
            Node::Branch(branch) => {
                for child in &branch.children {
                    if let Some(place) = child.place()
                        && !self.reached.insert(place)
                    {
                        return Err(strange(place, "page of another tree is named a second time"));
                    }
                    self.count(child)?;
                }
            }
        }
        Ok(())
    }

    /// Continues with the next level that has pages to read, after all pages of this level have been
    /// supplied.
    fn descend(&mut self) -> Result<()> {
        while self.missing == 0 && !self.expected.is_empty() {
            let expected = std::mem::take(&mut self.expected);
            let mut below = Vec::with_capacity(self.named as usize);
            let mut loaded = Vec::with_capacity(expected.len());
            for node in expected {
                if let Some(Loaded::Branch(_, keys, places)) = &node.loaded {
                    let uppers = keys.iter().skip(1).copied().map(Some).chain([node.upper]);
                    for ((&place, &lower), upper) in places.iter().zip(keys).zip(uppers) {
                        below.push(Expected { place, lower, upper, loaded: None });
                    }
                }
                loaded.extend(node.loaded);
            }
            self.above.push(loaded);
            self.named = 0;
            self.level = self.level.saturating_sub(1);
            self.expect(below)?;
        }
        Ok(())
    }
}

/// A single page, of a tree with other pages that can't be read.
pub enum SinglePage {
    /// Items.
    Leaf(Vec<(Key, Vec<u8>)>),
    /// Places of the pages below, each with its first possible key and the first key after it.
    Branch(Vec<(ZoneBlock, Key, Option<Key>)>),
}

impl SinglePage {
    /// Decodes the page of this level at `place`, with keys from `lower` to below `upper`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for any deviation from the format.
    pub fn decode(
        page: &[u8; PAGE],
        place: ZoneBlock,
        level: u8,
        (lower, upper): (Key, Option<Key>),
    ) -> Result<SinglePage> {
        if level == 0 {
            let leaf = Leaf::decode(&Family::new(&Released::new()), page, place, lower, upper)?;
            return Ok(SinglePage::Leaf(leaf.items().map(|(key, value)| (key, value.to_vec())).collect()));
        }
        let (keys, places) = Branch::decode(page, place, level, lower, upper)?;
        let uppers = keys.iter().skip(1).copied().map(Some).chain([upper]);
        let below = places.iter().zip(&keys).zip(uppers);
        Ok(SinglePage::Branch(below.map(|((&place, &lower), upper)| (place, lower, upper)).collect()))
    }
}

/// Adds the nodes of a tree that have a place. Recurses to the height of the tree.
fn remember(node: &Node, level: u8, known: &mut BTreeMap<ZoneBlock, (u8, Node)>) {
    if let Some(place) = node.place()
        && known.insert(place, (level, node.clone())).is_some()
    {
        return;
    }
    if let Node::Branch(branch) = node {
        branch.children.iter().for_each(|child| remember(child, level - 1, known));
    }
}
