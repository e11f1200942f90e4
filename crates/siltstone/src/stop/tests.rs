use super::*;
use block::{BlockIndex, BlockSize, Buffer, DevicePart};
use disks::ram::RamPart;
use layers::fault::{FaultDevicePart, parse_rules};
use stack::{Built, Contract};
use std::sync::Arc;
use std::task::Waker;

/// Turns until the server ends without its storage, at most 2000; `seen` has the observations of a turn.
fn given_up(seen: impl Fn(u64) -> Seen) -> Option<(u64, Reason)> {
    let mut wait = Wait::default();
    (0..2000).find_map(|turn| wait.turn(seen(turn)).map(|reason| (turn, reason)))
}

/// Requests in turn `turn` after `completed` completions. No request is old.
fn young(turn: u64, completed: u64, in_flight: bool) -> Progress {
    Progress { completed, in_flight, generation: turn + 1 }
}

#[test]
fn a_storage_that_completes_requests_is_waited_for() {
    for signals in 0..5 {
        // Each request takes 4 s, one after another.
        let requests = |turn: u64| Progress { generation: turn / 4, ..young(turn, turn / 4, true) };
        let slow = |turn| Seen { requests: requests(turn), signals, ..Seen::default() };
        assert_eq!(given_up(slow), None, "after {signals} signals");
    }
}

/// A flush that hangs in one device, while another one completes work.
#[test]
fn a_request_that_hangs_among_others_that_complete_ends_the_server() {
    let hung = |signals| {
        given_up(|turn| Seen {
            requests: Progress { generation: 7, ..young(turn, turn, true) },
            signals,
            ..Seen::default()
        })
    };
    for signals in 0..3 {
        assert_eq!(hung(signals), Some((601, Reason::Oldest(601))), "after {signals} signals");
    }
    assert_eq!(hung(3), Some((31, Reason::Oldest(31))));
}

#[test]
fn an_unanswered_request_ends_the_server_sooner_after_a_further_signal() {
    let stuck = |signals| {
        let requests = Progress { completed: 7, in_flight: true, generation: 1 };
        given_up(|_| Seen { requests, signals, ..Seen::default() })
    };
    for signals in [0, 1] {
        // The first turn sees progress.
        assert_eq!(stuck(signals), Some((601, Reason::Unanswered(601))), "after {signals} signals");
    }
    for signals in [2, 3] {
        assert_eq!(stuck(signals), Some((11, Reason::Unanswered(11))), "after {signals} signals");
    }
    // A flush of a slow device.
    let flush = |turn| Seen {
        requests: Progress { generation: turn / 500, ..young(turn, turn / 500, true) },
        signals: 1,
        ..Seen::default()
    };
    assert_eq!(given_up(flush), None);
}

#[test]
fn a_further_signal_gives_a_request_in_flight_the_shorter_time_from_then_on() {
    let requests = Progress { completed: 7, in_flight: true, generation: 1 };
    let flush = |turn| Seen { requests, signals: 1 + u32::from(turn >= 60), ..Seen::default() };
    assert_eq!(given_up(flush), Some((71, Reason::Unanswered(11))));
}

#[test]
fn the_wait_for_space_is_no_time_without_progress() {
    let space_at_last = |turn| Seen {
        requests: young(turn, turn.saturating_sub(705), false),
        waits_for_space: turn < 700,
        signals: 1,
    };
    assert_eq!(given_up(space_at_last), None);
}

#[test]
fn two_further_signals_end_a_server_that_waits_for_space_or_for_nothing() {
    let full = |signals| {
        given_up(|turn| Seen { requests: young(turn, turn, false), signals, waits_for_space: true })
    };
    let idle =
        |signals| given_up(|turn| Seen { requests: young(turn, 0, false), signals, ..Seen::default() });
    for signals in 0..3 {
        assert_eq!(full(signals), None, "after {signals} signals");
        assert_eq!(idle(signals), Some((600, Reason::NoProgress(601))), "after {signals} signals");
    }
    assert_eq!(full(3), Some((10, Reason::NoSpace(11))));
    assert_eq!(idle(3), Some((30, Reason::NoProgress(31))));
    let soon = |turn| Seen { requests: young(turn, turn, false), signals: 3, waits_for_space: turn % 5 > 0 };
    assert_eq!(given_up(soon), None, "there is space from time to time");
}

#[test]
fn no_signal_is_lost_between_two_waits() {
    // Each future takes a signal when it is first polled, and tells of it at the second poll.
    let next = || {
        let mut is_taken = false;
        let taking = std::future::poll_fn(move |_| match std::mem::replace(&mut is_taken, true) {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        });
        Box::pin(taking) as Pin<Box<dyn Future<Output = Result<()>>>>
    };
    let signals = Signals::new(next);
    let mut context = Context::from_waker(Waker::noop());
    for count in 1..4 {
        assert!(signals.poll(&mut context).is_pending());
        assert!(matches!(signals.poll(&mut context), Poll::Ready(Ok(()))));
        assert_eq!(signals.count.get(), count);
    }
}

/// Returns the reason for which a server ends after one signal while it closes a leaf that hangs and `other`
/// uses another leaf once a second.
fn closing_beside(other: fn(Arc<dyn DevicePart>) -> Call<'static, ()>) -> Reason {
    let main = move || async move {
        let watch = Watch::default();
        let ram = || Arc::new(RamPart::new(1 << 20, BlockSize::new(4096).unwrap()).unwrap());
        let rules = parse_rules(&["any delay=24h".to_owned()], Contract::Device).unwrap();
        let hung = FaultDevicePart::new(ram(), rules, 1).unwrap();
        let watched = |part: Arc<dyn DevicePart>| match watch.over(Built::Device(part)) {
            Built::Device(part) => part,
            _ => unreachable!("a device"),
        };
        let (hung, node) = (watched(Arc::new(hung)), watched(ram()));
        let stop = Stop::new("test", String::new(), Further::ShortensPatience, &watch).unwrap();
        let ending = async {
            let hung = hung.open().await.unwrap();
            runtime::spawn(async move {
                loop {
                    other(node.clone()).await;
                    runtime::sleep(TURN).await;
                }
            })
            .detach();
            hung.flush().await
        };
        stop.carry_out(&(), ending).await.unwrap_err()
    };
    runtime::simulate(runtime::Simulation::new(1), main).unwrap().value
}

#[test]
fn one_signal_ends_a_server_with_a_hung_leaf_beside_one_that_is_connected_again_and_again() {
    let reconnect = |node: Arc<dyn DevicePart>| {
        Call::new(async move {
            node.open().await.unwrap();
        })
    };
    assert_eq!(closing_beside(reconnect), Reason::Unanswered(601));
}

#[test]
fn one_signal_ends_a_server_with_a_hung_leaf_beside_one_that_is_probed() {
    let probe = |node: Arc<dyn DevicePart>| {
        Call::new(async move {
            let node = node.open().await.unwrap();
            node.read(BlockIndex(0), Buffer::new(4096)).await.0.unwrap();
        })
    };
    assert_eq!(closing_beside(probe), Reason::Oldest(601));
}
