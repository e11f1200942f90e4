//! Messages to zones in an object store. Left to others: carrying them out (`part`).

stack::messages! {
    /// A message to zones in an object store.
    Message;
    "flush" => Flush, "upload everything that was appended, and answer when a manifest in the bucket names it";
    "gc" => CollectGarbage, "list all objects, delete those that crashes and fenced writers left after the grace, and answer with their number";
}
