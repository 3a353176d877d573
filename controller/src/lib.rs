//! The controller: it stores what operators want, decides the desired state of each host, and serves agents and people.
//!
//! Data flows one way. The registry checks and commits writes. The store's watch updates the cache. Reconcilers resolve
//! and publish desired state, and the agents' waiting check-ins return. The crate is a library with a thin program
//! around it, so that tests and benches run the same controller in their own process, on port 0, with real TLS.

pub mod age;
pub mod agents;
pub mod api;
pub mod args;
pub mod backup;
pub mod blobs;
pub mod ca;
pub mod cache;
pub mod clock;
pub mod config;
pub mod desired;
pub mod enrol;
pub mod extension;
pub mod identity;
pub mod init;
pub mod intake;
pub mod metrics;
pub mod reconcile;
pub mod records;
pub mod registry;
pub mod resume;
pub mod run;
mod running;
pub mod socket_activation;
pub mod status;
pub mod store;
