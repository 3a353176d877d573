//! Primaries of tags: which ones a write keeps, which it moves, and which a caller chooses.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::access::AccessScope;
use stemma_core::fleet::{self, AwaitedPrimary, LostNodeName, MovedPrimary, PrimaryRejection};
use stemma_core::name::TagName;
use stemma_core::object::{Cluster, ClusterId, Kind, Node, NodeId, PrincipalRole, TemplateId};
use stemma_core::resolve::rename_hint;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::PendingWrite;
use crate::registry::DecisionError;

impl PendingWrite<'_> {
    /// Asks extensions to decide the tags of the roles that nodes get by the write. Then stores which nodes hold tags
    /// as primary, where the write requires that this is stored.
    ///
    /// # Errors
    /// As [`PendingWrite::decide_tags`].
    pub fn resolve_tags(&mut self) -> Result<(), DecisionError> {
        self.decide_tags()?;
        self.store_held_primaries()?;
        Ok(self.store_named_primaries()?)
    }

    /// Stores the holder of a tag if it is not stored yet and the node would lose the tag as primary by this write,
    /// though it still has the tag.
    fn store_held_primaries(&mut self) -> Result<(), ApiError> {
        let (before, after) = (&self.context.full_model.fleet, &self.model.fleet);
        let clusters: BTreeSet<ClusterId> = self.reached_nodes().filter_map(|node| before.cluster_of_node(node)).collect();
        let mut chosen = Vec::new();
        for cluster in clusters {
            let moved = before.unstored_holders(cluster).into_iter().filter(|(tag, node)| {
                after.holder(cluster, tag.as_str()) != Some(*node)
                    && after.can_hold(cluster, tag, *node)
                    && !after.is_newly_chosen(before, cluster, tag)
            });
            chosen.extend(moved.map(|(tag, node)| (cluster, tag, node)));
        }
        chosen.into_iter().try_for_each(|(cluster, tag, node)| self.set_primary(cluster, &tag, node))
    }

    /// Stores the holder of a tag if the cluster's `primaries` names another node or no node after this write. The
    /// choice is stored in the same write, so that later writes can build on it.
    fn store_named_primaries(&mut self) -> Result<(), ApiError> {
        let (before, after) = (&self.context.full_model.fleet, &self.model.fleet);
        let mut named = Vec::new();
        for (_, uuid) in self.written_objects().filter(|(kind, _)| *kind == Kind::Cluster) {
            let cluster = ClusterId(uuid);
            let is_changed =
                |tag: &TagName| before.named_primary(cluster, tag.as_str()) != after.named_primary(cluster, tag.as_str());
            let unstored = after.unstored_holders(cluster).into_iter().filter(|(tag, _)| is_changed(tag));
            named.extend(unstored.map(|(tag, node)| (cluster, tag, node)));
        }
        named.into_iter().try_for_each(|(cluster, tag, node)| self.set_primary(cluster, &tag, node))
    }

    /// Returns the primaries that the write moves to other nodes. Leaves out those that the caller may not see.
    pub fn moved_primaries(&self) -> Vec<MovedPrimary> {
        let mut moved = fleet::moved_primaries(&self.context.full_model.fleet, &self.model.fleet, self.visible_hosts());
        if let Some(cluster) = self.context.caller.requester.rights.cluster {
            moved.retain(|primary| primary.cluster == cluster);
        }
        moved
    }

    /// Refuses to rename a node that its cluster names in `primaries`. The entry is not renamed with the node: the
    /// field holds names, because it may name a node that does not exist yet, and its author would write the old name
    /// again.
    pub(super) fn check_names(&self) -> Result<(), ApiError> {
        let nodes = self.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        let lost = fleet::lost_node_name(&self.context.full_model.fleet, &self.model.fleet, nodes);
        lost.map_or(Ok(()), |lost| Err(self.lost_name_refusal(&lost)))
    }

    /// Refuses an entry of a cluster's `primaries` that the write adds or changes and that cannot be obeyed. The whole
    /// write is considered, since one apply may contain the cluster, its nodes and their tags. If a later write can
    /// repair an entry, or has broken it, the cluster gets a finding instead.
    pub(super) fn check_primaries(&self) -> Result<(), ApiError> {
        let (before, after) = (&self.context.full_model.fleet, &self.model.fleet);
        for (_, uuid) in self.written_objects().filter(|(kind, _)| *kind == Kind::Cluster) {
            let Some(cluster) = after.cluster(ClusterId(uuid)) else { continue };
            let old = before.cluster(ClusterId(uuid)).map(|cluster| &cluster.spec.primaries);
            let is_new = |tag: &TagName, node: &String| old.and_then(|old| old.get(tag)) != Some(node);
            for (tag, node) in cluster.spec.primaries.iter().filter(|(tag, node)| is_new(tag, node)) {
                let why = after.primary_rejection(cluster, tag, node).map(|why| self.visible_reason(why, node));
                if let Some(why) = why.filter(|why| why.is_permanent()) {
                    return Err(not_obeyed_refusal(cluster, tag, node, why));
                }
            }
        }
        Ok(())
    }

    /// Refuses entries of `primaries` that bring a privileged task to a node that does not exist yet, unless an admin
    /// makes the write. No rights are checked when a host joins under that name.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the task and the entry.
    pub(super) fn check_awaited_primaries(&self) -> Result<(), ApiError> {
        if self.placement_role == PrincipalRole::Admin {
            return Ok(());
        }
        let (before, after) = (&self.context.full_model.fleet, &self.model.fleet);
        let written = self.written_objects().filter(|(kind, _)| *kind == Kind::Cluster).map(|(_, uuid)| ClusterId(uuid));
        let below = self.changed_folds().filter_map(|group| after.cluster_of_group(group));
        let clusters: BTreeSet<ClusterId> = written.chain(below).chain(self.clusters_of_templates()).collect();
        for cluster in clusters {
            let awaited = after.awaited_primaries(cluster);
            if awaited.is_empty() {
                continue;
            }
            let known = before.awaited_primaries(cluster);
            if let Some(new) = awaited.difference(&known).next() {
                return Err(self.privileged_refusal(cluster, new));
            }
        }
        Ok(())
    }

    /// Returns the clusters of the written templates. This includes clusters without groups, which no changed group
    /// would reveal.
    pub(super) fn clusters_of_templates(&self) -> Vec<ClusterId> {
        let written = self.written_objects().filter(|(kind, _)| *kind == Kind::ClusterTemplate);
        let templates: BTreeSet<TemplateId> = written.map(|(_, uuid)| TemplateId(uuid)).collect();
        if templates.is_empty() {
            return Vec::new();
        }
        let is_below =
            |cluster: &&Arc<Cluster>| cluster.spec.cluster_template.is_some_and(|template| templates.contains(&template));
        self.model.fleet.clusters().filter(is_below).map(|cluster| ClusterId(cluster.meta.uuid)).collect()
    }

    /// Makes the commit depend on the state that new entries of `primaries` were checked with, even if no primary moves
    /// yet. The entries decide who holds the tag once a node joins or a group gets another release. So the write counts
    /// as one that extends the cluster (`order`), and the releases that declare which tags have a primary must be
    /// unchanged.
    pub(super) fn guard_named_primaries(&mut self) {
        let (before, after) = (&self.context.full_model.fleet, &self.model.fleet);
        let named = |fleet: &fleet::Fleet, cluster: ClusterId| {
            fleet.cluster(cluster).map(|cluster| cluster.spec.primaries.clone()).unwrap_or_default()
        };
        let written = self.written_objects().filter(|(kind, _)| *kind == Kind::Cluster).map(|(_, uuid)| ClusterId(uuid));
        let changed: Vec<ClusterId> = written.filter(|id| named(before, *id) != named(after, *id)).collect();
        for cluster in &changed {
            self.require_releases(*cluster);
        }
        self.changed_elections.extend(changed);
    }

    /// Requires that the releases of a cluster, and their imports, are unchanged.
    fn require_releases(&mut self, cluster: ClusterId) {
        let fleet = &self.model.fleet;
        let own = fleet.cluster(cluster).and_then(|cluster| fleet.release(fleet.cluster_release(cluster)?));
        let of_groups = fleet.resolved_groups(cluster).filter_map(|fold| Some(&fold.release.as_ref()?.value));
        let release_names = of_groups.chain(own).flat_map(|release| release.all_imports.iter().chain([&release.name]));
        let names: BTreeSet<String> = release_names.map(ToString::to_string).collect();
        for name in names {
            let Some(release) = self.context.full_model.releases.get_by_name(None, &name) else { continue };
            if !self.draft.has_object(Kind::Release, release.meta.uuid) {
                self.draft.require_unchanged(release);
            }
        }
    }

    /// Builds the error for an entry of `primaries` that would bring a privileged task to a node that does not exist
    /// yet.
    fn privileged_refusal(&self, cluster: ClusterId, awaited: &AwaitedPrimary<'_>) -> ApiError {
        let AwaitedPrimary { tag, node, task, .. } = awaited;
        let name = self.cluster_name(cluster);
        let message = format!(
            "task {task} is privileged and depends on the primary of tag {tag} of cluster {name}, and only an admin may give the tag to node {} in its \
             field primaries: there is no node of that name in the cluster; nothing was changed",
            quote(node)
        );
        ApiError::new(ErrorType::AuthForbidden, message)
            .field(format!("primaries.{tag}"))
            .detail("name an existing node, or ask an admin to make this write")
    }

    /// Returns why an entry of `primaries` is not obeyed, as far as the caller may know.
    fn visible_reason(&self, why: PrimaryRejection, node: &str) -> PrimaryRejection {
        let node = self.model.fleet.primary_node(node);
        if node.is_some_and(|node| self.is_visible(node.id())) { why } else { why.redacted() }
    }

    fn lost_name_refusal(&self, LostNodeName { cluster, tag, name }: &LostNodeName) -> ApiError {
        let refused = self.named_by_cluster_refusal(*cluster, tag, name.as_str());
        let message = format!("node {} cannot be renamed: {}", quote(name.as_str()), refused.message);
        let advice = self.rename_advice(*cluster, tag);
        let advice = format!(
            "{advice}; then rename the node, which stays primary of the tag if the entry was left out, and name it there again"
        );
        ApiError { message, ..refused }.field("name").detail(advice)
    }

    /// Makes a node the primary of a tag, on request.
    ///
    /// # Errors
    /// The caller lacks the rights; the node does not have the tag; the cluster names another node.
    pub fn choose_primary(&mut self, cluster: ClusterId, tag: &TagName, node: &Node) -> Result<(), ApiError> {
        self.check_primary_rights(cluster, tag)?;
        let fleet = &self.model.fleet;
        if !fleet.can_hold(cluster, tag, node.id()) {
            return Err(self.cannot_hold_refusal(cluster, tag, node));
        }
        if let Some(name) = fleet.named_primary(cluster, tag.as_str())
            && fleet.primary_node(name).map(|named| named.id()) != Some(node.id())
        {
            return Err(self.named_by_cluster_refusal(cluster, tag, name));
        }
        self.set_primary(cluster, tag, node.id())
    }

    /// Gives each tag that a node holds as primary to the next node: of the other nodes that are not parked, the first
    /// by name.
    ///
    /// # Errors
    /// The caller lacks the rights; the cluster names this node; no other node could hold the tag.
    pub fn release_primaries(&mut self, node: NodeId) -> Result<(), ApiError> {
        let Some(cluster) = self.model.fleet.cluster_of_node(node) else { return Ok(()) };
        // This includes tags that the node loses by this write because it gets parked and its choice is not stored yet.
        let fleets = [&self.context.full_model.fleet, &self.model.fleet];
        let held = fleets.into_iter().flat_map(|fleet| fleet.holders(cluster));
        let held = held.filter(|(tag, holder)| *holder == node && self.model.fleet.can_hold(cluster, tag, node));
        let held: BTreeSet<TagName> = held.map(|(tag, _)| tag.clone()).collect();
        for tag in held {
            self.check_primary_rights(cluster, &tag)?;
            let next = self.next_holder(cluster, &tag, node)?;
            self.set_primary(cluster, &tag, next)?;
        }
        Ok(())
    }

    /// Returns the holder of a tag after a node releases it.
    fn next_holder(&self, cluster: ClusterId, tag: &TagName, node: NodeId) -> Result<NodeId, ApiError> {
        let fleet = &self.model.fleet;
        if let Some(name) = fleet.named_primary(cluster, tag.as_str())
            && fleet.primary_node(name).is_some_and(|named| named.id() == node)
        {
            return Err(self.named_by_cluster_refusal(cluster, tag, name));
        }
        fleet.next_holder(cluster, tag, node).ok_or_else(|| {
            let name = fleet.node(node).map(|node| node.display_name()).unwrap_or_default();
            let of = self.cluster_name(cluster);
            let message = format!(
                "node {} holds tag {tag} of cluster {of} as primary, and no other node that is not parked has the tag; nothing was changed",
                quote(&name)
            );
            let advice = format!(
                "give the tag to another node first (stemma tag assign NODE {tag}), name one that is parked (stemma primary set {of} {tag} NODE), \
                 or park the node without releasing its primaries: it keeps them then"
            );
            ApiError::new(ErrorType::PrimaryKept, message).detail(advice)
        })
    }

    /// Fails if the caller may not choose primaries of the cluster.
    fn check_primary_rights(&self, cluster: ClusterId, tag: &TagName) -> Result<(), ApiError> {
        let what = || format!("the primary of tag {}", quote(tag));
        self.context.check_access(Endpoint::for_create(Kind::Primary), AccessScope::Cluster(cluster), what)
    }

    /// Builds the error for a node that could not hold a tag.
    fn cannot_hold_refusal(&self, cluster: ClusterId, tag: &TagName, node: &Node) -> ApiError {
        let (fleet, name) = (&self.model.fleet, self.cluster_name(cluster));
        let is_in_cluster = fleet.cluster_of_node(node.id()) == Some(cluster);
        let has_tag = fleet.profile(node.id()).is_some_and(|profile| profile.key.tags.contains(tag));
        let why = if is_in_cluster && has_tag {
            format!("tag {} has no primary in cluster {name} (its has_primary is false)", quote(tag))
        } else {
            format!("node {} does not have tag {} in cluster {name}", quote(&node.display_name()), quote(tag))
        };
        let advice = format!("`stemma get nodes --cluster {name} --tag {tag}` lists the nodes that have it");
        ApiError::new(ErrorType::FieldInvalid, format!("{why}; nothing was changed")).field("node").detail(advice)
    }

    /// Builds the error for a tag whose primary the cluster itself names.
    fn named_by_cluster_refusal(&self, cluster: ClusterId, tag: &TagName, name: &str) -> ApiError {
        let owners = self.model.fleet.cluster(cluster).and_then(|object| object.spec.owners.get("primaries").cloned());
        let managers: BTreeSet<String> =
            owners.iter().flat_map(|owners| owners.iter()).map(|owner| owner.manager.to_string()).collect();
        let by = if managers.is_empty() {
            String::new()
        } else {
            format!(", as {} wrote it", managers.into_iter().collect::<Vec<_>>().join(", "))
        };
        let message = format!(
            "cluster {} gives tag {tag} to node {} in its field primaries{by}; nothing was changed",
            self.cluster_name(cluster),
            quote(name)
        );
        ApiError::new(ErrorType::PrimaryKept, message).detail(self.rename_advice(cluster, tag))
    }

    fn rename_advice(&self, cluster: ClusterId, tag: &TagName) -> String {
        self.model.fleet.cluster(cluster).map(|cluster| rename_hint(cluster, tag.as_str())).unwrap_or_default()
    }

    pub(super) fn cluster_name(&self, cluster: ClusterId) -> String {
        self.model.fleet.cluster(cluster).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default()
    }
}

/// Builds the error for an entry of `primaries` that cannot be obeyed.
fn not_obeyed_refusal(cluster: &Cluster, tag: &TagName, node: &str, why: PrimaryRejection) -> ApiError {
    let name = &cluster.meta.name;
    let message = format!(
        "cluster {name} cannot give tag {tag} to node {} in its field primaries: {}; nothing was changed",
        quote(node),
        why.reason(tag, &quote(node))
    );
    let advice = match why {
        PrimaryRejection::UnknownTag | PrimaryRejection::NoHolder | PrimaryRejection::NoRelease => format!(
            "leave {tag} out, or declare the tag with `has_primary: true` in the release or under tags of the cluster; \
             `stemma primary show {name}` lists the tags that have a primary"
        ),
        PrimaryRejection::UnknownNode | PrimaryRejection::OtherCluster | PrimaryRejection::LacksTag => format!(
            "`stemma get nodes --cluster {name} --tag {tag}` lists the nodes that have it; name one of them, or put this node into the cluster and \
             give it the tag, first or in the same apply"
        ),
    };
    ApiError::new(ErrorType::FieldInvalid, message).field(format!("primaries.{tag}")).detail(advice)
}
