//! Messages of operators to an open mirror, with mdadm's names.

use block::{Error, Result};

stack::messages! {
    /// A message to a mirror.
    Message;
    "fail LEG" => Fail(String), "mark a leg faulty";
    "remove LEG" => Remove(String), "remove a faulty leg from the mirror";
    "re-add LEG" => ReAdd(String), "bring a leg back by copying the chunks that the bitmap marks";
    "add LEG" => Add(String), "add a leg in a free slot and OVERWRITE all of it";
    "check" => Check, "read and compare all legs";
    "repair" => Repair, "compare all legs and overwrite differences with the source's data";
    "idle" => Idle, "end a check or repair; a resync continues";
}

/// Returns the number of the leg with this name or number.
///
/// # Errors
/// [`Error::NotFound`], with the known names.
pub fn number_of<'a>(names: impl Iterator<Item = &'a str> + Clone, wanted: &str) -> Result<usize> {
    let by_name = names.clone().position(|name| name == wanted);
    let by_number = || wanted.parse().ok().filter(|number| *number < names.clone().count());
    by_name.or_else(by_number).ok_or_else(|| {
        let known = names.clone().collect::<Vec<_>>().join(", ");
        Error::not_found(format!("unknown leg \"{wanted}\"; expected one of {known}, or a number from 0 on"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let names = ["fast", "slow", "7"];
        assert_eq!(number_of(names.into_iter(), "slow"), Ok(1));
        assert_eq!(number_of(names.into_iter(), "0"), Ok(0));
        assert_eq!(number_of(names.into_iter(), "7"), Ok(2));
        assert!(number_of(names.into_iter(), "3").expect_err("no such").detail().contains("fast, slow, 7"));
    }
}
