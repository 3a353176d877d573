//! The controller: it keeps what operators want, decides what each host is, and answers agents and people.
//!
//! The flow is one way: the registry admits and commits, the store's watch feeds the cache, reconcilers resolve and publish
//! desired state, and the agents' parked check-ins return. A library with a thin program around it, so that tests and benches
//! run the same controller in their own process, on port 0, with real TLS.

pub mod age;
pub mod agents;
pub mod api;
pub mod args;
mod asked;
pub mod backup;
pub mod blobs;
pub mod ca;
pub mod cache;
pub mod clock;
pub mod config;
pub mod desired;
pub mod enrol;
pub mod extension;
pub mod handed;
pub mod identity;
pub mod init;
pub mod intake;
pub mod metrics;
pub mod reconcile;
pub mod records;
pub mod registry;
pub mod resume;
pub mod run;
pub mod status;
pub mod store;
