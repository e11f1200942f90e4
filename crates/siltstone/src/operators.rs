//! Servers of one stack beside its doors: the control socket for operators, and metrics for monitoring.

use crate::control::operated::OperatedStack;
use crate::control::place::ControlAddress;
use crate::control::server::ControlServer;
use crate::metrics::Endpoint;
use crate::metrics::server::MetricsServer;
use crate::stop::watch::Watch;
use block::{Error, Result};
use layers::observation::Observation;
use stack::{Built, Plan, User};
use std::path::Path;
use std::rc::Rc;

/// Returns the function that observes the parts of a stack while it is built: requests to leaves are watched,
/// calls to all parts are observed.
pub fn observing<'a>(
    plan: &'a Plan,
    watch: &'a Watch,
    observation: &'a Observation,
) -> impl Fn(User<'_>, Built) -> Built + 'a {
    move |user, part| {
        let part = match user {
            User::All(user) if user.is_leaf() => watch.over(part),
            _ => part,
        };
        observation.of_part(plan.stack(), user, part)
    }
}

/// Addresses for operators and monitoring systems.
pub struct Addresses {
    /// Address of the control socket; `None` with `--no-control`.
    pub place: Option<ControlAddress>,
    /// Address of metrics; `None` without `--metrics`.
    pub endpoint: Option<Endpoint>,
}

/// Servers that must listen: an error of such a server ends the verb; one of another is only logged.
#[derive(Clone, Copy)]
pub struct Required {
    /// Whether the control socket must listen.
    pub control: bool,
    /// Whether the server of metrics must listen.
    pub metrics: bool,
}

/// Listening servers.
pub struct OperatorServers {
    control: Option<ControlServer>,
    metrics: Option<MetricsServer>,
}

impl OperatorServers {
    /// Listens. Until [`opened`](Self::opened) is called, requests get the error that the stack is being
    /// opened.
    ///
    /// # Errors
    /// Errors of [`ControlServer::start`] and [`MetricsServer::start`] of the servers that are needed.
    pub async fn listen(addresses: Addresses, required: Required) -> Result<OperatorServers> {
        let mut operators = OperatorServers { control: None, metrics: None };
        if let Some(place) = &addresses.place {
            let started = ControlServer::start(place).await;
            operators.control = unless_needed(started, required.control, "a control socket")?;
        }
        if let Some(endpoint) = addresses.endpoint {
            let started = MetricsServer::start(endpoint).await;
            match unless_needed(started, required.metrics, "metrics") {
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
        // Another server may have this address. The lock of the storage decides which one serves the stack.
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
