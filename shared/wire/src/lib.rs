//! What both ends need to talk: controller, agent, command line and the fleet simulator.
//!
//! One crate, so that a rule of the wire is written once: what a certificate says ([`tls`]), how a listener takes
//! connections and what it refuses ([`serve`]), how a request is made ([`client`]), which paths there are ([`endpoint`]),
//! what an error looks like ([`error`]), and what is signed ([`sign`]). Sockets, clocks and keys come in from outside
//! ([`net`], [`clock`]), so that a test can give its own.

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
