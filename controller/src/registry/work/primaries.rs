//! Primaries of tags: the primaries that a write retains or moves, and those that a caller chooses.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::access::AccessScope;
use stemma_core::fleet::{self, AwaitedPrimary, LostNodeName, MovedPrimary, PrimaryRejection};
use stemma_core::name::TagName;
use stemma_core::object::{Cluster, ClusterId, Kind, Node, NodeId, PrincipalRole, TemplateId};
use stemma_core::resolve::primaries_edit_hint;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::PendingWrite;
use crate::registry::DecisionError;

impl PendingWrite<'_> {
    /// Lets extensions decide the tags of the roles that nodes get by the write. Then stores a choice for each primary
    /// that the write would otherwise move by accident, or whose entry in `primaries` it changes.
    ///
    /// # Errors
    /// Fails as [`PendingWrite::decide_tags`] and [`PendingWrite::set_primary`] do.
    pub fn resolve_tags(&mut self) -> Result<(), DecisionError> {
        self.decide_tags()?;
        self.store_held_primaries()?;
        Ok(self.store_named_primaries()?)
    }

    /// Stores the node that held a tag before the write as its primary. This is done if the choice is not stored yet,
    /// the write would move the primary by accident, and the node still has the tag. A primary that the write moves on
    /// purpose is left out.
    fn store_held_primaries(&mut self) -> Result<(), ApiError> {
        let (old_fleet, new_fleet) = (&self.context.full_model.fleet, &self.model.fleet);
        let clusters: BTreeSet<ClusterId> = self.affected_nodes().filter_map(|node| old_fleet.cluster_of_node(node)).collect();
        let mut choices = Vec::new();
        for cluster in clusters {
            let retained = old_fleet.unstored_holders(cluster).into_iter().filter(|(tag, node)| {
                new_fleet.holder(cluster, tag.as_str()) != Some(*node)
                    && new_fleet.can_hold(cluster, tag, *node)
                    && !new_fleet.is_chosen_explicitly(old_fleet, cluster, tag)
            });
            choices.extend(retained.map(|(tag, node)| (cluster, tag, node)));
        }
        choices.into_iter().try_for_each(|(cluster, tag, node)| self.set_primary(cluster, &tag, node))
    }

    /// Stores the node that holds a tag after the write, if the write changes the entry of the tag in the cluster's
    /// `primaries`. The choice is stored in the same write, so the node stays primary if a later write removes the
    /// entry.
    fn store_named_primaries(&mut self) -> Result<(), ApiError> {
        let (old_fleet, new_fleet) = (&self.context.full_model.fleet, &self.model.fleet);
        let mut choices = Vec::new();
        for (_, uuid) in self.written_objects().filter(|(kind, _)| *kind == Kind::Cluster) {
            let cluster = ClusterId(uuid);
            let is_entry_changed =
                |tag: &TagName| old_fleet.named_primary(cluster, tag.as_str()) != new_fleet.named_primary(cluster, tag.as_str());
            let unstored = new_fleet.unstored_holders(cluster).into_iter().filter(|(tag, _)| is_entry_changed(tag));
            choices.extend(unstored.map(|(tag, node)| (cluster, tag, node)));
        }
        choices.into_iter().try_for_each(|(cluster, tag, node)| self.set_primary(cluster, &tag, node))
    }

    /// Returns the primaries that the write moves to other nodes, except those in clusters that the caller may not see.
    pub fn moved_primaries(&self) -> Vec<MovedPrimary> {
        let mut moved = fleet::moved_primaries(&self.context.full_model.fleet, &self.model.fleet, self.visible_affected_nodes());
        if let Some(cluster) = self.context.caller.requester.rights.cluster {
            moved.retain(|primary| primary.cluster == cluster);
        }
        moved
    }

    /// Refuses to rename a node that its cluster names in `primaries`, unless another node has the old name after the
    /// write. The rename does not change the entry, because the author of the entry would write the old name again. The
    /// field contains names and not only uuids, so that it can name a node that does not exist yet.
    pub(super) fn check_renamed_nodes(&self) -> Result<(), ApiError> {
        let nodes = self.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        let renamed_node = fleet::lost_node_name(&self.context.full_model.fleet, &self.model.fleet, nodes);
        renamed_node.map_or(Ok(()), |renamed_node| Err(self.lost_name_refusal(&renamed_node)))
    }

    /// Refuses an entry of a cluster's `primaries` that the write adds or changes and that can have no effect. The
    /// check uses the result of the whole write, since one apply may contain the cluster, its nodes and their tags. If
    /// the node or the release of the entry does not exist yet, the entry is accepted and the cluster has a finding.
    /// The same holds for an entry whose node is not in the cluster, if the caller cannot see that node.
    pub(super) fn check_primaries(&self) -> Result<(), ApiError> {
        let (old_fleet, new_fleet) = (&self.context.full_model.fleet, &self.model.fleet);
        for (_, uuid) in self.written_objects().filter(|(kind, _)| *kind == Kind::Cluster) {
            let Some(cluster) = new_fleet.cluster(ClusterId(uuid)) else { continue };
            let old_entries = old_fleet.cluster(ClusterId(uuid)).map(|cluster| &cluster.spec.primaries);
            let is_new = |tag: &TagName, node: &String| old_entries.and_then(|old_entries| old_entries.get(tag)) != Some(node);
            for (tag, node) in cluster.spec.primaries.iter().filter(|(tag, node)| is_new(tag, node)) {
                let reason = new_fleet.primary_rejection(cluster, tag, node).map(|reason| self.visible_reason(reason, node));
                if let Some(reason) = reason.filter(|reason| reason.is_permanent()) {
                    return Err(ineffective_entry_refusal(cluster, tag, node, reason));
                }
            }
        }
        Ok(())
    }

    /// Refuses a write by which an entry of `primaries`, which may be old, would newly bring a privileged task to a
    /// node that is not in the cluster yet, unless an admin makes the write. The check is made now, because a host that
    /// joins under that name has the rights of the creator of its token, who may be an admin.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the task and the entry.
    pub(super) fn check_awaited_primaries(&self) -> Result<(), ApiError> {
        if self.placement_role == PrincipalRole::Admin {
            return Ok(());
        }
        let (old_fleet, new_fleet) = (&self.context.full_model.fleet, &self.model.fleet);
        let written_clusters = self.written_objects().filter(|(kind, _)| *kind == Kind::Cluster).map(|(_, uuid)| ClusterId(uuid));
        let by_groups = self.new_or_changed_groups().filter_map(|group| new_fleet.cluster_of_group(group));
        let clusters: BTreeSet<ClusterId> = written_clusters.chain(by_groups).chain(self.clusters_of_templates()).collect();
        for cluster in clusters {
            let awaited = new_fleet.awaited_primaries(cluster);
            if awaited.is_empty() {
                continue;
            }
            let old_awaited = old_fleet.awaited_primaries(cluster);
            if let Some(new_awaited) = awaited.difference(&old_awaited).next() {
                return Err(self.privileged_refusal(cluster, new_awaited));
            }
        }
        Ok(())
    }

    /// Returns the clusters that use a cluster template which this write contains. This includes clusters without
    /// groups, which are not found through changed groups.
    pub(super) fn clusters_of_templates(&self) -> Vec<ClusterId> {
        let written = self.written_objects().filter(|(kind, _)| *kind == Kind::ClusterTemplate);
        let templates: BTreeSet<TemplateId> = written.map(|(_, uuid)| TemplateId(uuid)).collect();
        if templates.is_empty() {
            return Vec::new();
        }
        let uses_written_template =
            |cluster: &&Arc<Cluster>| cluster.spec.cluster_template.is_some_and(|template| templates.contains(&template));
        self.model.fleet.clusters().filter(uses_written_template).map(|cluster| ClusterId(cluster.meta.uuid)).collect()
    }

    /// Makes the commit depend on the state that new entries of `primaries` were checked with, even if no primary moves
    /// yet. The entries decide which node holds the tag later, when a node joins or a group gets another release. So
    /// the cluster is recorded as one with changed primaries. The commit then requires that no concurrent write has
    /// placed a node in the cluster. The releases that declare which tags have a primary must be unchanged too.
    pub(super) fn guard_named_primaries(&mut self) {
        let (old_fleet, new_fleet) = (&self.context.full_model.fleet, &self.model.fleet);
        let entries = |fleet: &fleet::Fleet, cluster: ClusterId| {
            fleet.cluster(cluster).map(|cluster| cluster.spec.primaries.clone()).unwrap_or_default()
        };
        let written_clusters = self.written_objects().filter(|(kind, _)| *kind == Kind::Cluster).map(|(_, uuid)| ClusterId(uuid));
        let clusters: Vec<ClusterId> = written_clusters.filter(|id| entries(old_fleet, *id) != entries(new_fleet, *id)).collect();
        for cluster in &clusters {
            self.require_releases(*cluster);
        }
        self.clusters_with_changed_primaries.extend(clusters);
    }

    /// Requires at the commit that no other write changes the releases of a cluster and its groups, or their imports.
    fn require_releases(&mut self, cluster: ClusterId) {
        let fleet = &self.model.fleet;
        let cluster_release = fleet.cluster(cluster).and_then(|cluster| fleet.release(fleet.cluster_release(cluster)?));
        let releases = fleet.resolved_groups(cluster).filter_map(|group| Some(&group.release.as_ref()?.value));
        let release_names = releases.chain(cluster_release).flat_map(|release| release.all_imports.iter().chain([&release.name]));
        let names: BTreeSet<String> = release_names.map(ToString::to_string).collect();
        for name in names {
            let Some(release) = self.context.full_model.releases.get_by_name(None, &name) else { continue };
            if !self.draft.has_object(Kind::Release, release.meta.uuid) {
                self.draft.require_unchanged(release);
            }
        }
    }

    /// Returns the error for an entry of `primaries` that would bring a privileged task to a node that does not exist
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

    /// Returns the reason why an entry of `primaries` has no effect. If the caller may not see the node, the reason
    /// does not reveal that the node exists outside of the cluster.
    fn visible_reason(&self, rejection: PrimaryRejection, node: &str) -> PrimaryRejection {
        let node = self.model.fleet.primary_node(node);
        if node.is_some_and(|node| self.is_visible(node.id())) { rejection } else { rejection.redacted() }
    }

    /// Returns the error for the rename of a node that its cluster names in `primaries`.
    fn lost_name_refusal(&self, LostNodeName { cluster, tag, name }: &LostNodeName) -> ApiError {
        let refusal = self.named_by_cluster_refusal(*cluster, tag, name.as_str());
        let message = format!("node {} cannot be renamed: {}", quote(name.as_str()), refusal.message);
        let advice = self.primaries_entry_advice(*cluster, tag);
        let advice = format!(
            "{advice}; then rename the node, which stays primary of the tag if the entry was left out, and name it there again"
        );
        ApiError { message, ..refusal }.field("name").detail(advice)
    }

    /// Makes a node the primary of a tag, because the caller requests it.
    ///
    /// # Errors
    /// Fails if the caller lacks the rights, the node does not have the tag, the tag has no primary, or the cluster's
    /// `primaries` names another node.
    pub fn choose_primary(&mut self, cluster: ClusterId, tag: &TagName, node: &Node) -> Result<(), ApiError> {
        self.check_primary_rights(cluster, tag)?;
        let fleet = &self.model.fleet;
        if !fleet.can_hold(cluster, tag, node.id()) {
            return Err(self.cannot_hold_refusal(cluster, tag, node));
        }
        if let Some(name) = fleet.named_primary(cluster, tag.as_str())
            && fleet.primary_node(name).map(|named_node| named_node.id()) != Some(node.id())
        {
            return Err(self.named_by_cluster_refusal(cluster, tag, name));
        }
        self.set_primary(cluster, tag, node.id())
    }

    /// Makes other nodes primary of all tags that a node holds as primary. For each tag, the new primary is the first
    /// by name of the other nodes that have the tag and are not parked.
    ///
    /// # Errors
    /// Fails if the caller lacks the rights, the cluster's `primaries` names this node, or no other node that is not
    /// parked has the tag.
    pub fn release_primaries(&mut self, node: NodeId) -> Result<(), ApiError> {
        let Some(cluster) = self.model.fleet.cluster_of_node(node) else { return Ok(()) };
        // The old fleet is included. If this write parks the node and a choice is not stored yet, the node is no longer
        // primary of the tag in the new fleet.
        let fleets = [&self.context.full_model.fleet, &self.model.fleet];
        let tags = fleets.into_iter().flat_map(|fleet| fleet.holders(cluster));
        let tags = tags.filter(|(tag, holder)| *holder == node && self.model.fleet.can_hold(cluster, tag, node));
        let tags: BTreeSet<TagName> = tags.map(|(tag, _)| tag.clone()).collect();
        for tag in tags {
            self.check_primary_rights(cluster, &tag)?;
            let next = self.next_holder(cluster, &tag, node)?;
            self.set_primary(cluster, &tag, next)?;
        }
        Ok(())
    }

    /// Returns the node that holds a tag after another node releases it. Fails if `primaries` names the releasing node,
    /// or no other node that is not parked has the tag.
    fn next_holder(&self, cluster: ClusterId, tag: &TagName, node: NodeId) -> Result<NodeId, ApiError> {
        let fleet = &self.model.fleet;
        if let Some(name) = fleet.named_primary(cluster, tag.as_str())
            && fleet.primary_node(name).is_some_and(|named_node| named_node.id() == node)
        {
            return Err(self.named_by_cluster_refusal(cluster, tag, name));
        }
        fleet.next_holder(cluster, tag, node).ok_or_else(|| {
            let name = fleet.node(node).map(|node| node.display_name()).unwrap_or_default();
            let cluster_name = self.cluster_name(cluster);
            let message = format!(
                "node {} holds tag {tag} of cluster {cluster_name} as primary, and no other node that is not parked has the tag; nothing was changed",
                quote(&name)
            );
            let advice = format!(
                "give the tag to another node first (stemma tag assign NODE {tag}), name one that is parked (stemma primary set {cluster_name} {tag} NODE), \
                 or park the node without releasing its primaries, so that it remains primary"
            );
            ApiError::new(ErrorType::PrimaryKept, message).detail(advice)
        })
    }

    /// Fails if the caller may not choose primaries of the cluster.
    fn check_primary_rights(&self, cluster: ClusterId, tag: &TagName) -> Result<(), ApiError> {
        let describe = || format!("the primary of tag {}", quote(tag));
        self.context.check_access(Endpoint::for_create(Kind::Primary), AccessScope::Cluster(cluster), describe)
    }

    /// Returns the error for a node that cannot hold a tag as primary, with the reason.
    fn cannot_hold_refusal(&self, cluster: ClusterId, tag: &TagName, node: &Node) -> ApiError {
        let (fleet, name) = (&self.model.fleet, self.cluster_name(cluster));
        let is_in_cluster = fleet.cluster_of_node(node.id()) == Some(cluster);
        let has_tag = fleet.profile(node.id()).is_some_and(|profile| profile.key.tags.contains(tag));
        let reason = if is_in_cluster && has_tag {
            format!("tag {} has no primary in cluster {name} (its has_primary is false)", quote(tag))
        } else {
            format!("node {} does not have tag {} in cluster {name}", quote(&node.display_name()), quote(tag))
        };
        let advice = format!("`stemma get nodes --cluster {name} --tag {tag}` lists the nodes that have it");
        ApiError::new(ErrorType::FieldInvalid, format!("{reason}; nothing was changed")).field("node").detail(advice)
    }

    /// Returns the error for a tag whose primary is set in the field `primaries` of the cluster. The error names the
    /// managers that own the field.
    fn named_by_cluster_refusal(&self, cluster: ClusterId, tag: &TagName, name: &str) -> ApiError {
        let owners = self.model.fleet.cluster(cluster).and_then(|object| object.spec.owners.get("primaries").cloned());
        let managers: BTreeSet<String> =
            owners.iter().flat_map(|owners| owners.iter()).map(|owner| owner.manager.to_string()).collect();
        let owner_text = if managers.is_empty() {
            String::new()
        } else {
            format!(", as {} wrote it", managers.into_iter().collect::<Vec<_>>().join(", "))
        };
        let message = format!(
            "cluster {} gives tag {tag} to node {} in its field primaries{owner_text}; nothing was changed",
            self.cluster_name(cluster),
            quote(name)
        );
        ApiError::new(ErrorType::PrimaryKept, message).detail(self.primaries_entry_advice(cluster, tag))
    }

    /// Returns the advice on how to change the entry of a tag in `primaries` of the cluster.
    fn primaries_entry_advice(&self, cluster: ClusterId, tag: &TagName) -> String {
        self.model.fleet.cluster(cluster).map(|cluster| primaries_edit_hint(cluster, tag.as_str())).unwrap_or_default()
    }

    /// Returns the name of a cluster, or an empty text if the cluster does not exist.
    pub(super) fn cluster_name(&self, cluster: ClusterId) -> String {
        self.model.fleet.cluster(cluster).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default()
    }
}

/// Returns the error for an entry of `primaries` that can have no effect, with the reason and advice.
fn ineffective_entry_refusal(cluster: &Cluster, tag: &TagName, node: &str, rejection: PrimaryRejection) -> ApiError {
    let name = &cluster.meta.name;
    let message = format!(
        "cluster {name} cannot give tag {tag} to node {} in its field primaries: {}; nothing was changed",
        quote(node),
        rejection.reason(tag, &quote(node))
    );
    let advice = match rejection {
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
