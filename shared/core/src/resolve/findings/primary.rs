//! Findings about the nodes that hold tags as primary, and how to resolve them.

use uuid::Uuid;

use crate::finding::{Finding, MAX_NAMES, join_first, rule};
use crate::fleet::Fleet;
use crate::name::TagName;
use crate::object::{Cluster, Node, NodeId};

/// Returns the commands by which an operator makes a cluster name another node for these tags, or none. Only these
/// commands change the cluster's field `primaries`. A choice of a primary and a release of primaries do not override
/// the field.
///
/// The commands apply the whole manifest, because an apply removes what the manifest leaves out. They force it, because
/// another manager may own the field.
pub fn rename_hint(cluster: &Cluster, tags: &str) -> String {
    let name = &cluster.meta.name;
    format!(
        "run `stemma get cluster {name} -o manifest > cluster.yaml`, name another node for {tags} under primaries there or leave {tags} out \
         (`primaries: {{}}` if nothing else is there), then run `stemma apply --force -f cluster.yaml`"
    )
}

/// Returns the findings about parked nodes that hold tags as primary, for those of these nodes that had no such finding
/// before.
pub fn newly_parked_primaries(before: &Fleet, after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let find = |fleet: &Fleet, id: NodeId| {
        let node = fleet.node(id).filter(|node| fleet.parked_by(node).is_some())?;
        let cluster = fleet.resolved_parent(&node.spec).map(|resolved| &*resolved.cluster);
        primary_parked(node, cluster, &fleet.profile(id)?.key.primaries)
    };
    nodes.filter_map(|id| find(after, id).filter(|found| find(before, id).as_ref() != Some(found))).collect()
}

/// Returns the finding about a parked node that holds these tags of its cluster as primary, or `None` if there are no
/// tags.
pub(super) fn primary_parked(node: &Node, cluster: Option<&Cluster>, tags: &[TagName]) -> Option<Finding> {
    if tags.is_empty() {
        return None;
    }
    let (few, name) = (join_first(tags.iter().map(TagName::as_str), MAX_NAMES), node.display_name());
    let release = release_hint(node, tags);
    let named: Vec<&str> = tags
        .iter()
        .filter(|tag| cluster.is_some_and(|cluster| is_named_primary(cluster, tag, node)))
        .map(TagName::as_str)
        .collect();
    let message = match cluster.filter(|_| !named.is_empty()) {
        None => format!(
            "it is parked and keeps what it holds as primary ({few}); to give that to the next node by name that is not parked: {release}, or {}",
            unpark_hint(node)
        ),
        Some(cluster) => {
            let given = join_first(named.iter().copied(), MAX_NAMES);
            let rest = if named.len() < tags.len() { format!("; after that, for the others: {release}") } else { String::new() };
            format!(
                "it is parked and keeps what it holds as primary ({few}), since primaries of cluster {} names it ({given}); to give that to \
                 another node, {}; or {}{rest}",
                cluster.meta.name,
                rename_hint(cluster, &given),
                unpark_hint(node)
            )
        }
    };
    Some(Finding::new(rule::PRIMARY_PARKED, format!("node/{name}"), message))
}

/// Returns whether a cluster's `primaries` names this node for a tag, by the node's name or uuid.
fn is_named_primary(cluster: &Cluster, tag: &TagName, node: &Node) -> bool {
    let Some(named) = cluster.spec.primaries.get(tag) else { return false };
    let is_name = node.meta.name.as_ref().is_some_and(|name| name.as_str() == named);
    is_name || Uuid::parse_str(named).is_ok_and(|uuid| uuid == node.meta.uuid)
}

/// Returns the command that makes a parked node release its primaries. The controller refuses the command if no other
/// node that is not parked has the tag. The finding does not look at other nodes, so its text covers both cases.
fn release_hint(node: &Node, tags: &[TagName]) -> String {
    let (name, tag) = (node.display_name(), if let [tag] = tags { tag.as_str() } else { "TAG" });
    format!(
        "stemma node park {name} --release-primary; if no such node has the tag, first assign it to one (stemma tag assign NODE {tag})"
    )
}

/// Returns how to unpark a node.
fn unpark_hint(node: &Node) -> String {
    if node.spec.parked {
        format!("unpark it: stemma node unpark {}", node.display_name())
    } else {
        "unpark it on its host, where it was parked".to_owned()
    }
}
