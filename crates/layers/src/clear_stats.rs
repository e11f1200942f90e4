//! The message of parts that only count.

stack::messages! {
    /// A message to a part that only counts.
    Message;
    "clear_stats" => ClearStats, "counters begin again at zero";
}
