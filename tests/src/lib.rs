//! Runs the real programs as users do: a controller on its embedded store, agents with root directories of their own,
//! and the operator's command. They use real mutual TLS on loopback.
//!
//! A test waits for a condition and never sleeps for a fixed time. It ends the processes that it started by their ids.

pub mod fleet;
pub mod fuzz;
pub mod operator;
pub mod plain_controller;
pub mod ports;
pub mod program;
pub mod proxy;
pub mod python;
pub mod seed;
pub mod shared;
pub mod site;
pub mod stand_in;
pub mod tool;
pub mod transcript;
