use super::*;
use serde_json::json;
use stack::Stack;

/// Encodes the metrics of a stack with this status, without calls.
fn encoded(status: &Value, format: Format) -> String {
    let scraper = Scraper::default();
    scraper.snapshot(None, status, Instant::from_nanoseconds(0)).encoded(format)
}

/// Returns the series of a text, and checks that each is there once, after the type of its metric.
fn series(text: &str) -> BTreeMap<String, f64> {
    let mut types = BTreeMap::new();
    let mut series = BTreeMap::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(described) = line.strip_prefix("# ") {
            let words: Vec<_> = described.splitn(3, ' ').collect();
            if words[0] == "TYPE" {
                assert_eq!(types.insert(words[1].to_owned(), words[2].to_owned()), None, "once: {line}");
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        let metric = name.split('{').next().unwrap();
        let endings = ["", "_total", "_info", "_bucket", "_sum", "_count"];
        let is_typed = |ending: &str| metric.strip_suffix(ending).is_some_and(|it| types.contains_key(it));
        assert!(endings.into_iter().any(is_typed), "{line}: no type before it");
        assert!(
            metric.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        );
        let value: f64 = value.parse().unwrap();
        assert_eq!(series.insert(name.to_owned(), value), None, "once: {line}");
    }
    series
}

#[test]
fn a_status_becomes_text() {
    let status = json!({
        "devices": {
            "disk": { "kind": "file", "bytes": 4096, "flush_failed": false, "copied_writes": 3 },
            "lost": { "kind": "ram", "missing": "no memory" },
        },
        "doors": { "unix:a.sock": { "kind": "nbd", "connections": 2, "exports": { "vol": { "reads": 7, "read_bytes": 512 } } } },
        "server": { "up_seconds": 5, "shards": 2 },
    });
    let plain = encoded(&status, Format::Prometheus);
    for expected in [
        "# HELP siltstone_file_copied_writes_total Writes that were copied for their alignment\n\
         # TYPE siltstone_file_copied_writes_total counter\n\
         siltstone_file_copied_writes_total{part=\"disk\",kind=\"file\"} 3\n",
        "siltstone_device_bytes{part=\"disk\",kind=\"file\"} 4096\n",
        "siltstone_part_up{part=\"disk\",kind=\"file\"} 1\n",
        "siltstone_part_up{part=\"lost\",kind=\"ram\"} 0\n",
        "siltstone_door_requests_total{part=\"unix:a.sock\",kind=\"nbd\",request=\"read\",export=\"vol\"} 7\n",
        "siltstone_up_seconds 5\n",
        "siltstone_shards 2\n",
    ] {
        assert!(plain.contains(expected), "{expected} in {plain}");
    }
    let of_process = |name: &str| series(&plain)[name];
    assert!(
        of_process("siltstone_resident_memory_bytes") > 1e6
            && of_process("siltstone_cpu_seconds_total") > 0.0
    );
    let open = encoded(&status, Format::OpenMetrics);
    assert!(open.ends_with("# EOF\n"), "{open}");
    assert!(
        open.contains("# TYPE siltstone_device_bytes gauge\n# UNIT siltstone_device_bytes bytes\n"),
        "{open}"
    );
    let names = |text: &str| series(text).into_keys().collect::<Vec<_>>();
    let (mut one, mut other) = (names(&plain), names(&open));
    one.sort();
    other.sort();
    assert_eq!(one, other, "both formats have the same series");
}

/// Names of parts and of their elements are those of users, and may be the same.
#[test]
fn any_names_are_labels() {
    let hostile = "a\"} 1\n# TYPE x\\ {\u{1b}[2J ä";
    let leg = |name: &str| json!({ "leg": name, "state": "active", "reads": 1 });
    let status = json!({ "devices": {
        hostile: { "kind": "mirror", "bytes": 1, "legs": [leg(hostile), leg(hostile), leg("")] },
        "": { "kind": "ram", "bytes": 0 },
        "x": { "kind": hostile },
        "y": 7,
    }});
    for format in [Format::Prometheus, Format::OpenMetrics] {
        let text = encoded(&status, format);
        let found = series(&text);
        let reads = found.keys().filter(|name| name.starts_with("siltstone_mirror_leg_reads_total{")).count();
        assert_eq!(reads, 2, "legs of one name are one series: {text}");
        assert_eq!(text.matches("\n# TYPE x").count(), 0, "{text}");
    }
    assert!(!series(&encoded(&Value::Null, Format::Prometheus)).is_empty());
}

#[test]
fn calls_are_counted_from_the_first_text_on() {
    let main = || async {
        let stack = Stack::from_line("test", "stats(ram(64MiB))", &registry()).unwrap();
        let observation = Observation::default();
        let plan = stack.check(stack::Format::Everything).unwrap();
        let over = |user: stack::User<'_>, part| observation.of_part(plan.stack(), user, part);
        let built = plan.build_observed(&over).await.unwrap();
        let scraper = Scraper::default();
        let text = async || {
            scraper.text(Some(&observation), built.status().await, Format::Prometheus).await.unwrap()
        };
        let device = built.top().unwrap().open().await.unwrap();
        let read = async || drop(device.read(block::BlockIndex(0), block::Buffer::new(4096)).await);
        read().await;
        assert!(!text().await.contains("siltstone_calls_total"), "nobody looked");
        for _ in 0..100 {
            read().await;
        }
        let text = text().await;
        drop(device);
        built.close().await.unwrap();
        text
    };
    let text = runtime::run(runtime::Config::default(), main).unwrap();
    let series = series(&text);
    let of = |name: &str, labels: &str| {
        let name = format!("siltstone_{name}{{part=\"ram1\",kind=\"ram\",call=\"read\"{labels}}}");
        *series.get(&name).unwrap_or_else(|| panic!("{name} in {text}"))
    };
    assert_eq!(of("calls_total", ""), 100.0, "{text}");
    assert_eq!(of("call_bytes_total", ""), 409_600.0);
    assert_eq!(of("call_errors_total", ""), 0.0);
    assert_eq!(of("call_seconds_bucket", ",le=\"+Inf\""), 100.0);
    assert_eq!(of("call_seconds_count", ""), 100.0);
    let (median, last) =
        (of("recent_call_seconds", ",share=\"0.5\""), of("recent_call_seconds", ",share=\"0.999\""));
    assert!(median > 0.0 && median <= last && last <= of("call_seconds_sum", ""), "{text}");
}

/// Values of the series of calls that begin with this name and these labels, without a label of the door.
fn of_reads(text: &str, name: &str) -> f64 {
    let start = format!("siltstone_{name}{{part=\"top\",kind=\"stats\",call=\"read\"}}");
    *series(text).get(&start).unwrap_or_else(|| panic!("{start} in {text}"))
}

/// On one and many shards, over a day without requests and calls, while an operator steps the system clock.
#[test]
fn an_idle_day_and_a_stepped_clock_change_no_count() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    for shards in [1, 7, 32] {
        let main = move || async move {
            let stack = Stack::from_line("test", "stats(ram(64MiB))", &registry()).unwrap();
            let observation = Observation::default();
            let plan = stack.check(stack::Format::Everything).unwrap();
            let over = |user: stack::User<'_>, part| observation.of_part(plan.stack(), user, part);
            let built = std::rc::Rc::new(plan.build_observed(&over).await.unwrap());
            let scraper = Scraper::default();
            let text = async || {
                scraper.text(Some(&observation), built.status().await, Format::OpenMetrics).await.unwrap()
            };
            let top = built.top().unwrap();
            let read = async || {
                for shard in 0..shards {
                    let top = top.clone();
                    let reading = runtime::spawn_on(runtime::ShardIndex(shard), move || async move {
                        let device = top.open().await.unwrap();
                        device.read(block::BlockIndex(0), block::Buffer::new(4096)).await.0.unwrap();
                    });
                    reading.await.unwrap();
                }
            };
            text().await;
            read().await;
            let first = text().await;
            assert_eq!(of_reads(&first, "calls_total"), shards as f64);
            for step in [3600, -3600] {
                runtime::step_simulated_wall_clock(step);
                let stepped = text().await;
                for name in ["calls_total", "call_bytes_total", "call_errors_total", "calls_in_flight"] {
                    assert_eq!(of_reads(&stepped, name), of_reads(&first, name), "{step}: {name}");
                }
                assert!(stepped.contains("siltstone_recent_call_seconds{"), "{step}: {stepped}");
            }
            runtime::sleep(DAY).await;
            // The first call after a day without a reader notices that there is none.
            read().await;
            let idle = of_reads(&text().await, "calls_total");
            assert!((shards as f64..shards as f64 + 2.0).contains(&idle), "{idle}");
            runtime::sleep(super::super::latency::WINDOW).await;
            text().await;
            runtime::sleep(super::super::latency::WINDOW).await;
            let quiet = text().await;
            assert!(!quiet.contains("siltstone_recent_call_seconds{"), "no call was recent: {quiet}");
            assert_eq!(of_reads(&quiet, "calls_total"), idle);
            read().await;
            let last = text().await;
            assert_eq!(of_reads(&last, "calls_total"), idle + shards as f64);
            assert!(last.contains("siltstone_recent_call_seconds{"), "{last}");
            drop(top);
            built.close().await.unwrap();
        };
        let simulation = runtime::Simulation { shards, ..runtime::Simulation::new(shards as u64) };
        runtime::simulate(simulation, main).unwrap();
    }
}

/// Programs choose their names.
#[test]
fn clients_are_labels_of_series_of_their_own() {
    let main = || async {
        let observation = Observation::default();
        let stack = Stack::from_line("test", "ram(64MiB)", &registry()).unwrap();
        let built = stack.check(stack::Format::Everything).unwrap().build().await.unwrap();
        let part = stack::Built::Device(built.top().unwrap());
        let stack::Built::Device(part) = observation.of_door("a\"\\", "nbd", "top", part) else { panic!() };
        observation.count_for(LOOK_TIME);
        let device = part.open().await.unwrap();
        for port in [1, 2] {
            let peer = runtime::Requester::of_peer(([10, 0, 0, 7], port).into());
            let reading = device.read(block::BlockIndex(0), block::Buffer::new(4096));
            runtime::attributed(peer, reading).await.0.unwrap();
        }
        let text =
            Scraper::default().text(Some(&observation), Value::Null, Format::Prometheus).await.unwrap();
        drop((device, part));
        built.close().await.unwrap();
        text
    };
    let text = runtime::run(runtime::Config::default(), main).unwrap();
    let series = series(&text);
    let door = "part=\"top\",kind=\"nbd\",door=\"a\\\"\\\\\"";
    for (name, client) in [("calls_total", ""), ("client_calls_total", ",client=\"10.0.0.7\"")] {
        let name = format!("siltstone_{name}{{{door}{client},call=\"read\"}}");
        assert_eq!(series.get(&name), Some(&2.0), "{name} in {text}");
    }
    let last = format!(
        "siltstone_client_call_seconds_bucket{{{door},client=\"10.0.0.7\",call=\"read\",le=\"+Inf\"}}"
    );
    assert_eq!(series.get(&last), Some(&2.0), "{last} in {text}");
}
