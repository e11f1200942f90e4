use super::*;
use std::io::Write;

fn survey(lines: &str) -> Result<Survey, Problems> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(lines.as_bytes()).unwrap();
    Survey::read("t.log", file.path(), &Settings::default())
}

fn of(requests: &str) -> Survey {
    survey(&format!("fio version 2 iolog\nd add\nd open\n{requests}")).expect("this log is right")
}

#[test]
fn counts_what_there_is() {
    let survey =
        of("d read 0 4096\nd read 8192 8192\nd write 512 1024\nd trim 65536 4096\nd sync 0 0\nd wait 20 0\n\
                     d datasync 0 0\n");
    assert_eq!(survey.operations, PerDirection { read: 2, write: 1, trim: 1 });
    assert_eq!(survey.bytes, PerDirection { read: 12_288, write: 1024, trim: 4096 });
    assert_eq!(survey.longest, PerDirection { read: 8192, write: 1024, trim: 4096 });
    assert_eq!((survey.flushes, survey.end(), survey.transfer()), (2, 69_632, 17_408));
    assert_eq!((survey.duration, &survey.files[..]), (Duration::from_millis(20), &["d".to_owned()][..]));
}

#[test]
fn what_does_not_fit_is_said_with_its_line() {
    let survey = of("d read 0 8192\nd read 12288 4096\nd write 1536 512\nd read 4096 512\n");
    assert_eq!(survey.check("t.log", 16_384, 512), Ok(()));
    assert!(survey.is_whole(512) && !survey.is_whole(1024) && !survey.is_whole(1 << 20));
    let error = |capacity, block| survey.check("t.log", capacity, block).unwrap_err();
    assert!(
        error(16_383, 512)
            .starts_with("t.log:5: read of 4096 bytes at byte 12288: the device has only 16383")
    );
    let error = error(16_384, 4096);
    assert!(error.starts_with("t.log:6: write of 512 bytes at byte 1536: expected whole blocks"), "{error}");
    let lengths = of("d read 4096 4096\nd read 2048 4096\n");
    let error = lengths.check("t.log", 1 << 20, 4096).unwrap_err();
    assert!(error.starts_with("t.log:5: ") && error.contains("replay_align=4096"), "{error}");
    assert_eq!(lengths.check("t.log", 1 << 20, 2048), Ok(()));
    assert!(of("d read 100 100\n").check("t.log", 1 << 20, 512).is_err());
}

#[test]
fn a_log_is_refused_with_its_first_problems() {
    let mut text = String::from("fio version 2 iolog\n");
    (0..100).for_each(|_| text.push_str("d raed 0 1\n"));
    let problems = survey(&text).unwrap_err();
    assert_eq!(problems.count(), 100);
    let said = problems.to_string();
    assert!(said.starts_with("t.log:2:1: d is not known"), "{said}");
    assert!(said.ends_with("... and 50 more"), "{said}");
    let nothing = survey("fio version 2 iolog\nd add\nd open\nd sync 0 0\n").unwrap_err().to_string();
    assert_eq!(nothing, "t.log: nothing to replay: expected reads, writes or trims");
    let settings = Settings::default();
    let missing = Survey::read("t.log", Path::new("/nowhere/t.log"), &settings).unwrap_err().to_string();
    assert!(missing.starts_with("t.log: reading this log: No such file"), "{missing}");
    assert!(
        Survey::read("/dev", Path::new("/dev"), &settings)
            .unwrap_err()
            .to_string()
            .contains("a regular file")
    );
}
