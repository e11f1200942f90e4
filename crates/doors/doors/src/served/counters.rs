//! Counters of requests, shared by all shards.

macro_rules! counters {
    ($counters:ident, $tally:ident: $($name:ident),* $(,)?) => {
        /// Totals since the start.
        #[derive(Default)]
        pub struct $counters {
            $($name: std::sync::atomic::AtomicU64,)*
        }

        /// Counts of requests that aren't added to the totals yet.
        #[derive(Default, Clone, Copy, PartialEq)]
        pub struct $tally {
            $(#[allow(missing_docs)] pub $name: u64,)*
        }

        impl $counters {
            /// Adds a tally and clears it. A task does so once per turn, not per request.
            #[inline]
            pub fn add(&self, tally: &mut $tally) {
                $(if tally.$name != 0 {
                    self.$name.fetch_add(tally.$name, std::sync::atomic::Ordering::Relaxed);
                })*
                *tally = $tally::default();
            }

            /// Returns the totals by name.
            pub fn status(&self) -> block::Status {
                let mut status = block::Status::new();
                $({
                    let total = self.$name.load(std::sync::atomic::Ordering::Relaxed);
                    status.insert(stringify!($name).into(), serde_json::json!(total));
                })*
                status
            }
        }
    };
}

pub(crate) use counters;
