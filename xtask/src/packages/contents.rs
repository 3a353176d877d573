//! What stands where in which package: one table for both forms.

/// What stands in a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Its program from where cargo built it, with the program's manual pages, each below the directory of its section, and completions.
    Program,
    /// A unit, where each form has them.
    Unit(&'static str),
    /// A file of the repository, and its place.
    File(&'static str, &'static str),
    /// The same of a program.
    Executable(&'static str, &'static str),
    /// Each file of a directory of the repository, by its name, and their directory.
    Each(&'static str, &'static str),
}

use Content::{Each, Executable, File, Program, Unit};

/// All of it, by package. The first has no other below it.
pub(super) const PACKAGES: [(&str, &[Content]); 3] = [
    (
        "stemma",
        &[
            Program,
            Each("docs", "usr/share/doc/stemma/docs"),
            File("examples/nodes.yaml", "usr/share/doc/stemma/examples/nodes.yaml"),
            Each("examples/site", "usr/share/doc/stemma/examples/site"),
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
            File("systemd/stemma.catalog", "usr/lib/systemd/catalog/stemma-agent.catalog"),
        ],
    ),
    (
        "stemma-controller",
        &[
            Program,
            File("packaging/files/controller.toml", "etc/stemma/controller.toml"),
            Executable("packaging/files/first-fleet", "usr/lib/stemma/first-fleet"),
            File(
                "packaging/files/stemma-controller.preset",
                "usr/lib/systemd/system-preset/80-stemma-controller.preset",
            ),
            File("packaging/files/stemma-controller.sysusers", "usr/lib/sysusers.d/stemma-controller.conf"),
            File("packaging/files/stemma-controller.tmpfiles", "usr/lib/tmpfiles.d/stemma-controller.conf"),
            Unit("stemma-controller.service"),
            Unit("stemma-controller-admin.socket"),
            Unit("stemma-controller-agents.socket"),
            Unit("stemma-controller-root.socket"),
            Unit("stemma-extension@.service"),
            Unit("stemma-extension@.socket"),
            File("systemd/stemma.catalog", "usr/lib/systemd/catalog/stemma-controller.catalog"),
        ],
    ),
];

/// In which package a manual page stands.
pub(super) fn owner(page: &str) -> &'static str {
    let is_of = |program: &str| page.strip_prefix(program).is_some_and(|rest| rest.starts_with(['.', '-']));
    ["stemma-agent", "stemma-controller"].into_iter().find(|program| is_of(program)).unwrap_or("stemma")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::root;

    #[test]
    fn every_unit_and_every_file_of_packaging_stands_in_a_package() {
        let named: Vec<String> = PACKAGES
            .iter()
            .flat_map(|(_, contents)| *contents)
            .filter_map(|content| match content {
                File(path, _) | Executable(path, _) => Some((*path).to_owned()),
                Unit(name) => Some(format!("systemd/{name}")),
                Program | Each(..) => None,
            })
            .collect();
        for directory in ["systemd", "packaging/files"] {
            for entry in std::fs::read_dir(root().join(directory)).unwrap() {
                let path = format!("{directory}/{}", entry.unwrap().file_name().to_string_lossy());
                assert!(named.contains(&path), "{path} stands in no package");
            }
        }
        for path in named {
            assert!(root().join(&path).is_file(), "{path}");
        }
    }

    #[test]
    fn a_page_belongs_to_its_program() {
        for (page, program) in [
            ("stemma.1", "stemma"),
            ("stemma-apply.1", "stemma"),
            ("stemma-agent.8", "stemma-agent"),
            ("stemma-agent-join.8", "stemma-agent"),
            ("stemma-controller.toml.5", "stemma-controller"),
            ("stemma-manifest.5", "stemma"),
        ] {
            assert_eq!(owner(page), program, "{page}");
        }
    }
}
