//! Requests that wait until all their items have ended: the runtime's.

/// Which request; given back when it has ended.
pub use runtime::RequestKey as Key;
pub use runtime::Requests;
