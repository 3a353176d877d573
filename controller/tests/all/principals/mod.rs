//! Access rights: principals with certificates and tokens at the real listener, and the matrix of the endpoint table
//! (S40, S41).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

pub(crate) mod clients;
mod cluster_bound;
mod credentials;
mod in_flight;
mod matrix;
mod privileged;
mod quotas;
