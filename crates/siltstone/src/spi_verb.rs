//! `siltstone spi`: serves emulated flash chips, and shows them.

mod ask;
mod drawing;
mod serve;
mod show;

use crate::arguments::SpiVerb;
use crate::failure::Failure;
use spinor::{CHIPS, Description};
use std::path::Path;
use std::sync::Arc;

/// Runs the verb.
///
/// # Errors
/// An unknown chip, a wrong file or address; errors of the served chip; violated rules.
pub fn spi(verb: SpiVerb) -> Result<(), Failure> {
    match verb {
        SpiVerb::Serve(arguments) => serve::serve(&arguments),
        SpiVerb::List { json } => show::list(json),
        SpiVerb::Show { chip, sfdp, name, svg, toml, json } => {
            let text = match &sfdp {
                Some(path) => show::generic(path, &name)?,
                None => text_of(chip.as_deref().unwrap_or_default())?,
            };
            show::show(&text, svg.as_deref(), toml, json)
        }
        SpiVerb::Status { chip, json } => ask::status(&chip, json),
        SpiVerb::Power { supply, chip } => ask::state(&chip, format!("power {supply}")),
        SpiVerb::Pin { pin, level, chip } => ask::state(&chip, format!("pin {pin} {level}")),
        SpiVerb::Dump { chip, offset, length, raw, out } => {
            ask::dump(&chip, offset, length, raw, out.as_deref())
        }
        SpiVerb::Trace { chip, form, out } => ask::trace(&chip, form, out.as_deref()),
        SpiVerb::Wear { chip, json } => ask::wear(&chip, json),
        SpiVerb::Age { years, chip, celsius, rate } => ask::age(&chip, years, celsius, rate),
        SpiVerb::Sync { chip } => ask::sync(&chip),
    }
}

/// Text of a chip file, with its name for errors.
struct ChipText {
    file: String,
    text: String,
}

impl ChipText {
    fn description(&self) -> Result<Arc<Description>, Failure> {
        Description::parse(&self.file, &self.text).map_err(|error| Failure::Usage(error.to_string()))
    }
}

/// Reads the chip file of a built-in chip, or at a path.
fn text_of(chip: &str) -> Result<ChipText, Failure> {
    if let Some((name, text)) = CHIPS.iter().find(|(name, _)| name.eq_ignore_ascii_case(chip)) {
        return Ok(ChipText { file: format!("{name}.toml"), text: (*text).to_owned() });
    }
    let path = Path::new(chip);
    if !chip.contains('/') && path.extension().is_none() {
        let known = CHIPS.iter().map(|(name, _)| *name);
        let near = stack::did_you_mean(&chip.to_ascii_uppercase(), known.clone());
        let list = known.collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!(
            "chip \"{chip}\": unknown{near}; expected one of {list}, or the path of a chip file such as ./my.toml"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::Usage(format!("chip file \"{chip}\": {error}; expected a chip file in TOML"))
    })?;
    Ok(ChipText { file: chip.to_owned(), text })
}
