//! stemma-agent: the part of Stemma that runs on a host.
//!
//! The agent has two halves in one process. The network half (`sync`) uses the network and needs no root rights. The
//! root half (`apply`) runs as root and uses no network. The halves share nothing but the messages of [`channel`].

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
