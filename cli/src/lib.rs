//! The operator's command: manifests and questions, with and without a controller.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It talks to the person, or the program, at the terminal.

mod args;
mod context;
mod manifest;
mod output;
mod yaml;
