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
///
/// It is not told of which package this program is, as `cargo xtask` tells it. The build script of ring looks at that, and it and all that is
/// built on it would be built anew whenever somebody calls cargo by hand in between.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        command.env_remove(name);
    }
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
    if is_of(&version_output(subcommand), release) {
        return Ok(());
    }
    let wanted = format!("^{release}");
    step(&format!("install {name}"), command("cargo", &["install", "--locked", "--quiet", name, "--version", &wanted]))
}

/// Returns what `cargo SUBCOMMAND --version` prints; empty where the subcommand is not installed.
pub(crate) fn version_output(subcommand: &str) -> String {
    let output = command("cargo", &[subcommand, "--version"]).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

/// Returns the version in the output of `--version`, where it stands behind the name of the program.
pub(crate) fn version_in(output: &str) -> Option<&str> {
    output.split_whitespace().nth(1)
}

/// Whether the output of `--version` names a version of a release.
fn is_of(output: &str, release: &str) -> bool {
    version_in(output).and_then(|version| version.strip_prefix(release)).is_some_and(|rest| rest.starts_with('.'))
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
    fn a_command_is_not_told_of_which_package_this_program_is() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "cargo tells a test");
        let command = command("true", &[]);
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR", "CARGO_MANIFEST_DIR"] {
            assert!(removed.contains(&name.as_ref()), "{name} is left");
        }
    }

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
