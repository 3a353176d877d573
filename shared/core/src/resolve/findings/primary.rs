//! Findings about parked nodes that hold tags as primary, and the commands that resolve them.

use uuid::Uuid;

use crate::finding::{Finding, MAX_NAMES, join_first, rule};
use crate::fleet::Fleet;
use crate::name::TagName;
use crate::object::{Cluster, Node, NodeId};

/// Returns a hint with the commands that change which node the field `primaries` of a cluster names for these tags.
/// Other commands, such as `stemma primary set`, do not override this field.
///
/// The commands apply the whole manifest, because an apply removes what the manifest leaves out. They use `--force`,
/// because another manager may own the field.
pub fn primaries_edit_hint(cluster: &Cluster, tags: &str) -> String {
    let name = &cluster.meta.name;
    format!(
        "run `stemma get cluster {name} -o manifest > cluster.yaml`, name another node for {tags} under primaries there or leave {tags} out \
         (`primaries: {{}}` if nothing else is there), then run `stemma apply --force -f cluster.yaml`"
    )
}

/// Returns the findings about parked nodes that hold tags as primary. Checks these nodes, and omits findings that
/// existed before a change.
pub fn newly_parked_primaries(fleet_before: &Fleet, fleet_after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let find = |fleet: &Fleet, id: NodeId| {
        let node = fleet.node(id).filter(|node| fleet.parked_by(node).is_some())?;
        let cluster = fleet.resolved_parent(&node.spec).map(|resolved_group| &*resolved_group.cluster);
        primary_parked(node, cluster, &fleet.profile(id)?.key.primaries)
    };
    nodes.filter_map(|id| find(fleet_after, id).filter(|finding| find(fleet_before, id).as_ref() != Some(finding))).collect()
}

/// Returns the finding about a parked node that holds these tags of its cluster as primary, or `None` if there are no
/// tags.
pub(super) fn primary_parked(node: &Node, cluster: Option<&Cluster>, tags: &[TagName]) -> Option<Finding> {
    if tags.is_empty() {
        return None;
    }
    let (tag_list, name) = (join_first(tags.iter().map(TagName::as_str), MAX_NAMES), node.display_name());
    let release = release_hint(node, tags);
    let names: Vec<&str> = tags
        .iter()
        .filter(|tag| cluster.is_some_and(|cluster| is_named_primary(cluster, tag, node)))
        .map(TagName::as_str)
        .collect();
    let message = match cluster.filter(|_| !names.is_empty()) {
        None => format!(
            "it is parked and keeps what it holds as primary ({tag_list}); to give that to the next node by name that is not parked: {release}, or {}",
            unpark_hint(node)
        ),
        Some(cluster) => {
            let named_list = join_first(names.iter().copied(), MAX_NAMES);
            let hint = if names.len() < tags.len() { format!("; after that, for the others: {release}") } else { String::new() };
            format!(
                "it is parked and keeps what it holds as primary ({tag_list}), since primaries of cluster {} names it ({named_list}); to give that to \
                 another node, {}; or {}{hint}",
                cluster.meta.name,
                primaries_edit_hint(cluster, &named_list),
                unpark_hint(node)
            )
        }
    };
    Some(Finding::new(rule::PRIMARY_PARKED, format!("node/{name}"), message))
}

/// Returns whether a cluster's `primaries` names this node for a tag, by the node's name or uuid.
fn is_named_primary(cluster: &Cluster, tag: &TagName, node: &Node) -> bool {
    let Some(name_or_uuid) = cluster.spec.primaries.get(tag) else { return false };
    let is_name = node.meta.name.as_ref().is_some_and(|name| name.as_str() == name_or_uuid);
    is_name || Uuid::parse_str(name_or_uuid).is_ok_and(|uuid| uuid == node.meta.uuid)
}

/// Returns a hint with the command that makes a parked node release its primaries. The controller refuses the command
/// if every other node with the tag is parked. The finding does not check other nodes, so its text covers both cases.
fn release_hint(node: &Node, tags: &[TagName]) -> String {
    let (name, tag) = (node.display_name(), if let [tag] = tags { tag.as_str() } else { "TAG" });
    format!(
        "stemma node park {name} --release-primary; if no such node has the tag, first assign it to one (stemma tag assign NODE {tag})"
    )
}

fn unpark_hint(node: &Node) -> String {
    if node.spec.parked {
        format!("unpark it: stemma node unpark {}", node.display_name())
    } else {
        "unpark it on its host, where it was parked".to_owned()
    }
}
