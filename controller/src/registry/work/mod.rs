//! A write while it is decided: a copy of the fleet to which each step applies its changes, and the draft of the
//! commit.
//!
//! One write can contain several objects (an apply), and a later object may refer to an earlier one. So every step sees
//! the result of the steps before it. Rules about the whole fleet are checked on the copy before the commit. The copy
//! is cheap, because the maps are persistent: a copy shares the unchanged parts.

mod admins;
mod allocate;
mod catalog;
mod cause;
mod counts;
mod delete;
mod order;
mod paths;
mod preview;
mod primaries;
mod privileged;
mod releases;
mod size;
mod tags;
#[cfg(test)]
mod tests;
mod unassign;

pub use counts::DEFAULT_MAX_NODES;
pub use delete::check_unprotected;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use stemma_core::access::AccessScope;
use stemma_core::name::TagName;
use stemma_core::object::{ClusterId, Kind, Meta, NodeId, Object, Primary, PrimarySpec, PrincipalRole};
use stemma_core::release::ReleaseError;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::admit::bad_field;
use super::names::ModelNames;
use super::{Context, Decision, DecisionError, Draft};
use crate::cache::model::{AffectedNodes, Model, Resource};
use crate::records::audit::Action;
use crate::records::request::StoredAnswer;
use crate::store::Precondition;

/// A write while it is decided: the changed copy of the fleet, and the draft of the commit.
pub struct PendingWrite<'a> {
    /// The fleet with the changes of all steps so far.
    pub model: Model,
    context: &'a Context<'a>,
    draft: Draft,
    /// The nodes that the changes so far affect.
    affected: AffectedNodes,
    /// The clusters in which the write changes a stored choice of a primary, or the field `primaries`.
    clusters_with_changed_primaries: BTreeSet<ClusterId>,
    /// The clusters for which this write uses answers of extensions (programs that decide tags).
    extension_clusters: BTreeSet<ClusterId>,
    /// The role whose rights apply to the placement of nodes and of privileged tasks: the caller's role or, if a host
    /// joins, the role of the creator of its token.
    placement_role: PrincipalRole,
}

/// An object after a step of a write, and the effect of the step.
pub struct WriteOutcome<S: Resource> {
    /// The object after the step.
    pub object: Arc<Object<S>>,
    /// The effect of the step on the object.
    pub action: Action,
}

impl<'a> PendingWrite<'a> {
    /// Begins a write on the fleet at the revision of a context.
    pub fn new(context: &'a Context<'a>) -> Self {
        Self {
            model: context.model.clone(),
            context,
            draft: Draft::default(),
            affected: AffectedNodes::default(),
            clusters_with_changed_primaries: BTreeSet::new(),
            extension_clusters: BTreeSet::new(),
            placement_role: context.caller.requester.rights.role,
        }
    }

    /// Returns the time of the write.
    pub fn now(&self) -> stemma_core::object::Timestamp {
        self.context.now
    }

    /// Returns the time before which an entry must have expired to be dropped, see [`Context::prune_before`].
    pub fn prune_before(&self) -> stemma_core::object::Timestamp {
        self.context.prune_before()
    }

    /// Returns whether the clock is trusted, so that expired entries may be dropped.
    pub fn is_clock_trusted(&self) -> bool {
        self.context.trusted_now.is_some()
    }

    /// Checks the whole write, adds the changes that follow from it, and returns the decision.
    ///
    /// # Errors
    /// Fails in these cases:
    /// - Tasks would wait for each other in a cycle. The error lists the cycle.
    /// - The write removes the last admin of the fleet who has a credential.
    /// - A node moves into a group in which it lacks traits that its instance requires, or is renamed while its cluster
    ///   names it in `primaries`.
    /// - A node would have an instance that another node, or another node's allocation, has.
    /// - The catalogue does not permit a changed value or requirement.
    /// - Extensions must decide tags first ([`DecisionError::NeedsAnswers`]), or an answer of theirs is not valid.
    /// - A node that `primaries` names cannot hold its tag.
    /// - The write places or starts a privileged task, and the caller is not an admin.
    /// - The write changes the content of a release version that hosts have already received.
    /// - Two tasks of a node write the same path.
    /// - The data for a host would be too large, or there would be too many objects of a kind.
    /// - The client no longer waits for the answer.
    pub fn finish(mut self, mut answer: StoredAnswer) -> Result<Decision, DecisionError> {
        self.check_not_canceled()?;
        // The following checks apply to the whole fleet, including objects that the caller cannot see.
        self.model.show_all();
        self.check_admins()?;
        self.store_resource_types();
        self.check_counts()?;
        self.end_join_tokens();
        self.check_group_moves()?;
        self.check_renamed_nodes()?;
        self.check_instances()?;
        self.drop_ended_unassignments()?;
        self.resolve_tags()?;
        self.check_primaries()?;
        self.check_awaited_primaries()?;
        self.guard_named_primaries();
        self.check_privileged()?;
        self.check_catalog()?;
        self.check_releases()?;
        self.check_sizes()?;
        self.check_order()?;
        self.check_paths()?;
        // The cluster of a deleted object is found in the model before the write.
        self.draft.set_clusters(|kind, uuid| {
            [&self.model, self.context.model].into_iter().find_map(|model| {
                let Some(AccessScope::Cluster(cluster)) = model.access_scope(kind, uuid) else { return None };
                Some(model.clusters.get(cluster.0)?.meta.name.to_string())
            })
        });
        self.audit_clusters();
        self.mark_rules();
        if self.is_dry_run() {
            self.add_preview(&mut answer);
        }
        // This check is the last. If the client has disconnected, a loop above may have ended before it checked all
        // objects.
        self.check_not_canceled()?;
        Ok(Decision { draft: self.draft, answer })
    }

    /// Fails if the client no longer waits for the answer.
    fn check_not_canceled(&self) -> Result<(), ApiError> {
        if self.is_active() {
            return Ok(());
        }
        let message = "the client no longer waits for the answer; nothing was changed";
        Err(ApiError::new(ErrorType::ServerStopping, message))
    }

    /// Requires at the commit that a mark is unchanged. A mark is an entry that other writes change if they affect this
    /// write.
    fn require_mark(&mut self, mark: &str) {
        self.draft.add_precondition(Precondition::unchanged_since(mark.to_owned(), self.context.mark_revision(mark)));
    }

    /// Returns the fleet before the write, as far as the caller can see it.
    pub fn old_model(&self) -> &Model {
        self.context.model
    }

    /// Returns whether this is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.context.caller.dry_run
    }

    /// Returns the nodes that the changes so far affect. The iterator ends early if the client no longer waits for the
    /// answer. [`Self::finish`] then refuses the write.
    pub(super) fn affected_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.affected.dirty.nodes(&self.model.fleet).take_while(|_| self.is_active())
    }

    /// Returns whether the client still waits for the answer. A loop over many objects calls this before each object,
    /// and ends if the result is false. [`Self::finish`] then refuses the write.
    pub fn is_active(&self) -> bool {
        !self.context.caller.canceled.is_set()
    }

    /// Returns the affected nodes that the caller can see, before or after the write.
    pub fn visible_affected_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.affected_nodes().filter(|node| self.is_visible(*node))
    }

    /// Returns whether the caller can see a node before or after the write. A caller that is bound to a cluster sees
    /// only the nodes of this cluster.
    fn is_visible(&self, node: NodeId) -> bool {
        let Some(cluster) = self.context.caller.requester.rights.cluster else { return true };
        [self.context.full_model, &self.model].into_iter().any(|model| model.fleet.cluster_of_node(node) == Some(cluster))
    }

    /// Returns the kind and uuid of each object that the write has created, changed or deleted so far.
    pub fn written_objects(&self) -> impl Iterator<Item = (Kind, Uuid)> {
        let written = self.draft.audited().iter().filter(|object| object.action != Action::Unchanged);
        written.map(|object| (object.kind, object.uuid))
    }

    /// Returns the draft of the commit, for further changes.
    pub fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }

    /// Creates an object with this uuid, name and spec.
    ///
    /// # Errors
    /// Fails if the name or uuid already exists, the caller may not create the object, or the object is invalid.
    pub fn create<S: Resource>(&mut self, uuid: Uuid, name: S::Name, spec: S) -> Result<WriteOutcome<S>, ApiError> {
        let check_result = spec.check(&self.model);
        let spec = spec.normalized(uuid, self.context.model, &self.model);
        let object = Arc::new(Object { meta: Meta::new(uuid, name, self.context.now), spec });
        // The rights are checked first. The errors below reveal whether the name exists, even for an object that the
        // caller cannot see.
        self.check_rights(&object)?;
        if S::index(&self.model).contains(uuid) {
            return Err(already_exists(S::KIND, &uuid.to_string(), "UUID"));
        }
        self.check_name(uuid, &object.meta.name, &object.spec)?;
        check_result?;
        let value = self.put(u64::MAX, None, &object)?;
        self.draft.put(None, &object, value);
        Ok(WriteOutcome { object, action: Action::Created })
    }

    /// Replaces the spec and the name of an object. Changes nothing if both are equal to the present ones.
    ///
    /// # Errors
    /// Fails if the new name already exists, other objects refer to this object by its present name, the caller may not
    /// write the object, or the object is invalid.
    pub fn update<S: Resource>(&mut self, old: &Arc<Object<S>>, name: S::Name, spec: S) -> Result<WriteOutcome<S>, ApiError> {
        let spec = spec.normalized(old.meta.uuid, self.context.model, &self.model);
        if old.spec == spec && old.meta.name == name {
            return Ok(WriteOutcome { object: Arc::clone(old), action: Action::Unchanged });
        }
        if old.meta.name != name {
            self.check_name::<S>(old.meta.uuid, &name, &spec)?;
        }
        spec.check(&self.model)?;
        let new_object = self.next_object(old, name, spec);
        S::check_change(old, &new_object, &self.model)?;
        self.check_rights(old)?;
        self.check_rights(&new_object)?;
        self.check_rename(old, &new_object)?;
        self.replace(old, new_object)
    }

    /// Returns the object with a new name and spec. The generation grows if the spec has changed.
    fn next_object<S: Resource>(&self, old_object: &Object<S>, name: S::Name, spec: S) -> Object<S> {
        let mut object = Object::clone(old_object);
        object.meta.name = name;
        object.meta.generation += u64::from(object.spec != spec);
        object.meta.updated_at = self.context.now;
        object.spec = spec;
        object
    }

    /// Writes a new version of an object, without a check of names and rights.
    fn replace<S: Resource>(&mut self, old_object: &Object<S>, new_object: Object<S>) -> Result<WriteOutcome<S>, ApiError> {
        let object = Arc::new(new_object);
        let value = self.put(S::index(&self.model).create_revision(object.meta.uuid), Some(old_object), &object)?;
        self.draft.put(Some(old_object), &object, value);
        Ok(WriteOutcome { object, action: Action::Updated })
    }

    /// Adds an object to the copy of the fleet, and returns the bytes to store. `revision` is the revision that
    /// created the object, or the maximum for a new object. Fails if the object is too large or invalid.
    fn put<S: Resource>(&mut self, revision: u64, old: Option<&Object<S>>, object: &Arc<Object<S>>) -> Result<Bytes, ApiError> {
        let value = size::encode_checked(old, object)?;
        let old_spec = old.map(|old| &old.spec);
        let bounds = object.spec.check_bounds(old_spec, &ModelNames::for_display(&self.model));
        bounds.map_err(|error| bad_field(S::KIND.word(), &error))?;
        let mut errors = Vec::new();
        match self.model.put(revision, object) {
            Ok(affected_nodes) => self.affected.extend(affected_nodes),
            Err(release_errors) => errors.extend(release_errors),
        }
        errors.extend(object.spec.host_errors(old_spec));
        if errors.is_empty() { Ok(value) } else { Err(release_refusal(&errors)) }
    }

    /// Fails if another object of the kind and scope already has this name, or if the kind does not accept it.
    fn check_name<S: Resource>(&self, uuid: Uuid, name: &S::Name, spec: &S) -> Result<(), ApiError> {
        let Some(text) = S::name_text(name) else { return Ok(()) };
        S::check_new_name(name)?;
        match S::index(&self.model).uuid_by_name(spec.scope(), &text) {
            Some(holder) if holder != uuid => Err(already_exists(S::KIND, &text, "name")),
            _ => Ok(()),
        }
    }

    /// Fails if the caller may not write this object. For an update, this is called for both the old and the new
    /// object.
    pub(super) fn check_rights<S: Resource>(&self, object: &Object<S>) -> Result<(), ApiError> {
        let name = || S::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string());
        let describe = || format!("{} {}", S::KIND.word(), quote(&name()));
        self.context.check_access(Endpoint::for_create(S::KIND), S::access_scope(&self.model, object), describe)
    }

    /// Stores `node` as the chosen primary of a tag of a cluster. If another node was stored, the primary's epoch
    /// number grows by 1. Checks neither the caller's rights nor whether the node has the tag.
    ///
    /// # Errors
    /// Fails if the stored choice would be too large or invalid.
    pub fn set_primary(&mut self, cluster: ClusterId, tag: &TagName, node: NodeId) -> Result<(), ApiError> {
        let since = self.context.now;
        let old = self.model.primaries.get_by_name(Some(cluster.0), tag.as_str()).cloned();
        if old.as_ref().is_some_and(|old| old.spec.node == node) {
            return Ok(());
        }
        let epoch = old.as_ref().map_or(1, |old| old.spec.epoch + 1);
        let spec = PrimarySpec { cluster, node, since, epoch };
        let new_primary = match &old {
            Some(old) => {
                let mut new_primary = Primary::clone(old);
                new_primary.spec = spec;
                new_primary.meta.generation += 1;
                new_primary.meta.updated_at = since;
                new_primary
            }
            None => Primary { meta: Meta::new(Uuid::now_v7(), tag.clone(), since), spec },
        };
        let new_primary = Arc::new(new_primary);
        let value = self.put(self.model.primaries.create_revision(new_primary.meta.uuid), old.as_deref(), &new_primary)?;
        self.draft.put(old.as_deref(), &new_primary, value);
        self.record_changed_primary(Kind::Primary, Some(cluster));
        Ok(())
    }
}

/// Returns the error for a release that does not compile or that every host would refuse. The message is the first
/// error, and `detail` lists up to 20 further errors. The member `errors` contains up to 50 errors with their fields,
/// for programs.
fn release_refusal(errors: &[ReleaseError]) -> ApiError {
    let Some(first) = errors.first() else {
        return ApiError::new(ErrorType::ObjectInvalid, "the release does not compile");
    };
    let mut refusal = ApiError::new(ErrorType::ObjectInvalid, first.to_string());
    refusal.field = first.field().map(Cow::into_owned);
    let error_list = errors.iter().take(50).map(|error| json!({"field": error.field(), "message": error.to_string()}));
    refusal.extra.insert("errors".to_owned(), error_list.collect());
    if errors.len() > 1 {
        let listed: Vec<String> = errors.iter().skip(1).take(20).map(ToString::to_string).collect();
        refusal.detail = Some(listed.join("\n"));
    }
    refusal
}

/// Returns the error for a name or uuid that another object already has. `attribute` is `name` or `UUID`.
fn already_exists(kind: Kind, name: &str, attribute: &str) -> ApiError {
    let field = match (kind, attribute) {
        // Glance calls the field for the name of a namespace `namespace`.
        (Kind::Namespace, "name") => "namespace".to_owned(),
        (_, attribute) => attribute.to_ascii_lowercase(),
    };
    ApiError::new(ErrorType::ObjectExists, format!("A {} with {attribute} {} already exists.", kind.word(), name)).field(field)
}

/// Returns the error for an object that does not exist.
pub fn not_found(kind: Kind, id: &str) -> ApiError {
    ApiError::new(ErrorType::ObjectNotFound, format!("{kind} {} could not be found.", quote(id)))
}

/// Checks the revision that a request expects of an object that does not exist. The expected revision 0 means that the
/// object must not exist.
///
/// # Errors
/// Fails if the request expects that the object exists.
pub fn check_absent_precondition(expected: Option<u64>) -> Result<(), ApiError> {
    match expected {
        None | Some(0) => Ok(()),
        Some(expected) => {
            let message = format!("the object does not exist, but the request expects revision {expected}; nothing was changed");
            Err(ApiError::new(ErrorType::PreconditionFailed, message)
                .detail("read the object again, and repeat the request with its revision"))
        }
    }
}

/// Checks the revision that a request expects of an existing object. `None` accepts every revision.
///
/// # Errors
/// Fails if the object is at another revision.
pub fn check_revision<S: Resource>(object: &Object<S>, expected: Option<u64>) -> Result<(), ApiError> {
    match expected {
        Some(expected) if expected != object.meta.resource_version => {
            let message = format!(
                "the object is at revision {}, but the request expects revision {expected}; nothing was changed",
                object.meta.resource_version
            );
            Err(ApiError::new(ErrorType::PreconditionFailed, message)
                .detail("read the object again, and repeat the request with its revision"))
        }
        _ => Ok(()),
    }
}
