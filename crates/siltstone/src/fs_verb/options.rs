//! Options of a mount in the words of mount(8): a list after `-o`, separated by commas.

use fs::MountConfig;

/// Options of `fs mount -o`.
const KNOWN: &str =
    "ro, rw, exec, noexec, noatime, nodiratime, relatime, nosuid, nodev, allow_other, uid=NUMBER, gid=NUMBER";

/// Applies a list to a mount. Later options override earlier ones.
///
/// # Errors
/// The unknown option, or the value that isn't a number.
pub fn apply(list: &str, config: &mut MountConfig) -> Result<(), String> {
    for option in list.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("ro", None) => config.read_only = true,
            ("rw", None) => config.read_only = false,
            ("exec", None) => config.no_exec = false,
            ("noexec", None) => config.no_exec = true,
            ("noatime" | "nodiratime", None) => config.no_access_times = true,
            ("relatime", None) => config.no_access_times = false,
            // Every mount has both.
            ("nosuid" | "nodev", None) => {}
            ("suid" | "dev", None) => {
                return Err(format!(
                    "option \"{name}\": mounts are always nosuid and nodev; expected another option; leave it out"
                ));
            }
            ("allow_other", None) => config.allow_other = true,
            ("uid", Some(value)) => config.uid = Some(number(name, value)?),
            ("gid", Some(value)) => config.gid = Some(number(name, value)?),
            _ => return Err(format!("option \"{option}\": unknown; expected some of {KNOWN}")),
        }
    }
    Ok(())
}

fn number(name: &str, value: &str) -> Result<u32, String> {
    // The largest number means "unchanged" to the kernel.
    let number = value.parse().ok().filter(|number| *number != u32::MAX);
    number.ok_or_else(|| {
        format!("option \"{name}={value}\": not a number below 4294967295; expected the number of a user or a group")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(list: &str) -> Result<MountConfig, String> {
        let mut config = MountConfig::default();
        apply(list, &mut config).map(|()| config)
    }

    #[test]
    fn later_options_override_earlier_ones() {
        let config = applied("ro,noexec,noatime,uid=1000,gid=100,rw,,uid=0,allow_other").unwrap();
        assert!(!config.read_only && config.no_exec && config.no_access_times && config.allow_other);
        assert_eq!((config.uid, config.gid), (Some(0), Some(100)));
    }

    #[test]
    fn unknown_options_and_values_are_refused() {
        for list in
            ["suid", "dev", "uid", "uid=", "uid=root", "uid=4294967295", "gid=-1", "ro=1", "data=journal"]
        {
            let error = applied(list).unwrap_err();
            assert!(error.contains(&format!("\"{list}\"")) || error.contains(list), "{list}: {error}");
        }
    }
}
