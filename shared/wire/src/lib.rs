//! The wire protocol, shared by the controller, the agent, the command line and the fleet simulator.
//!
//! One crate, so that each rule of the protocol is written once: the contents of a certificate ([`tls`]), how a
//! listener accepts connections and what it refuses ([`serve`]), how a request is made ([`client`]), the paths
//! ([`endpoint`]), the form of an error ([`error`]), and what is signed ([`sign`]). Sockets, clocks and keys are passed
//! in ([`net`], [`clock`]), so that a test can supply its own.

pub mod client;
pub mod clock;
pub mod config;
pub mod endpoint;
pub mod error;
pub mod log;
pub mod message;
pub mod net;
pub mod serve;
pub mod sign;
pub mod tls;

#[cfg(test)]
mod testing;
