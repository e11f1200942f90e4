//! Words for the state of zones in a bucket, in the status and in metrics.
//!
//! Operators and their alerts compare them, so a word stays as it is. Left to others: the other fields of the
//! status (`part`, `reader`, `offline`).

/// State of a volume that was found and that nothing has claimed yet: its writer continues.
pub(crate) const NOT_CLAIMED: &str = "not claimed";
/// State of a writer whose requests succeed.
pub(crate) const WRITING: &str = "writing";
/// State of a writer whose last upload or manifest the store hasn't taken.
pub(crate) const AWAITED: &str = "waiting for the store";
/// State of a writer that takes no more changes, and of one whose claim failed.
pub(crate) const ENDED: &str = "fenced or ended";
/// State of a reader.
pub(crate) const READING: &str = "reading";

/// State by the bucket alone: an opening has claimed the volume, and written no base yet.
pub(crate) const BEING_OPENED: &str = "being opened";
/// State by the bucket alone: a seal follows the last manifest.
pub(crate) const FENCED: &str = "fenced";
/// State by the bucket alone: the last manifest is that of a clean stop.
pub(crate) const CLOSED: &str = "closed";
/// State by the bucket alone, which shows no difference between a writer that works and one that crashed.
pub(crate) const NOT_CLOSED: &str = "in use, or not closed";

/// State of a writer.
pub(crate) fn of_writer(has_ended: bool, is_store_awaited: bool) -> &'static str {
    match () {
        () if has_ended => ENDED,
        () if is_store_awaited => AWAITED,
        () => WRITING,
    }
}

/// State of a volume that nothing has claimed here, and whether its claim failed.
pub(crate) fn of_found(has_failed: bool) -> &'static str {
    if has_failed { ENDED } else { NOT_CLAIMED }
}

/// State of a volume by what its bucket has.
pub(crate) fn of_bucket(is_being_opened: bool, is_sealed: bool, is_clean: bool) -> &'static str {
    match () {
        () if is_being_opened => BEING_OPENED,
        () if is_sealed => FENCED,
        () if is_clean => CLOSED,
        () => NOT_CLOSED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_writer_comes_before_all_other_states() {
        assert_eq!(of_writer(true, true), "fenced or ended");
        assert_eq!(of_writer(false, true), "waiting for the store");
        assert_eq!(of_writer(false, false), "writing");
        assert_eq!([true, false].map(of_found), ["fenced or ended", "not claimed"]);
    }

    #[test]
    fn a_next_epoch_comes_before_the_end_of_the_last_one() {
        assert_eq!(of_bucket(true, true, true), "being opened");
        assert_eq!(of_bucket(false, true, true), "fenced");
        assert_eq!(of_bucket(false, false, true), "closed");
        assert_eq!(of_bucket(false, false, false), "in use, or not closed");
    }
}
