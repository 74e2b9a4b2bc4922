//! Sessions that come back.
