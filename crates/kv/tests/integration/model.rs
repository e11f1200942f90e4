//! A model check of the store against a map.
