//! stemma-agent: the half of Stemma that lives on a host.
//!
//! Two halves in one process: `sync` has the network and no root, `apply` has root and no network. They know
//! each other by the messages of [`channel`] alone.

pub mod apply;
pub mod args;
pub mod channel;
pub mod config;
pub mod facts;
pub mod host;
pub mod identity;
pub mod paths;
pub mod sync;
pub mod verbs;
pub mod watch;
