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

/// Installs a release of a subcommand of cargo where it is missing or another one is there.
///
/// # Errors
/// When it cannot be installed.
pub(crate) fn installed(subcommand: &str, name: &str, release: &str) -> Result<()> {
    let version = command("cargo", &[subcommand, "--version"]).output();
    if version.is_ok_and(|version| is_of(&String::from_utf8_lossy(&version.stdout), release)) {
        return Ok(());
    }
    let wanted = format!("^{release}");
    step(&format!("install {name}"), command("cargo", &["install", "--locked", "--quiet", name, "--version", &wanted]))
}

/// Whether what a program says of its version, its name and then the version, is of a release.
fn is_of(said: &str, release: &str) -> bool {
    let version = said.split_whitespace().nth(1).and_then(|version| version.strip_prefix(release));
    version.is_some_and(|rest| rest.starts_with('.'))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_another_release_is_not_taken_for_the_one_that_is_wanted() {
        for (said, release, is_it) in [
            ("cargo-deny 0.19.0\n", "0.19", true),
            ("cargo-deny 0.18.9\n", "0.19", false),
            ("cargo-deny 0.190.0\n", "0.19", false),
            ("cargo-mutants 27.1.0\n", "27", true),
            ("cargo-mutants 2.7.0\n", "27", false),
            ("", "27", false),
        ] {
            assert_eq!(is_of(said, release), is_it, "{said:?} {release}");
        }
    }
}
