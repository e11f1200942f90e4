//! A store whose answers are altered at random: opening and reads end with a success or with an error in one
//! short line, in bounded time, and reads never return other bytes than were written.

use crate::common::{append, handle, options, read, settings_of, world};
use block::{Part, ZoneIndex};
use object_store::testing::{Answer, Asked, Bucket};
use objects::{ObjectsPart, Options};
use runtime::Random;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const ZONES: u32 = 4;
const LENGTH: usize = 90 << 10;

/// Bytes of an answer.
fn encode(answer: &Answer, asked: &Asked) -> Vec<u8> {
    let Answer(status, headers, body) = answer;
    let mut text = format!("HTTP/1.1 {status} x\r\n");
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    if asked.method == "HEAD" {
        return (text + "\r\n").into_bytes();
    }
    text += &format!("content-length: {}\r\n\r\n", body.len());
    [text.as_bytes(), body].concat()
}

/// Alters a few bytes: in the head mostly, where a change of one byte changes the meaning of the rest.
fn alter(bytes: &mut Vec<u8>, random: &mut Random) {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(0) as u64 + 4;
    for _ in 0..1 + random.below(3) {
        let length = if random.below(2) == 0 { head.min(bytes.len() as u64) } else { bytes.len() as u64 };
        let at = random.below(length.max(1)) as usize;
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), b"0123456789<>/\r\n&\0"[random.below(16) as usize]),
            2 => drop(bytes.drain(at.min(bytes.len())..(at + 9).min(bytes.len()))),
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
        if bytes.is_empty() {
            // An empty answer is silence, which takes the time limit of the client.
            bytes.push(b'H');
        }
    }
}

fn check_text(error: &block::Error) {
    let text = error.to_string();
    assert!(text.len() < 3000 && !text.contains(char::is_control), "{text}");
}

async fn written(seed: u64) {
    let options = Options { settings: settings_of(seed), ..options(true) };
    let part = ObjectsPart::open(options).await.unwrap();
    let zones = handle(&part).await;
    for zone in 0..ZONES {
        append(&*zones, zone, 1 + zone as u8, LENGTH).await;
        zones.flush(&[ZoneIndex(zone)]).await.unwrap();
    }
    drop(zones);
    part.close().await.unwrap();
}

async fn altered(seed: u64, bucket: Rc<Bucket>) -> (u32, u32) {
    written(seed).await;
    let objects = bucket.objects.borrow().clone();
    let (mut opened, mut refused) = (0, 0);
    for round in 0..4 {
        let (own, mut random) = (Rc::downgrade(&bucket), Random::new(seed * 100 + round));
        let is_over = Rc::new(Cell::new(false));
        let (stop, every) = (is_over.clone(), 2 + random.below(10));
        bucket.follow(move |asked| {
            let mut bytes = encode(&own.upgrade()?.carry_out(asked, None), asked);
            if !stop.get() && random.below(every) == 0 {
                alter(&mut bytes, &mut random);
            }
            Some(bytes)
        });
        let begun = runtime::now();
        let outcome = ObjectsPart::open(options(false)).await;
        assert!(begun.elapsed() < Duration::from_secs(1200), "opening takes {:?}", begun.elapsed());
        match outcome {
            Err(error) => {
                refused += 1;
                check_text(&error);
            }
            Ok(part) => {
                opened += 1;
                let zones = handle(&part).await;
                for zone in 0..ZONES {
                    match read(&*zones, zone, 0, LENGTH).await {
                        Ok(bytes) => assert_eq!(bytes, vec![1 + zone as u8; LENGTH], "zone {zone}"),
                        Err(error) => check_text(&error),
                    }
                }
                is_over.set(true);
                drop(zones);
                if let Err(error) = part.close().await {
                    check_text(&error);
                }
            }
        }
        // What an altered answer has led to isn't the subject here.
        bucket.objects.replace(objects.clone());
    }
    (opened, refused)
}

#[test]
fn altered_answers_end_in_an_error_or_in_the_bytes_that_were_written() {
    let (opened, refused) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for seed in 1..=if conformance::budget::is_long() { 3000 } else { 40 } {
        let counts = (opened.clone(), refused.clone());
        world(seed, move |bucket| async move {
            let (opened, refused) = altered(seed, bucket).await;
            counts.0.set(counts.0.get() + opened);
            counts.1.set(counts.1.get() + refused);
        });
    }
    println!("{} openings succeeded, {} were refused", opened.get(), refused.get());
    assert!(opened.get() > 10 && refused.get() > 10, "alterations are too rare, or too many");
}
