//! Writes what stands in packages beside the programs and is made of their own tables: manual pages and completions.
//!
//! `stemma-pages DIR`, run by `cargo xtask packages`: `DIR/man/NAME.SECTION`, `DIR/completions/{bash,zsh,fish}/…`.

mod commands;
mod reference;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

fn main() -> Result<()> {
    let to = PathBuf::from(std::env::args_os().nth(1).context("the directory to write to")?);
    commands::write(&to)?;
    reference::write(&to.join("man"))
}
