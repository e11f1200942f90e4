//! Chip files: those of the crate, errors with line and column, generic chips from SFDP.

use crate::common::{Drive, SMALL, resized, text};
use proptest::prelude::*;
use spinor::{CHIPS, Chip, Description, chip, sfdp};

#[test]
fn every_chip_file_of_the_crate_is_correct() {
    for (name, _) in CHIPS {
        let description = chip(name).unwrap().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(&description.name, name);
        let mut flash = Chip::erased(description.clone(), 1);
        assert_eq!(flash.ask(&[0x9F], description.jedec_id.len()), description.jedec_id, "{name}");
    }
    assert!(chip("w25q128jv").is_some() && chip("W25Q128").is_none());
}

#[test]
fn sfdp_areas_agree_with_their_chips() {
    for (name, _) in CHIPS {
        let description = chip(name).unwrap().unwrap();
        if description.sfdp.is_empty() {
            continue;
        }
        let table = sfdp::parse(&description.sfdp).unwrap();
        assert_eq!(table.size, u64::from(description.size), "{name}");
        assert_eq!(table.page, description.page, "{name}");
        for (size, opcode, _) in &table.erases {
            let command = description.command(*opcode, false).unwrap();
            assert_eq!(command.size, *size, "{name}: {opcode:02X}h");
        }
        for read in &table.reads {
            let command = description.command(read.opcode, false).unwrap();
            assert_eq!(command.lines, read.lines, "{name}: {:02X}h", read.opcode);
            let mode = if command.mode { 8 / command.lines[1] } else { 0 };
            assert_eq!(command.dummy + mode, read.dummy + read.mode_clocks, "{name}: {:02X}h", read.opcode);
        }
        let mut flash = Chip::erased(description.clone(), 1);
        assert_eq!(flash.ask(&[0x5A, 0, 0, 0, 0], 4), b"SFDP", "{name}");
    }
}

/// Position and a part of the message of each problem.
#[test]
fn errors_name_line_and_column() {
    let good = text("W25Q128JV");
    let cases = [
        ("size = 16777216", "size = 16777215", "size out of range: 16777215"),
        ("action = \"write-enable\"", "action = \"write-enabel\"", "unknown action: \"write-enabel\""),
        ("opcode = 0x04", "opcode = 0x06", "opcode 06h is taken by \"Write Enable\""),
        ("opcode = 0x04", "opcode = 300", "300"),
        ("\"SRL\", \"QE\"", "\"SRL\", \"QX\"", "unknown bit: \"QX\""),
        ("[\"0.7 ms\"", "[\"0.7 sm\"", "bad duration: \"0.7 sm\""),
        ("[\"0.7 ms\"", "[\"7 ms\"", "typical exceeds maximum"),
        ("size = 4096, protocol", "size = 8192, protocol", "erase size without a time: 8192"),
        ("registers = [\"SR3\"]", "registers = [\"SR4\"]", "unknown register: \"SR4\""),
        ("lines = \"1-4-4\"", "lines = \"1-4-8\"", "bad lines: \"1-4-8\""),
        ("53 46 44 50", "53 46 44 51", "no signature"),
        ("endurance = ", "endurence = ", "endurence"),
        ("one_time = 0x38", "one_time = 0xFF", "one_time has bits that are not writable"),
    ];
    for (from, to, message) in cases {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        let error = Description::parse("my.toml", &bad).unwrap_err();
        assert!(error.message.contains(message), "{error}");
        let shown = error.to_string();
        let line = shown.strip_prefix("my.toml:").and_then(|rest| rest.split(':').next()).unwrap();
        let lines: Vec<&str> = bad.lines().collect();
        let number: usize = line.parse().unwrap();
        let near = lines[number - 1..].iter().take(2).any(|line| {
            line.contains(to.split('=').next_back().unwrap().trim())
                || line.contains("sfdp")
                || line.contains(to)
        });
        assert!(near, "{shown}: {}", lines[number - 1]);
        assert!(error.column >= 1 && error.column <= lines[number - 1].chars().count() + 1, "{shown}");
    }
}

#[test]
fn values_that_the_interpreter_cannot_use_are_refused_at_their_place() {
    let cases = [
        ("MB85RS2MT", "action = \"write-memory\"", "action = \"program\"", "writes in place"),
        ("S25FL128L", "shift = 0", "shift = 8", "from bit 8"),
        (
            "W25Q128JV",
            "sector_limit = 32768",
            "sector_limit = 33554432",
            "sector_limit out of range: 33554432",
        ),
    ];
    for (name, from, to, message) in cases {
        let bad = text(name).replacen(from, to, 1);
        let bad = if name == "S25FL128L" {
            bad.replacen("clocks = [8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]", "clocks = [8]", 1)
        } else {
            bad
        };
        let error = Description::parse("my.toml", &bad).expect_err(to);
        assert!(error.message.contains(message), "{error}");
        assert!(bad.lines().nth(error.line - 1).unwrap().contains(to.split(' ').next().unwrap()), "{error}");
    }
}

#[test]
fn extreme_values_of_a_chip_file_do_no_harm() {
    // The longest durations that a file can have.
    let long = resized("W25Q128FV", SMALL).replacen("page = 256", "page = 65536", 1).replacen(
        "byte_program = [\"30 us\", \"2.5 us\"]",
        "byte_program = [\"900000 s\", \"900000 s\"]",
        1,
    );
    let mut chip = Chip::erased(Description::parse("long.toml", &long).unwrap(), 1);
    chip.finish(&Chip::at(0x02, 0, &[7; 60_000]));
    assert_eq!(chip.read_at(0, 1), [7]);
    // An FRAM with a special sector of 256 bytes.
    let special = text("MB85RS2MT").replacen(
        "command = [",
        "command = [\n{ opcode = 0x42, name = \"SSWR\", action = \"program-security\", address = \"3\" },\n\
         { opcode = 0x4B, name = \"SSRD\", action = \"read-security\", address = \"3\" },",
        1,
    ) + "\n[security]\nregisters = 1\nsize = 256\n";
    let mut chip = Chip::erased(Description::parse("special.toml", &special).unwrap(), 1);
    chip.finish(&Chip::at(0x42, 200, &[1, 2, 3]));
    assert_eq!(chip.ask(&Chip::at(0x4B, 200, &[]), 3), [1, 2, 3]);
}

#[test]
fn the_place_is_exact() {
    let bad = text("W25Q128JV").replacen("opcode = 0x04", "opcode = 0x06", 1);
    let error = Description::parse("my.toml", &bad).unwrap_err();
    let line = bad.lines().position(|line| line.contains("\"Write Disable\"")).unwrap() + 1;
    assert_eq!((error.line, error.column), (line, "    { opcode = ".len() + 1));
}

#[test]
fn a_generic_chip_comes_from_any_sfdp_area() {
    for (name, _) in CHIPS {
        let original = chip(name).unwrap().unwrap();
        if original.sfdp.is_empty() {
            continue;
        }
        let text = sfdp::generic_chip("generic", &original.jedec_id, &original.sfdp).unwrap();
        let generic =
            Description::parse("generic.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!((generic.size, generic.page), (original.size, original.page), "{name}");
        assert_eq!(generic.sfdp, original.sfdp, "{name}");
        let mut flash = Chip::erased(generic, 1);
        flash.finish(&Chip::at(0x02, 0x1234, b"data"));
        assert_eq!(flash.read_at(0x1234, 4), b"data", "{name}");
        flash.finish(&Chip::at(0x20, 0x1000, &[]));
        assert_eq!(flash.read_at(0x1234, 4), [0xFF; 4], "{name}");
    }
}

#[test]
fn an_image_of_the_wrong_size_is_refused() {
    let description = chip("W25Q64JV").unwrap().unwrap();
    let error = Chip::new(description, vec![0u8; 100], 1).err().unwrap();
    assert_eq!(
        error.to_string(),
        "image for chip \"W25Q64JV\": wrong size: 100 bytes; expected 8388608 bytes"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sfdp_takes_any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..300), signature in any::<bool>()) {
        if signature && bytes.len() > 16 {
            bytes[..4].copy_from_slice(b"SFDP");
            bytes[8] = 0;
            bytes[15] = 0xFF;
        }
        if sfdp::parse(&bytes).is_ok() {
            let _ = Description::parse("any", &sfdp::generic_chip("any", &[1], &bytes).unwrap());
        }
    }

    #[test]
    fn a_damaged_chip_file_gives_an_error_with_a_place(at in any::<prop::sample::Index>(), with in any::<char>()) {
        let good = resized("W25Q128JV", 1 << 18);
        let mut chars: Vec<char> = good.chars().collect();
        let at = at.index(chars.len());
        chars[at] = with;
        let bad: String = chars.into_iter().collect();
        if let Err(error) = Description::parse("bad", &bad) {
            prop_assert!(error.line <= bad.lines().count() + 1);
        }
    }
}

/// Revision 1.5 and the quad enable requirement 100b, as in the real W25Q128JV: drivers choose by them how to
/// set QE.
#[test]
fn the_w25q64jv_says_what_its_sibling_says() {
    let area = |name: &str| chip(name).unwrap().unwrap().sfdp.clone();
    let (ours, sibling) = (area("W25Q64JV"), area("W25Q128JV"));
    let different: Vec<usize> = (0..sibling.len()).filter(|at| ours[*at] != sibling[*at]).collect();
    // Density, page program time, chip erase time.
    let source = |name: &str| chip(name).unwrap().unwrap().sfdp_source.clone();
    assert_eq!(source("W25Q64JV"), "dump of W25Q128JV, adapted");
    assert_eq!(
        [source("W25Q128JV"), source("MT25QL128ABA"), source("SST25VF032B")],
        ["dump", "derived", "none"]
    );
    assert_eq!((ours.len(), different), (sibling.len(), vec![0x87, 0xA9, 0xAB]));
    assert_eq!((ours[4], ours[5], ours[0x80 + 4 * 14 + 2] >> 4 & 7), (5, 1, 4));
}
