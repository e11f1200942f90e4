//! `siltstone attach`: a stack as a block device node, taken apart whatever happens.

use super::process::{is_root, run, run_shell};
use super::server::binary;
use super::skip;
use serde_json::Value;
use std::path::Path;

/// Whether nodes can be made here; says why the test is skipped, if not.
pub fn can_attach() -> bool {
    let there = is_root() && Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists();
    if !there {
        skip("nodes need root, /dev/fuse and loop devices");
    }
    there
}

/// An attached stack. What is left of it at the end of the test is removed, by force if need be.
pub struct Attached {
    name: String,
    /// The link to the node.
    pub link: String,
    /// The node.
    pub node: String,
    is_attached: bool,
}

impl Attached {
    /// Attaches a stack under a name that no other test has.
    ///
    /// # Panics
    /// It isn't attached.
    #[track_caller]
    pub fn new(name: &str, stack: &str, options: &[&str]) -> Attached {
        Self::by(&binary().display().to_string(), name, stack, options)
    }

    /// As [`new`](Self::new), by a copy of the program.
    ///
    /// # Panics
    /// It isn't attached.
    #[track_caller]
    pub fn by(program: &str, name: &str, stack: &str, options: &[&str]) -> Attached {
        let name = format!("test-{name}-{}", std::process::id());
        // It is there already if attaching fails.
        let mut attached =
            Attached { name: name.clone(), link: String::new(), node: String::new(), is_attached: true };
        let arguments = [&["attach", stack, "--name", &name, "--json"], options].concat();
        let said = run(program, &arguments).ok();
        let said: Value = serde_json::from_str(&said).expect("JSON");
        let text = |key: &str| said[key].as_str().expect("a text").to_owned();
        (attached.link, attached.node) = (text("link"), text("node"));
        attached
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its entry in `siltstone list`.
    ///
    /// # Panics
    /// It has none.
    #[track_caller]
    pub fn listed(&self) -> Value {
        let said = run(&binary().display().to_string(), &["list", "--json"]).ok();
        let all: Value = serde_json::from_str(&said).expect("JSON");
        let mut entries = all.as_array().expect("a list").iter();
        entries.find(|entry| entry["name"] == self.name.as_str()).expect("it is listed").clone()
    }

    /// Kills its server, and waits until another one has taken over.
    ///
    /// # Panics
    /// None does.
    #[track_caller]
    pub fn kill_server(&self) {
        let before = self.listed();
        run_shell(&format!(
            "kill -9 {}
             for try in $(seq 600); do
                 sleep 0.05
                 {} list --json | jq -e '.[] | select(.name == \"{}\" and .state == \"attached\" and .lost_servers > {})' && exit
             done >/dev/null
             exit 1",
            before["server"],
            binary().display(),
            self.name,
            before["lost_servers"]
        ))
        .ok();
    }

    /// Forgets it, since the caller has detached it.
    pub fn is_detached(mut self) {
        self.is_attached = false;
    }

    /// Detaches it.
    ///
    /// # Panics
    /// It isn't detached.
    #[track_caller]
    pub fn detach(mut self) {
        run(&binary().display().to_string(), &["detach", &self.name]).ok();
        self.is_attached = false;
        let folder = Path::new("/run/siltstone").join(&self.name);
        assert!(!folder.exists() && !Path::new(&self.link).exists(), "something is left");
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.is_attached {
            // Nothing here may wait for a server that is gone.
            let folder = format!("/run/siltstone/{}", self.name);
            let log = std::fs::read_to_string(format!("{folder}/log")).unwrap_or_default();
            run_shell(&format!(
                "for process in $(jq -r '.holder, .server' {folder}/attachment.json); do kill -9 $process || true; done
                 umount -l {node} || true
                 swapoff {node} || true
                 losetup -d {node} || true
                 umount -l {folder}/volume || true
                 rm -rf {folder} {link}
                 true",
                node = if self.node.is_empty() { "/nowhere" } else { &self.node },
                link = if self.link.is_empty() { "/nowhere" } else { &self.link },
            ));
            println!("{} said: {log}", self.name);
        }
    }
}
