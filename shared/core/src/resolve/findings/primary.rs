//! What is odd about who holds the tags of a cluster as primary, and what mends it.

use uuid::Uuid;

use crate::finding::{FEW, Finding, first_few, rule};
use crate::fleet::Fleet;
use crate::name::TagName;
use crate::object::{Cluster, Node, NodeId};

/// How a cluster comes to name another node for these tags, or none: nothing else changes its field `primaries`, and neither a choice nor
/// a release of primaries overrules it.
///
/// The whole manifest is applied, since an apply takes back what it leaves out. It is forced, since another manager may own the field.
pub fn naming_another(cluster: &Cluster, tags: &str) -> String {
    let name = &cluster.meta.name;
    format!(
        "run `stemma get cluster {name} -o manifest > cluster.yaml`, name another node for {tags} under primaries there or leave {tags} out \
         (`primaries: {{}}` where nothing else stands there), then run `stemma apply --force -f cluster.yaml`"
    )
}

/// The findings of these nodes that hold tags as primary and are parked, where that was not so before.
pub fn newly_parked_primaries(before: &Fleet, after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let of = |fleet: &Fleet, id: NodeId| {
        let node = fleet.node(id).filter(|node| fleet.parked(node).is_some())?;
        let cluster = fleet.fold_above(&node.spec).map(|fold| &*fold.cluster);
        primary_parked(node, cluster, &fleet.profile(id)?.place.primaries)
    };
    nodes.filter_map(|id| of(after, id).filter(|found| of(before, id).as_ref() != Some(found))).collect()
}

/// The finding of a parked node that holds these tags of its cluster as primary; none where it holds none.
pub(super) fn primary_parked(node: &Node, cluster: Option<&Cluster>, tags: &[TagName]) -> Option<Finding> {
    if tags.is_empty() {
        return None;
    }
    let (few, name) = (first_few(tags.iter().map(TagName::as_str), FEW), node.display_name());
    let release = releasing(node, tags);
    let named: Vec<&str> = tags
        .iter()
        .filter(|tag| cluster.is_some_and(|cluster| names(cluster, tag, node)))
        .map(TagName::as_str)
        .collect();
    let message = match cluster.filter(|_| !named.is_empty()) {
        None => format!(
            "it is parked and keeps what it holds as primary ({few}); to give that to the next node by name that is not parked: {release}, or {}",
            unparking(node)
        ),
        Some(cluster) => {
            let given = first_few(named.iter().copied(), FEW);
            let rest = if named.len() < tags.len() {
                format!("; after that, for the others: {release}")
            } else {
                String::new()
            };
            format!(
                "it is parked and keeps what it holds as primary ({few}), since primaries of cluster {} names it ({given}); to give that to \
                 another node, {}; or {}{rest}",
                cluster.meta.name,
                naming_another(cluster, &given),
                unparking(node)
            )
        }
    };
    Some(Finding::of(rule::PRIMARY_PARKED, format!("node/{name}"), message))
}

/// Whether a cluster names this node for a tag, by its name or by its uuid.
fn names(cluster: &Cluster, tag: &TagName, node: &Node) -> bool {
    let Some(named) = cluster.spec.primaries.get(tag) else { return false };
    let is_name = node.meta.name.as_ref().is_some_and(|own| own.as_str() == named);
    is_name || Uuid::parse_str(named).is_ok_and(|uuid| uuid == node.meta.uuid)
}

/// How a parked node gives up what it holds as primary. The controller refuses that where no other node that is not parked has the tag; whether
/// there is one changes with other nodes, and this is said of one.
fn releasing(node: &Node, tags: &[TagName]) -> String {
    let (name, tag) = (node.display_name(), if let [tag] = tags { tag.as_str() } else { "TAG" });
    format!(
        "stemma node park {name} --release-primary; where no such node has the tag, first give it to one (stemma tag assign NODE {tag})"
    )
}

/// How a parked node is taken back in.
fn unparking(node: &Node) -> String {
    if node.spec.parked {
        format!("unpark it: stemma node unpark {}", node.display_name())
    } else {
        "end that on its host, where it was parked".to_owned()
    }
}
