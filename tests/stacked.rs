//! Parts that a test composes by itself, as one device. Promises: it is closed as a stack is, from the top
//! down, and each part is closed even if one above it fails. Left to `stack::BuiltStack`: stacks that are
//! described in text.

use block::{Call, Device, DeviceGeometry, DevicePart, Part, Result, Status};
use std::rc::Rc;
use std::sync::Arc;

/// The top of a stack, with the parts below it.
pub struct Stacked {
    top: Arc<dyn DevicePart>,
    below: Vec<Arc<dyn Part>>,
}

impl Stacked {
    /// Takes the top, and the parts that are closed after it, from the top down.
    pub fn new(top: Arc<dyn DevicePart>, below: Vec<Arc<dyn Part>>) -> Self {
        Stacked { top, below }
    }

    /// Parts below the top, from the top down.
    pub fn below(&self) -> &[Arc<dyn Part>] {
        &self.below
    }
}

impl Part for Stacked {
    fn kind(&self) -> &'static str {
        self.top.kind()
    }

    fn status(&self) -> Call<'_, Status> {
        self.top.status()
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let mut closed = self.top.close().await;
            for part in &self.below {
                closed = closed.and(part.close().await);
            }
            closed
        })
    }
}

impl DevicePart for Stacked {
    fn geometry(&self) -> &DeviceGeometry {
        self.top.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        self.top.open()
    }
}
