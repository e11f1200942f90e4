//! Metrics of real servers, read by a client over sockets, by curl in TLS, and by Prometheus.

use conformance::certificates::Authority;
use rustix::process::Signal;
use serde_json::Value;
use siltstone_tests::foreign::{Attached, Background, Mount, Server, binary, can_attach, has_fuse, run};
use siltstone_tests::need;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::tempdir;

/// Longest wait for a response, far above what a loaded machine takes.
const LIMIT: Duration = Duration::from_secs(60);

fn program() -> String {
    binary().display().to_string()
}

/// Serves a store whose metrics are at the unix socket `metrics` in the folder.
#[track_caller]
fn store(folder: &Path, restarted: bool) -> Server {
    let stack = folder.join("kv.toml");
    let text = "[zones.flash]\nkind = \"zns-emulator\"\nzones = 32\nzone_size = \"4MiB\"\n\
                [door.store]\nkind = \"kv\"\non = \"flash\"\nlisten = \"unix:kv.sock\"\n";
    std::fs::write(&stack, text).unwrap();
    let metrics = format!("unix:{}", folder.join("metrics").display());
    let arguments = ["kv", "serve", stack.to_str().unwrap(), "--format", "--metrics", &metrics];
    match restarted {
        true => Server::restart_with(&arguments, folder.join("kv.sock")),
        false => Server::start_with(&arguments, folder.join("kv.sock")),
    }
}

fn connect(folder: &Path) -> UnixStream {
    let stream = UnixStream::connect(folder.join("metrics")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Sends bytes, and returns everything until the server closes the connection.
fn exchange(folder: &Path, request: &[u8]) -> String {
    let mut stream = connect(folder);
    // The server may close before it has received all.
    let _ = stream.write_all(request);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    String::from_utf8(response).unwrap()
}

/// Returns the body of the metrics.
#[track_caller]
fn scrape(folder: &Path) -> String {
    let response = exchange(folder, b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n");
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    body.to_owned()
}

/// Value of the only series with this start of its name and labels.
#[track_caller]
fn value(text: &str, start: &str) -> f64 {
    let found: Vec<_> = text.lines().filter(|line| line.starts_with(start)).collect();
    assert_eq!(found.len(), 1, "{start} in {text}");
    found[0].rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_server_is_scraped_and_killed_and_scraped() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    let mut server = store(at, false);
    let before = scrape(at);
    assert!(!before.contains("siltstone_calls_total"), "nothing is counted before: {before}");
    assert!(value(&before, "siltstone_kv_free_zones{part=\"store\",kind=\"kv\"}") > 0.0);
    let stack = at.join("kv.toml").display().to_string();
    run(&program(), &["kv", "put", &stack, "name", "value"]).ok();
    let after = scrape(at);
    let appends = "{part=\"flash\",kind=\"kv\",door=\"store\",call=\"append\"";
    assert!(value(&after, &format!("siltstone_calls_total{appends}}}")) >= 1.0);
    assert!(value(&after, &format!("siltstone_recent_call_seconds{appends},share=\"0.99\"}}")) > 0.0);
    assert!(value(&after, "siltstone_kv_commands_total{") >= 1.0);
    let once = run(&program(), &["metrics", &stack]).ok();
    let names = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("# TYPE")).map(str::to_owned).collect()
    };
    assert_eq!(names(&once), names(&after), "the control socket gives the same");
    let status: Value = serde_json::from_str(&run(&program(), &["status", &stack, "--json"]).ok()).unwrap();
    let address = format!("unix:{}", at.join("metrics").display());
    assert_eq!(status["server"]["metrics"], address.as_str());
    server.process.signal(Signal::KILL);
    server.process.wait();
    assert!(at.join("metrics").exists(), "the killed server's socket");
    let server = store(at, true);
    assert!(scrape(at).contains("siltstone_part_up"));
    server.stop();
    assert!(!at.join("metrics").exists(), "a stopped server's socket is removed");
    let unserved = run(&program(), &["metrics", "stats(ram(64MiB))", "--openmetrics"]).ok();
    assert!(unserved.ends_with("# EOF\n") && !unserved.contains("siltstone_calls"), "{unserved}");
}

#[test]
fn hostile_clients_are_refused_and_others_are_served() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    let server = store(at, false);
    let long = [b"GET /metrics HTTP/1.1\r\nx: ", "x".repeat(20_000).as_bytes()].concat();
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"[..], "404"),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"GET /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
        (&long, "431"),
    ] {
        let response = exchange(at, request);
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
    }
    let head = exchange(at, b"HEAD /metrics HTTP/1.0\r\nAccept: application/openmetrics-text\r\n\r\n");
    assert!(head.contains("application/openmetrics-text") && head.ends_with("\r\n\r\n"), "{head}");
    // Two requests on one connection.
    let two = b"GET /metrics HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(at, two).matches("HTTP/1.1 200 OK").count(), 2);
    // Clients that never read, that are silent, and that stop within a request.
    let mut deaf: Vec<UnixStream> = (0..5).map(|_| connect(at)).collect();
    for stream in &mut deaf {
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&b"GET /metrics HTTP/1.1\r\n\r\n".repeat(1000));
    }
    let mut others: Vec<UnixStream> = (0..10).map(|_| connect(at)).collect();
    let _ = others[0].write(b"GET /metr");
    assert!(scrape(at).contains("siltstone_part_up"));
    others.extend((0..20).map(|_| connect(at)));
    let refused = others.last_mut().unwrap();
    let mut response = String::new();
    refused.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    // The last one of many: the log has one warning a minute.
    let said = server.process.err();
    assert_eq!(
        said.matches("a client of --metrics was refused: the limit of 16 clients").count(),
        1,
        "{said}"
    );
    server.stop();
}

#[test]
fn addresses_that_others_reach_need_certificates_or_permission() {
    let refused = |code, arguments: &[&str]| {
        let finished =
            run(&program(), &[&["serve", "ram(64MiB)", "--nbd", "unix:x.sock"], arguments].concat());
        assert_eq!(finished.code, Some(code), "{finished:#?}");
        finished.err
    };
    let error = refused(2, &["--metrics", "0.0.0.0:0"]);
    assert!(error.contains("give --metrics-tls, or --allow-remote"), "{error}");
    assert!(refused(2, &["--metrics", "nonsense"]).contains("expected unix:PATH or IP:PORT"));
    assert!(refused(2, &["--metrics-tls", "x"]).contains("--metrics"));
    assert!(
        refused(2, &["--metrics", "0.0.0.0:0", "--metrics-tls", "/nowhere"])
            .contains("--metrics-tls: TLS: file \"/nowhere")
    );
}

/// Starts a server whose metrics are at a free TCP port. Returns the URL.
fn over_tcp(folder: &Path, stack: &str, options: &[&str]) -> (Server, String) {
    let nbd = format!("unix:{}", folder.join("nbd.sock").display());
    let arguments = ["serve", stack, "--format", "--nbd", &nbd, "--json", "--metrics", "127.0.0.1:0"];
    let server = Server::start_with(&[&arguments, options].concat(), folder.join("nbd.sock"));
    let line: Value = serde_json::from_str(&server.addresses[0]).unwrap();
    let url = line["metrics"].as_str().unwrap().to_owned();
    (server, url)
}

#[test]
fn curl_reads_metrics_in_tls_with_a_certificate_only() {
    need!("curl");
    let folder = tempdir().unwrap();
    let pki = folder.path().join("pki");
    std::fs::create_dir(&pki).unwrap();
    Authority::new("ours").fill(&pki);
    let (server, url) = over_tcp(folder.path(), "ram(64MiB)", &["--metrics-tls", pki.to_str().unwrap()]);
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let file = |name: &str| pki.join(name).display().to_string();
    let (ca, cert, key) = (file("ca-cert.pem"), file("client-cert.pem"), file("client-key.pem"));
    let plain = url.replace("https", "http");
    assert_ne!(run("curl", &["-sS", "--cacert", &ca, &url]).code, Some(0), "without a certificate");
    assert_ne!(run("curl", &["-sS", &plain]).code, Some(0), "in plain text");
    let text = run("curl", &["-sS", "--cacert", &ca, "--cert", &cert, "--key", &key, &url]).ok();
    assert!(text.contains("siltstone_part_up{part=\"top\",kind=\"ram\"} 1\n"), "{text}");
    server.stop();
}

#[test]
fn prometheus_accepts_and_scrapes_the_metrics() {
    need!("prometheus", "promtool", "curl");
    let folder = tempdir().unwrap();
    // The kinds with the most metrics, to be checked for Prometheus' rules.
    let stack = "log(writecache(cache(mirror(ram(256MiB), ram(256MiB)), ram(64MiB)), remote(ram(64MiB), ram(64MiB))))";
    let (server, url) = over_tcp(folder.path(), stack, &[]);
    // A second text has calls.
    run("curl", &["-sS", "-o", "/dev/null", &url]).ok();
    run("curl", &["-sS", "-o", "/dev/null", &url]).ok();
    let file = folder.path().join("metrics.txt");
    run("curl", &["-sS", "-o", file.to_str().unwrap(), &url]).ok();
    let checked = run("sh", &["-c", &format!("promtool check metrics < '{}'", file.display())]);
    assert_eq!((checked.code, checked.err.as_str()), (Some(0), ""), "{checked:#?}");
    let target = url.trim_start_matches("http://").trim_end_matches("/metrics");
    let config = folder.path().join("prometheus.yml");
    let text = format!(
        "scrape_configs:\n  - job_name: siltstone\n    scrape_interval: 1s\n    static_configs:\n      - targets: ['{target}']\n"
    );
    std::fs::write(&config, text).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let arguments = [
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", folder.path().join("series").display()),
        format!("--web.listen-address=127.0.0.1:{port}"),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut prometheus = Background::start("prometheus", &arguments);
    let query = format!("http://127.0.0.1:{port}/api/v1/query?query=siltstone_part_up");
    prometheus.wait_until("it has scraped", |_| {
        let answer = run("curl", &["-sS", &query]).out;
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        answer["data"]["result"].as_array().is_some_and(|found| found.len() >= 8)
    });
    prometheus.signal(Signal::TERM);
    prometheus.wait();
    server.stop();
}

#[test]
fn a_mount_serves_the_metrics_of_its_file_system() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::without_image();
    run(&program(), &["fs", "format", &mount.image(), "--size", "64MiB"]).ok();
    let socket: PathBuf = mount.beside("metrics");
    let mount = mount.mounted_with(&["--metrics", &format!("unix:{}", socket.display())]);
    scrape(socket.parent().unwrap());
    mount.shell("head -c 100000 /dev/zero > f; sync f");
    let text = scrape(socket.parent().unwrap());
    assert_eq!(value(&text, "siltstone_fs_files{"), 2.0);
    let door = format!("door=\"{}\"", mount.beside("mnt").display());
    let calls =
        text.lines().filter(|line| line.starts_with("siltstone_calls_total{") && line.contains(&door));
    assert!(calls.count() > 0, "{door} in {text}");
    mount.unmounted();
}

/// Clients of a killed server have whole responses or broken ones, and those of the next one whole ones.
#[test]
fn a_server_is_killed_while_it_is_scraped() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    let mut server = store(at, false);
    for _ in 0..3 {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let scraping = || {
                let mut whole = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(mut stream) = UnixStream::connect(at.join("metrics")) else { continue };
                    let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n");
                    let mut response = String::new();
                    let _ = stream.read_to_string(&mut response);
                    let Some((head, body)) = response.split_once("\r\n\r\n") else { continue };
                    whole += usize::from(head.contains(&format!("Content-Length: {}\r\n", body.len())));
                }
                whole
            };
            let clients = [(); 4].map(|()| scope.spawn(scraping));
            let mut deaf = connect(at);
            deaf.set_nonblocking(true).unwrap();
            let _ = deaf.write(&b"GET /metrics HTTP/1.1\r\n\r\n".repeat(1000));
            for _ in 0..20 {
                scrape(at);
            }
            server.process.signal(Signal::KILL);
            server.process.wait();
            is_over.store(true, Ordering::Relaxed);
            let whole: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
            assert!(whole > 0, "four clients beside another one");
        });
        server = store(at, true);
        let text = scrape(at);
        assert!(
            !text.contains("siltstone_calls_total"),
            "another server counts from its first reader on: {text}"
        );
    }
    server.stop();
}

#[test]
fn an_attachment_serves_metrics_of_each_server() {
    if !can_attach() {
        return;
    }
    need!("jq");
    let folder = tempdir().unwrap();
    let stack = format!("file({}, size=64MiB)", folder.path().join("disk.img").display());
    let metrics = format!("unix:{}", folder.path().join("metrics").display());
    let attached = Attached::new("metrics", &stack, &["--format", "--metrics", &metrics]);
    let reads = || {
        scrape(folder.path());
        run(
            "dd",
            &[
                "if=".to_owned() + &attached.node,
                "of=/dev/null".into(),
                "bs=1M".into(),
                "iflag=direct".into(),
            ],
        )
        .ok();
        let text = scrape(folder.path());
        value(&text, "siltstone_calls_total{part=\"top\",kind=\"file\",call=\"read\"}")
    };
    assert!(reads() >= 1.0);
    attached.kill_server();
    assert!(reads() >= 1.0, "the next server serves them at the same address");
    attached.detach();
    assert!(!folder.path().join("metrics").exists(), "a detached stack's socket is removed");
}

/// Volumes of a stack of 1000 parts: five parts each, one over all of them, and four doors.
const VOLUMES: usize = 199;

/// Writes a stack of 1000 parts, all of which a client of its first door reaches.
fn thousand_parts(folder: &Path) -> PathBuf {
    let mut text = String::new();
    for volume in 0..VOLUMES {
        write!(
            text,
            "[device.slow{volume}]\nkind = \"ram\"\nsize = \"4MiB\"\n\
             [device.fast{volume}]\nkind = \"ram\"\nsize = \"4MiB\"\n\
             [device.cache{volume}]\nkind = \"cache\"\non = \"slow{volume}\"\ncache = \"fast{volume}\"\n\
             [device.counted{volume}]\nkind = \"stats\"\non = \"cache{volume}\"\n\
             [device.vol{volume}]\nkind = \"fault\"\non = \"counted{volume}\"\n"
        )
        .unwrap();
    }
    let volumes: Vec<_> = (0..VOLUMES).map(|volume| format!("\"vol{volume}\"")).collect();
    writeln!(text, "[device.all]\nkind = \"linear\"\non = [{}]", volumes.join(", ")).unwrap();
    for door in 0..4 {
        writeln!(text, "[door.door{door}]\nkind = \"nbd\"\ndevice = \"all\"\nsocket = \"nbd{door}.sock\"")
            .unwrap();
    }
    let file = folder.join("stack.toml");
    std::fs::write(&file, text).unwrap();
    file
}

/// Scrapes for a while on one connection, and prints median and largest time of a scrape.
fn measure(folder: &Path, name: &str) {
    let mut stream = connect(folder);
    let (mut times, mut buffer, mut bytes) = (Vec::new(), vec![0; 1 << 20], 0);
    for _ in 0..200 {
        let begun = runtime::now();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let (mut received, mut whole) = (Vec::new(), usize::MAX);
        while received.len() < whole {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0);
            received.extend_from_slice(&buffer[..count]);
            if whole == usize::MAX
                && let Some(end) = received.windows(4).position(|it| it == b"\r\n\r\n")
            {
                let head = String::from_utf8_lossy(&received[..end]).into_owned();
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
                whole = end + 4 + length.parse::<usize>().unwrap();
            }
        }
        bytes = received.len();
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!(
        "{name}: {:?} at the median, {:?} at most, {bytes} bytes",
        times[times.len() / 2],
        times[times.len() - 1]
    );
}

/// Time of a scrape of a stack of 1000 parts: before a call was counted, after calls to all parts, and while
/// a client makes some. To reach: 10 ms. With a release build of the program and no other load:
///
///     export SILTSTONE_BIN=target/release/siltstone
///     cargo test --workspace metrics::a_scrape_of_1000 -- --ignored --nocapture
#[test]
#[ignore = "it measures"]
fn a_scrape_of_1000_parts() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    let stack = thousand_parts(at).display().to_string();
    let metrics = format!("unix:{}", at.join("metrics").display());
    let server =
        Server::start_with(&["serve", &stack, "--format", "--metrics", &metrics], at.join("nbd0.sock"));
    assert_eq!(scrape(at).matches("siltstone_part_up{").count(), 1000);
    measure(at, "idle");
    let device = format!("nbd-client(\"unix:{}\")", at.join("nbd0.sock").display());
    let work = |seconds: u64| {
        let job = at.join("job.fio");
        let text = format!("[w]\nrw=randrw\nbs=4k\niodepth=32\nsize=796m\ntime_based=1\nruntime={seconds}\n");
        std::fs::write(&job, text).unwrap();
        let path = |path: PathBuf| path.display().to_string();
        ["bench".to_owned(), path(job), "--on".into(), device.clone(), "--out".into(), path(at.join("out"))]
    };
    run(&program(), &work(3)).ok();
    let called = scrape(at).matches("siltstone_calls_total{").count();
    assert!(called > 1000, "{called} series of calls");
    measure(at, "after calls");
    let mut client = Background::start(&program(), &work(60));
    measure(at, "during calls");
    client.signal(Signal::KILL);
    client.wait();
    server.stop();
}
