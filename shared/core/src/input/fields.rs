//! Which fields `node`, `cluster` and the nodes of a look-up have.
//!
//! Few on purpose: each one that a template reads is an input, and one that changes often would roll what
//! reads it. A look-up's nodes have fewer than the host itself, since what another host reported crosses
//! only as a typed value.

use super::facts;
use super::path::Path;

/// A field: its keys joined by dots (`*` any one key), and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its keys joined by dots; `*` stands for any one key.
    pub path: &'static str,
    /// What it holds.
    pub title: &'static str,
}

/// What a root has no field for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownField {
    /// No such field.
    #[error("`{root}{path}` does not exist; {root} has {}", paths(.known))]
    Missing {
        /// What was asked: `node`, `cluster`, or the look-up's function.
        root: &'static str,
        /// The path that was asked for.
        path: Path,
        /// What there is.
        known: &'static [Field],
    },
    /// A fact of another host that is free text or not stable.
    #[error("fact `{}` of another host cannot be read: only stable facts that are no free text cross hosts", .path.to_string().trim_start_matches('.'))]
    Fact {
        /// The path below the node, `facts` first.
        path: Path,
    },
}

const fn field(path: &'static str, title: &'static str) -> Field {
    Field { path, title }
}

/// The fields of `node`, the host itself.
pub const NODE: &[Field] = &[
    field("address", "the fact network.address"),
    field("hostname", "the fact hostname"),
    field("name", "name of the node"),
    field("nodegroup", "name of its group, absent without one"),
    field("properties.*", "a property that an operator or an inspection set"),
    field("roles", "names of its roles and its group's, sorted"),
    field("uuid", "uuid of the node"),
];

/// The fields of `cluster`.
pub const CLUSTER: &[Field] = &[
    field("name", "name of the cluster"),
    field("release", "the cluster's release as NAME@VERSION"),
    field("uuid", "uuid of the cluster"),
];

/// The fields of the nodes that `nodes(…)` and `primary(…)` give.
pub(crate) const LOOKUP: &[Field] = &[
    field("address", "the fact network.address"),
    field("facts.*", "a stable fact that is no free text"),
    field("hostname", "the fact hostname"),
    field("labels.*", "an effective label that the node's host did not report"),
    field("name", "name of the node"),
    field("nodegroup", "name of its group"),
    field("roles", "names of its roles and its group's, sorted"),
    field("uuid", "uuid of the node"),
];

/// Checks a path below `node`.
///
/// # Errors
/// [`UnknownField::Missing`], which lists the fields.
pub fn check_node(path: &Path) -> Result<(), UnknownField> {
    check("node", NODE, path)
}

/// Checks a path below `cluster`.
///
/// # Errors
/// [`UnknownField::Missing`], which lists the fields.
pub fn check_cluster(path: &Path) -> Result<(), UnknownField> {
    check("cluster", CLUSTER, path)
}

/// Checks a path below a node of a look-up; `function` is the one that was called.
///
/// # Errors
/// [`UnknownField`]: no such field, or a fact that does not cross hosts.
pub fn check_lookup(function: &'static str, path: &Path) -> Result<(), UnknownField> {
    let [first, rest @ ..] = path.keys() else { unreachable!("a path is never empty") };
    if &**first != "facts" {
        return check(function, LOOKUP, path);
    }
    let crossing = Path::new(rest.iter().cloned())
        .and_then(|fact| facts::stable(&fact).ok())
        .is_some_and(|found| found.iter().all(|fact| fact.kind.crosses()));
    if crossing { Ok(()) } else { Err(UnknownField::Fact { path: path.clone() }) }
}

fn check(root: &'static str, known: &'static [Field], path: &Path) -> Result<(), UnknownField> {
    let fits = |field: &Field| {
        let mut own = field.path.split('.');
        path.keys().iter().all(|key| own.next().is_some_and(|mine| mine == "*" || mine == &**key))
            && own.next().is_none()
    };
    if known.iter().any(fits) {
        return Ok(());
    }
    Err(UnknownField::Missing { root, path: path.clone(), known })
}

fn paths(known: &[Field]) -> String {
    known.iter().map(|field| field.path).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dotted: &str) -> Path {
        Path::new(dotted.split('.')).expect("a path of the test")
    }

    #[test]
    fn only_what_is_listed_can_be_read() {
        assert_eq!(check_node(&path("properties.memory_mb")), Ok(()));
        assert_eq!(
            check_cluster(&path("nam")).unwrap_err().to_string(),
            "`cluster.nam` does not exist; cluster has name, release, uuid"
        );
        for dotted in ["properties", "properties.a.b", "labels.x", "name.x"] {
            assert!(check_node(&path(dotted)).is_err(), "{dotted}");
        }
    }

    #[test]
    fn free_text_of_another_host_never_crosses() {
        for (dotted, crosses) in [
            ("facts.network.address", true),
            ("facts.cpu.count", true),
            ("facts.hostname", true),
            ("facts.cpu", false),
            ("facts.cpu.model", false),
            ("facts.uptime", false),
            ("facts", false),
            ("labels.zone", true),
            ("labels", false),
            ("params.x", false),
        ] {
            assert_eq!(check_lookup("nodes", &path(dotted)).is_ok(), crosses, "{dotted}");
        }
    }
}
