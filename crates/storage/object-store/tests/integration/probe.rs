//! The probe refuses stores whose conditional writes aren't atomic, and no others.

use block::{Error, Result};
use object_store::testing::{Answer, Bucket, Faults, client, simulated};
use object_store::{Limits, RACERS};
use std::rc::Rc;

fn probe(seed: u64, faults: Faults, prepare: impl Fn(&Rc<Bucket>) + 'static) -> Result<()> {
    let outcome = Rc::new(std::cell::RefCell::new(None));
    let slot = outcome.clone();
    simulated(seed, move || async move {
        let bucket = Bucket::start(faults);
        prepare(&bucket);
        let probed = client(Limits::default()).probe("db/").await;
        assert!(bucket.objects.borrow().is_empty() || probed.is_err(), "the objects are deleted");
        slot.replace(Some(probed));
    });
    outcome.take().unwrap()
}

fn refused(outcome: Result<()>, found: &str) {
    let error = outcome.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unsupported(_)), "{text}");
    for part in ["object store \"http://10.0.0.1/vol\"", found, "exactly one winner", "would be lost"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn an_atomic_store_passes() {
    (1..20).for_each(|seed| probe(seed, Faults::default(), |_| ()).unwrap());
}

#[test]
fn a_store_that_fails_some_requests_isnt_refused_for_that() {
    for seed in 1..30 {
        let faults = Faults {
            lost_answer: 0.1,
            lost_request: 0.05,
            slow_down: 0.1,
            internal: 0.05,
            ..Faults::default()
        };
        let outcome = probe(seed, faults, |_| ());
        assert!(!matches!(outcome, Err(Error::Unsupported(_))), "seed {seed}: {outcome:?}");
    }
}

#[test]
fn a_store_that_checks_before_the_write_is_refused() {
    let outcome = probe(1, Faults::default(), |bucket| bucket.checks_early.set(true));
    refused(outcome, "writers won");
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    for ignored in ["if-none-match", "if-match"] {
        let outcome = probe(1, Faults::default(), move |bucket| {
            let own = Rc::downgrade(bucket);
            bucket.follow(move |asked| {
                asked.header(ignored)?;
                let mut asked = asked.clone();
                asked.headers.retain(|(name, _)| name != ignored);
                let Answer(status, headers, _) = own.upgrade()?.carry_out(&asked, None);
                let text = format!(
                    "HTTP/1.1 {status} x\r\n{}: {}\r\ncontent-length: 0\r\n\r\n",
                    headers[0].0, headers[0].1
                );
                Some(text.into_bytes())
            });
        });
        refused(outcome, &format!("{RACERS} of {RACERS} writers won"));
    }
}

#[test]
fn a_store_that_writes_what_it_refuses_is_refused() {
    let outcome = probe(1, Faults::default(), |bucket| {
        let own = Rc::downgrade(bucket);
        bucket.follow(move |asked| {
            let bucket = own.upgrade()?;
            let Answer(status, headers, _) = bucket.carry_out(asked, None);
            if asked.method != "PUT" || status == 200 {
                let etag = headers.iter().find(|(name, _)| name == "etag")?;
                let nonce = asked.header("x-amz-meta-siltstone-nonce");
                return nonce.map(|_| {
                    format!("HTTP/1.1 200 x\r\netag: {}\r\ncontent-length: 0\r\n\r\n", etag.1).into_bytes()
                });
            }
            let mut asked = asked.clone();
            asked.headers.retain(|(name, _)| !name.starts_with("if-"));
            bucket.carry_out(&asked, None);
            Some(b"HTTP/1.1 412 x\r\ncontent-length: 0\r\n\r\n".to_vec())
        });
    });
    refused(outcome, "1 writer won, and the object of another one is there");
}
