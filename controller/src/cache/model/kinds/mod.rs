//! The kinds of objects that are stored. An implementation of [`Resource`] defines for each kind how its objects are
//! named, which objects they refer to, how they change the fleet, and which conditions a write must meet.
//!
//! A new kind needs an implementation of [`Resource`], an entry in the table [`KINDS`] and an index in the [`Model`].
//! The code for loading, watching, writing and deleting then works for it. The module `api/resource/events` defines the
//! content of the kind's events.

/// Implements the functions about names for a kind whose objects always have a name. The words after `but` cannot be
/// new names, because they are path segments below the kind's collection.
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
/// second argument names the variant of this change.
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

        /// Returns one change: it adds the object to the fleet, or replaces the object there.
        fn put_changes(
            _model: &Model,
            object: &std::sync::Arc<Object<Self>>,
        ) -> Result<Vec<FleetChange>, Vec<stemma_core::release::ReleaseError>> {
            Ok(vec![FleetChange::$change(std::sync::Arc::clone(object))])
        }
    };
}

/// Implements the limits of a kind. The argument is the maximum size of a stored object, in bytes. The limits of single
/// fields come from the tables of the request body's fields.
macro_rules! size_limited {
    ($most:expr) => {
        const MAX_BYTES: usize = $most;

        /// Checks the limits of all fields, which the tables of the request body's fields define. `before` is the spec
        /// before the write.
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

/// A reference to an object, by its kind and its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectReference {
    /// The kind of the object to which this refers.
    pub kind: Kind,
    /// The uuid of the object. For a release, its name.
    pub id: String,
}

impl ObjectReference {
    /// Returns a reference to this object. Other objects refer to a release by its name, and to any other object by its
    /// uuid.
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
/// Maximum size of a stored template, cluster, node group or node, in bytes. The annotations of one object alone may
/// have 256 KiB.
const MAX_LEVEL_BYTES: usize = 512 * KIB;

/// A kind of object that the controller stores. The type that implements this trait is the spec of the objects.
pub trait Resource: Spec + ClassifyFields + UnimplementedFields + 'static {
    /// Maximum size of one stored object, in bytes. A write of an object that is already larger must make it smaller.
    const MAX_BYTES: usize;

    /// Checks the limits of each field of an object as it is after a write. A limit on the request body is not enough,
    /// because each of many writes could add one entry. `old_spec` is the spec before the write.
    ///
    /// # Errors
    /// Fails with the first field that exceeds its limit and that the write has made larger.
    fn check_bounds(&self, old_spec: Option<&Self>, names: &dyn NameResolver) -> Result<(), BodyError>;

    /// Returns the name of an object as text, or `None` if the object has no name.
    fn name_text(name: &Self::Name) -> Option<String>;

    /// Parses the name of an object.
    ///
    /// # Errors
    /// Fails if the text is not a valid name.
    fn parse_name(text: &str) -> Result<Self::Name, ApiError>;

    /// Checks a name that an object gets by this write, for example by a rename. Names that are already stored are not
    /// checked.
    ///
    /// # Errors
    /// Fails if no command or path could address an object with this name.
    fn check_new_name(_name: &Self::Name) -> Result<(), ApiError> {
        Ok(())
    }

    /// Returns the object in which the name must be unique, for example the cluster of a node group. `None` means the
    /// whole fleet.
    fn scope(&self) -> Option<Uuid> {
        None
    }

    /// Returns references to the objects on which this spec depends. They must exist, and cannot be deleted as long as
    /// this object refers to them.
    fn references(&self) -> Vec<ObjectReference> {
        Vec::new()
    }

    /// Returns the visible objects of this kind that refer to the object `target`.
    fn referrers<'m>(model: &'m Model, target: &ObjectReference) -> Box<dyn Iterator<Item = &'m Arc<Object<Self>>> + 'm> {
        let target = target.clone();
        Box::new(Self::index(model).iter().filter(move |object| object.spec.references().contains(&target)))
    }

    /// Returns the name of an object, or its uuid if it has none.
    fn title(object: &Object<Self>) -> String {
        Self::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string())
    }

    /// Returns the title of an object for messages. The title of a node group includes the name of its cluster, because
    /// the name of a group is only unique there.
    fn full_title(_model: &Model, object: &Object<Self>) -> String {
        Self::title(object)
    }

    /// Returns the index of all objects of this kind.
    fn index(model: &Model) -> &ObjectIndex<Self>;

    /// Returns the index of all objects of this kind, for changes.
    fn index_mut(model: &mut Model) -> &mut ObjectIndex<Self>;

    /// Returns the changes to the resolved fleet that follow from a new or changed object.
    ///
    /// # Errors
    /// Fails with the errors of a release that does not compile.
    fn put_changes(model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<FleetChange>, Vec<ReleaseError>>;

    /// Returns the change to the resolved fleet that follows from the deletion of an object. Returns `None` if the
    /// fleet does not contain objects of this kind.
    fn remove_change(object: &Object<Self>) -> Option<FleetChange>;

    /// Returns the changes to the resolved fleet for all objects of this kind, after the store was loaded.
    fn load_changes(model: &mut Model) -> Vec<FleetChange> {
        let objects: Vec<_> = Self::index(model).iter().cloned().collect();
        objects.iter().flat_map(|object| Self::put_changes(model, object).unwrap_or_default()).collect()
    }

    /// Returns the cluster that an object is in (for a cluster, the cluster itself), or `None` if it is in no cluster.
    /// For a stored choice of a primary, a deletion of the object can change the primaries of this cluster.
    fn cluster(_model: &Model, _object: &Object<Self>) -> Option<ClusterId> {
        None
    }

    /// Returns the access scope of an object: its cluster, [`AccessScope::Shared`] for a shared kind such as releases,
    /// and [`AccessScope::Unplaced`] for any other object without a cluster.
    fn access_scope(model: &Model, object: &Object<Self>) -> AccessScope {
        if Self::KIND.is_shared() {
            return AccessScope::Shared;
        }
        Self::cluster(model, object).map_or(AccessScope::Unplaced, AccessScope::Cluster)
    }

    /// Returns the uuids of the objects in a cluster. Returns `None` if there are more than `limit`, or if only a scan
    /// of all objects could find them.
    fn objects_in_cluster(_model: &Model, _cluster: ClusterId, _limit: usize) -> Option<Vec<Uuid>> {
        None
    }

    /// Returns additional keys by which [`ObjectIndex::get_by_key`] finds the object, for example the ids of a
    /// principal's tokens.
    fn lookup_keys(&self) -> Vec<String> {
        Vec::new()
    }

    /// Checks the spec of a write as a whole. The model has the changes that the write has made so far.
    ///
    /// # Errors
    /// Fails with the first condition that is not met.
    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        Ok(())
    }

    /// Returns the errors for which a write is refused although the spec compiles: tasks that every host would refuse,
    /// and a cycle of tasks through a stage. Errors of `old_spec` (the spec before the write) are omitted.
    fn host_errors(&self, _old_spec: Option<&Self>) -> Vec<ReleaseError> {
        Vec::new()
    }

    /// Checks whether a write may change `old_object` into `new_object`.
    ///
    /// # Errors
    /// Fails if the change is not allowed.
    fn check_change(_old_object: &Object<Self>, _new_object: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        Ok(())
    }

    /// Completes or corrects the spec before it is stored. `old_model` is the fleet before the write, and `new_model`
    /// the fleet with the changes that the write has made so far. The change of this object is not among them.
    #[must_use]
    fn normalized(self, _uuid: Uuid, _old_model: &Model, _new_model: &Model) -> Self {
        self
    }
}

/// The functions of [`Model`] and [`Resource`] for one kind, as function pointers. They are for code that only knows
/// the kind at run time.
pub(super) struct KindOps {
    /// The kind.
    pub(super) kind: Kind,
    /// The function that adds a loaded object to the index, while the whole store is read.
    pub(super) read_entry: fn(&mut Model, &StoredValue<'_>) -> Result<(), BadRecord>,
    /// The function that applies a stored change of an object to the index and the fleet.
    pub(super) apply_entry: fn(&mut Model, Uuid, &StoredValue<'_>) -> Result<AffectedNodes, BadRecord>,
    /// The function that returns the changes to the fleet after all objects were loaded: [`Resource::load_changes`].
    pub(super) load_changes: fn(&mut Model) -> Vec<FleetChange>,
    /// The function that returns the full titles ([`Resource::full_title`]) of the objects that [`Resource::referrers`]
    /// returns: those that refer to an object and are visible in the model.
    pub(super) referrers: for<'m> fn(&'m Model, &ObjectReference) -> Box<dyn Iterator<Item = String> + 'm>,
    /// The function that returns the access scope of an object, if it is visible: [`Resource::access_scope`].
    pub(super) access_scope: fn(&Model, Uuid) -> Option<AccessScope>,
    /// The function that returns the title of an object, if it is visible: [`Resource::title`].
    pub(super) title: fn(&Model, Uuid) -> Option<String>,
    /// The function that hides objects from a caller that is bound to the cluster: [`Model::hide_other_clusters`].
    pub(super) hide: fn(&mut Model, &Arc<Model>, ClusterId),
    /// The function that makes all objects visible again.
    pub(super) show_all: fn(&mut Model),
}

impl KindOps {
    /// Returns the functions for the kind whose spec is `S`.
    const fn new<S: Resource>() -> Self {
        Self {
            kind: S::KIND,
            read_entry: Model::load_object::<S>,
            apply_entry: Model::apply_object::<S>,
            load_changes: S::load_changes,
            referrers: |model, target| Box::new(S::referrers(model, target).map(|object| S::full_title(model, object))),
            access_scope: |model, uuid| Some(S::access_scope(model, S::index(model).get(uuid)?)),
            title: |model, uuid| Some(S::title(S::index(model).get(uuid)?)),
            hide: Model::hide_other_clusters::<S>,
            show_all: |model| S::index_mut(model).show_all(),
        }
    }
}

/// The functions of all stored kinds. The fleet applies loaded objects in the order of this table.
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

/// Returns the functions of the kind with this name; case does not matter. Returns `None` for an unknown kind, of which
/// a later version of the controller may have stored objects.
pub(super) fn kind_ops(name: &str) -> Option<&'static KindOps> {
    KINDS.iter().find(|functions| functions.kind.name().eq_ignore_ascii_case(name))
}

/// Returns the error of a write for an invalid name.
fn bad_name_error(error: &stemma_core::name::InvalidName) -> ApiError {
    ApiError::new(ErrorType::FieldInvalid, error.to_string()).field("name")
}

/// Fails if the release that a template, cluster, group or importing release names is not stored. `field` is the field
/// that the error names.
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
