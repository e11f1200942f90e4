//! Memory that items take and, measured on request, the time of operations.

use super::*;

fn bytes_per_item(tree: &Tree) -> (f64, f64) {
    let items = tree.len() as f64;
    (tree.memory() as f64 / items, (tree.pages() * PAGE) as f64 / items)
}

#[test]
fn inodes_in_rising_order_cost_at_most_75_bytes() {
    let mut tree = Tree::new(&Released::new());
    for inode in 1..=200_000 {
        tree.put(&Key::new(inode, 1, 0), &[inode as u8; 60]);
    }
    let (memory, medium) = bytes_per_item(&tree);
    println!("values of 60 bytes: {memory:.1} bytes an item in memory, {medium:.1} on the medium");
    assert!(memory <= 75.0 && medium <= 75.0);
}

#[test]
fn random_offsets_cost_at_most_45_bytes() {
    for inodes in [1, 1000] {
        let (mut tree, mut random) = (Tree::new(&Released::new()), Random(7));
        for _ in 0..200_000 {
            tree.put(&Key::new(random.below(inodes), 2, random.next()), &[1; 12]);
        }
        let (memory, medium) = bytes_per_item(&tree);
        println!(
            "values of 12 bytes, {inodes} inodes: {memory:.1} bytes an item in memory, {medium:.1} on the medium"
        );
        assert!(memory <= 45.0 && medium <= 45.0);
    }
}

#[test]
fn files_that_grow_side_by_side_leave_full_pages() {
    let mut tree = Tree::new(&Released::new());
    for file in 0..50 {
        tree.put(&Key::new(file, 1, 0), &[1; 60]);
    }
    // A hundred extents of one file, then of the next one.
    for round in 0..20 {
        for file in 0..50 {
            for extent in 0..100 {
                tree.put(&Key::new(file, 3, round * 100 + extent), &[2; 8]);
            }
        }
    }
    let (memory, _) = bytes_per_item(&tree);
    println!("extents with values of 8 bytes: {memory:.1} bytes an item in memory");
    assert!(memory <= 18.0);
}

/// Nanoseconds of processor time of this thread, without waiting for a processor.
fn processor_time() -> u64 {
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    schedule.split(' ').next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "it measures: run it in a release build"]
fn speed() {
    const ITEMS: u64 = 1_000_000;
    let scatter = |number: u64| Random(number).next();
    type Make = (&'static str, usize, fn(u64) -> Key);
    let makes: [Make; 2] = [
        ("inodes", 60, |number| Key::new(number, 1, 0)),
        ("random offsets", 12, |number| Key::new(1, 2, Random(number ^ 0xABCD).next())),
    ];
    for (name, length, key) in makes {
        let mut tree = Tree::new(&Released::new());
        let measure = |what: &str, tree: &mut Tree, step: &mut dyn FnMut(&mut Tree, u64)| {
            let begin = processor_time();
            (0..ITEMS).for_each(|number| step(tree, number));
            println!("{name}: {what}: {:.0} ns", (processor_time() - begin) as f64 / ITEMS as f64);
        };
        let (value, other) = (vec![1; length], vec![2; length]);
        measure("insert", &mut tree, &mut |tree, number| assert!(!tree.put(&key(number), &value)));
        for round in 0..2 {
            measure(&format!("get, random, round {round}"), &mut tree, &mut |tree, number| {
                assert!(tree.get(&key(scatter(number) % ITEMS)).is_some());
            });
        }
        measure("replace, random", &mut tree, &mut |tree, number| {
            assert!(tree.put(&key(scatter(number) % ITEMS), &other));
        });
        let clone = tree.clone();
        measure("replace, random, after a clone", &mut tree, &mut |tree, number| {
            assert!(tree.put(&key(scatter(number) % ITEMS), &value));
        });
        drop(clone);
        measure("remove, random, and insert", &mut tree, &mut |tree, number| {
            let key = key(scatter(number) % ITEMS);
            assert!(tree.remove(&key));
            assert!(!tree.put(&key, &other));
        });
        let begin = processor_time();
        let bytes: usize = tree.range(&Key::MIN).map(|(_, value)| value.len()).sum();
        let nanoseconds = (processor_time() - begin) as f64 / ITEMS as f64;
        println!("{name}: range: {nanoseconds:.1} ns an item, {bytes} bytes, {:?}", bytes_per_item(&tree));
    }
}
