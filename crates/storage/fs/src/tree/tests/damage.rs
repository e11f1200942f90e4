//! Loading of pages that are damaged, stale or misplaced.

use super::*;
use block::{Error, ZoneBlock};

/// A tree of three levels on a medium, with keys of several widths.
fn stored_tree() -> (Medium, Stored, Model) {
    let (mut tree, mut medium, mut random) = (Tree::new(&Released::new()), Medium::default(), Random(3));
    let mut model = Model::new();
    for number in 0..4000 {
        let key = match number % 3 {
            0 => Key::new(number, 1, 0),
            1 => Key::new(number / 500, 2, random.next()),
            _ => Key::new(number / 100, 3, random.below(1 << 20)),
        };
        let length = random.below(250) as usize;
        let value = random.bytes(length);
        tree.put(&key, &value);
        model.insert(key, value);
    }
    let stored = medium.store(&tree);
    assert!(stored.level >= 1);
    (medium, stored, model)
}

/// Loads a tree, which must fail, and returns the text of the error.
fn refused(medium: &Medium, stored: &Stored) -> String {
    let released = Released::new();
    let error = match medium.load(stored, &released) {
        Ok(_) => panic!("a damaged tree was loaded"),
        Err(error) => error,
    };
    assert!(matches!(error, Error::Corrupt(_) | Error::Io(_)), "{error}");
    assert!(released.is_empty(), "a tree that wasn't loaded releases nothing");
    error.to_string()
}

#[test]
fn a_flipped_bit_is_an_error_or_another_value() {
    let (medium, stored, model) = stored_tree();
    let places: Vec<ZoneBlock> = medium.pages.keys().copied().collect();
    let root = stored.root.unwrap();
    let mut refusals = 0;
    let mut random = Random(11);
    for round in 0..1500 {
        let mut medium = medium.clone();
        let place = if round % 5 == 0 { root } else { places[random.below(places.len() as u64) as usize] };
        let page = medium.pages.get_mut(&place).unwrap();
        // Headers and the first records are damaged more often than values.
        let at = if round % 2 == 0 { random.below(300) } else { random.below(PAGE as u64) } as usize;
        page[at] ^= 1 << random.below(8);
        let released = Released::new();
        match medium.load(&stored, &released) {
            Ok(tree) => {
                check(&tree);
                assert_eq!(tree.len(), model.len() as u64, "page {place}, byte {at}");
                // A changed base of a leaf is only a changed first key, if the bounds permit it.
                assert!(at >= HEADER || (8..25).contains(&at), "page {place}, byte {at}");
            }
            Err(error) => {
                assert!(matches!(error, Error::Corrupt(_) | Error::Io(_)), "{error}");
                assert!(released.is_empty());
                refusals += 1;
            }
        }
    }
    assert!(refusals > 500, "{refusals}");
}

#[test]
fn pages_of_random_bytes_never_panic() {
    let (medium, stored, _) = stored_tree();
    let places: Vec<ZoneBlock> = medium.pages.keys().copied().collect();
    let mut random = Random(5);
    for _ in 0..600 {
        let mut medium = medium.clone();
        let place = places[random.below(places.len() as u64) as usize];
        let page = medium.pages.get_mut(&place).unwrap();
        let begin = random.below(PAGE as u64) as usize;
        let length = 1 + random.below(600) as usize;
        let end = (begin + length).min(PAGE);
        match random.below(4) {
            0 => page[begin..].fill(0),
            1 => page[begin..end].fill(0xFF),
            2 => page[begin..end].copy_from_slice(&random.bytes(end - begin)),
            // The header gets other widths and counts.
            _ => {
                page[6..8].copy_from_slice(&random.bytes(2));
                page[25] = random.below(10) as u8;
                page[26] = random.below(3) as u8;
                page[27] = random.below(10) as u8;
            }
        }
        if let Ok(tree) = medium.load(&stored, &Released::new()) {
            check(&tree);
        }
    }
}

#[test]
fn pages_in_the_place_of_others_are_refused() {
    let (medium, stored, _) = stored_tree();
    let places: Vec<ZoneBlock> = medium.pages.keys().copied().collect();
    let mut random = Random(9);
    for _ in 0..300 {
        let [one, two] = [0; 2].map(|_| places[random.below(places.len() as u64) as usize]);
        if one == two {
            continue;
        }
        let mut medium = medium.clone();
        let page = medium.pages[&one].clone();
        medium.pages.insert(two, page);
        refused(&medium, &stored);
    }
}

#[test]
fn every_field_is_checked() {
    let (medium, stored, model) = stored_tree();
    let root = stored.root.unwrap();
    let leaf = *medium.pages.iter().find(|(_, page)| page[5] == 0).unwrap().0;
    let with = |place: ZoneBlock, change: &dyn Fn(&mut [u8; PAGE])| {
        let mut medium = medium.clone();
        change(medium.pages.get_mut(&place).unwrap());
        refused(&medium, &stored)
    };
    let expect = |text: String, part: &str| assert!(text.contains(part), "{text:?} has no {part:?}");
    expect(with(root, &|page| page[0] = 0), "magic number");
    expect(with(root, &|page| page[4] = 2), "version 2; expected 1");
    expect(with(leaf, &|page| page[5] = 1), "level 1; expected 0");
    expect(with(leaf, &|page| page[29] = 1), "reserved bytes");
    expect(with(leaf, &|page| page[6..8].fill(0)), "0 items");
    expect(with(leaf, &|page| page[6..8].fill(0xFF)), "65535 items");
    expect(with(root, &|page| page[6..8].fill(0)), "0 children");
    expect(with(root, &|page| page[6..8].copy_from_slice(&163_u16.to_le_bytes())), "163 children");
    expect(with(root, &|page| page[25] = 1), "column widths are nonzero");
    expect(with(leaf, &|page| page[27] = 9), "column widths");
    expect(with(root, &|page| page[8] = 1), "smallest permitted key inode 1");
    expect(with(root, &|page| page[HEADER] = 1), "first key inode 1");
    expect(with(root, &|page| page.copy_within(HEADER..HEADER + 17, HEADER + 25)), "expected rising keys");
    expect(
        with(root, &|page| page.copy_within(HEADER + 17..HEADER + 25, HEADER + 42)),
        "named a second time",
    );
    expect(with(root, &|page| page[HEADER + 21] ^= 0x80), "no page at");
    expect(with(root, &|page| page[PAGE - 1] = 1), "padding at byte 4095");
    let text = with(leaf, &|page| page[4] = 9);
    expect(text, &format!("tree page \"{leaf}\": version 9"));

    let named = |stored: Stored| Load::new(&stored, &Released::new()).unwrap_err().to_string();
    expect(named(Stored { level: 13, ..stored }), "level 13; expected at most 12");
    expect(named(Stored { root: None, ..stored }), "no root");
    expect(named(Stored { items: 0, ..stored }), "0 items");
    expect(
        refused(&medium, &Stored { level: stored.level + 1, ..stored }),
        &format!("expected {}", stored.level + 1),
    );
    expect(refused(&medium, &Stored { items: 1, ..stored }), "expected 1 in the tree");
    let more = Stored { items: stored.items + 1, ..stored };
    expect(refused(&medium, &more), &format!("tree with {} items", model.len()));

    let mut load = Load::new(&stored, &Released::new()).unwrap();
    assert!(load.supply(1, &medium.pages[&root]).is_err(), "the page isn't wanted");
    load.supply(0, &medium.pages[&root]).unwrap();
    let first = load.wanted()[0];
    load.supply(0, &medium.pages[&first]).unwrap();
    assert!(load.supply(0, &medium.pages[&first]).is_err(), "the page was supplied before");
    assert!(load.finish().unwrap_err().to_string().contains("missing"));
}

#[test]
fn a_stale_leaf_of_the_same_range_passes_only_within_its_bounds() {
    let (mut tree, mut medium) = (Tree::new(&Released::new()), Medium::default());
    for inode in 0..1000 {
        tree.put(&Key::new(inode, 1, 0), &[3; 60]);
    }
    let before = medium.store(&tree);
    let place_of = |tree: &Tree| tree.node_of(&Key::new(999, 1, 0), 0).unwrap().place().unwrap();
    let old = place_of(&tree);
    for inode in 1000..1100 {
        tree.put(&Key::new(inode, 1, 0), &[3; 60]);
    }
    let after = medium.store(&tree);
    let new = place_of(&tree);
    assert_ne!(old, new);
    let page = medium.pages[&old].clone();
    medium.pages.insert(new, page);
    // The old page has fewer items than the stored tree.
    assert!(refused(&medium, &after).contains("items"));
    medium.load(&before, &Released::new()).unwrap();
}
