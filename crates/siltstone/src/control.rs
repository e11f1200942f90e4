//! Access of operators to a stack: through its server's control socket if it is served, else by opening it. A
//! flash chip is reached through its server's control socket only.
//!
//! One concept per module: [`protocol`] messages of the socket (it never waits), [`place`] socket of each
//! stack and chip, [`socket`] creation and removal of a socket's file, [`server`] its clients, [`client`] the
//! client, [`operated`] requests to an open stack, [`observed`] counts of its calls, [`traced`] single calls,
//! [`reach`] choice between server and opening.

pub mod client;
mod observed;
pub mod operated;
pub mod place;
pub mod protocol;
pub mod reach;
pub mod server;
mod socket;
#[cfg(test)]
pub mod test_log;
mod traced;
pub mod turn;
