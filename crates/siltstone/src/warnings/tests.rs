use super::*;
use block::{BlockRange, Buffer, Device, Durability, Error};
use runtime::{Simulation, simulate};
use stack::Stack;
use std::cell::RefCell;
use std::rc::Rc;

/// Warnings so far, as parts and levels.
type Told = Rc<RefCell<Vec<(String, u8)>>>;

/// Opens a stack in virtual time, on one shard and on several, and runs `test` on it while it is watched.
fn watched<F>(line: &'static str, test: impl Fn(Rc<BuiltStack>, Told) -> F + Copy + 'static)
where
    F: Future<Output = ()> + 'static,
{
    for (seed, shards) in [(1, 1), (2, 4), (3, 7), (4, 32)] {
        let main = move || async move {
            let stack = Stack::from_line("test", line, &crate::kinds::registry()).unwrap();
            let plan = stack.check(stack::Format::Everything).unwrap();
            let built = Rc::new(plan.build().await.unwrap());
            let told = Told::default();
            let also_told = told.clone();
            let watch = FullnessWatch::start_with(WatchedPart::all_of(&built), move |warning| {
                also_told.borrow_mut().push((warning.part, warning.level));
            });
            test(built.clone(), told).await;
            drop(watch);
            built.close().await.unwrap();
        };
        simulate(Simulation { shards, ..Simulation::new(seed) }, main).unwrap();
    }
}

/// Waits until every part has been asked again.
async fn asked() {
    runtime::sleep(INTERVAL + Duration::from_secs(1)).await;
}

async fn fullness(stack: &BuiltStack) -> Fullness {
    stack.part("log").unwrap().built.part().fullness().await.unwrap()
}

/// Writes blocks from `next` on until this percentage of the log is used.
async fn fill(device: &dyn Device, stack: &BuiltStack, next: &mut u64, percent: u64) {
    let shift = device.geometry().block_size.shift();
    while fullness(stack).await.percent() < percent {
        let count = (64 << 10) >> shift;
        let payload = Buffer::copy_of(&vec![7; 64 << 10]).freeze().into();
        device.write(BlockRange::new(*next, count).start, payload, Durability::Visible).await.unwrap();
        *next += count;
    }
}

fn entry(status: &serde_json::Value) -> &serde_json::Value {
    &status["devices"]["top"]["fullness"]
}

#[test]
fn a_log_that_fills_up_warns_once_at_each_level() {
    watched("log(ram(64MiB), size=128MiB, zone_size=1MiB)", |stack, told| async move {
        let device = stack.top().unwrap().open().await.unwrap();
        let mut next = 0;
        for (percent, levels) in [(79, 0), (80, 1), (85, 1), (90, 2), (95, 3), (98, 3)] {
            fill(&*device, &stack, &mut next, percent).await;
            asked().await;
            // An operator steps the system clock.
            runtime::step_simulated_wall_clock(if percent % 2 == 0 { 3600 } else { -3600 });
            asked().await;
            assert_eq!(told.borrow().len(), levels, "at {percent}%: {:?}", told.borrow());
        }
        let status = stack.status().await;
        assert_eq!(entry(&status)["warned_at"], "95%", "{status}");
        assert!(entry(&status)["percent"].as_u64() >= Some(98), "{status}");
        // A log that refuses writes is still watched.
        let payload = || Buffer::copy_of(&vec![7; 64 << 10]).freeze().into();
        let refused = async {
            loop {
                let written = device.write(block::BlockIndex(next), payload(), Durability::Visible).await;
                if let Err(error) = written {
                    return error;
                }
                next += (64 << 10) >> device.geometry().block_size.shift();
            }
        };
        assert!(matches!(refused.await, Error::NoSpace(_)));
        asked().await;
        assert_eq!(told.borrow().len(), 3);
        device.discard(BlockRange::new(0, next)).await.unwrap();
        asked().await;
        assert!(entry(&stack.status().await)["warned_at"].is_null());
        let mut next = 0;
        fill(&*device, &stack, &mut next, 96).await;
        asked().await;
        let levels: Vec<u8> = told.borrow().iter().map(|(_, level)| *level).collect();
        assert_eq!(levels, [80, 90, 95, 95]);
    });
}

#[test]
fn a_log_that_its_users_cannot_fill_and_one_without_levels_do_not_warn() {
    watched("log(ram(64MiB), size=40MiB, zone_size=1MiB, warn_at=[1%, 2])", |stack, told| async move {
        let device = stack.top().unwrap().open().await.unwrap();
        fill(&*device, &stack, &mut 0, 50).await;
        asked().await;
        assert_eq!(*told.borrow(), []);
        let status = stack.status().await;
        assert!(entry(&status)["percent"].as_u64() >= Some(50), "{status}");
    });
    watched("log(ram(64MiB), size=128MiB, zone_size=1MiB, warn_at=never)", |stack, told| async move {
        let device = stack.top().unwrap().open().await.unwrap();
        fill(&*device, &stack, &mut 0, 99).await;
        asked().await;
        assert_eq!(*told.borrow(), []);
    });
}

/// A part whose shard doesn't answer.
#[test]
fn a_part_that_does_not_answer_does_not_keep_others_from_being_asked() {
    let main = || async {
        let warning = || Arc::new(FullnessWarning::new(vec![50]));
        let never =
            WatchedPart::new("log", "hangs".to_owned(), warning(), || Call::new(std::future::pending()));
        let full = || {
            let (resource, remedy) = ("space", "discard some data");
            Fullness { resource, used_bytes: 1, limit_bytes: 1, can_fill: true, remedy }
        };
        let other = WatchedPart::new("log", "full".to_owned(), warning(), move || Call::ready(Some(full())));
        let told = Told::default();
        let also_told = told.clone();
        let watch = FullnessWatch::start_with(vec![never, other], move |warning| {
            also_told.borrow_mut().push((warning.part, warning.level));
        });
        asked().await;
        assert_eq!(*told.borrow(), [("full".to_owned(), 50)]);
        drop(watch);
    };
    simulate(Simulation::new(1), main).unwrap();
}
