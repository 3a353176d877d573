//! The fields of `node`, of `cluster` and of the nodes that a look-up returns.
//!
//! There are few on purpose. Each field that a template reads is an input, and one that changes often would roll the
//! tasks that read it. A look-up's nodes have fewer fields than the host itself, because what another host reported is
//! shared only as a typed value.

use super::facts;
use super::path::Path;

/// A field that templates and conditions can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadableField {
    /// The keys, joined by dots. `*` stands for any one key.
    pub path: &'static str,
    /// A short description.
    pub title: &'static str,
}

/// An error in a path below `node`, `cluster` or a look-up's node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownField {
    /// The field does not exist.
    #[error("`{root}{path}` does not exist; {root} has {}", joined_paths(.known))]
    Missing {
        /// The root of the path: `node`, `cluster`, or the look-up's function.
        root: &'static str,
        /// The path that was requested.
        path: Path,
        /// The fields that exist.
        known: &'static [ReadableField],
    },
    /// The field is a fact of another host that is free text or not stable.
    #[error("fact `{}` of another host cannot be read: only stable facts that are not free text are shared between hosts", .path.to_string().trim_start_matches('.'))]
    Fact {
        /// The path below the node, beginning with `facts`.
        path: Path,
    },
}

const fn field(path: &'static str, title: &'static str) -> ReadableField {
    ReadableField { path, title }
}

/// The fields of `node`, the host itself.
pub const NODE_FIELDS: &[ReadableField] = &[
    field("address", "the fact network.address"),
    field("hostname", "the fact hostname"),
    field("name", "name of the node"),
    field("nodegroup", "name of its group, absent without one"),
    field("properties.*", "a property that an operator or an inspection set"),
    field("roles", "names of its roles and its group's, sorted"),
    field("uuid", "uuid of the node"),
];

/// The fields of `cluster`.
pub const CLUSTER_FIELDS: &[ReadableField] = &[
    field("name", "name of the cluster"),
    field("release", "the cluster's release as NAME@VERSION"),
    field("uuid", "uuid of the cluster"),
];

/// The fields of the nodes that `nodes(…)` and `primary(…)` return.
pub(crate) const LOOKUP_FIELDS: &[ReadableField] = &[
    field("address", "the fact network.address"),
    field("facts.*", "a stable fact that is not free text"),
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
    check_root("node", NODE_FIELDS, path)
}

/// Checks a path below `cluster`.
///
/// # Errors
/// [`UnknownField::Missing`], which lists the fields.
pub fn check_cluster(path: &Path) -> Result<(), UnknownField> {
    check_root("cluster", CLUSTER_FIELDS, path)
}

/// Checks a path below a node of a look-up. `function` is the look-up's function.
///
/// # Errors
/// [`UnknownField`] if the field does not exist, or is a fact that is not shared with other hosts.
pub fn check_lookup(function: &'static str, path: &Path) -> Result<(), UnknownField> {
    let [first, rest @ ..] = path.keys() else { unreachable!("a path is never empty") };
    if &**first != "facts" {
        return check_root(function, LOOKUP_FIELDS, path);
    }
    let is_shared = Path::new(rest.iter().cloned())
        .and_then(|fact| facts::stable_facts(&fact).ok())
        .is_some_and(|matching| matching.iter().all(|fact| fact.fact_type.is_shareable()));
    if is_shared { Ok(()) } else { Err(UnknownField::Fact { path: path.clone() }) }
}

/// Checks a path against the fields of a root.
fn check_root(root: &'static str, known: &'static [ReadableField], path: &Path) -> Result<(), UnknownField> {
    let fits = |field: &ReadableField| {
        let mut segments = field.path.split('.');
        path.keys().iter().all(|key| segments.next().is_some_and(|segment| segment == "*" || segment == &**key))
            && segments.next().is_none()
    };
    if known.iter().any(fits) {
        return Ok(());
    }
    Err(UnknownField::Missing { root, path: path.clone(), known })
}

fn joined_paths(known: &[ReadableField]) -> String {
    known.iter().map(|field| field.path).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dotted: &str) -> Path {
        Path::new(dotted.split('.')).expect("a path of the test")
    }

    #[test]
    fn check_accepts_only_listed_fields() {
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
    fn check_lookup_rejects_free_text_of_another_host() {
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
