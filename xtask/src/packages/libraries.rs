//! Checks that each package requires the shared libraries of its program.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::contents::PACKAGES;

/// The shared libraries that a program may need, each as the part of its file name before `.so`, with the Debian package
/// that contains it.
const LIBRARIES: [(&str, &str); 5] = [
    ("libc", "libc6"),
    ("libm", "libc6"),
    ("libgcc_s", "libgcc-s1"),
    ("ld-linux-x86-64", "libc6"),
    ("ld-linux-aarch64", "libc6"),
];

/// Checks the packages in `packed`, whose programs are in the directory `programs`. Fails if a program needs a library
/// that is not in [`LIBRARIES`], or that its .deb or .rpm does not require.
pub(super) fn check_libraries(programs: &Path, packed: &[PathBuf]) -> Result<()> {
    for (package, _) in PACKAGES {
        let program = programs.join(package);
        let headers = output_of(Command::new("objdump").arg("-p").arg(&program))?;
        let libraries: Vec<&str> = headers.lines().filter_map(|line| line.trim().strip_prefix("NEEDED")).map(str::trim).collect();
        ensure!(!libraries.is_empty(), "{}: it needs no shared library, not even libc", program.display());
        let depends = output_of(Command::new("dpkg-deb").arg("--field").arg(find(packed, package, "_", "deb")?).arg("Depends"))?;
        let requires =
            output_of(Command::new("rpm").args(["-q", "--requires", "--package"]).arg(find(packed, package, "-", "rpm")?))?;
        for library in libraries {
            let debian_package =
                debian_package_of(library).with_context(|| format!("{package} needs {library}: allow it here"))?;
            let is_required = depends.split(',').any(|item| item.split_whitespace().next() == Some(debian_package));
            ensure!(is_required, "{package}.deb needs {library}, and does not depend on {debian_package}: {depends}");
            ensure!(
                requires.lines().any(|line| line.starts_with(library)),
                "{package}.rpm does not require {library}:\n{requires}"
            );
        }
    }
    println!("== shared libraries: each is required");
    Ok(())
}

/// Returns the Debian package of a library, such as `libgcc_s.so.1`. Returns `None` if no program may need the library.
fn debian_package_of(library: &str) -> Option<&'static str> {
    let (name, _) = library.split_once(".so")?;
    LIBRARIES.iter().find(|(known, _)| *known == name).map(|(_, package)| *package)
}

/// Returns the path of a package in one format. Its version begins after the name and `separator`.
fn find<'a>(packed: &'a [PathBuf], package: &str, separator: &str, extension: &str) -> Result<&'a PathBuf> {
    let is_package = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let version = name.strip_prefix(package).and_then(|rest| rest.strip_prefix(separator)).unwrap_or_default();
        version.starts_with(|first: char| first.is_ascii_digit()) && path.extension().is_some_and(|found| found == extension)
    };
    packed.iter().find(is_package).with_context(|| format!("{package}: no .{extension}"))
}

/// Returns the standard output of a program that must succeed.
fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_package_of_returns_package_of_allowed_library() {
        for (library, package) in [
            ("libc.so.6", Some("libc6")),
            ("libm.so.6", Some("libc6")),
            ("ld-linux-x86-64.so.2", Some("libc6")),
            ("ld-linux-aarch64.so.1", Some("libc6")),
            ("libgcc_s.so.1", Some("libgcc-s1")),
            ("libssl.so.3", None),
            ("libcap.so.2", None),
            ("libmount.so.1", None),
        ] {
            assert_eq!(debian_package_of(library), package, "{library}");
        }
    }

    #[test]
    fn find_distinguishes_packages_with_common_prefix() {
        let packed: Vec<PathBuf> = ["stemma-agent-0.1.0-1.x86_64.rpm", "stemma-0.1.0-1.x86_64.rpm", "stemma_0.1.0-1_amd64.deb"]
            .iter()
            .map(PathBuf::from)
            .collect();
        assert_eq!(find(&packed, "stemma", "-", "rpm").unwrap(), &packed[1]);
        assert_eq!(find(&packed, "stemma", "_", "deb").unwrap(), &packed[2]);
        assert!(find(&packed, "stemma-agent", "_", "deb").is_err());
    }
}
