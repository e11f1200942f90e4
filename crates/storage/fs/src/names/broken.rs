//! Steps of rules that tests break on purpose ([`crate::broken`]).

use crate::core::Core;
use crate::metadata::change::Changes;
use block::Result;
use std::rc::Rc;

/// Submits each change of a joint operation for itself.
pub(super) async fn submit_apart(core: &Rc<Core>, changes: Changes) -> Result<()> {
    for change in changes {
        let inode = change.inode();
        let submit = move |core: Rc<Core>| async move { core.submit(Changes::from_elem(change, 1), None) };
        core.shards().of(inode).with(submit).await?;
    }
    Ok(())
}
