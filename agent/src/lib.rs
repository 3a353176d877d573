//! stemma-agent: the half of Stemma that lives on a host.
//!
//! Two halves in one process: `sync` has the network and no root, `apply` has root and no network. They share
//! nothing but the messages of [`channel`].

pub mod apply;
pub mod args;
pub mod channel;
pub mod config;
pub mod facts;
mod findings;
mod hook_files;
pub mod host;
pub mod identity;
pub mod paths;
pub mod sync;
pub mod verbs;
pub mod watch;
