//! The contents of each package, in one table for .deb and .rpm.

/// A part of a package's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackageContent {
    /// The package's program as cargo built it, with its manual pages and its completions. Each manual page is
    /// installed in the directory of its section.
    Program,
    /// A systemd unit, which is installed in the unit directory of the package format.
    Unit(&'static str),
    /// A file of the repository, and its installed path.
    File(&'static str, &'static str),
    /// A program of the repository, and its installed path.
    Executable(&'static str, &'static str),
    /// All files of a directory of the repository, and the directory they are installed in.
    Directory(&'static str, &'static str),
}

use PackageContent::{Directory, Executable, File, Program, Unit};

/// The name and the contents of each package. The first package depends on none of the others.
pub(super) const PACKAGES: [(&str, &[PackageContent]); 3] = [
    (
        "stemma",
        &[
            Program,
            Directory("docs", "usr/share/doc/stemma/docs"),
            File("examples/nodes.yaml", "usr/share/doc/stemma/examples/nodes.yaml"),
            Directory("examples/site", "usr/share/doc/stemma/examples/site"),
        ],
    ),
    (
        "stemma-agent",
        &[
            Program,
            File("packaging/files/agent.toml", "etc/stemma/agent.toml"),
            File("packaging/files/stemma-agent.preset", "usr/lib/systemd/system-preset/80-stemma-agent.preset"),
            File("packaging/files/stemma-agent.tmpfiles", "usr/lib/tmpfiles.d/stemma-agent.conf"),
            Unit("stemma-agent.service"),
            Unit("stemma-labels.service"),
            Unit("stemma-applied.target"),
            File("systemd/stemma-agent.catalog", "usr/lib/systemd/catalog/stemma-agent.catalog"),
        ],
    ),
    (
        "stemma-controller",
        &[
            Program,
            File("packaging/files/controller.toml", "etc/stemma/controller.toml"),
            Executable("packaging/files/first-fleet", "usr/lib/stemma/first-fleet"),
            File("packaging/files/stemma-controller.preset", "usr/lib/systemd/system-preset/80-stemma-controller.preset"),
            File("packaging/files/stemma-controller.sysusers", "usr/lib/sysusers.d/stemma-controller.conf"),
            File("packaging/files/stemma-controller.tmpfiles", "usr/lib/tmpfiles.d/stemma-controller.conf"),
            Unit("stemma-controller.service"),
            Unit("stemma-controller-init.service"),
            Unit("stemma-controller-sockets.target"),
            Unit("stemma-controller-admin.socket"),
            Unit("stemma-controller-agents.socket"),
            Unit("stemma-controller-root.socket"),
            Unit("stemma-extension@.service"),
            Unit("stemma-extension@.socket"),
            File("systemd/stemma-controller.catalog", "usr/lib/systemd/catalog/stemma-controller.catalog"),
            File("packaging/files/stemma.rules.yml", "usr/share/stemma/prometheus/stemma.rules.yml"),
            File("packaging/files/stemma-dashboard.json", "usr/share/stemma/grafana/stemma.json"),
        ],
    ),
];

/// Returns the package that contains a manual page.
pub(super) fn package_of_page(page: &str) -> &'static str {
    let is_page_of = |program: &str| page.strip_prefix(program).is_some_and(|rest| rest.starts_with(['.', '-']));
    ["stemma-agent", "stemma-controller"].into_iter().find(|program| is_page_of(program)).unwrap_or("stemma")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::workspace_root;

    #[test]
    fn packages_contain_every_unit_and_packaging_file() {
        let paths: Vec<String> = PACKAGES
            .iter()
            .flat_map(|(_, contents)| *contents)
            .filter_map(|content| match content {
                File(path, _) | Executable(path, _) => Some((*path).to_owned()),
                Unit(name) => Some(format!("systemd/{name}")),
                Program | Directory(..) => None,
            })
            .collect();
        for directory in ["systemd", "packaging/files"] {
            for entry in std::fs::read_dir(workspace_root().join(directory)).unwrap() {
                let path = format!("{directory}/{}", entry.unwrap().file_name().to_string_lossy());
                assert!(paths.contains(&path), "{path} is in no package");
            }
        }
        for path in paths {
            assert!(workspace_root().join(&path).is_file(), "{path}");
        }
    }

    #[test]
    fn package_of_page_returns_package_of_program() {
        for (page, program) in [
            ("stemma.1", "stemma"),
            ("stemma-apply.1", "stemma"),
            ("stemma-agent.8", "stemma-agent"),
            ("stemma-agent-join.8", "stemma-agent"),
            ("stemma-controller.toml.5", "stemma-controller"),
            ("stemma-manifest.5", "stemma"),
        ] {
            assert_eq!(package_of_page(page), program, "{page}");
        }
    }
}
