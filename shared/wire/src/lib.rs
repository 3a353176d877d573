//! The wire protocol, shared by the controller, the agent, the command line and the fleet simulator.
//!
//! All programs use this one crate, so that each rule of the protocol is written once: the contents of a certificate
//! ([`tls`]), the checks of a listener ([`serve`]), requests ([`client`]), paths ([`endpoint`]), errors ([`error`]) and
//! signatures ([`sign`]). The caller passes sockets, clocks and keys in ([`net`], [`clock`]), so that a test can supply
//! its own.

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
pub mod watchdog;

#[cfg(test)]
mod testing;
