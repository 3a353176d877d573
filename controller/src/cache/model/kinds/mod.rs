//! The kinds of objects: how each is named, what it refers to, how it changes the fleet, and what a write of it must
//! fulfil.
//!
//! A new kind needs an implementation of [`Resource`], a row in the table [`KINDS`] and an index in the [`Model`].
//! Loading, watching, writing and deleting follow from these. `api/resource/events` defines what the events of a kind
//! show.

/// Implements names for a kind whose objects always have one. The words after `but` cannot be new names, because they
/// are path segments below the kind's collection.
macro_rules! named_by {
    (ObjectName but $in_paths:expr) => {
        named_by!(ObjectName, new);

        fn check_new_name(name: &ObjectName) -> Result<(), ApiError> {
            name.check_new($in_paths).map_err(|e| super::bad_name_error(&e))
        }
    };
    ($name:ident) => {
        named_by!($name, new);
    };
    ($name:ident, $read:ident) => {
        fn name_text(name: &$name) -> Option<String> {
            Some(name.to_string())
        }

        fn parse_name(text: &str) -> Result<$name, ApiError> {
            $name::$read(text).map_err(|e| super::bad_name_error(&e))
        }
    };
}

/// Implements access to the index of a kind. If each object of the kind causes exactly one change of the fleet, the
/// second argument is the variant of that change.
macro_rules! indexed_in {
    ($index:ident) => {
        fn index(model: &Model) -> &super::index::ObjectIndex<Self> {
            &model.$index
        }

        fn index_mut(model: &mut Model) -> &mut super::index::ObjectIndex<Self> {
            &mut model.$index
        }
    };
    ($index:ident, $change:ident) => {
        indexed_in!($index);

        fn put_changes(
            _model: &Model,
            object: &std::sync::Arc<Object<Self>>,
        ) -> Result<Vec<FleetChange>, Vec<stemma_core::release::ReleaseError>> {
            Ok(vec![FleetChange::$change(std::sync::Arc::clone(object))])
        }
    };
}

/// Implements the limits of a kind: the maximum size of a stored object in bytes, and for each field the limits in
/// the tables of request bodies.
macro_rules! size_limited {
    ($most:expr) => {
        const MAX_BYTES: usize = $most;

        fn check_bounds(
            &self,
            before: Option<&Self>,
            names: &dyn stemma_core::manifest::NameResolver,
        ) -> Result<(), stemma_core::manifest::BodyError> {
            stemma_core::manifest::check_bounds(before, self, names)
        }
    };
}

mod allocation;
pub(super) mod index;
mod node;
mod principal;
mod release;
mod rule;
mod simple;

use std::sync::Arc;

use stemma_core::access::AccessScope;
use stemma_core::change::ClassifyFields;
use stemma_core::fleet::FleetChange;
use stemma_core::manifest::{BodyError, NameResolver};
use stemma_core::name::ReleaseRef;
use stemma_core::object::{
    AllocationSpec, ClusterId, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, NamespaceSpec, NodeGroupSpec,
    NodeSpec, Object, PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec, Spec,
};
use stemma_core::release::ReleaseError;
use stemma_core::unimplemented::UnimplementedFields;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

pub use principal::{certificate_key, token_key};
pub use release::fixed_content_error;
pub use simple::protected_error;

use super::{AffectedNodes, Model, StoredValue};
use crate::records::codec::BadRecord;
use index::ObjectIndex;

/// A reference to an object: its kind and its uuid or, for a release, its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectReference {
    /// The kind of the object.
    pub kind: Kind,
    /// The uuid of the object, or the name of a release.
    pub id: String,
}

impl ObjectReference {
    /// Returns a reference to an object.
    pub fn new<S: Resource>(object: &Object<S>) -> Self {
        let id = match S::KIND {
            Kind::Release => S::title(object),
            _ => object.meta.uuid.to_string(),
        };
        Self { kind: S::KIND, id }
    }

    fn for_release(name: &ReleaseRef) -> Self {
        Self { kind: Kind::Release, id: name.to_string() }
    }

    fn for_uuid(kind: Kind, uuid: Uuid) -> Self {
        Self { kind, id: uuid.to_string() }
    }
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// Maximum size of an object on one of the levels that have labels, in bytes. Its annotations alone may have 256 KiB.
const MAX_LEVEL_BYTES: usize = 512 * KIB;

/// A kind of object that the controller stores.
pub trait Resource: Spec + ClassifyFields + UnimplementedFields + 'static {
    /// Maximum size of one stored object, in bytes. An object that is already larger may become smaller.
    const MAX_BYTES: usize;

    /// Checks the limits of each field of the object that a write results in. A limit on the request body
    /// is not enough, because many writes may add one entry each.
    ///
    /// # Errors
    /// The first field that exceeds its limit and holds more than before.
    fn check_bounds(&self, before: Option<&Self>, names: &dyn NameResolver) -> Result<(), BodyError>;

    /// Returns the name as text, or `None` for an object without a name.
    fn name_text(name: &Self::Name) -> Option<String>;

    /// Parses a name.
    ///
    /// # Errors
    /// Fails if the text is not a valid name.
    fn parse_name(text: &str) -> Result<Self::Name, ApiError>;

    /// Checks a name that an object gets now, also by a rename. Names that are already stored are not checked.
    ///
    /// # Errors
    /// Fails if no command or path could address the object.
    fn check_new_name(_name: &Self::Name) -> Result<(), ApiError> {
        Ok(())
    }

    /// Returns the object within which the name is unique, or `None` for the whole fleet.
    fn scope(&self) -> Option<Uuid> {
        None
    }

    /// Returns the objects that this spec refers to. Each of them must exist, and cannot be deleted while the reference
    /// exists.
    fn references(&self) -> Vec<ObjectReference> {
        Vec::new()
    }

    /// Returns the objects of this kind that refer to the given one.
    fn referrers<'m>(model: &'m Model, target: &ObjectReference) -> Box<dyn Iterator<Item = &'m Arc<Object<Self>>> + 'm> {
        let target = target.clone();
        Box::new(Self::index(model).iter().filter(move |object| object.spec.references().contains(&target)))
    }

    /// Returns the name of an object, or its uuid if it has none.
    fn title(object: &Object<Self>) -> String {
        Self::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string())
    }

    /// Returns a title that is unique among all objects. It includes the cluster if names are unique only within a
    /// cluster.
    fn full_title(_model: &Model, object: &Object<Self>) -> String {
        Self::title(object)
    }

    /// Returns the index of the kind's objects.
    fn index(model: &Model) -> &ObjectIndex<Self>;

    /// Returns the index of the kind's objects, to change it.
    fn index_mut(model: &mut Model) -> &mut ObjectIndex<Self>;

    /// Returns the changes of the fleet that a new or changed object causes.
    ///
    /// # Errors
    /// The errors of a release that does not compile.
    fn put_changes(model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<FleetChange>, Vec<ReleaseError>>;

    /// Returns the change of the fleet that the deletion of an object causes, or `None` if the object is not part of
    /// the fleet.
    fn remove_change(object: &Object<Self>) -> Option<FleetChange>;

    /// Returns the changes of the fleet that all objects of the kind cause, after they were loaded.
    fn load_changes(model: &mut Model) -> Vec<FleetChange> {
        let objects: Vec<_> = Self::index(model).iter().cloned().collect();
        objects.iter().flat_map(|object| Self::put_changes(model, object).unwrap_or_default()).collect()
    }

    /// Returns the cluster that an object belongs to, whose primaries it may change.
    fn cluster(_model: &Model, _object: &Object<Self>) -> Option<ClusterId> {
        None
    }

    /// Returns the access scope of an object, which the rights of the caller must cover.
    fn access_scope(model: &Model, object: &Object<Self>) -> AccessScope {
        if Self::KIND.is_shared() {
            return AccessScope::Shared;
        }
        Self::cluster(model, object).map_or(AccessScope::Unplaced, AccessScope::Cluster)
    }

    /// Returns the objects in a cluster if there are at most `limit` and no full scan is needed to find them.
    fn objects_in_cluster(_model: &Model, _cluster: ClusterId, _limit: usize) -> Option<Vec<Uuid>> {
        None
    }

    /// Returns further keys by which [`ObjectIndex::get_by_key`] finds an object, such as those of its credentials.
    fn lookup_keys(&self) -> Vec<String> {
        Vec::new()
    }

    /// Checks the requirements that depend on other objects of the fleet.
    ///
    /// # Errors
    /// The requirement that is not met.
    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        Ok(())
    }

    /// Returns the errors for which every host would refuse this spec, without those that `before` has too. Only a
    /// write is checked, never a stored object.
    fn host_errors(&self, _before: Option<&Self>) -> Vec<ReleaseError> {
        Vec::new()
    }

    /// Checks whether an object may be changed to `next`.
    ///
    /// # Errors
    /// Fails if the change is not allowed.
    fn check_change(_before: &Object<Self>, _next: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        Ok(())
    }

    /// Completes or corrects the spec before it is stored. `before` is the stored fleet, and `after` the fleet with all
    /// changes of the write.
    #[must_use]
    fn normalized(self, _uuid: Uuid, _before: &Model, _after: &Model) -> Self {
        self
    }
}

/// The functions of [`Model`] and [`Resource`] for one kind, for code that knows the kind only at run time.
pub(super) struct KindOps {
    /// The kind.
    pub(super) kind: Kind,
    /// Adds an object to its index while the store is loaded.
    pub(super) read_entry: fn(&mut Model, &StoredValue<'_>) -> Result<(), BadRecord>,
    /// Applies a change of an object.
    pub(super) apply_entry: fn(&mut Model, Uuid, &StoredValue<'_>) -> Result<AffectedNodes, BadRecord>,
    /// Returns the changes of the fleet after a load: [`Resource::load_changes`].
    pub(super) load_changes: fn(&mut Model) -> Vec<FleetChange>,
    /// The titles of the objects that refer to the given one: [`Resource::referrers`].
    pub(super) referrers: for<'m> fn(&'m Model, &ObjectReference) -> Box<dyn Iterator<Item = String> + 'm>,
    /// Returns the access scope of an object if it exists: [`Resource::access_scope`].
    pub(super) access_scope: fn(&Model, Uuid) -> Option<AccessScope>,
    /// Returns the title of an object if it exists: [`Resource::title`].
    pub(super) title: fn(&Model, Uuid) -> Option<String>,
    /// Hides the objects that a principal cannot see if it is bound to this cluster.
    pub(super) hide: fn(&mut Model, &Arc<Model>, ClusterId),
    /// Makes all objects visible again.
    pub(super) show_all: fn(&mut Model),
}

impl KindOps {
    const fn new<S: Resource>() -> Self {
        Self {
            kind: S::KIND,
            read_entry: Model::load_object::<S>,
            apply_entry: Model::apply_object::<S>,
            load_changes: S::load_changes,
            referrers: |model, target| Box::new(S::referrers(model, target).map(|object| S::full_title(model, object))),
            access_scope: |model, uuid| Some(S::access_scope(model, S::index(model).get(uuid)?)),
            title: |model, uuid| Some(S::title(S::index(model).get(uuid)?)),
            hide: Model::hide::<S>,
            show_all: |model| S::index_mut(model).show_all(),
        }
    }
}

/// Every stored kind, in the order in which the fleet applies them.
pub(super) static KINDS: [KindOps; 11] = [
    KindOps::new::<NamespaceSpec>(),
    KindOps::new::<InspectionRuleSpec>(),
    KindOps::new::<ReleaseSpec>(),
    KindOps::new::<ReleaseTagsSpec>(),
    KindOps::new::<ClusterTemplateSpec>(),
    KindOps::new::<ClusterSpec>(),
    KindOps::new::<NodeGroupSpec>(),
    KindOps::new::<PrimarySpec>(),
    KindOps::new::<NodeSpec>(),
    KindOps::new::<AllocationSpec>(),
    KindOps::new::<PrincipalSpec>(),
];

/// Returns the functions of a kind by its name, ignoring case. Returns `None` for a kind that only a later version of
/// the controller knows. A store that this version can open may contain objects of such kinds.
pub(super) fn kind_ops(name: &str) -> Option<&'static KindOps> {
    KINDS.iter().find(|row| row.kind.name().eq_ignore_ascii_case(name))
}

fn bad_name_error(error: &stemma_core::name::InvalidName) -> ApiError {
    ApiError::new(ErrorType::FieldInvalid, error.to_string()).field("name")
}

/// Checks that the release that a level names is stored. `field` is the field that an error names.
fn check_release_exists(model: &Model, field: &str, release: Option<&ReleaseRef>) -> Result<(), ApiError> {
    match release {
        Some(release) if model.releases.get_by_name(None, &release.to_string()).is_none() => {
            let message = format!("there is no release {}", quote(&release.to_string()));
            let advice = "store the release first, or apply it together with this object; NAME@VERSION names one version, NAME one without";
            Err(ApiError::new(ErrorType::ReferenceDangling, message).field(field).detail(advice))
        }
        _ => Ok(()),
    }
}
