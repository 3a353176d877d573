//! Who may do what: principals with certificates and tokens at the real listener, and the matrix of the endpoint table (S40, S41).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod bound;
mod known;
mod matrix;
pub(crate) mod people;
mod privileged;
mod stored;
mod underway;
