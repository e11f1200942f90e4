use super::*;

#[test]
fn this_machine_is_measured() {
    let measured = measure().expect("Linux tells it");
    assert!(0 < measured.available && measured.available <= measured.total, "{measured:?}");
    assert!(measured.available() <= measured.available && measured.total() <= measured.total);
}

#[test]
fn pressure_is_the_average_of_ten_seconds() {
    let text =
        "some avg10=12.34 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=1\n";
    assert_eq!(some_avg10(text), Some(12.34));
    for text in ["", "some", "some avg10=x", "some avg10=NaN", "some avg10=-1", "full avg10=1.0 avg60=0"] {
        assert_eq!(some_avg10(text), None, "{text}");
    }
}

#[test]
fn limits_without_a_number_are_none() {
    assert_eq!(limit("1073741824\n"), Some(1 << 30));
    for text in ["max\n", "9223372036854771712\n", "", "-1"] {
        assert_eq!(limit(text), None, "{text}");
    }
}

fn folders(memberships: &str, mounts: &str, exists: bool) -> Vec<(String, bool)> {
    let groups = groups_of(memberships, mounts, &|_| exists);
    groups.into_iter().map(|group| (group.folder.display().to_string(), group.is_version_2)).collect()
}

#[test]
fn groups_are_found_from_the_own_one_up() {
    let mounts = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
                  35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                  36 31 0:33 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n";
    let version_1 = |path: &str| (format!("/sys/fs/cgroup/memory{path}"), false);
    let memberships = "8:pids:/\n4:memory:/apps/one\n0::/\n";
    assert_eq!(
        folders(memberships, mounts, true),
        [version_1("/apps/one"), version_1("/apps"), version_1("")]
    );
    assert_eq!(folders(memberships, mounts, false), [version_1("")], "of another namespace");
    let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    let version_2 = |path: &str| (format!("/sys/fs/cgroup{path}"), true);
    assert_eq!(folders("0::/user.slice\n", mounts, true), [version_2("/user.slice"), version_2("")]);
    let container = "30 23 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
    assert_eq!(folders("0::/docker/1/app\n", container, true), [version_2("/app"), version_2("")]);
    for text in ["", "x", "1:memory", "::", "4:memory:/\n"] {
        assert_eq!(folders(text, "x - y\n- cgroup2\n1 2 3 - cgroup cgroup memory", true), []);
    }
}

#[test]
fn the_group_that_leaves_least_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let group = |name: &str, is_version_2, files: &[(&str, &str)]| {
        let folder = folder.path().join(name);
        std::fs::create_dir_all(&folder).expect("a group");
        files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).expect("a file"));
        Group { folder, is_version_2 }
    };
    let wide = group("wide", true, &[("memory.max", "max\n"), ("memory.current", "5\n")]);
    let high = [("memory.max", "9000\n"), ("memory.high", "5000\n"), ("memory.current", "1000\n")];
    let high = group("high", true, &high);
    let stat = "cache 1\ninactive_file 7\ntotal_inactive_file 600\n";
    let old = [("memory.limit_in_bytes", "3000"), ("memory.usage_in_bytes", "1500"), ("memory.stat", stat)];
    let old = group("old", false, &old);
    assert_eq!(tightest(&[]), None);
    assert_eq!(tightest(std::slice::from_ref(&wide)), None);
    assert_eq!(tightest(&[wide.clone(), high.clone()]), Some(Cgroup { limit: 5000, used: 1000 }));
    assert_eq!(tightest(&[wide, high, old]), Some(Cgroup { limit: 3000, used: 900 }));
}
