//! Servers of one stack beside its doors: the control socket for operators, and metrics for monitoring.

use crate::control::operated::OperatedStack;
use crate::control::place::ControlAddress;
use crate::control::server::ControlServer;
use crate::metrics::Endpoint;
use crate::metrics::server::MetricsServer;
use block::{Error, Result};
use std::path::Path;
use std::rc::Rc;

/// Addresses for operators and monitoring systems.
pub struct Addresses {
    /// Address of the control socket; `None` with `--no-control`.
    pub place: Option<ControlAddress>,
    /// Address of metrics; `None` without `--metrics`.
    pub endpoint: Option<Endpoint>,
}

/// Servers, which the stack does without if it needn't have them and they can't listen.
#[derive(Clone, Copy)]
pub struct Needs {
    /// Whether a control socket is needed.
    pub control: bool,
    /// Whether metrics are needed.
    pub metrics: bool,
}

/// Listening servers.
pub struct Operators {
    control: Option<ControlServer>,
    metrics: Option<MetricsServer>,
}

impl Operators {
    /// Listens. Until [`opened`](Self::opened) is called, requests get the error that the stack is being
    /// opened.
    ///
    /// # Errors
    /// Errors of [`ControlServer::start`] and [`MetricsServer::start`] of the servers that are needed.
    pub async fn listen(addresses: Addresses, needs: Needs) -> Result<Operators> {
        let mut operators = Operators { control: None, metrics: None };
        if let Some(place) = &addresses.place {
            let started = ControlServer::start(place).await;
            operators.control = unless_needed(started, needs.control, "a control socket")?;
        }
        if let Some(endpoint) = addresses.endpoint {
            let started = MetricsServer::start(endpoint).await;
            match unless_needed(started, needs.metrics, "metrics") {
                Ok(metrics) => operators.metrics = metrics,
                Err(error) => {
                    operators.stop().await;
                    return Err(error);
                }
            }
        }
        Ok(operators)
    }

    /// Returns the path of the control socket; `None` without one.
    pub fn control_path(&self) -> Option<&Path> {
        self.control.as_ref().and_then(ControlServer::path)
    }

    /// Returns the address of metrics; `None` without any.
    pub fn metrics_address(&self) -> Option<String> {
        self.metrics.as_ref().map(|metrics| metrics.address().to_owned())
    }

    /// Sets the open stack, to which requests go afterwards.
    pub fn opened(&self, stack: &Rc<OperatedStack>) {
        if let Some(control) = &self.control {
            control.opened(stack.clone());
        }
        if let Some(metrics) = &self.metrics {
            metrics.opened(stack.clone());
        }
    }

    /// Stops the servers, and releases the stack.
    pub async fn stop(self) {
        if let Some(metrics) = self.metrics {
            metrics.stop().await;
        }
        if let Some(control) = self.control {
            control.stop().await;
        }
    }
}

/// Logs the error of a server that isn't needed.
fn unless_needed<S>(started: Result<S>, is_needed: bool, what: &str) -> Result<Option<S>> {
    match started {
        Ok(server) => Ok(Some(server)),
        Err(error) if is_needed => Err(error),
        // Another server of this stack has it: the lock of its storage tells.
        Err(error @ Error::Busy(_)) => {
            tracing::info!("continuing without {what}: {error}");
            Ok(None)
        }
        Err(error) => {
            tracing::warn!("continuing without {what}: {error}");
            Ok(None)
        }
    }
}
