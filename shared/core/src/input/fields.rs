//! The fields of `node`, of `cluster` and of the nodes that a look-up returns.
//!
//! There are few fields on purpose. Each field that a template reads is an input. An input that changes often would
//! change the digest of each task that reads it, and so roll the task out again. A node that a look-up returns also has
//! `labels` and `facts`, but no properties, no label that its host or an inspection rule set, and no fact that is free
//! text, because the report of another host is shared only as typed values.

use super::facts;
use super::path::Path;

/// A field of `node`, of `cluster`, or of a node that a look-up returns. Templates and conditions can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadableField {
    /// The keys that lead to the field, joined by dots. `*` matches any single key.
    pub path: &'static str,
    /// A short description.
    pub title: &'static str,
}

/// The error for a path that a template or condition cannot read. The path is below `node`, `cluster` or a node of a
/// look-up (`nodes(…)`, `primary(…)`).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownField {
    /// The field does not exist.
    #[error("`{root}{path}` does not exist; {root} has {}", joined_paths(.known))]
    Missing {
        /// The root of the path: `node`, `cluster`, or the name of the look-up, such as `nodes`.
        root: &'static str,
        /// The path that was requested.
        path: Path,
        /// The fields that exist.
        known: &'static [ReadableField],
    },
    /// The path reads a fact of another host that is free text or not stable, or it is `facts` alone.
    #[error("fact `{}` of another host cannot be read: only stable facts that are not free text are shared between hosts", .path.to_string().trim_start_matches('.'))]
    Fact {
        /// The path below the node, beginning with `facts`.
        path: Path,
    },
}

/// Creates an entry of a list of fields.
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

/// Checks that a template or condition can read a path below `node`.
///
/// # Errors
/// [`UnknownField::Missing`], which lists the fields.
pub fn check_node(path: &Path) -> Result<(), UnknownField> {
    check_root("node", NODE_FIELDS, path)
}

/// Checks that a template or condition can read a path below `cluster`.
///
/// # Errors
/// [`UnknownField::Missing`], which lists the fields.
pub fn check_cluster(path: &Path) -> Result<(), UnknownField> {
    check_root("cluster", CLUSTER_FIELDS, path)
}

/// Checks that a template or condition can read a path of a node that a look-up returns. `function` is the name of the
/// look-up, such as `nodes`.
///
/// # Errors
/// [`UnknownField`] if the field does not exist, or is a fact that is not shared with other hosts.
pub fn check_lookup(function: &'static str, path: &Path) -> Result<(), UnknownField> {
    let [first_key, fact_keys @ ..] = path.keys() else { unreachable!("a path is never empty") };
    if &**first_key != "facts" {
        return check_root(function, LOOKUP_FIELDS, path);
    }
    let is_shared = Path::new(fact_keys.iter().cloned())
        .and_then(|fact| facts::stable_facts(&fact).ok())
        .is_some_and(|matching_facts| matching_facts.iter().all(|fact| fact.fact_type.is_shareable()));
    if is_shared { Ok(()) } else { Err(UnknownField::Fact { path: path.clone() }) }
}

/// Fails if a path is not the path of one of these fields. `root` is the name before the path, for the error.
fn check_root(root: &'static str, fields: &'static [ReadableField], path: &Path) -> Result<(), UnknownField> {
    let has_path = |field: &ReadableField| {
        let mut segments = field.path.split('.');
        path.keys().iter().all(|key| segments.next().is_some_and(|segment| segment == "*" || segment == &**key))
            && segments.next().is_none()
    };
    if fields.iter().any(has_path) {
        return Ok(());
    }
    Err(UnknownField::Missing { root, path: path.clone(), known: fields })
}

/// Joins the paths of fields with commas, for a message.
fn joined_paths(fields: &[ReadableField]) -> String {
    fields.iter().map(|field| field.path).collect::<Vec<_>>().join(", ")
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
        for (dotted, is_shared) in [
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
            assert_eq!(check_lookup("nodes", &path(dotted)).is_ok(), is_shared, "{dotted}");
        }
    }
}
