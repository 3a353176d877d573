//! Running cargo and what tests need from the system, one step at a time, each with its name and time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands below the root").to_path_buf()
}

/// A command in the workspace's root.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// Runs one step and says how long it took.
///
/// # Errors
/// When the command can't be started or ends with another status than 0.
pub(crate) fn step(name: &str, mut command: Command) -> Result<()> {
    println!("== {name}");
    let start = Instant::now();
    let status =
        command.status().with_context(|| format!("{name}: cannot start {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{name} failed ({status}); to see it alone: {}", shown(&command));
    }
    println!("== {name}: ok, {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Installs a subcommand of cargo where it is missing.
///
/// # Errors
/// When it cannot be installed.
pub(crate) fn installed(subcommand: &str, name: &str, version: &str) -> Result<()> {
    if runs("cargo", &[subcommand, "--version"]) {
        return Ok(());
    }
    step(&format!("install {name}"), command("cargo", &["install", "--locked", "--quiet", name, "--version", version]))
}

/// Whether a command runs here with status 0.
pub(crate) fn runs(program: &str, arguments: &[&str]) -> bool {
    command(program, arguments)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
