//! Random changes to trees and to a model, with clones that are compared later.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Put(Key, usize, u8),
    Update(Key, u8),
    Remove(Key),
    /// Puts items with ascending offsets.
    Run(Key, u16, u8),
    /// Removes items at and after this key.
    Clear(Key, u16),
    Look(Key),
    Clone,
    Drop(usize),
    /// Continues with a clone.
    Revert(usize),
    /// Stores the tree, or its clone.
    Store,
}

fn key() -> impl Strategy<Value = Key> {
    let number = || {
        prop_oneof![
            6 => 0..20_u64,
            2 => 0..600_u64,
            1 => (0..64_u32).prop_map(|bits| 1 << bits),
            1 => any::<u64>(),
            1 => Just(u64::MAX),
        ]
    };
    (number(), prop_oneof![4 => 0..3_u8, 1 => any::<u8>()], number())
        .prop_map(|(inode, kind, offset)| Key::new(inode, kind, offset))
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![6 => 0..20_usize, 3 => 0..200_usize, 1 => 0..=MAX_VALUE];
    prop_oneof![
        20 => (key(), length, any::<u8>()).prop_map(|(key, length, fill)| Step::Put(key, length, fill)),
        3 => (key(), any::<u8>()).prop_map(|(key, fill)| Step::Update(key, fill)),
        6 => key().prop_map(Step::Remove),
        3 => (key(), 0..700_u16, 0..90_u8).prop_map(|(key, count, length)| Step::Run(key, count, length)),
        3 => (key(), 0..900_u16).prop_map(|(key, count)| Step::Clear(key, count)),
        6 => key().prop_map(Step::Look),
        2 => Just(Step::Clone),
        1 => any::<usize>().prop_map(Step::Drop),
        1 => any::<usize>().prop_map(Step::Revert),
        1 => Just(Step::Store),
    ]
}

fn look(tree: &Tree, model: &Model, key: &Key) {
    let borrowed = |(key, value): (&Key, &'_ Vec<u8>)| (*key, value.clone());
    let owned = |(key, value): (Key, &[u8])| (key, value.to_vec());
    assert_eq!(tree.get(key), model.get(key).map(Vec::as_slice));
    assert_eq!(tree.first_from(key).map(owned), model.range(key..).next().map(borrowed));
    assert_eq!(tree.last_before(key).map(owned), model.range(..=key).next_back().map(borrowed));
    let items = tree.range(key).take(300).map(owned);
    assert!(items.eq(model.range(key..).take(300).map(borrowed)));
}

fn run(steps: Vec<Step>) {
    let released = Released::new();
    let (mut tree, mut model) = (Tree::new(&released), Model::new());
    let mut clones: Vec<(Tree, Model)> = Vec::new();
    let mut medium = Medium::default();
    for step in steps {
        match step {
            Step::Put(key, length, fill) => {
                let value = vec![fill; length];
                assert_eq!(tree.put(&key, &value), model.insert(key, value).is_some());
            }
            Step::Update(key, fill) => {
                let updated = tree.update(&key, |value| value.fill(fill));
                assert_eq!(updated, model.get_mut(&key).map(|value| value.fill(fill)));
            }
            Step::Remove(key) => assert_eq!(tree.remove(&key), model.remove(&key).is_some()),
            Step::Run(start, count, length) => {
                for step in 0..u64::from(count) {
                    let key = Key { offset: start.offset.saturating_add(step), ..start };
                    let value = vec![step as u8; usize::from(length)];
                    assert_eq!(tree.put(&key, &value), model.insert(key, value).is_some());
                }
            }
            Step::Clear(start, count) => {
                let keys: Vec<Key> =
                    model.range(start..).map(|(key, _)| *key).take(usize::from(count)).collect();
                for key in keys {
                    assert!(tree.remove(&key));
                    model.remove(&key);
                }
            }
            Step::Look(key) => look(&tree, &model, &key),
            Step::Clone => clones.push((tree.clone(), model.clone())),
            Step::Drop(number) if !clones.is_empty() => drop(clones.swap_remove(number % clones.len())),
            Step::Revert(number) if !clones.is_empty() => {
                (tree, model) = clones[number % clones.len()].clone();
            }
            Step::Store => {
                let stored = medium.store(&tree);
                let loaded = medium.load(&stored, &Released::new()).unwrap();
                compare(&loaded, &model);
                assert_eq!(loaded.pages(), tree.pages());
                assert_eq!((loaded.unstored_pages(), loaded.unstored().count()), (0, 0));
            }
            Step::Drop(_) | Step::Revert(_) => {}
        }
        assert_eq!(tree.len(), model.len() as u64);
    }
    compare(&tree, &model);
    for (clone, then) in &clones {
        compare(clone, then);
        let mut expected = then.iter().filter(|(key, value)| model.get(key) != Some(value));
        visit_differences(clone, &tree, |key, value| {
            assert_eq!(expected.next().map(|(key, value)| (*key, value.as_slice())), Some((*key, value)));
        });
        assert_eq!(expected.next(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_is_an_ordered_map(steps in prop::collection::vec(step(), 1..120)) {
        run(steps);
    }
}

#[test]
fn a_tree_that_shrinks_gives_its_pages_back() {
    let mut tree = Tree::new(&Released::new());
    let mut random = Random(1);
    let mut keys: Vec<Key> = (0..40_000).map(|_| Key::new(random.below(9), 1, random.next())).collect();
    let mut model = Model::new();
    for key in &keys {
        let value = key.offset.to_le_bytes();
        tree.put(key, &value);
        model.insert(*key, value.to_vec());
    }
    let full = tree.pages();
    for index in (1..keys.len()).rev() {
        keys.swap(index, random.below(index as u64 + 1) as usize);
    }
    for key in keys.drain(400..) {
        assert!(tree.remove(&key));
        model.remove(&key);
    }
    compare(&tree, &model);
    assert!(tree.pages() * 30 < full, "{} of {full} pages hold 1 % of the items", tree.pages());
    for key in keys {
        assert!(tree.remove(&key));
    }
    assert_eq!((tree.pages(), tree.memory(), tree.level), (0, 0, 0));
}

#[test]
fn a_key_that_widens_all_columns_gets_a_page_of_its_own() {
    let mut tree = Tree::new(&Released::new());
    let mut model = Model::new();
    let most = (PAGE - HEADER) / 4;
    for inode in 0..most as u64 {
        let inode = if inode < most as u64 / 2 { inode / 4 } else { 70 + inode / 8 };
        for kind in 0..4 {
            let key = Key::new(inode, kind, 0);
            tree.put(&key, b"");
            model.insert(key, vec![]);
        }
    }
    for key in [Key::new(100, 1, u64::MAX), Key::new(20, 1, u64::MAX), Key::new(150, 200, 1 << 50)] {
        tree.put(&key, b"wide");
        model.insert(key, b"wide".to_vec());
    }
    compare(&tree, &model);
}

#[test]
fn differences_skip_what_is_shared() {
    let mut tree = Tree::new(&Released::new());
    for inode in 0..100_000 {
        tree.put(&Key::new(inode, 1, 0), &[7; 60]);
    }
    let old = tree.clone();
    assert!(tree.remove(&Key::new(5, 1, 0)));
    tree.put(&Key::new(70_000, 1, 0), b"other");
    tree.put(&Key::new(70_001, 1, 0), &[7; 60]);
    tree.put(&Key::new(70_002, 1, 1), b"added");
    let mut seen = Vec::new();
    visit_differences(&old, &tree, |key, value| seen.push((key.inode, value.len())));
    assert_eq!(seen, [(5, 60), (70_000, 60)]);
    // The paths to two leaves were copied.
    let (before, after) = (check(&old), check(&tree));
    assert!(after.leaves.difference(&before.leaves).count() <= 4);
}

#[test]
fn large_values_make_tall_trees_that_shrink_from_any_side() {
    const ITEMS: u64 = 21_000;
    for side in 0..4 {
        println!("side {side}");
        let mut random = Random(side);
        let (mut tree, mut model) = (Tree::new(&Released::new()), Model::new());
        let mut order: Vec<u64> = (0..ITEMS).collect();
        // Ascending order makes full branches, other orders half-full ones.
        if side % 2 == 1 {
            (1..order.len()).for_each(|index| order.swap(index, random.below(index as u64 + 1) as usize));
        }
        for number in order {
            let value = vec![number as u8; 1000];
            tree.put(&Key::new(number, 1, 0), &value);
            model.insert(Key::new(number, 1, 0), value);
        }
        assert_eq!(tree.level, 2);
        while let Some((&first, _)) = model.first_key_value() {
            let last = *model.last_key_value().unwrap().0;
            let start = match side {
                0 => first,
                1 => last,
                2 => Key::new(first.inode + (last.inode - first.inode) / 2, 0, 0),
                _ => Key::new(random.below(ITEMS), 0, 0),
            };
            let keys: Vec<Key> = model.range(start..).map(|(key, _)| *key).take(50).collect();
            for key in keys {
                assert!(tree.remove(&key));
                model.remove(&key);
            }
            if model.len() < ITEMS as usize / 50 && side > 1 {
                break;
            }
            // A check reads the whole tree, so the rarer the larger it is.
            if random.below(model.len() as u64 / 200 + 1) == 0 {
                check(&tree);
            }
        }
        compare(&tree, &model);
        assert!(tree.pages() <= model.len(), "{} pages for {} items", tree.pages(), model.len());
    }
}

/// Returns a tree whose nodes have few children. Changes don't produce such trees, but the format permits
/// them.
fn sparse_tree(random: &mut Random) -> (Tree, Model) {
    let mut tree = Tree::new(&Released::new());
    let mut model = Model::new();
    let mut nodes: Vec<(Key, Node)> = Vec::new();
    for number in 0..2 + random.below(60) {
        let (key, value) = (Key::new(number * 10, 1, 0), random.bytes(random.0 as usize % 9));
        let leaf = Leaf::of(&tree.family, &[(key, &value)]);
        let lower = if number == 0 { Key::MIN } else { Key::new(number * 10 - random.below(9), 0, 0) };
        nodes.push((lower, Node::Leaf(leaf)));
        model.insert(key, value);
        tree.items += 1;
    }
    while nodes.len() > 1 {
        tree.pages += nodes.len();
        tree.level += 1;
        let mut children = nodes.into_iter().peekable();
        nodes = Vec::new();
        while let Some(&(lower, _)) = children.peek() {
            let is_near_root = children.len() < 4 && nodes.is_empty();
            let count = if is_near_root || tree.level > 9 { 100 } else { 1 + random.below(3) as usize };
            let branch = Branch::of(&tree.family, children.by_ref().take(count));
            nodes.push((lower, Node::Branch(Rc::new(branch))));
        }
    }
    tree.pages += 1;
    tree.root = nodes.pop().map(|(_, root)| root);
    (tree, model)
}

#[test]
fn sparse_trees_are_balanced_as_they_change() {
    for seed in 1..=300 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let (mut tree, mut model) = sparse_tree(&mut random);
        compare(&tree, &model);
        let mut medium = Medium::default();
        let stored = medium.store(&tree);
        tree = medium.load(&stored, &Released::new()).unwrap();
        let mut rounds = 0;
        while !model.is_empty() {
            let key = Key::new(random.below(620), 1, 0);
            let removed = model.range(key..).next().map(|(key, _)| *key);
            if rounds < 40 && random.below(4) == 0 {
                assert_eq!(tree.put(&key, b"new"), model.insert(key, b"new".to_vec()).is_some());
            } else if let Some(key) = removed {
                assert!(tree.remove(&key));
                model.remove(&key);
            }
            rounds += 1;
            compare(&tree, &model);
            look(&tree, &model, &key);
        }
        assert_eq!((tree.pages(), tree.level, tree.memory()), (0, 0, 0));
    }
}
