//! Messages to zones in an object store.

stack::messages! {
    /// A message to zones in an object store.
    Message;
    "flush" => Flush, "upload everything, and answer when it is in the bucket";
    "gc" => CollectGarbage, "list all objects, and delete those that a crash or a fenced writer left, after the grace";
}
