//! `siltstone attach`: a stack as a block device node, which is removed even if the test fails.

use super::process::{is_root, run, run_shell};
use super::server::binary;
use super::skip;
use serde_json::Value;
use std::path::Path;

/// Whether nodes can be made here; if not, reports why the test is skipped.
pub fn can_attach() -> bool {
    let there = is_root() && Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists();
    if !there {
        skip("nodes need root, /dev/fuse and loop devices");
    }
    there
}

/// An attached stack. Dropping it removes what is left of it, by force if necessary.
pub struct Attached {
    name: String,
    /// Path of the link to the node.
    pub link: String,
    /// Path of the node.
    pub node: String,
    is_attached: bool,
}

impl Attached {
    /// Attaches a stack under a name that no other test has.
    ///
    /// # Panics
    /// If attaching fails.
    #[track_caller]
    pub fn new(name: &str, stack: &str, options: &[&str]) -> Attached {
        Self::by(&binary().display().to_string(), name, stack, options)
    }

    /// Like [`new`](Self::new), with a copy of the program.
    ///
    /// # Panics
    /// If attaching fails.
    #[track_caller]
    pub fn by(program: &str, name: &str, stack: &str, options: &[&str]) -> Attached {
        let name = format!("test-{name}-{}", std::process::id());
        // If attaching fails, the name exists already.
        let mut attached =
            Attached { name: name.clone(), link: String::new(), node: String::new(), is_attached: true };
        let arguments = [&["attach", stack, "--name", &name, "--json"], options].concat();
        let said = run(program, &arguments).ok();
        let said: Value = serde_json::from_str(&said).expect("JSON");
        let text = |key: &str| said[key].as_str().expect("a text").to_owned();
        (attached.link, attached.node) = (text("link"), text("node"));
        attached
    }

    /// Name under which the stack is attached.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path of the log of holder and servers.
    pub fn log(&self) -> String {
        format!("/run/siltstone/{}/log", self.name)
    }

    /// Entry of the stack in `siltstone list`.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn listed(&self) -> Value {
        let said = run(&binary().display().to_string(), &["list", "--json"]).ok();
        let all: Value = serde_json::from_str(&said).expect("JSON");
        let mut entries = all.as_array().expect("a list").iter();
        entries.find(|entry| entry["name"] == self.name.as_str()).expect("it is listed").clone()
    }

    /// Kills the stack's server, and waits until another one has taken over.
    ///
    /// # Panics
    /// If none does.
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

    /// Keeps the drop from detaching the stack, which the caller has detached.
    pub fn is_detached(mut self) {
        self.is_attached = false;
    }

    /// Detaches the stack.
    ///
    /// # Panics
    /// If detaching fails.
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
            // Nothing here may wait for a server that has ended.
            let folder = format!("/run/siltstone/{}", self.name);
            let log = std::fs::read_to_string(self.log()).unwrap_or_default();
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
