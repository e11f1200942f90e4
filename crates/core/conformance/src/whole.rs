//! A whole stack as one device, so that a suite can close and open all of it.

use block::{Call, Device, DeviceGeometry, DevicePart, Part, Result, Status};
use stack::BuiltStack;
use std::rc::Rc;
use std::sync::Arc;

type Hook = Box<dyn for<'a> Fn(&'a BuiltStack) -> Call<'a, ()> + Send + Sync>;

/// The top device of a stack; its close closes every part, from the top down.
pub struct Whole {
    built: BuiltStack,
    top: Arc<dyn DevicePart>,
    before_close: Option<Hook>,
}

impl Whole {
    /// Wraps a stack with one device on top.
    ///
    /// # Errors
    /// Errors of [`BuiltStack::top`].
    pub fn new(built: BuiltStack) -> Result<Self> {
        Ok(Whole { top: built.top()?, built, before_close: None })
    }

    /// Sets a function that is called with the stack before it is closed.
    #[must_use]
    pub fn before_close(
        self,
        look: impl for<'a> Fn(&'a BuiltStack) -> Call<'a, ()> + Send + Sync + 'static,
    ) -> Self {
        Whole { before_close: Some(Box::new(look)), ..self }
    }
}

impl Part for Whole {
    fn kind(&self) -> &'static str {
        self.top.kind()
    }

    fn status(&self) -> Call<'_, Status> {
        self.top.status()
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            if let Some(look) = &self.before_close {
                look(&self.built).await;
            }
            self.built.close().await
        })
    }
}

impl DevicePart for Whole {
    fn geometry(&self) -> &DeviceGeometry {
        self.top.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        self.top.open()
    }
}
