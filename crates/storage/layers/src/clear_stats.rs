//! `clear_stats`, the only message of `stats`, `zone-stats` and `model`.

stack::messages! {
    /// A message to `stats`, `zone-stats` or `model`.
    Message;
    "clear_stats" => ClearStats, "reset the counters to zero";
}
