//! Writes the generated files of the packages: manual pages and completions.
//!
//! `stemma-pages DIR`, run by `cargo xtask packages`, writes `DIR/man/NAME.SECTION` and
//! `DIR/completions/{bash,zsh,fish}/…`.

mod commands;
mod reference;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

fn main() -> Result<()> {
    let out_dir = PathBuf::from(std::env::args_os().nth(1).context("the directory to write to")?);
    commands::write(&out_dir)?;
    reference::write(&out_dir.join("man"))
}
