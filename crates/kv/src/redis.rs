//! Redis clients: the protocol RESP, the commands, and the door.
