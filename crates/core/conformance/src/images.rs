//! Search for bytes in whole images of disks, which are large: a comparison at every place takes too long.

/// First place of `wanted` in `image`; `None` if there is none. Horspool's algorithm ("Practical fast
/// searching in strings", 1980): the last byte under the pattern decides how far the pattern moves.
///
/// # Panics
/// `wanted` is empty.
pub fn find(image: &[u8], wanted: &[u8]) -> Option<usize> {
    let last = wanted.len().checked_sub(1).expect("bytes to search for");
    let mut moves = [wanted.len(); 256];
    wanted[..last].iter().enumerate().for_each(|(at, byte)| moves[usize::from(*byte)] = last - at);
    let mut at = 0;
    while let Some(byte) = image.get(at + last) {
        if *byte == wanted[last] && image[at..at + last] == wanted[..last] {
            return Some(at);
        }
        at += moves[usize::from(*byte)];
    }
    None
}

/// All places of `wanted` in `image`, in ascending order.
///
/// # Panics
/// `wanted` is empty.
pub fn find_all(image: &[u8], wanted: &[u8]) -> Vec<usize> {
    let mut places: Vec<usize> = Vec::new();
    loop {
        let from = places.last().map_or(0, |at| at + 1);
        let Some(at) = find(&image[from..], wanted) else { return places };
        places.push(from + at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_a_comparison_at_every_place() {
        let mut random = runtime::Random::new(3);
        for length in 1..8 {
            for _ in 0..200 {
                // Two letters, so that there are repetitions and overlaps.
                let mut letters =
                    |count: usize| -> Vec<u8> { (0..count).map(|_| random.below(2) as u8).collect() };
                let (image, wanted) = (letters(60), letters(length));
                let windows = image.windows(length).enumerate();
                let expected: Vec<usize> =
                    windows.filter(|(_, found)| *found == wanted).map(|(at, _)| at).collect();
                assert_eq!(find_all(&image, &wanted), expected, "{wanted:?} in {image:?}");
                assert_eq!(find(&image, &wanted), expected.first().copied());
            }
        }
        assert_eq!(find(b"short", b"longer than that"), None);
    }
}
