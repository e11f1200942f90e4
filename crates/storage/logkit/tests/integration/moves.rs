//! Appends of moves: an entry that fits no record is an error, and every entry that the log accepts can be
//! moved.

use crate::bare::{Bare, Item, MOVED, run, zones};
use block::{Error, Result};
use logkit::Mover;
use logkit::Owner;
use logkit::record::{FIXED, LINK};
use std::rc::Rc;
use std::time::Duration;

/// Most bytes of meta that fit the header of a record with one data block and a link.
const MAX: usize = 4096 - FIXED - LINK - 4;

async fn owner() -> Result<Rc<Bare>> {
    Bare::format(zones(16, 64 << 10, 0).await?.open().await?, false).await
}

async fn move_one(meta: usize) -> Result<()> {
    let (owner, mut mover) = (owner().await?, Mover::new(2));
    let appended = mover.append(&owner, MOVED, [Item::new(1, 1, 8), Item::new(2, 1, meta)]);
    let appended = runtime::timeout(Duration::from_secs(10), appended).await;
    mover.close(&*owner).await;
    owner.kit().tasks.ended().await;
    appended.map_err(|_| Error::io("the moves go on without end"))?
}

#[test]
fn a_move_whose_meta_leaves_no_space_for_its_link_is_refused() {
    run(|| move_one(MAX));
    for more in [1, 16] {
        let main = move || async move { Ok(move_one(MAX + more).await.expect_err("it fits no record")) };
        let error = run(main);
        assert!(matches!(error, Error::Invalid(_)) && error.detail().contains("can't be moved"), "{error}");
    }
}
