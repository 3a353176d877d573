//! Drives the real programs as people do: a controller on its embedded store, agents below roots of their own,
//! the operator's command; over real mutual TLS on loopback, every port chosen by the system.
//!
//! A test waits for a condition and never sleeps for a time; what it starts it ends by its own id.

pub mod chance;
pub mod fleet;
pub mod fuzz;
pub mod operator;
pub mod plain;
pub mod ports;
pub mod program;
pub mod proxy;
pub mod python;
pub mod shared;
pub mod site;
pub mod stand_in;
pub mod tool;
pub mod transcript;
