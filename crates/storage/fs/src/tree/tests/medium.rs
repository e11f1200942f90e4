//! Checkpoints on a medium. Invariant: the places that aren't dead are always those that are referenced.

use super::*;
use block::ZoneBlock;

/// A tree with its checkpoints, and the state of all places.
struct World {
    random: Random,
    released: Released,
    medium: Medium,
    tree: Tree,
    model: Model,
    clones: Vec<(Tree, Model)>,
    checkpoint: Option<Checkpoint>,
    /// Newest durable checkpoint with its items and the places of its pages.
    newest: (Stored, Model, BTreeSet<ZoneBlock>),
    /// Places released since the last checkpoint began.
    pending: Vec<ZoneBlock>,
}

struct Checkpoint {
    frozen: Tree,
    model: Model,
    batch: Vec<ZoneBlock>,
    cursor: Unstored,
    level: u8,
    /// Encoded pages whose writes are in flight.
    in_flight: Vec<(Page, ZoneBlock)>,
    /// First page of the next level.
    next: Option<Page>,
}

impl World {
    fn new(seed: u64) -> Self {
        let released = Released::new();
        let tree = Tree::new(&released);
        let newest = (tree.stored().unwrap(), Model::new(), BTreeSet::new());
        World {
            random: Random(seed),
            medium: Medium::default(),
            tree,
            model: Model::new(),
            clones: Vec::new(),
            checkpoint: None,
            newest,
            pending: Vec::new(),
            released,
        }
    }

    fn key(&mut self) -> Key {
        let random = &mut self.random;
        Key::new(random.below(40), random.below(3) as u8, random.below(200))
    }

    fn change(&mut self) {
        let key = self.key();
        match self.random.below(10) {
            0..6 => {
                let length = self.random.below(120) as usize;
                let value = self.random.bytes(length);
                self.tree.put(&key, &value);
                self.model.insert(key, value);
            }
            6 => {
                self.tree.update(&key, |value| value.fill(9));
                self.model.entry(key).and_modify(|value| value.fill(9));
            }
            _ => {
                let keys: Vec<Key> = self.model.range(key..).map(|(key, _)| *key).take(20).collect();
                for key in keys {
                    assert!(self.tree.remove(&key));
                    self.model.remove(&key);
                }
            }
        }
    }

    /// Advances a checkpoint by one step.
    fn advance(&mut self) {
        let Some(checkpoint) = &mut self.checkpoint else {
            let (frozen, mut batch) = (self.tree.clone(), self.released.take());
            batch.append(&mut self.pending);
            let cursor = frozen.unstored();
            let model = self.model.clone();
            let (in_flight, next) = (Vec::new(), None);
            self.checkpoint = Some(Checkpoint { frozen, model, batch, cursor, level: 0, in_flight, next });
            return;
        };
        if self.random.below(3) == 0 && !checkpoint.in_flight.is_empty() {
            let number = self.random.below(checkpoint.in_flight.len() as u64) as usize;
            let (page, place) = checkpoint.in_flight.swap_remove(number);
            let mut bytes = empty_page();
            page.encode(&mut bytes);
            assert_eq!(Some(&bytes), self.medium.pages.get(&place), "a page in flight doesn't change");
            assert!(page.set_place(place));
            return;
        }
        let next = checkpoint.next.take().or_else(|| checkpoint.cursor.next());
        match next {
            Some(page) if page.level() > checkpoint.level && !checkpoint.in_flight.is_empty() => {
                checkpoint.next = Some(page);
            }
            Some(page) => {
                checkpoint.level = page.level();
                let place = self.medium.allocate();
                let mut bytes = empty_page();
                page.encode(&mut bytes);
                self.medium.pages.insert(place, bytes);
                checkpoint.in_flight.push((page, place));
            }
            None if checkpoint.in_flight.is_empty() => self.complete(),
            None => {}
        }
    }

    fn complete(&mut self) {
        let Some(checkpoint) = self.checkpoint.take() else { return };
        assert_eq!(check(&checkpoint.frozen).unstored.len(), 0);
        if self.random.below(8) == 0 {
            // The checkpoint fails before its root is durable.
            self.pending.extend(checkpoint.batch);
            return;
        }
        for place in checkpoint.batch {
            assert!(self.medium.pages.remove(&place).is_some(), "{place} was dead before");
        }
        let stored = checkpoint.frozen.stored().unwrap();
        self.newest = (stored, checkpoint.model, check(&checkpoint.frozen).places);
    }

    fn check(&mut self) {
        let mut trees = vec![&self.tree];
        trees.extend(self.clones.iter().map(|(tree, _)| tree));
        let mut in_flight = BTreeSet::new();
        self.pending.extend(self.released.take());
        // Each place is released once.
        let mut released: Vec<ZoneBlock> = self.pending.clone();
        if let Some(checkpoint) = &self.checkpoint {
            trees.push(&checkpoint.frozen);
            released.extend(&checkpoint.batch);
            in_flight.extend(checkpoint.in_flight.iter().map(|(_, place)| *place));
        }
        let mut all = Found::default();
        for tree in trees {
            let mut found = check(tree);
            all.places.append(&mut found.places);
            all.leaves.append(&mut found.leaves);
            all.branches.append(&mut found.branches);
            all.unstored.append(&mut found.unstored);
        }
        let distinct: BTreeSet<ZoneBlock> = released.iter().copied().collect();
        assert_eq!(distinct.len(), released.len(), "released twice");
        assert!(all.places.is_disjoint(&distinct), "released, but in a tree");
        let mut expected = &all.places | &distinct;
        expected.append(&mut in_flight);
        let there: BTreeSet<ZoneBlock> = self.medium.pages.keys().copied().collect();
        assert_eq!(there, expected, "places that aren't dead");
        assert!(self.newest.2.is_subset(&there), "a page of the newest checkpoint is dead");
        let memory = all.leaves.len() * Leaf::MEMORY + all.branches.len() * Branch::MEMORY;
        assert_eq!(self.tree.unstored_pages(), all.unstored.len());
        assert_eq!(self.tree.memory(), memory);
    }

    fn recover(&self) -> Tree {
        let tree = self.medium.load(&self.newest.0, &Released::new()).unwrap();
        compare(&tree, &self.newest.1);
        assert_eq!(check(&tree).places, self.newest.2);
        tree
    }
}

fn live(seed: u64, steps: usize) {
    println!("seed {seed}");
    let mut world = World::new(seed);
    // Enough changes for three levels.
    for _ in 0..steps {
        for _ in 0..world.random.below(30) {
            world.change();
        }
        match world.random.below(30) {
            0 => world.clones.push((world.tree.clone(), world.model.clone())),
            1 if !world.clones.is_empty() => {
                let number = world.random.below(world.clones.len() as u64) as usize;
                let (tree, model) = world.clones.swap_remove(number);
                compare(&tree, &model);
            }
            2 => {
                world.recover();
            }
            _ => (0..world.random.below(40)).for_each(|_| world.advance()),
        }
        world.check();
    }
    compare(&world.tree, &world.model);
    // Without clones and pending changes, the medium has only the newest checkpoint.
    world.clones.clear();
    let mut cuts = 0;
    while cuts < 40 {
        world.advance();
        cuts += usize::from(world.checkpoint.is_none());
    }
    world.check();
    let there: BTreeSet<ZoneBlock> = world.medium.pages.keys().copied().collect();
    let pending: BTreeSet<ZoneBlock> = world.pending.iter().copied().collect();
    assert_eq!(&there - &pending, world.newest.2);
    compare(&world.recover(), &world.model);
}

#[test]
fn places_that_are_not_dead_are_reachable() {
    for seed in 1..=6 {
        live(seed, 250);
    }
}

#[test]
fn only_pages_that_changed_are_written_again() {
    let released = Released::new();
    let mut tree = Tree::new(&released);
    for inode in 0..30_000 {
        tree.put(&Key::new(inode, 1, 0), &[3; 60]);
    }
    let mut medium = Medium::default();
    let first = medium.store(&tree);
    assert_eq!((medium.pages.len(), tree.unstored_pages(), first.level), (tree.pages(), 0, 2));
    tree.update(&Key::new(15_000, 1, 0), |value| value[0] = 4);
    assert_eq!((tree.unstored_pages(), tree.stored(), released.take().len()), (3, None, 3));
    let levels: Vec<u8> = tree.unstored().map(|page| page.level()).collect();
    assert_eq!(levels[0], 0);
    let second = medium.store(&tree);
    assert_eq!(medium.pages.len(), tree.pages() + 3);
    let (old, new) = (medium.load(&first, &released).unwrap(), medium.load(&second, &released).unwrap());
    assert_eq!(
        (old.get(&Key::new(15_000, 1, 0)).unwrap()[0], new.get(&Key::new(15_000, 1, 0)).unwrap()[0]),
        (3, 4)
    );
    // Removing a key that doesn't exist changes nothing.
    assert!(!tree.remove(&Key::new(1, 2, 3)));
    assert_eq!(tree.stored(), Some(second));
}

#[test]
fn places_that_are_visited_in_parts_are_all_places() {
    let released = Released::new();
    let mut tree = Tree::new(&released);
    for inode in 0..30_000 {
        tree.put(&Key::new(inode, 1, 0), &[3; 60]);
    }
    let mut medium = Medium::default();
    medium.store(&tree);
    let old = tree.clone();
    for inode in [5, 15_000, 15_001, 29_999] {
        tree.update(&Key::new(inode, 1, 0), |value| value[0] = 4);
    }
    medium.store(&tree);
    for most in [1, 2, 16, 10_000] {
        for (own, newer) in [(&tree, None), (&old, Some(&tree)), (&old, Some(&old))] {
            let (mut all, mut parts, mut from) = (Vec::new(), Vec::new(), Some(Key::MIN));
            own.visit_own_places(newer, |place| all.push(place));
            while let Some(first) = from {
                let before = parts.len();
                from = own.visit_own_places_from(newer, &first, most, |place| parts.push(place));
                assert!(parts.len() - before <= most + 3, "{} of {most}", parts.len() - before);
            }
            assert_eq!(parts, all, "{most} at a time");
        }
    }
    // Unchanged pages are visited although others change.
    let stay = check(&old).places.intersection(&check(&tree).places).copied().collect::<BTreeSet<_>>();
    let mut seen = BTreeSet::new();
    let next = old.visit_own_places_from(None, &Key::MIN, 100, |place| {
        seen.insert(place);
    });
    let rest = next.expect("a key at which to continue");
    tree.visit_own_places_from(None, &rest, 10_000, |place| {
        seen.insert(place);
    });
    let missed = stay.difference(&seen).count();
    assert_eq!(missed, 0, "of {}", stay.len());
}

#[test]
fn a_page_that_two_trees_store_keeps_its_first_place() {
    let released = Released::new();
    let mut tree = Tree::new(&released);
    tree.put(&Key::MIN, b"value");
    let clone = tree.clone();
    let (one, two) = (tree.unstored().next().unwrap(), clone.unstored().next().unwrap());
    let places = [1, 2].map(|zone| ZoneBlock::new(zone, 0));
    assert!(one.set_place(places[0]));
    assert!(!two.set_place(places[1]));
    assert_eq!((released.take(), two.place()), (vec![places[1]], Some(places[0])));
    drop((tree, clone, one));
    assert_eq!((released.take(), released.len()), (vec![], 0), "a page keeps its node");
    drop(two);
    assert_eq!(released.take(), [places[0]]);
}

#[test]
fn trees_loaded_beside_each_other_share_pages() {
    let released = Released::new();
    let (mut tree, mut medium) = (Tree::new(&released), Medium::default());
    for inode in 0..30_000 {
        tree.put(&Key::new(inode, 1, 0), &[3; 60]);
    }
    let snapshot = medium.store(&tree);
    let model: Model = tree.range(&Key::MIN).map(|(key, value)| (key, value.to_vec())).collect();
    for inode in 30_000..40_000 {
        tree.put(&Key::new(inode, 1, 0), &[3; 60]);
    }
    tree.remove(&Key::new(77, 1, 0));
    let current = medium.store(&tree);
    let released = Released::new();
    let loaded = medium.load(&current, &released).unwrap();
    let alone = loaded.memory();
    let beside = medium.read(Load::beside(&snapshot, &[&loaded]).unwrap()).unwrap();
    compare(&beside, &model);
    assert_eq!(check(&beside).pages, beside.pages());
    assert!(loaded.memory() - alone < 30_000, "{} bytes for the pages that differ", loaded.memory() - alone);
    let mut seen = Vec::new();
    visit_differences(&beside, &loaded, |key, _| seen.push(key.inode));
    assert_eq!(seen, [77]);
    // The same tree needs no pages.
    let again = Load::beside(&current, &[&beside, &loaded]).unwrap();
    assert_eq!(again.wanted(), []);
    compare(
        &again.finish().unwrap(),
        &loaded.range(&Key::MIN).map(|(key, value)| (key, value.to_vec())).collect(),
    );
    // Places of shared pages are released by the last tree.
    let only = &check(&beside).places - &check(&loaded).places;
    let all = check(&loaded).places;
    drop(beside);
    assert_eq!(released.take().into_iter().collect::<BTreeSet<_>>(), only);
    drop(loaded);
    assert_eq!(released.take().into_iter().collect::<BTreeSet<_>>(), all);
    let others = Tree::new(&released);
    assert!(Load::beside(&current, &[&tree, &others]).is_err());
    assert!(Load::beside(&current, &[]).is_err());
}
