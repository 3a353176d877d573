//! Who holds a tag as primary: what a write keeps, what it moves, and what somebody chooses.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::access::Place;
use stemma_core::fleet::{self, AwaitedPrimary, LostName, MovedPrimary, NotObeyed};
use stemma_core::name::TagName;
use stemma_core::object::{Cluster, ClusterId, Kind, Node, NodeId, PrincipalRole, TemplateId};
use stemma_core::resolve::naming_another;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::Work;
use crate::registry::Undecided;

impl Work<'_> {
    /// Lets extensions decide the tags of the roles that nodes get by the write, and keeps who holds a tag where nobody chose that yet.
    ///
    /// # Errors
    /// As [`Work::decide_tags`].
    pub fn settle_tags(&mut self) -> Result<(), Undecided> {
        self.decide_tags()?;
        self.keep_primaries()?;
        Ok(self.store_named_primaries()?)
    }

    /// Stores the choice of who holds a tag by rule and would lose it by the write, though the node has the tag still: it was only not stored
    /// yet.
    fn keep_primaries(&mut self) -> Result<(), ApiError> {
        let (before, after) = (&self.context.whole.fleet, &self.model.fleet);
        let clusters: BTreeSet<ClusterId> = self.reached().filter_map(|node| before.cluster_of_node(node)).collect();
        let mut kept = Vec::new();
        for cluster in clusters {
            let moved = before.unstored_holders(cluster).into_iter().filter(|(tag, node)| {
                after.holder(cluster, tag.as_str()) != Some(*node)
                    && after.could_hold(cluster, tag, *node)
                    && !after.is_chosen_since(before, cluster, tag)
            });
            kept.extend(moved.map(|(tag, node)| (cluster, tag, node)));
        }
        kept.into_iter().try_for_each(|(cluster, tag, node)| self.elect(cluster, &tag, node))
    }

    /// Stores the choice of who holds a tag that the cluster gives to a node by this write, or gives to none any more. What comes after rests
    /// on it, and does not wait for anybody to store it.
    fn store_named_primaries(&mut self) -> Result<(), ApiError> {
        let (before, after) = (&self.context.whole.fleet, &self.model.fleet);
        let mut named = Vec::new();
        for (_, uuid) in self.written().filter(|(kind, _)| *kind == Kind::Cluster) {
            let cluster = ClusterId(uuid);
            let is_another = |tag: &TagName| {
                before.named_primary(cluster, tag.as_str()) != after.named_primary(cluster, tag.as_str())
            };
            let open = after.unstored_holders(cluster).into_iter().filter(|(tag, _)| is_another(tag));
            named.extend(open.map(|(tag, node)| (cluster, tag, node)));
        }
        named.into_iter().try_for_each(|(cluster, tag, node)| self.elect(cluster, &tag, node))
    }

    /// The primaries that the write takes from their holders, as far as who asks is told of them.
    pub fn moved_primaries(&self) -> Vec<MovedPrimary> {
        let mut moved = fleet::moved_primaries(&self.context.whole.fleet, &self.model.fleet, self.told_hosts());
        if let Some(own) = self.context.caller.who.rights.within {
            moved.retain(|one| one.cluster == own);
        }
        moved
    }

    /// Refuses to take from a node the name by which its cluster names it in `primaries`. That field holds names, since it may name a node that
    /// is still to come, and its author would write the old name again: so it is not changed along.
    pub(super) fn check_names(&self) -> Result<(), ApiError> {
        let nodes = self.written().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        let lost = fleet::lost_name(&self.context.whole.fleet, &self.model.fleet, nodes);
        lost.map_or(Ok(()), |lost| Err(self.loses_name(&lost)))
    }

    /// Refuses an entry of a cluster's `primaries` that the write makes or changes and that is not obeyed. The whole write counts: one apply may
    /// have the cluster, its nodes and their tags. What a later write can make right, and what one has made wrong, is a finding of the cluster.
    pub(super) fn check_primaries(&self) -> Result<(), ApiError> {
        let (before, after) = (&self.context.whole.fleet, &self.model.fleet);
        for (_, uuid) in self.written().filter(|(kind, _)| *kind == Kind::Cluster) {
            let Some(cluster) = after.cluster(ClusterId(uuid)) else { continue };
            let old = before.cluster(ClusterId(uuid)).map(|cluster| &cluster.spec.primaries);
            let is_new = |tag: &TagName, node: &String| old.and_then(|old| old.get(tag)) != Some(node);
            for (tag, node) in cluster.spec.primaries.iter().filter(|(tag, node)| is_new(tag, node)) {
                let why = after.not_obeyed(cluster, tag, node).map(|why| self.as_told(why, node));
                if let Some(why) = why.filter(|why| why.is_decided()) {
                    return Err(not_obeyed(cluster, tag, node, why));
                }
            }
        }
        Ok(())
    }

    /// Refuses entries of `primaries` by which a privileged task goes to a node that is still to come, unless an admin makes the write: nobody
    /// is asked when a host joins by that name.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the task and the entry.
    pub(super) fn check_awaited_primaries(&self) -> Result<(), ApiError> {
        if self.places_as == PrincipalRole::Admin {
            return Ok(());
        }
        let (before, after) = (&self.context.whole.fleet, &self.model.fleet);
        let written = self.written().filter(|(kind, _)| *kind == Kind::Cluster).map(|(_, uuid)| ClusterId(uuid));
        let below = self.refolded().filter_map(|group| after.cluster_of_group(group));
        let clusters: BTreeSet<ClusterId> = written.chain(below).chain(self.below_templates()).collect();
        for cluster in clusters {
            let awaited = after.awaited_primaries(cluster);
            if awaited.is_empty() {
                continue;
            }
            let known = before.awaited_primaries(cluster);
            if let Some(new) = awaited.difference(&known).next() {
                return Err(self.is_awaited_by_privileged(cluster, new));
            }
        }
        Ok(())
    }

    /// The clusters below the templates that are written. What comes down to one that has no group is seen by no group.
    pub(super) fn below_templates(&self) -> Vec<ClusterId> {
        let written = self.written().filter(|(kind, _)| *kind == Kind::ClusterTemplate);
        let templates: BTreeSet<TemplateId> = written.map(|(_, uuid)| TemplateId(uuid)).collect();
        if templates.is_empty() {
            return Vec::new();
        }
        let is_below = |cluster: &&Arc<Cluster>| {
            cluster.spec.cluster_template.is_some_and(|template| templates.contains(&template))
        };
        self.model.fleet.clusters().filter(is_below).map(|cluster| ClusterId(cluster.meta.uuid)).collect()
    }

    /// Makes the commit depend on what new entries of `primaries` were judged by, also where nobody moves by them yet: who holds the tag once a
    /// node comes, or a group runs another release, follows from them. So the write counts among those that extend its cluster (`order`), and
    /// the releases that say which tags have a primary stay as they are.
    pub(super) fn guard_named_primaries(&mut self) {
        let (before, after) = (&self.context.whole.fleet, &self.model.fleet);
        let named = |fleet: &fleet::Fleet, cluster: ClusterId| {
            fleet.cluster(cluster).map(|cluster| cluster.spec.primaries.clone()).unwrap_or_default()
        };
        let written = self.written().filter(|(kind, _)| *kind == Kind::Cluster).map(|(_, uuid)| ClusterId(uuid));
        let others: Vec<ClusterId> = written.filter(|id| named(before, *id) != named(after, *id)).collect();
        for cluster in &others {
            self.require_releases_of(*cluster);
        }
        self.elected.extend(others);
    }

    /// Requires that the releases of a cluster, and those that they import, are as they were.
    fn require_releases_of(&mut self, cluster: ClusterId) {
        let fleet = &self.model.fleet;
        let own = fleet.cluster(cluster).and_then(|cluster| fleet.release(fleet.cluster_release(cluster)?));
        let of_groups = fleet.folds_of(cluster).filter_map(|fold| Some(&fold.release.as_ref()?.value));
        let all = of_groups.chain(own).flat_map(|release| release.all_imports.iter().chain([&release.name]));
        let names: BTreeSet<String> = all.map(ToString::to_string).collect();
        for name in names {
            let Some(release) = self.context.whole.releases.named(None, &name) else { continue };
            if !self.draft.has(Kind::Release, release.meta.uuid) {
                self.draft.require_unchanged(release);
            }
        }
    }

    fn is_awaited_by_privileged(&self, cluster: ClusterId, awaited: &AwaitedPrimary<'_>) -> ApiError {
        let AwaitedPrimary { tag, node, task, .. } = awaited;
        let name = self.cluster_name(cluster);
        let message = format!(
            "task {task} is privileged and goes by who holds tag {tag} of cluster {name} as primary, and an admin alone gives that to node {} in its \
             field primaries: there is no node of that name in the cluster; nothing was changed",
            quote(node)
        );
        ApiError::new(ErrorType::AuthForbidden, message)
            .field(format!("primaries.{tag}"))
            .detail("name a node that is there, or an admin makes this write")
    }

    /// Why an entry of `primaries` is not obeyed, as it is told to who asks.
    fn as_told(&self, why: NotObeyed, node: &str) -> NotObeyed {
        let node = self.model.fleet.node_meant(node);
        if node.is_some_and(|node| self.is_told_of(node.id())) { why } else { why.beyond_cluster() }
    }

    fn loses_name(&self, LostName { cluster, tag, name }: &LostName) -> ApiError {
        let refused = self.is_named(*cluster, tag, name.as_str());
        let message = format!("node {} cannot be renamed: {}", quote(name.as_str()), refused.message);
        let advice = self.naming_another(*cluster, tag);
        let advice = format!(
            "{advice}; then rename the node, which keeps the tag as primary where it was left out, and name it there again"
        );
        ApiError { message, ..refused }.field("name").detail(advice)
    }

    /// Gives a tag of a cluster to a node as primary, because somebody asks for that.
    ///
    /// # Errors
    /// For want of rights; where the node does not have the tag, or the cluster names another.
    pub fn choose_primary(&mut self, cluster: ClusterId, tag: &TagName, node: &Node) -> Result<(), ApiError> {
        self.check_electing(cluster, tag)?;
        let fleet = &self.model.fleet;
        if !fleet.could_hold(cluster, tag, node.id()) {
            return Err(self.cannot_hold(cluster, tag, node));
        }
        if let Some(name) = fleet.named_primary(cluster, tag.as_str())
            && fleet.node_meant(name).map(|named| named.id()) != Some(node.id())
        {
            return Err(self.is_named(cluster, tag, name));
        }
        self.elect(cluster, tag, node.id())
    }

    /// Gives what a node holds as primary to the next node of each tag: the first by name of the others that are not parked.
    ///
    /// # Errors
    /// For want of rights; where the cluster names the node, or no other node could hold the tag.
    pub fn release_primaries(&mut self, node: NodeId) -> Result<(), ApiError> {
        let Some(cluster) = self.model.fleet.cluster_of_node(node) else { return Ok(()) };
        // Also what it loses by this write, because it is parked and was not chosen yet.
        let fleets = [&self.context.whole.fleet, &self.model.fleet];
        let held = fleets.into_iter().flat_map(|fleet| fleet.holders(cluster));
        let held = held.filter(|(tag, holder)| *holder == node && self.model.fleet.could_hold(cluster, tag, node));
        let held: BTreeSet<TagName> = held.map(|(tag, _)| tag.clone()).collect();
        for tag in held {
            self.check_electing(cluster, &tag)?;
            let next = self.next_after(cluster, &tag, node)?;
            self.elect(cluster, &tag, next)?;
        }
        Ok(())
    }

    /// Who holds a tag once a node releases it.
    fn next_after(&self, cluster: ClusterId, tag: &TagName, node: NodeId) -> Result<NodeId, ApiError> {
        let fleet = &self.model.fleet;
        if let Some(name) = fleet.named_primary(cluster, tag.as_str())
            && fleet.node_meant(name).is_some_and(|named| named.id() == node)
        {
            return Err(self.is_named(cluster, tag, name));
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

    /// Refuses a choice for want of rights.
    fn check_electing(&self, cluster: ClusterId, tag: &TagName) -> Result<(), ApiError> {
        let what = || format!("the primary of tag {}", quote(tag));
        self.context.check_place(Endpoint::creating(Kind::Primary), Place::Cluster(cluster), what)
    }

    /// The refusal of a node that could not hold a tag.
    fn cannot_hold(&self, cluster: ClusterId, tag: &TagName, node: &Node) -> ApiError {
        let (fleet, name) = (&self.model.fleet, self.cluster_name(cluster));
        let stands_there = fleet.cluster_of_node(node.id()) == Some(cluster);
        let has_tag = fleet.profile(node.id()).is_some_and(|profile| profile.place.tags.contains(tag));
        let why = if stands_there && has_tag {
            format!("tag {} has no primary in cluster {name} (its has_primary is false)", quote(tag))
        } else {
            format!("node {} does not have tag {} in cluster {name}", quote(&node.display_name()), quote(tag))
        };
        let advice = format!("`stemma get nodes --cluster {name} --tag {tag}` lists the nodes that have it");
        ApiError::new(ErrorType::FieldInvalid, format!("{why}; nothing was changed")).field("node").detail(advice)
    }

    /// The refusal where the cluster itself names who holds a tag.
    fn is_named(&self, cluster: ClusterId, tag: &TagName, name: &str) -> ApiError {
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
        ApiError::new(ErrorType::PrimaryKept, message).detail(self.naming_another(cluster, tag))
    }

    fn naming_another(&self, cluster: ClusterId, tag: &TagName) -> String {
        self.model.fleet.cluster(cluster).map(|cluster| naming_another(cluster, tag.as_str())).unwrap_or_default()
    }

    pub(super) fn cluster_name(&self, cluster: ClusterId) -> String {
        self.model.fleet.cluster(cluster).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default()
    }
}

/// The refusal of an entry of `primaries`.
fn not_obeyed(cluster: &Cluster, tag: &TagName, node: &str, why: NotObeyed) -> ApiError {
    let name = &cluster.meta.name;
    let message = format!(
        "cluster {name} cannot give tag {tag} to node {} in its field primaries: {}; nothing was changed",
        quote(node),
        why.reason(tag, &quote(node))
    );
    let advice = match why {
        NotObeyed::NoTag | NotObeyed::NoPrimary | NotObeyed::NoRelease => format!(
            "leave {tag} out, or declare the tag with `has_primary: true` in the release or under tags of the cluster; \
             `stemma primary show {name}` lists the tags that have a primary"
        ),
        NotObeyed::NoNode | NotObeyed::Elsewhere | NotObeyed::LacksTag => format!(
            "`stemma get nodes --cluster {name} --tag {tag}` lists the nodes that have it; name one of them, or put this node into the cluster and \
             give it the tag, first or in the same apply"
        ),
    };
    ApiError::new(ErrorType::FieldInvalid, message).field(format!("primaries.{tag}")).detail(advice)
}
