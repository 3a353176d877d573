//! The kinds of objects: what each is named by, what it refers to, what it means for the fleet and what a write of it must fulfil.
//!
//! One table ([`KINDS`]) and one trait ([`Resource`]). A new kind is its `Resource`, a row in the table and its shelf
//! in the [`Model`]. From these follow how it is loaded, followed, written and deleted. What its events show is told in `api/resource/events`.

/// The names of a kind whose objects always have one, and how one is read that somebody writes. After the type stand the words that are
/// paths where its objects are asked for.
macro_rules! named_by {
    (ObjectName but $in_paths:expr) => {
        named_by!(ObjectName, new);

        fn check_new_name(name: &ObjectName) -> Result<(), ApiError> {
            name.check_new($in_paths).map_err(|e| super::bad_name(&e))
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
            $name::$read(text).map_err(|e| super::bad_name(&e))
        }
    };
}

/// Where the model keeps the objects of a kind and, where one object is one change of the fleet, which change that is.
macro_rules! kept_in {
    ($shelf:ident) => {
        fn shelf(model: &Model) -> &super::shelf::Shelf<Self> {
            &model.$shelf
        }

        fn shelf_mut(model: &mut Model) -> &mut super::shelf::Shelf<Self> {
            &mut model.$shelf
        }
    };
    ($shelf:ident, $change:ident) => {
        kept_in!($shelf);

        fn put_changes(
            _model: &Model,
            object: &std::sync::Arc<Object<Self>>,
        ) -> Result<Vec<Change>, Vec<stemma_core::release::ReleaseError>> {
            Ok(vec![Change::$change(std::sync::Arc::clone(object))])
        }
    };
}

/// What one object of a kind may hold at most: so many bytes as it is stored, and of each field what the tables of bodies say.
macro_rules! bounded {
    ($most:expr) => {
        const MOST_BYTES: usize = $most;

        fn check_bounds(
            &self,
            before: Option<&Self>,
            names: &dyn stemma_core::manifest::Names,
        ) -> Result<(), stemma_core::manifest::BodyError> {
            stemma_core::manifest::check_bounds(before, self, names)
        }
    };
}

mod allocation;
mod node;
mod principal;
mod release;
mod rule;
pub(super) mod shelf;
mod simple;

use std::sync::Arc;

use stemma_core::access::Place;
use stemma_core::change::Classified;
use stemma_core::fleet::Change;
use stemma_core::idle::Idle;
use stemma_core::manifest::{BodyError, Names};
use stemma_core::name::ReleaseRef;
use stemma_core::object::{
    AllocationSpec, ClusterId, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, NamespaceSpec,
    NodeGroupSpec, NodeSpec, Object, PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec, Spec,
};
use stemma_core::release::ReleaseError;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

pub use principal::{certificate_key, token_key};
pub use release::content_fixed;
pub use simple::protected;

use super::{Model, Reach, StoredValue};
use crate::records::codec::BadRecord;
use shelf::Shelf;

/// What an object refers to: the kind, and the uuid or (of a release) the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The kind referred to.
    pub kind: Kind,
    /// Its uuid, or a release's name.
    pub id: String,
}

impl Reference {
    /// A reference to an object.
    pub fn to<S: Resource>(object: &Object<S>) -> Self {
        let id = match S::KIND {
            Kind::Release => S::title(object),
            _ => object.meta.uuid.to_string(),
        };
        Self { kind: S::KIND, id }
    }

    fn release(name: &ReleaseRef) -> Self {
        Self { kind: Kind::Release, id: name.to_string() }
    }

    fn uuid(kind: Kind, uuid: Uuid) -> Self {
        Self { kind, id: uuid.to_string() }
    }
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// The most bytes of an object on whose level labels live: its annotations alone may be 256 KiB.
const LEVEL: usize = 512 * KIB;

/// A kind as the controller keeps it.
pub trait Resource: Spec + Classified + Idle + 'static {
    /// The most bytes of one object, as it is stored. One that is larger already may become smaller.
    const MOST_BYTES: usize;

    /// Checks each field of what a write leaves against what it may hold at most. Many writes add one entry, and no body says them all.
    ///
    /// # Errors
    /// The first field that holds more than it may, and more than before.
    fn check_bounds(&self, before: Option<&Self>, names: &dyn Names) -> Result<(), BodyError>;

    /// The name as text; `None` for a node without one.
    fn name_text(name: &Self::Name) -> Option<String>;

    /// Reads a name.
    ///
    /// # Errors
    /// When the value is none.
    fn parse_name(text: &str) -> Result<Self::Name, ApiError>;

    /// Checks the name that an object gets now, also by a rename. Those that stand in a store are read whatever they are.
    ///
    /// # Errors
    /// When no command or path would reach it.
    fn check_new_name(_name: &Self::Name) -> Result<(), ApiError> {
        Ok(())
    }

    /// Within what the name is unique; `None`: in the whole fleet.
    fn scope(&self) -> Option<Uuid> {
        None
    }

    /// What it refers to. Each must exist, and cannot be deleted while it is referred to.
    fn references(&self) -> Vec<Reference> {
        Vec::new()
    }

    /// The objects of this kind that refer to something.
    fn users<'m>(model: &'m Model, to: &Reference) -> Box<dyn Iterator<Item = &'m Arc<Object<Self>>> + 'm> {
        let to = to.clone();
        Box::new(Self::shelf(model).iter().filter(move |object| object.spec.references().contains(&to)))
    }

    /// What an object is called: by its name, else by its uuid.
    fn title(object: &Object<Self>) -> String {
        Self::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string())
    }

    /// The same among all objects: of one whose name is its cluster's, with the cluster.
    fn full_title(_model: &Model, object: &Object<Self>) -> String {
        Self::title(object)
    }

    /// Where its objects are.
    fn shelf(model: &Model) -> &Shelf<Self>;

    /// The same, to change.
    fn shelf_mut(model: &mut Model) -> &mut Shelf<Self>;

    /// What a new or changed object means for the fleet.
    ///
    /// # Errors
    /// What is wrong with a release.
    fn put_changes(model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<Change>, Vec<ReleaseError>>;

    /// What it means for the fleet that an object is gone; none where it is no part of it.
    fn remove_change(object: &Object<Self>) -> Option<Change>;

    /// What all objects of the kind mean, when they have just been read.
    fn load_changes(model: &mut Model) -> Vec<Change> {
        let objects: Vec<_> = Self::shelf(model).iter().cloned().collect();
        objects.iter().flat_map(|object| Self::put_changes(model, object).unwrap_or_default()).collect()
    }

    /// The cluster whose primaries an object may change.
    fn cluster(_model: &Model, _object: &Object<Self>) -> Option<ClusterId> {
        None
    }

    /// Where an object stands, for the rights of who asks.
    fn place(model: &Model, object: &Object<Self>) -> Place {
        if Self::KIND.is_shared() {
            return Place::Shared;
        }
        Self::cluster(model, object).map_or(Place::Nowhere, Place::Cluster)
    }

    /// The objects that stand in a cluster, where they are no more than so many, and the fleet knows them without a look at all.
    fn standing_in(_model: &Model, _cluster: ClusterId, _most: usize) -> Option<Vec<Uuid>> {
        None
    }

    /// Further keys by which an object is found.
    fn keys(&self) -> Vec<String> {
        Vec::new()
    }

    /// Checks what only the whole fleet can tell.
    ///
    /// # Errors
    /// What does not hold.
    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        Ok(())
    }

    /// What every host would refuse of it, and did not stand in it before: asked of a write, never of what is stored.
    fn refused(&self, _before: Option<&Self>) -> Vec<ReleaseError> {
        Vec::new()
    }

    /// Checks whether it may be changed into what comes next.
    ///
    /// # Errors
    /// When it may not be written so.
    fn check_change(_before: &Object<Self>, _next: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        Ok(())
    }

    /// The spec as a write stores it: `before` is the fleet as it is stored, `after` holds all that is written with it.
    #[must_use]
    fn settled(self, _uuid: Uuid, _before: &Model, _after: &Model) -> Self {
        self
    }
}

/// What the model does with the entries of one kind.
pub(super) struct Row {
    /// Which kind.
    pub(super) kind: Kind,
    /// Puts an entry that was read at a start on its shelf.
    pub(super) read: fn(&mut Model, &StoredValue<'_>) -> Result<(), BadRecord>,
    /// Takes in a change.
    pub(super) take: fn(&mut Model, Uuid, &StoredValue<'_>) -> Result<Reach, BadRecord>,
    /// [`Resource::load_changes`].
    pub(super) load_changes: fn(&mut Model) -> Vec<Change>,
    /// What those are called that refer to something: [`Resource::users`].
    pub(super) users: for<'m> fn(&'m Model, &Reference) -> Box<dyn Iterator<Item = String> + 'm>,
    /// [`Resource::place`], where the object is there.
    pub(super) place: fn(&Model, Uuid) -> Option<Place>,
    /// [`Resource::title`], where the object is there.
    pub(super) title: fn(&Model, Uuid) -> Option<String>,
    /// Hides from a model what a principal that is bound to a cluster does not see of the whole one.
    pub(super) hide: fn(&mut Model, &Arc<Model>, ClusterId),
    /// Shows it again.
    pub(super) show_all: fn(&mut Model),
}

impl Row {
    const fn of<S: Resource>() -> Self {
        Self {
            kind: S::KIND,
            read: Model::read_object::<S>,
            take: Model::take_object::<S>,
            load_changes: S::load_changes,
            users: |model, to| Box::new(S::users(model, to).map(|object| S::full_title(model, object))),
            place: |model, uuid| Some(S::place(model, S::shelf(model).get(uuid)?)),
            title: |model, uuid| Some(S::title(S::shelf(model).get(uuid)?)),
            hide: Model::hide::<S>,
            show_all: |model| S::shelf_mut(model).see_all(),
        }
    }
}

/// Every kind that is stored, in the order in which the fleet takes them in.
pub(super) static KINDS: [Row; 11] = [
    Row::of::<NamespaceSpec>(),
    Row::of::<InspectionRuleSpec>(),
    Row::of::<ReleaseSpec>(),
    Row::of::<ReleaseTagsSpec>(),
    Row::of::<ClusterTemplateSpec>(),
    Row::of::<ClusterSpec>(),
    Row::of::<NodeGroupSpec>(),
    Row::of::<PrimarySpec>(),
    Row::of::<NodeSpec>(),
    Row::of::<AllocationSpec>(),
    Row::of::<PrincipalSpec>(),
];

/// The row of a kind by its name, in whatever case; `None` for a kind of a later program's, in a store that this one may still open.
pub(super) fn row(word: &str) -> Option<&'static Row> {
    KINDS.iter().find(|row| row.kind.name().eq_ignore_ascii_case(word))
}

fn bad_name(error: &stemma_core::name::InvalidName) -> ApiError {
    ApiError::new(ErrorType::FieldInvalid, error.to_string()).field("name")
}

fn release_exists(model: &Model, field: &str, release: Option<&ReleaseRef>) -> Result<(), ApiError> {
    match release {
        Some(release) if model.releases.named(None, &release.to_string()).is_none() => {
            let message = format!("there is no release {}", quote(&release.to_string()));
            let advice = "store the release first, or apply it together with this object; NAME@VERSION names one version, NAME one without";
            Err(ApiError::new(ErrorType::ReferenceDangling, message).field(field).detail(advice))
        }
        _ => Ok(()),
    }
}
