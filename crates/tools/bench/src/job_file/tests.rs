use super::*;
use crate::job::{Amount, BlockSizes, Distribution, ReadWrite};
use proptest::prelude::*;
use std::time::Duration;

fn parse(text: &str) -> Result<JobFile, Problems> {
    JobFile::parse("x.fio", text, &|name| (name == "SIZE").then(|| "1m".to_owned()))
}

fn problems(text: &str) -> String {
    parse(text).expect_err("this file is wrong").to_string()
}

#[test]
fn a_usual_file() {
    let text = "\
; a comment
[global]
filename=disk.img
ioengine=libaio
direct=1
bs=4k,8k
runtime=30   # seconds
time_based
size=1g
[global]
iodepth=16
[reads]
rw=randread
random_distribution=zipf:1.2
rate_iops=1000,500
[writes]
stonewall
rw = randwrite
numjobs=2
group_reporting
fsync=32
bsrange=4k-16k,8k-64k
size=50%
verify=crc32c-intel
do_verify=0
";
    let JobFile { jobs, notes } = parse(text).unwrap();
    let [reads, writes] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!(reads.rw, ReadWrite::RandRead);
    assert_eq!(reads.block_size.read, BlockSizes::fixed(4096));
    assert_eq!(reads.block_size.trim, BlockSizes::fixed(8192));
    assert_eq!(reads.runtime, Some(Duration::from_secs(30)));
    assert!(reads.time_based && reads.direct && reads.verify.is_none());
    assert_eq!(reads.random_distribution, Distribution::Zipf { theta: 1.2 });
    assert_eq!((reads.rate_iops.read, reads.rate_iops.trim), (Some(1000), Some(500)));
    assert_eq!((reads.iodepth, reads.group, writes.group), (16, 0, 1));
    assert_eq!(writes.block_size.write, BlockSizes { min: 8192, max: 65536 });
    assert_eq!((writes.size, writes.fsync, writes.numjobs), (Some(Amount::Percent(50)), 32, 2));
    assert!(!writes.verify.unwrap().after_writes);
    assert_eq!(notes, ["ioengine=libaio: replaced by Siltstone's own engine"]);
}

#[test]
fn everything_wrong_is_said_at_once_and_where() {
    let text =
        "[a]\niodpeth=4\n  bs=4q\nbssplit=5\nopenfiles=3\nrw=randraed\nruntime\n[]\n[b]\ntime_based=1\n";
    let expected = "\
x.fio:2:1: option \"iodpeth\" is not known: did you mean \"iodepth\"?
x.fio:3:6: bs=4q: expected a number of bytes, such as 4096, 4k or 1g
x.fio:4:1: option \"bssplit\": not supported: use bs= or bsrange=
x.fio:5:1: option \"openfiles\" is fio's, and not supported here: leave it out, or run this with fio
x.fio:6:4: rw=randraed: expected one of read, write, trim, randread, randwrite, randtrim, rw, readwrite, \
randrw: did you mean \"randread\"?
x.fio:7:1: runtime needs a value: runtime=…
x.fio:8:1: []: expected a section's name in brackets, [name]
x.fio:10:1: [b] time_based without runtime would never end: add runtime=30s";
    let said = problems(text);
    let said: Vec<&str> = said.lines().filter(|line| line.starts_with("x.fio")).collect();
    assert_eq!(said.join("\n"), expected);
}

#[test]
fn refusals() {
    for (text, expected) in [
        ("", "no job in this file"),
        ("bs=4k", "outside of a section"),
        ("[a]\nverify=md5", "expected crc32c"),
        ("[a]\nverify_only=1", "without verify"),
        ("[a]\nrw=trim\nverify=crc32c", "nothing to check"),
        ("[a]\ninclude other.fio", "one file at a time"),
        ("[a]\nfilename=a:b", "several files"),
        ("[a]\nrandom_distribution=zipf:1", "not 1"),
        ("[a]\nrandom_distribution=pareto:0.2", "expected random"),
        ("[a]\nrwmixread=101", "0 to 100"),
        ("[a]\niodepth=0", "1 to 65536"),
        ("[a]\nbsrange=8k-4k", "smaller size first"),
        ("[a]\nbs=1,2,3,4", "at most three"),
        ("[a]\nbs=", "expected a number"),
        ("[a]\nsize=${NOPE}", "NOPE is not set"),
        ("[a]\nsize=${SIZE", "without its }"),
        ("[a]\nfilename=$jobname", "write the value"),
        ("[a]\ndirect=true", "expected 0 or 1"),
        ("[a]\nbuffer_pattern=12", "such as 0xdeadface"),
        ("[a]\nbuffer_pattern=\"ab", "in double quotes"),
        ("[a]\nbuffer_pattern=0x", "such as 0xdeadface"),
        ("[a]\nthinktime=soon", "expected a time"),
        ("[a]\nthinktime=1s\nthinktime_blocks=0", "at least 1"),
        ("[a]\nthinktime_blocks=8", "without thinktime"),
        ("[a]\nthinktime_spin=8", "not supported"),
        ("[a", "in brackets"),
    ] {
        assert!(problems(text).contains(expected), "{text}: {}", problems(text));
    }
}

/// Patterns as fio 3.33 writes them.
#[test]
fn patterns_and_times_to_think_as_fio_reads_them() {
    let job = |option: &str| parse(&format!("[a]\nrw=write\n{option}")).unwrap().jobs.remove(0);
    for (text, expected) in [
        ("0xdeadface", &[0xde, 0xad, 0xfa, 0xce][..]),
        ("0xabc", &[0x0a, 0xbc]),
        ("\"abcd\"", b"abcd"),
        ("0x11\"ab\"0x22", &[0x11, 0x61, 0x62, 0x22]),
    ] {
        assert_eq!(
            job(&format!("buffer_pattern={text}")).buffer_pattern.as_deref(),
            Some(expected),
            "{text}"
        );
    }
    assert!(job("zero_buffers").zero_buffers && !job("zero_buffers=0").zero_buffers);
    assert_eq!(job("thinktime=500").thinktime, Duration::from_micros(500));
    assert_eq!(job("thinktime=2s").thinktime, Duration::from_secs(2));
}

#[test]
fn companions_of_verify_in_any_order() {
    let file =
        parse("[a]\nverify_fatal=1\nverify=meta\n[b]\nverify=0\ndo_verify=1\n[c]\nverify=meta\nverify_only")
            .unwrap();
    assert!(file.jobs[0].verify.unwrap().fatal);
    assert!(file.jobs[1].verify.is_none(), "it is off");
    assert!(file.jobs[2].verify.unwrap().only && !file.jobs[2].verify.unwrap().fatal);
}

#[test]
fn options_of_logs_say_the_job_again() {
    let text = "[a]\nread_iolog=a\\:b.log:c\niodepth=3\nruntime=5\nreplay_no_stall\nreplay_time_scale=50\n\
                replay_align=4k\nreplay_scale=3\nreplay_redirect=x\\:y\nsync=1\n[b]\nrw=write\nwrite_iolog=w\\:1\n";
    for job in parse(text).unwrap().jobs {
        let said = job.options().iter().map(|(key, value)| format!("{key}={value}\n")).collect::<String>();
        assert_eq!(parse(&format!("[{}]\n{said}", job.name)).unwrap().jobs[0], job, "{said}");
    }
}

#[test]
fn variables_and_engines() {
    let file = parse("[a]\nsize=${SIZE}\nioengine=psync\niodepth=8\n[b]\nbs=4KiB").unwrap();
    assert_eq!(file.jobs[0].size, Some(Amount::Bytes(1 << 20)));
    assert_eq!(file.jobs[0].iodepth, 1);
    assert_eq!(file.jobs[1].block_size.read.min, 4000);
    assert_eq!(file.notes.len(), 3, "{:?}", file.notes);
}

/// Parsing the output of `Job::options` gives the same job.
#[test]
fn options_say_the_job_again() {
    let text = "[a]\nrw=randrw\nbsrange=4k-8k,16k-16k\niodepth=3\nnumjobs=2\nruntime=1500ms\ntime_based\n\
                ramp_time=2\noffset=10%\nsize=1m\nio_size=2m\nrwmixread=70\nrandom_distribution=zipf:0.9\n\
                norandommap\nrandseed=7\nrandrepeat=0\nrate_iops=10,,20\nfsync=3\nfdatasync=4\nsync=1\n\
                verify=meta\nverify_fatal=1\nverify_only\nzero_buffers\nbuffer_pattern=0x00ab\n\
                thinktime=250ms\nthinktime_blocks=64\n";
    let first = parse(text).unwrap().jobs.remove(0);
    let said = first.options().iter().map(|(key, value)| format!("{key}={value}\n")).collect::<String>();
    assert_eq!(parse(&format!("[a]\n{said}")).unwrap().jobs[0], first, "{said}");
}

proptest! {
    #[test]
    fn hostile_files_never_panic(text in "(\\[?[a-z_]{0,9}\\]?[=:]?[0-9kmb%,\\-\\.\\$\\{\\}]{0,6}[\n;# ]{0,2}){0,30}|\\PC{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn hostile_values_never_panic(index in 0..options::OPTIONS.len(), value in "[0-9a-z:,%\\-\\.]{0,24}|\\PC{0,20}") {
        let mut job = Job::new("x");
        for units in [Units::Fio, Units::Iec] {
            let _ = options::OPTIONS[index].apply(&mut job, &value, units);
        }
        let _ = (job.options(), job.region(1 << 30, 4096), job.region(u64::MAX, 512), job.region(0, 0));
    }
}
