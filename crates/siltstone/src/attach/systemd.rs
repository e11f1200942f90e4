//! Units of systemd for `attach --systemd`.

use std::path::Path;

/// Modules with the drivers of a node, of which a kernel has some, and the network that stacks may need.
const NEEDED: &str = "modprobe@ublk_drv.service modprobe@nbd.service modprobe@fuse.service modprobe@loop.service network-online.target";

/// Quotes an argument of a command line in a unit (systemd.service(5), "Command lines").
fn quoted(argument: &str) -> String {
    let escaped = argument.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "$$").replace('%', "%%");
    format!("\"{escaped}\"")
}

/// Returns a unit that attaches a stack under a name, and an example of a mount, with comments that name
/// their files. `arguments` follow the stack on the command line.
pub fn units(program: &Path, folder: &Path, stack: &str, name: &str, arguments: &[String]) -> String {
    let arguments: String = arguments.iter().map(|argument| format!(" {}", quoted(argument))).collect();
    let folder = folder.display().to_string().replace('%', "%%");
    let (program, stack) = (quoted(&program.display().to_string()), quoted(stack));
    format!(
        "# /etc/systemd/system/siltstone-{name}.service
[Unit]
Description=Siltstone volume {name}
DefaultDependencies=no
Wants={NEEDED}
After={NEEDED}
After=systemd-tmpfiles-setup-dev.service local-fs-pre.target
Conflicts=umount.target
Before=umount.target

[Service]
Type=notify
NotifyAccess=main
WorkingDirectory={folder}
ExecStart={program} attach {stack} --name {name} --foreground{arguments}
ExecReload={program} reload {name}
KillMode=mixed
TimeoutStartSec=infinity
TimeoutStopSec=infinity
LimitMEMLOCK=infinity
LimitCORE=0
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target

# A file system on it, in /etc/fstab; systemd waits for the node by 60-siltstone.rules, a file of the package for udev:
#
# /dev/siltstone/{name}  /srv/{name}  ext4  defaults,nofail,x-systemd.requires=siltstone-{name}.service,x-systemd.device-timeout=10min  0 0
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_quote_what_systemd_would_expand() {
        let text = units(
            Path::new("/usr/bin/siltstone"),
            Path::new("/srv/50%"),
            "ram(size=1GiB) 100% \"$a\"",
            "vol",
            &["--x=1".into()],
        );
        let line = text.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
        assert_eq!(
            line,
            r#"ExecStart="/usr/bin/siltstone" attach "ram(size=1GiB) 100%% \"$$a\"" --name vol --foreground "--x=1""#
        );
        // The unit of the package has the same modules.
        let packaged = include_str!("../../../../packaging/systemd/siltstone-attach@.service");
        for line in ["Wants=", "After="].map(|word| format!("{word}{NEEDED}\n")) {
            assert!(text.contains(&line) && packaged.contains(&line), "{line}");
        }
        assert!(text.contains("Type=notify") && text.contains("WorkingDirectory=/srv/50%%\n"));
    }
}
