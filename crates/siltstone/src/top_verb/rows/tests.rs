use super::*;

fn calls(part: &str, door: Option<&str>, below: &[&str], calls: Value) -> Value {
    let kind = door.map_or("file", |_| "nbd");
    json!({ "part": part, "door": door, "kind": kind, "contract": "device", "below": below, "calls": calls })
}

fn counts(operations: u64, bytes: u64, latencies: Value) -> Value {
    json!({ "operations": operations, "bytes": bytes, "errors": 0, "in_flight": 1, "latency_sum_ns": operations * 1000, "latency_ns": latencies })
}

fn sample(nanoseconds: u64, parts: Value) -> Sample {
    let status = json!({
        "doors": { "nbd": { "kind": "nbd" }, "silent": { "kind": "kv" } },
        "devices": { "disk": { "kind": "file", "fullness": { "used_bytes": 3, "limit_bytes": 4, "percent": 75.0, "warned_at": "70%" } } },
        "zones": {},
        "server": { "process": 7 },
    });
    Sample::parse(json!({ "nanoseconds": nanoseconds, "parts": parts, "status": status })).unwrap()
}

fn shape(rows: &[Row]) -> Vec<String> {
    rows.iter()
        .map(|row| format!("{}{}{}", row.branch, row.name, if row.is_repeated { " *" } else { "" }))
        .collect()
}

#[test]
fn rates_are_differences_over_the_servers_time() {
    let part = |reads: Value, writes: Value| {
        json!([calls(
            "disk",
            None,
            &[],
            json!({ "read": reads, "write_fua": writes, "flush": counts(4, 0, json!([[9_000_000, 4]])) })
        )])
    };
    let before = sample(
        1_000_000_000,
        part(counts(100, 409_600, json!([[500, 90], [9000, 10]])), counts(0, 0, json!([]))),
    );
    let after = sample(
        3_000_000_000,
        part(
            counts(300, 1_228_800, json!([[500, 90], [700, 198], [9000, 12]])),
            counts(10, 5120, json!([[800, 10]])),
        ),
    );
    let rows = rows(Some(&before), &after);
    let disk = rows.iter().find(|row| row.name == "disk").unwrap();
    let rates = disk.rates.unwrap();
    assert_eq!((rates.reads, rates.read_bytes), (100.0, 409_600.0));
    assert_eq!(
        (rates.writes, rates.write_bytes, rates.others),
        (5.0, 2560.0, 0.0),
        "the flushes were before"
    );
    assert_eq!((rates.p50, rates.p99), (Some(700), Some(800)), "two of 210 took longer");
    assert_eq!(disk.in_flight, Some(3));
    assert!((rates.queue - 210.0 * 1e-6 / 2.0).abs() < 1e-12, "{}", rates.queue);
    assert_eq!(disk.fullness, Some(Fullness { percent: 75.0, warned_at: Some("70%".into()) }));
}

#[test]
fn doors_are_on_top_and_shared_parts_are_drawn_once() {
    let parts = json!([
        calls("disk", None, &[], json!({})),
        calls("other", None, &[], json!({})),
        calls("vol", None, &["disk", "other"], json!({})),
        calls("vol", Some("nbd"), &["vol"], json!({ "read": counts(1, 1, json!([[1, 1]])) })),
        calls("disk", Some("nbd"), &["disk"], json!({ "read": counts(2, 2, json!([[1, 2]])) })),
        calls("lone", None, &["disk"], json!({})),
    ]);
    let rows = rows(None, &sample(1, parts));
    let expected = ["nbd", "├─vol", "│ ├─disk", "│ └─other", "└─disk *", "silent", "lone", "└─disk *"];
    assert_eq!(shape(&rows), expected);
    assert_eq!(rows[0].in_flight, Some(2), "calls to all parts below the door");
    assert_eq!((rows[5].in_flight, &rows[5].kind[..]), (None, "kv"), "its calls aren't counted");
    assert!(rows.iter().all(|row| row.rates.is_none()));
}

/// A stack never has them, but the answer is another process's.
#[test]
fn cycles_and_long_chains_end() {
    let parts = json!([calls("a", None, &["b"], json!({})), calls("b", None, &["a"], json!({}))]);
    assert_eq!(shape(&rows(None, &sample(1, parts))), ["nbd", "silent", "b", "└─a", "  └─b *"]);
    let chain: Vec<Value> =
        (0..3000).map(|at| calls(&at.to_string(), None, &[&(at + 1).to_string()], json!({}))).collect();
    assert_eq!(rows(None, &sample(1, chain.into())).len(), MAX_ROWS);
}

#[test]
fn a_restart_or_a_counter_that_went_backwards_has_no_rates() {
    let part = |operations| {
        json!([calls("disk", None, &[], json!({ "read": counts(operations, 0, json!([[5, operations]])) }))])
    };
    let rates = |before: &Sample, after: &Sample| rows(Some(before), after).last().unwrap().rates;
    let (first, second) = (sample(1_000_000_000, part(50)), sample(2_000_000_000, part(80)));
    assert_eq!(rates(&first, &second).unwrap().reads, 30.0);
    assert_eq!(rates(&first, &sample(2_000_000_000, part(20))), None, "its counters began again");
    assert_eq!(rates(&second, &first), None, "an earlier time");
    let mut restarted = second.clone();
    restarted.status["server"]["process"] = 8.into();
    assert_eq!(rates(&first, &restarted), None, "another process");
}

/// Answers that a server of a log with an NBD door gave two seconds apart.
#[test]
fn recorded_answers() {
    let answer = |text| Sample::parse(serde_json::from_str(text).unwrap()).unwrap();
    let before = answer(include_str!("first.json"));
    let after = answer(include_str!("second.json"));
    let rows = rows(Some(&before), &after);
    let text = crate::top_verb::details::plain_table(&rows);
    assert_eq!(text, include_str!("table.txt"), "{text}");
    let sum = total(&rows);
    assert_eq!(sum.reads, rows[0].rates.unwrap().reads);
    let disk = rows.last().unwrap().to_json();
    assert_eq!((&disk["name"], &disk["door"], &disk["depth"]), (&json!("disk"), &json!(false), &json!(2)));
    assert!(
        disk["write_bytes_per_second"].as_f64().unwrap() > 0.0 && disk["p99_ns"].as_u64().is_some(),
        "{disk}"
    );
}

#[test]
fn hostile_answers_are_errors_or_rows() {
    for answer in [json!(null), json!({ "parts": 5 }), json!({ "parts": [{ "below": "x" }] })] {
        assert!(Sample::parse(answer).is_err());
    }
    let most = json!([u64::MAX, u64::MAX]);
    let part = |latencies: Value| {
        json!([calls(
            "disk",
            None,
            &[],
            json!({ "read": {
        "operations": u64::MAX, "bytes": u64::MAX, "errors": u64::MAX, "in_flight": u64::MAX, "latency_sum_ns": u64::MAX, "latency_ns": latencies,
    }, "write": { "in_flight": 1, "latency_ns": [most] } })
        )])
    };
    let rows = rows(Some(&sample(0, json!([]))), &sample(1, part(json!([most, most, [0, 0]]))));
    assert_eq!(rows.last().unwrap().in_flight, Some(u64::MAX));
    let empty = Sample::parse(json!({})).unwrap();
    assert!(super::rows(None, &empty).is_empty());
}
