//! Several cursors as one, and what a snapshot sees of them.
