//! A door on a thread of its own, and guards that remove mounts and loop devices even if a test fails.

use block::{DevicePart, Result, Status};
use conformance::fuse_transport::Transport;
use doors::fuse::door::{FuseConfig, FuseDoor};
use runtime::sync::StopSource;
use stack::Door;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Reason for which FUSE can't be used here; `None` if it can.
pub fn lacking(programs: &[&str]) -> Option<String> {
    if !rustix_is_root() {
        return Some("needs root".into());
    }
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("there is no /dev/fuse".into());
    }
    let missing = programs.iter().find(|program| {
        Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output()
            .is_ok_and(|it| !it.status.success())
    });
    missing.map(|program| format!("{program} is not installed"))
}

fn rustix_is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0)
}

/// Ends the test as skipped where FUSE can't be used.
#[macro_export]
macro_rules! need_fuse {
    ($($program:literal),*) => {
        if let Some(reason) = $crate::fuse_support::lacking(&[$($program),*]) {
            return println!("SKIPPED: {}: {reason}", std::thread::current().name().unwrap_or_default());
        }
    };
}

/// A door that serves a device from a thread, as long as this lives.
pub struct Served {
    pub path: PathBuf,
    pub folder: Arc<tempfile::TempDir>,
    stop: StopSource,
    results: Receiver<Result<()>>,
    statuses: Mutex<Sender<Sender<Status>>>,
    thread: Option<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
    started: bool,
}

/// Variants of [`Served::with`].
#[derive(Clone, Copy)]
pub struct Settings {
    pub shards: usize,
    pub read_only: bool,
    pub stop_limit: Duration,
    pub transport: Transport,
}

impl Default for Settings {
    fn default() -> Self {
        let (stop_limit, transport) = (Duration::from_secs(10), Transport::Device);
        Settings { shards: 2, read_only: false, stop_limit, transport }
    }
}

impl Served {
    pub fn new(device: Arc<dyn DevicePart>) -> Served {
        Served::over(device, Transport::Device)
    }

    /// Serves a device over this transport.
    pub fn over(device: Arc<dyn DevicePart>, transport: Transport) -> Served {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let path = folder.path().join("vol.img");
        let settings = Settings { transport, ..Settings::default() };
        Served::with(folder, path, settings, move || async move { device }).expect("it starts")
    }

    /// Serves the device that `make` opens in the runtime.
    pub fn with<F>(
        folder: Arc<tempfile::TempDir>,
        path: PathBuf,
        settings: Settings,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Served>
    where
        F: Future<Output = Arc<dyn DevicePart>> + 'static,
    {
        let (send, results) = channel();
        let (statuses, asked) = channel::<Sender<Status>>();
        let (stop, ended) = (StopSource::new(), Arc::new(AtomicBool::new(false)));
        let (token, mount_point, has_ended) = (stop.token(), path.clone(), ended.clone());
        let serve = move || {
            let config = runtime::Config::default().with_shards(settings.shards);
            let ran = runtime::run(config, move || async move {
                let device = make().await;
                let config = FuseConfig {
                    device: device.clone(),
                    path: mount_point,
                    read_only: settings.read_only,
                    allow_other: false,
                    stop_limit: settings.stop_limit,
                };
                let door = FuseDoor::new(config);
                let parameter = settings.transport.set();
                let started = door.start().await;
                drop(parameter);
                let failed = started.is_err();
                let _ = send.send(started);
                if failed {
                    return;
                }
                while runtime::timeout(Duration::from_millis(5), token.stopped()).await.is_err() {
                    while let Ok(answer) = asked.try_recv() {
                        let _ = answer.send(block::Part::status(&door).await);
                    }
                }
                let _ = send.send(door.stop().await);
                device.close().await.expect("it closes");
            });
            ran.expect("the runtime runs");
            has_ended.store(true, Ordering::SeqCst);
        };
        let thread = std::thread::Builder::new().name("server".into()).spawn(serve).expect("a thread");
        let started = results.recv().expect("the server answers");
        let served = Served {
            path,
            folder,
            stop,
            results,
            statuses: Mutex::new(statuses),
            thread: Some(thread),
            ended,
            started: started.is_ok(),
        };
        started.map(|()| served)
    }

    pub fn status(&self) -> Status {
        let (send, receive) = channel();
        self.statuses.lock().expect("not poisoned").send(send).expect("the server listens");
        receive.recv().expect("the server answers")
    }

    /// Stops the door and returns its result.
    pub fn stop(mut self) -> Result<()> {
        self.stop.stop();
        let result = self.results.recv().expect("the server answers");
        self.thread.take().expect("it runs").join().expect("the server ends");
        result
    }

    /// Aborts the connection, as an operator does.
    pub fn abort(&self) {
        abort(&self.path);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        let Some(thread) = self.thread.take() else { return };
        for _ in 0..3000 {
            if self.ended.load(Ordering::SeqCst) || thread.is_finished() {
                let _ = thread.join();
                break;
            }
            pause();
        }
        // If the door couldn't start, the mount belongs to another one.
        if self.started && is_mounted(&self.path) {
            abort(&self.path);
            detach(&self.path);
        }
    }
}

fn pause() {
    #[allow(clippy::disallowed_methods)] // A test outside the runtime.
    std::thread::sleep(Duration::from_millis(10));
}

/// Whether the path is a mount point.
pub fn is_mounted(path: &Path) -> bool {
    mounts().iter().any(|(_, at)| Path::new(at) == path)
}

/// Device numbers and mount points, as `/proc/self/mountinfo` lists them.
fn mounts() -> Vec<(String, String)> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let fields = |line: &str| {
        let mut fields = line.split(' ');
        Some((fields.nth(2)?.to_owned(), fields.nth(1)?.to_owned()))
    };
    text.lines().filter_map(fields).collect()
}

/// Removes a mount that a failed test left.
fn detach(path: &Path) {
    let _ = Command::new("umount").arg("-l").arg(path).output();
}

/// Ends a FUSE connection from outside of its server.
fn abort(path: &Path) {
    let Some((device, _)) = mounts().into_iter().find(|(_, at)| Path::new(at) == path) else { return };
    let minor = device.split(':').nth(1).expect("major:minor").to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let mounted = Command::new("mount").args(["-t", "fusectl", "none"]).arg(folder.path()).output();
    let mounted = mounted.expect("mount runs");
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    let written = std::fs::write(folder.path().join(minor).join("abort"), "1");
    let _ = Command::new("umount").arg(folder.path()).output();
    written.expect("aborted");
}

/// Runs a program and returns its output.
///
/// # Panics
/// With the program's output, if it fails or doesn't end within a minute.
pub fn run_program(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout").args(["-k", "5", "60", program]).args(arguments).output();
    let output = output.expect("it runs");
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A loop device, detached when dropped.
pub struct Loop(pub String);

impl Loop {
    pub fn new(path: &Path, sector: &str) -> Loop {
        let path = path.to_str().expect("text");
        let arguments = ["--find", "--show", "--direct-io=on", "--sector-size", sector, path];
        Loop(run_program("losetup", &arguments))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("timeout").args(["20", "losetup", "--detach", &self.0]).output();
    }
}

/// A mounted file system, unmounted when dropped.
pub struct Mounted(pub PathBuf);

impl Mounted {
    pub fn new(device: &str, at: &Path) -> Mounted {
        std::fs::create_dir_all(at).expect("a folder");
        run_program("mount", &[device, at.to_str().expect("text")]);
        Mounted(at.to_owned())
    }

    pub fn unmount(self) {
        run_program("umount", &[self.0.to_str().expect("text")]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = Command::new("timeout").args(["20", "umount"]).arg(&self.0).output();
            if is_mounted(&self.0) {
                detach(&self.0);
            }
        }
    }
}
