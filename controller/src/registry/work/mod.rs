//! A write while it is decided: a copy of the fleet that each step changes, and the commit that grows with it.
//!
//! Several objects can be written at once (an apply), and a later one may refer to an earlier one. So every step sees
//! the result of the steps before it, and rules about the whole fleet can be checked on the copy before anything is
//! committed. The copy costs nothing, because the maps are persistent.

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

/// A write while it is decided.
pub struct PendingWrite<'a> {
    /// The fleet, with the changes decided so far.
    pub model: Model,
    context: &'a Context<'a>,
    draft: Draft,
    /// The nodes that the changes decided so far affect.
    affected: AffectedNodes,
    /// The clusters in which a stored choice of a primary changes, or the `primaries` of the cluster itself.
    changed_elections: BTreeSet<ClusterId>,
    /// The clusters about which an extension was asked.
    extension_clusters: BTreeSet<ClusterId>,
    /// The role whose rights apply when nodes are placed.
    placement_role: PrincipalRole,
}

/// An object after a step, and what the step did.
pub struct WriteOutcome<S: Resource> {
    /// The object as it is after the step.
    pub object: Arc<Object<S>>,
    /// The effect of the step on the object.
    pub action: Action,
}

impl<'a> PendingWrite<'a> {
    /// Begins a write on the state of a context.
    pub fn new(context: &'a Context<'a>) -> Self {
        Self {
            model: context.model.clone(),
            context,
            draft: Draft::default(),
            affected: AffectedNodes::default(),
            changed_elections: BTreeSet::new(),
            extension_clusters: BTreeSet::new(),
            placement_role: context.caller.requester.rights.role,
        }
    }

    /// Returns the time of the write.
    pub fn now(&self) -> stemma_core::object::Timestamp {
        self.context.now
    }

    /// Returns the time before which ended entries may be dropped, see [`Context::prune_before`].
    pub fn prune_before(&self) -> stemma_core::object::Timestamp {
        self.context.prune_before()
    }

    /// Returns whether the clock is trusted.
    pub fn is_clock_trusted(&self) -> bool {
        self.context.trusted_now.is_some()
    }

    /// Checks the whole write, adds its consequences for the affected nodes, and returns the decision.
    ///
    /// # Errors
    /// - Tasks would wait for each other in a cycle. The error spells out the cycle.
    /// - A named primary cannot hold its tag.
    /// - Only an admin may place or start a privileged task.
    /// - The content of a release version is pinned.
    /// - Two tasks of a node write the same path.
    /// - Something would be too large for a host, or there would be too many objects of a kind.
    /// - The client no longer waits for the answer.
    pub fn finish(mut self, mut answer: StoredAnswer) -> Result<Decision, DecisionError> {
        self.check_not_canceled()?;
        // The checks below hold for the whole fleet, including objects that the caller cannot see.
        self.model.show_all();
        self.check_admins()?;
        self.store_resource_types();
        self.check_counts()?;
        self.end_join_tokens();
        self.check_group_moves()?;
        self.check_names()?;
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
        // This check comes last. If the client left, a loop above may have ended before it checked all objects.
        self.check_not_canceled()?;
        Ok(Decision { draft: self.draft, answer })
    }

    /// Fails if the client no longer waits for the decision.
    fn check_not_canceled(&self) -> Result<(), ApiError> {
        if self.is_active() {
            return Ok(());
        }
        let message = "the client no longer waits for the answer; nothing was changed";
        Err(ApiError::new(ErrorType::ServerStopping, message))
    }

    /// Requires that a mark is unchanged since the write was decided.
    fn require_mark(&mut self, mark: &str) {
        self.draft.add_precondition(Precondition::unchanged_since(mark.to_owned(), self.context.mark_revision(mark)));
    }

    /// Returns the fleet before the write.
    pub fn before(&self) -> &Model {
        self.context.model
    }

    /// Returns whether this is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.context.caller.dry_run
    }

    /// Returns the nodes that the write affects so far, to be resolved one by one. The iterator ends early if the
    /// client no longer waits for the answer. [`Self::finish`] then refuses the write.
    pub(super) fn reached_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.affected.dirty.nodes(&self.model.fleet).take_while(|_| self.is_active())
    }

    /// Returns whether the client still waits for the answer. A loop over many objects checks this before each of them.
    /// [`Self::finish`] refuses the write if nobody waits.
    pub fn is_active(&self) -> bool {
        !self.context.caller.canceled.is_set()
    }

    /// Returns the affected nodes that the caller can see.
    pub fn visible_hosts(&self) -> impl Iterator<Item = NodeId> {
        self.reached_nodes().filter(|node| self.is_visible(*node))
    }

    /// Returns whether the node is, or was before the write, where the caller can see it.
    fn is_visible(&self, node: NodeId) -> bool {
        let Some(cluster) = self.context.caller.requester.rights.cluster else { return true };
        [self.context.full_model, &self.model].into_iter().any(|model| model.fleet.cluster_of_node(node) == Some(cluster))
    }

    /// Returns kind and UUID of each object written so far.
    pub fn written_objects(&self) -> impl Iterator<Item = (Kind, Uuid)> {
        let written = self.draft.audited().iter().filter(|object| object.action != Action::Unchanged);
        written.map(|object| (object.kind, object.uuid))
    }

    /// Returns the changes made so far.
    pub fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }

    /// Creates an object.
    ///
    /// # Errors
    /// Its name or UUID already exists.
    pub fn create<S: Resource>(&mut self, uuid: Uuid, name: S::Name, spec: S) -> Result<WriteOutcome<S>, ApiError> {
        let checked = spec.check(&self.model);
        let spec = spec.normalized(uuid, self.context.model, &self.model);
        let object = Arc::new(Object { meta: Meta::new(uuid, name, self.context.now), spec });
        // The rights come first: the error below reveals whether the name exists, even for an object that the caller
        // cannot see.
        self.check_rights(&object)?;
        if S::index(&self.model).contains(uuid) {
            return Err(already_exists(S::KIND, &uuid.to_string(), "UUID"));
        }
        self.check_name(uuid, &object.meta.name, &object.spec)?;
        checked?;
        let value = self.put(u64::MAX, None, &object)?;
        self.draft.put(None, &object, value);
        Ok(WriteOutcome { object, action: Action::Created })
    }

    /// Replaces the spec and the name of an object.
    ///
    /// # Errors
    /// The new name already exists, or other objects refer to this one by its current name.
    pub fn update<S: Resource>(&mut self, before: &Arc<Object<S>>, name: S::Name, spec: S) -> Result<WriteOutcome<S>, ApiError> {
        let spec = spec.normalized(before.meta.uuid, self.context.model, &self.model);
        if before.spec == spec && before.meta.name == name {
            return Ok(WriteOutcome { object: Arc::clone(before), action: Action::Unchanged });
        }
        if before.meta.name != name {
            self.check_name::<S>(before.meta.uuid, &name, &spec)?;
        }
        spec.check(&self.model)?;
        let next = self.next_object(before, name, spec);
        S::check_change(before, &next, &self.model)?;
        self.check_rights(before)?;
        self.check_rights(&next)?;
        self.check_rename(before, &next)?;
        self.replace(before, next)
    }

    fn next_object<S: Resource>(&self, before: &Object<S>, name: S::Name, spec: S) -> Object<S> {
        let mut object = Object::clone(before);
        object.meta.name = name;
        object.meta.generation += u64::from(object.spec != spec);
        object.meta.updated_at = self.context.now;
        object.spec = spec;
        object
    }

    fn replace<S: Resource>(&mut self, before: &Object<S>, next: Object<S>) -> Result<WriteOutcome<S>, ApiError> {
        let object = Arc::new(next);
        let value = self.put(S::index(&self.model).create_revision(object.meta.uuid), Some(before), &object)?;
        self.draft.put(Some(before), &object, value);
        Ok(WriteOutcome { object, action: Action::Updated })
    }

    /// Puts an object into the copy of the fleet, and returns the bytes to store. `made` is the revision that created
    /// the object, or the maximum for a new object. Fails if the object is too large or invalid.
    fn put<S: Resource>(&mut self, made: u64, before: Option<&Object<S>>, object: &Arc<Object<S>>) -> Result<Bytes, ApiError> {
        let value = size::encode_checked(before, object)?;
        let before = before.map(|before| &before.spec);
        let bounds = object.spec.check_bounds(before, &ModelNames::for_display(&self.model));
        bounds.map_err(|error| bad_field(S::KIND.word(), &error))?;
        let mut errors = Vec::new();
        match self.model.put(made, object) {
            Ok(reach) => self.affected.extend(reach),
            Err(broken) => errors.extend(broken),
        }
        errors.extend(object.spec.host_errors(before));
        if errors.is_empty() { Ok(value) } else { Err(bad_release(&errors)) }
    }

    fn check_name<S: Resource>(&self, uuid: Uuid, name: &S::Name, spec: &S) -> Result<(), ApiError> {
        let Some(text) = S::name_text(name) else { return Ok(()) };
        S::check_new_name(name)?;
        match S::index(&self.model).uuid_by_name(spec.scope(), &text) {
            Some(holder) if holder != uuid => Err(already_exists(S::KIND, &text, "name")),
            _ => Ok(()),
        }
    }

    /// Fails if the caller may not write this object. An update is checked with the object before and after the change.
    pub(super) fn check_rights<S: Resource>(&self, object: &Object<S>) -> Result<(), ApiError> {
        let name = || S::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string());
        let what = || format!("{} {}", S::KIND.word(), quote(&name()));
        self.context.check_access(Endpoint::for_create(S::KIND), S::access_scope(&self.model, object), what)
    }

    /// Stores which node holds a tag of a cluster as primary. If another node held it, a new epoch of the primary
    /// begins.
    ///
    /// # Errors
    /// As [`PendingWrite::update`].
    pub fn set_primary(&mut self, cluster: ClusterId, tag: &TagName, node: NodeId) -> Result<(), ApiError> {
        let since = self.context.now;
        let before = self.model.primaries.get_by_name(Some(cluster.0), tag.as_str()).cloned();
        if before.as_ref().is_some_and(|before| before.spec.node == node) {
            return Ok(());
        }
        let epoch = before.as_ref().map_or(1, |before| before.spec.epoch + 1);
        let spec = PrimarySpec { cluster, node, since, epoch };
        let next = match &before {
            Some(before) => {
                let mut next = Primary::clone(before);
                next.spec = spec;
                next.meta.generation += 1;
                next.meta.updated_at = since;
                next
            }
            None => Primary { meta: Meta::new(Uuid::now_v7(), tag.clone(), since), spec },
        };
        let next = Arc::new(next);
        let value = self.put(self.model.primaries.create_revision(next.meta.uuid), before.as_deref(), &next)?;
        self.draft.put(before.as_deref(), &next, value);
        self.note_changed_elections(Kind::Primary, Some(cluster));
        Ok(())
    }
}

/// Builds the error for a release that does not compile or that every host would refuse. The message is the first
/// error, and `detail` lists the others. The extra value `errors` has each error with its field, for programs.
fn bad_release(errors: &[ReleaseError]) -> ApiError {
    let Some(first) = errors.first() else {
        return ApiError::new(ErrorType::ObjectInvalid, "the release does not compile");
    };
    let mut refusal = ApiError::new(ErrorType::ObjectInvalid, first.to_string());
    refusal.field = first.field().map(Cow::into_owned);
    let all = errors.iter().take(50).map(|error| json!({"field": error.field(), "message": error.to_string()}));
    refusal.extra.insert("errors".to_owned(), all.collect());
    if errors.len() > 1 {
        let listed: Vec<String> = errors.iter().skip(1).take(20).map(ToString::to_string).collect();
        refusal.detail = Some(listed.join("\n"));
    }
    refusal
}

fn already_exists(kind: Kind, name: &str, what: &str) -> ApiError {
    let field = match (kind, what) {
        // The name of the field in Glance's bodies.
        (Kind::Namespace, "name") => "namespace".to_owned(),
        (_, what) => what.to_ascii_lowercase(),
    };
    ApiError::new(ErrorType::ObjectExists, format!("A {} with {what} {} already exists.", kind.word(), name)).field(field)
}

/// Builds the error for an object that does not exist.
pub fn not_found(kind: Kind, id: &str) -> ApiError {
    ApiError::new(ErrorType::ObjectNotFound, format!("{kind} {} could not be found.", quote(id)))
}

/// Checks the revision that a request expects of an object that does not exist. 0 means that it expects none.
///
/// # Errors
/// The request expects the object to exist.
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

/// Checks the revision that a request expects of an object.
///
/// # Errors
/// The object is at another revision.
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
