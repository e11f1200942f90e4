//! How operators reach a stack: one that is served through its control socket, any other by opening it.
//!
//! One concept per module: [`protocol`] what is said over the socket (it never waits), [`place`] which socket is
//! whose, [`socket`] taking and giving back a socket's file, [`server`] its clients, [`client`] the other end,
//! [`operated`] what is done to a stack, whoever asks, and [`reach`] which of the two ways is gone.

pub mod client;
pub mod operated;
pub mod place;
pub mod protocol;
pub mod reach;
pub mod server;
mod socket;
#[cfg(test)]
pub mod test_log;
