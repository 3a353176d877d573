//! A decision in the making: a copy of the fleet that each step changes, and the commit that grows beside it.
//!
//! Several objects can be written at once (an apply), and a later one may refer to an earlier one. So every step
//! sees what the steps before it did, and what holds of the whole can be asked of the copy before anything is
//! committed. The copy is free: the maps are persistent.

mod admins;
mod allocate;
mod catalog;
mod changed;
mod counts;
mod decide;
mod delete;
mod forget;
mod nearest;
mod order;
mod paths;
mod primaries;
mod privileged;
mod releases;
mod size;
#[cfg(test)]
mod tests;

pub use counts::MOST_NODES;
pub use delete::check_unprotected;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use stemma_core::access::Place;
use stemma_core::name::TagName;
use stemma_core::object::{ClusterId, Kind, Meta, NodeId, Object, Primary, PrimarySpec, PrincipalRole};
use stemma_core::release::ReleaseError;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::admit::bad_field;
use super::names::ModelNames;
use super::{Context, Decision, Draft, Undecided};
use crate::cache::model::{Model, Reach, Resource};
use crate::records::audit::Action;
use crate::records::request::Answer;
use crate::store::Precondition;

/// A decision in the making.
pub struct Work<'a> {
    /// The fleet, with what was decided so far.
    pub model: Model,
    context: &'a Context<'a>,
    draft: Draft,
    reach: Reach,
    /// Clusters in which a stored choice of a primary is another, or what the cluster itself names.
    elected: BTreeSet<ClusterId>,
    /// Clusters about which an extension was asked.
    asked: BTreeSet<ClusterId>,
    /// As what nodes are placed.
    places_as: PrincipalRole,
}

/// An object as a step left it, and what the step did.
pub struct Written<S: Resource> {
    /// The object.
    pub object: Arc<Object<S>>,
    /// What became of it.
    pub action: Action,
}

impl<'a> Work<'a> {
    /// Begins a decision.
    pub fn on(context: &'a Context<'a>) -> Self {
        Self {
            model: context.model.clone(),
            context,
            draft: Draft::default(),
            reach: Reach::default(),
            elected: BTreeSet::new(),
            asked: BTreeSet::new(),
            places_as: context.caller.who.rights.role,
        }
    }

    /// When the write is made.
    pub fn now(&self) -> stemma_core::object::Timestamp {
        self.context.now
    }

    /// What ended by then may be dropped, as [`Context::forgets_until`] says.
    pub fn forgets_until(&self) -> stemma_core::object::Timestamp {
        self.context.forgets_until()
    }

    /// Whether the clock is believed.
    pub fn is_clock_good(&self) -> bool {
        self.context.trusted_now.is_some()
    }

    /// The decision, with what follows from it for nodes that it reaches, unless tasks would wait for each other where they
    /// would stand.
    ///
    /// # Errors
    /// The cycle, spelled out; a primary that is named and cannot hold its tag; a privileged task that an admin alone places; a version whose content is fixed; two tasks of a node that write one path; what would be too large for
    /// a host; more objects of a kind than there may be; that nobody waits any more.
    pub fn finish(mut self, mut answer: Answer) -> Result<Decision, Undecided> {
        self.check_awaited()?;
        // What follows holds of the whole fleet, whatever of it is shown to who asks.
        self.model.show_all();
        self.check_admins()?;
        self.note_resource_types();
        self.check_counts()?;
        self.end_join_tokens();
        self.check_moved()?;
        self.check_names()?;
        self.check_instances()?;
        self.forget()?;
        self.settle_tags()?;
        self.check_primaries()?;
        self.check_awaited_primaries()?;
        self.guard_named_primaries();
        self.check_privileged()?;
        self.check_catalog()?;
        self.check_releases()?;
        self.check_sizes()?;
        self.check_order()?;
        self.check_paths()?;
        self.draft.name_clusters(|kind, uuid| {
            [&self.model, self.context.model].into_iter().find_map(|model| {
                let Some(Place::Cluster(cluster)) = model.place_of(kind, uuid) else { return None };
                Some(model.clusters.get(cluster.0)?.meta.name.to_string())
            })
        });
        self.note_clusters();
        self.note_rules();
        if self.is_dry_run() {
            self.tell_reached(&mut answer);
        }
        // Last, and so of all that was looked at: a look that ended early has found nothing of those behind it.
        self.check_awaited()?;
        Ok(Decision { draft: self.draft, answer })
    }

    /// Refuses a decision that nobody waits for any more.
    fn check_awaited(&self) -> Result<(), ApiError> {
        if self.is_awaited() {
            return Ok(());
        }
        let message = "nobody waits for the answer any more; nothing was changed";
        Err(ApiError::new(ErrorType::ServerStopping, message))
    }

    /// Requires that a mark is as it was when the write was decided.
    fn require_mark(&mut self, mark: &str) {
        self.draft.require(Precondition::as_read(mark.to_owned(), self.context.marked(mark)));
    }

    /// The fleet as it was before the write.
    pub fn before(&self) -> &Model {
        self.context.model
    }

    /// Whether the write is only tried out.
    pub fn is_dry_run(&self) -> bool {
        self.context.caller.dry_run
    }

    /// The nodes that the decision reaches so far, to be resolved one by one. They end where nobody waits for the answer any more;
    /// [`Self::finish`] refuses the write then.
    pub(super) fn reached(&self) -> impl Iterator<Item = NodeId> {
        self.reach.dirty.nodes(&self.model.fleet).take_while(|_| self.is_awaited())
    }

    /// Whether somebody waits for the answer still. Who looks at many objects asks before each; [`Self::finish`] refuses the write where
    /// nobody does.
    pub fn is_awaited(&self) -> bool {
        !self.context.caller.abandoned.is_set()
    }

    /// Those of them of which whoever asks is told.
    pub fn told_hosts(&self) -> impl Iterator<Item = NodeId> {
        self.reached().filter(|node| self.is_told_of(*node))
    }

    /// Whether a node stands, or stood, where whoever asks sees it.
    fn is_told_of(&self, node: NodeId) -> bool {
        let Some(own) = self.context.caller.who.rights.within else { return true };
        [self.context.whole, &self.model].into_iter().any(|model| model.fleet.cluster_of_node(node) == Some(own))
    }

    /// What was written so far: each object's kind and uuid.
    pub fn written(&self) -> impl Iterator<Item = (Kind, Uuid)> {
        let written = self.draft.touched().iter().filter(|one| one.action != Action::Unchanged);
        written.map(|one| (one.kind, one.uuid))
    }

    /// What was done to which objects so far.
    pub fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }

    /// Makes an object.
    ///
    /// # Errors
    /// When its name or uuid is taken.
    pub fn create<S: Resource>(&mut self, uuid: Uuid, name: S::Name, spec: S) -> Result<Written<S>, ApiError> {
        let checked = spec.check(&self.model);
        let spec = spec.settled(uuid, self.context.model, &self.model);
        let object = Arc::new(Object { meta: Meta::new(uuid, name, self.context.now), spec });
        // Before it is told whether the name is taken, also by what is not seen.
        self.check_rights(&object)?;
        if S::shelf(&self.model).holds(uuid) {
            return Err(exists(S::KIND, &uuid.to_string(), "UUID"));
        }
        self.check_name(uuid, &object.meta.name, &object.spec)?;
        checked?;
        let value = self.put(u64::MAX, None, &object)?;
        self.draft.put(None, &object, value);
        Ok(Written { object, action: Action::Created })
    }

    /// Puts an object's next spec, and name, in the place of what it was.
    ///
    /// # Errors
    /// When its new name is taken, or others refer to it by the one that it has.
    pub fn update<S: Resource>(
        &mut self,
        before: &Arc<Object<S>>,
        name: S::Name,
        spec: S,
    ) -> Result<Written<S>, ApiError> {
        let spec = spec.settled(before.meta.uuid, self.context.model, &self.model);
        if before.spec == spec && before.meta.name == name {
            return Ok(Written { object: Arc::clone(before), action: Action::Unchanged });
        }
        if before.meta.name != name {
            self.check_name::<S>(before.meta.uuid, &name, &spec)?;
        }
        spec.check(&self.model)?;
        let next = self.next(before, name, spec);
        S::check_change(before, &next, &self.model)?;
        self.check_rights(before)?;
        self.check_rights(&next)?;
        self.check_renamed(before, &next)?;
        self.replace(before, next)
    }

    fn next<S: Resource>(&self, before: &Object<S>, name: S::Name, spec: S) -> Object<S> {
        let mut object = Object::clone(before);
        object.meta.name = name;
        object.meta.generation += u64::from(object.spec != spec);
        object.meta.updated_at = self.context.now;
        object.spec = spec;
        object
    }

    fn replace<S: Resource>(&mut self, before: &Object<S>, next: Object<S>) -> Result<Written<S>, ApiError> {
        let object = Arc::new(next);
        let value = self.put(S::shelf(&self.model).made(object.meta.uuid), Some(before), &object)?;
        self.draft.put(Some(before), &object, value);
        Ok(Written { object, action: Action::Updated })
    }

    /// Puts an object into the fleet that is decided on, and gives it as it will be stored.
    fn put<S: Resource>(
        &mut self,
        made: u64,
        before: Option<&Object<S>>,
        object: &Arc<Object<S>>,
    ) -> Result<Bytes, ApiError> {
        let value = size::encoded(before, object)?;
        let before = before.map(|before| &before.spec);
        let bounds = object.spec.check_bounds(before, &ModelNames::to_show(&self.model));
        bounds.map_err(|error| bad_field(S::KIND.word(), &error))?;
        let mut errors = Vec::new();
        match self.model.put(made, object) {
            Ok(reach) => self.reach.extend(reach),
            Err(broken) => errors.extend(broken),
        }
        errors.extend(object.spec.refused(before));
        if errors.is_empty() { Ok(value) } else { Err(bad_release(&errors)) }
    }

    fn check_name<S: Resource>(&self, uuid: Uuid, name: &S::Name, spec: &S) -> Result<(), ApiError> {
        let Some(text) = S::name_text(name) else { return Ok(()) };
        S::check_new_name(name)?;
        match S::shelf(&self.model).holder(spec.scope(), &text) {
            Some(other) if other != uuid => Err(exists(S::KIND, &text, "name")),
            _ => Ok(()),
        }
    }

    /// Refuses a write of an object for want of rights, before it is made and after.
    pub(super) fn check_rights<S: Resource>(&self, object: &Object<S>) -> Result<(), ApiError> {
        let name = || S::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string());
        let what = || format!("{} {}", S::KIND.word(), quote(&name()));
        self.context.check_place(Endpoint::creating(S::KIND), S::place(&self.model, object), what)
    }

    /// Stores who holds a tag of a cluster as primary from now on. It is another epoch where another held it.
    ///
    /// # Errors
    /// As [`Work::update`].
    pub fn elect(&mut self, cluster: ClusterId, tag: &TagName, node: NodeId) -> Result<(), ApiError> {
        let since = self.context.now;
        let before = self.model.primaries.named(Some(cluster.0), tag.as_str()).cloned();
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
        let value = self.put(self.model.primaries.made(next.meta.uuid), before.as_deref(), &next)?;
        self.draft.put(before.as_deref(), &next, value);
        self.note_elected(Kind::Primary, Some(cluster));
        Ok(())
    }
}

/// The refusal of a release that does not compile, or that every host would refuse: the first error, behind it all the others, and for programs each with its
/// field in `errors`.
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

fn exists(kind: Kind, name: &str, what: &str) -> ApiError {
    let field = match (kind, what) {
        // As Glance's bodies call it.
        (Kind::Namespace, "name") => "namespace".to_owned(),
        (_, what) => what.to_ascii_lowercase(),
    };
    ApiError::new(ErrorType::ObjectExists, format!("A {} with {what} {} already exists.", kind.word(), name))
        .field(field)
}

/// The refusal of a name that nothing has.
pub fn not_found(kind: Kind, id: &str) -> ApiError {
    ApiError::new(ErrorType::ObjectNotFound, format!("{kind} {} could not be found.", quote(id)))
}

/// Checks what a request presumes of an object that is not there: 0 says that it is not.
///
/// # Errors
/// When it was there already.
pub fn check_absent(presumed: Option<u64>) -> Result<(), ApiError> {
    match presumed {
        None | Some(0) => Ok(()),
        Some(presumed) => {
            let message =
                format!("the object is not there, the request presumes it at revision {presumed}; nothing was changed");
            Err(ApiError::new(ErrorType::PreconditionFailed, message).detail("read it again, and decide again"))
        }
    }
}

/// Checks what a request presumes of an object's revision.
///
/// # Errors
/// When it is another one.
pub fn check_presumed<S: Resource>(object: &Object<S>, presumed: Option<u64>) -> Result<(), ApiError> {
    match presumed {
        Some(presumed) if presumed != object.meta.resource_version => {
            let message = format!(
                "the object is at revision {}, the request presumes {presumed}; nothing was changed",
                object.meta.resource_version
            );
            Err(ApiError::new(ErrorType::PreconditionFailed, message).detail("read it again, and decide again"))
        }
        _ => Ok(()),
    }
}
