//! Runs cargo and system programs for the tasks. `run_step` also prints the name and the duration of a run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Returns the root of the workspace.
pub(crate) fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is below the root").to_path_buf()
}

/// Returns a command that runs in the workspace's root.
///
/// The command does not inherit the variables with which `cargo xtask` describes the package `xtask`. The build script
/// of the crate `ring` reads these variables. With them, ring and its dependents would be built again after each cargo
/// command that a person runs by hand.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace_root());
    let is_package_variable = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_package_variable)) {
        command.env_remove(name);
    }
    command
}

/// Runs a command as a step. Prints the name of the step before the run, and its duration if the command succeeds.
///
/// # Errors
/// Fails if the command cannot be started or ends with a status other than 0.
pub(crate) fn run_step(name: &str, mut command: Command) -> Result<()> {
    println!("== {name}");
    let start = Instant::now();
    let status = command.status().with_context(|| format!("{name}: cannot start {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{name} failed ({status}); to see it alone: {}", display_command(&command));
    }
    println!("== {name}: ok, {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Installs a cargo subcommand from the crate `name`, unless a version of `release` is installed. `release` is the
/// beginning of a version, such as `0.19`.
///
/// # Errors
/// Fails if the subcommand cannot be installed.
pub(crate) fn ensure_installed(subcommand: &str, name: &str, release: &str) -> Result<()> {
    if is_release(&version_output(subcommand), release) {
        return Ok(());
    }
    let version = format!("^{release}");
    run_step(&format!("install {name}"), command("cargo", &["install", "--locked", "--quiet", name, "--version", &version]))
}

/// Returns the output of `cargo SUBCOMMAND --version`, or an empty text if the subcommand is not installed.
pub(crate) fn version_output(subcommand: &str) -> String {
    let output = command("cargo", &[subcommand, "--version"]).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

/// Returns the version in the output of `--version`: the second word, after the name of the program.
pub(crate) fn parse_version(output: &str) -> Option<&str> {
    output.split_whitespace().nth(1)
}

/// Returns whether the output of `--version` has a version of a release: `0.19.1` is a version of `0.19`.
fn is_release(output: &str, release: &str) -> bool {
    parse_version(output).and_then(|version| version.strip_prefix(release)).is_some_and(|rest| rest.starts_with('.'))
}

/// Returns whether a command can be run and ends with status 0.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    command(program, arguments)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns the program and the arguments of a command, separated by spaces.
fn display_command(command: &Command) -> String {
    let arguments = std::iter::once(command.get_program()).chain(command.get_args());
    arguments.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_clears_cargo_package_variables() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "cargo sets the variable for tests");
        let command = command("true", &[]);
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR", "CARGO_MANIFEST_DIR"] {
            assert!(removed.contains(&name.as_ref()), "{name} is not removed");
        }
    }

    #[test]
    fn is_release_rejects_another_release() {
        for (output, release, expected) in [
            ("cargo-deny 0.19.0\n", "0.19", true),
            ("cargo-deny 0.18.9\n", "0.19", false),
            ("cargo-deny 0.190.0\n", "0.19", false),
            ("cargo-mutants 27.1.0\n", "27", true),
            ("cargo-mutants 2.7.0\n", "27", false),
            ("", "27", false),
        ] {
            assert_eq!(is_release(output, release), expected, "{output:?} {release}");
        }
    }
}
