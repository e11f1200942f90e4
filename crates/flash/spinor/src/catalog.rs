//! The chips that come with the crate.

use crate::description::{Description, DescriptionError};
use std::sync::Arc;

macro_rules! chips {
    ($($name:literal,)*) => {
        /// Names and chip files of the chips that come with the crate.
        pub const CHIPS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../chips/", $name, ".toml"))),)*];
    };
}

chips! {
    "W25Q128JV",
    "W25Q64JV",
    "MX25L25645G",
    "GD25Q128C",
    "W25Q128FV",
    "MX25L6436E",
    "MT25QL128ABA",
    "S25FL128L",
    "SST25VF032B",
    "MB85RS2MT",
}

/// Returns the description of a chip that comes with the crate; `None` for an unknown name. Case is ignored.
///
/// # Errors
/// An error in the chip file; a test checks that there is none.
pub fn chip(name: &str) -> Option<Result<Arc<Description>, DescriptionError>> {
    let (name, text) = CHIPS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
    Some(Description::parse(&format!("{name}.toml"), text))
}
