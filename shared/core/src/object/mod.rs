//! Objects: what operators store, in the form in which it is stored.
//!
//! Every object is its [`Meta`] and a typed spec. What is observed of a node stands apart ([`Observation`]), so that
//! a report never conflicts with an edit. Names of other objects are resolved where a body comes in
//! ([`crate::manifest`]): a stored spec names its parents by uuid, so that a rename moves nobody; releases are named
//! by name and version, since a version *is* the content.
//!
//! The types are the stored form: serde with named fields, defaults left out. The registry above gives each record
//! its schema version.

mod allocation;
mod cluster;
mod hold;
mod namespace;
mod node;
mod placement;
mod principal;
mod release;
mod rule;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

pub use allocation::{AllocationDecision, AllocationSpec, Merits};
pub use cluster::{
    ClusterSpec, ClusterTemplateSpec, FreezeUntil, Inherited, MaxUnavailable, NodeGroupSpec, RoleChange, Rollout,
    Strategy, StrategyType, Window,
};
pub use hold::{Held, Hold, SaidOnHost};
pub use namespace::{
    Association, Dates, DefaultText, Definition, Items, MAX_MEMBERS, Member, NamespaceSpec, NamespaceTag, Properties,
    Property, PropertyType, Visibility,
};
pub use node::{
    DecidedTags, FactMap, MAX_FACT, MAX_FACT_PATH, MAX_FACTS, MAX_RESULT_TEXTS, MAX_RESULTS, MAX_SENTENCE, MAX_TASK_ID,
    NodeSpec, NodeTags, NotTaken, Observation, ProvisionState, RefusedTraits, ReportLeftOut, ReportedLabel,
    ReportedLabels,
};
pub use placement::{PrimarySpec, ReleaseTagsSpec};
pub use principal::{BearerToken, PrincipalCertificate, PrincipalRole, PrincipalSpec, Rights, TooMany};
pub use release::{ExtensionUse, MAX_TAGS, Matching, PrimaryMatching, ReleaseSpec, RoleMatching, RoleSpec, TagSpec};
pub use rule::{InspectionRuleSpec, MAX_PRIORITY, Multiple, Phase, RuleAction, RuleCondition};

use crate::name::{NamespaceName, NodeName, ObjectName, ReleaseRef};
use crate::ownership::Owner;
use crate::time::{self, InvalidTime};
use crate::traits::Trait;

/// Milliseconds since 1970-01-01T00:00:00Z. Core reads no clock: the caller says when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Reads a time, as [`time::read`] does.
    ///
    /// # Errors
    /// [`InvalidTime`].
    pub fn read(text: &str) -> Result<Self, InvalidTime> {
        time::read(text).map(Self)
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);
    )+};
}

ids! {
    /// A cluster template's uuid.
    TemplateId,
    /// A cluster's uuid.
    ClusterId,
    /// A node group's uuid.
    GroupId,
    /// A node's uuid.
    NodeId,
}

/// A level, or the node that stands below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelId {
    /// A template.
    Template(TemplateId),
    /// A cluster.
    Cluster(ClusterId),
    /// A group.
    Group(GroupId),
    /// A node.
    Node(NodeId),
}

impl LevelId {
    /// An object of a kind; none of a kind that is no level.
    pub fn of(kind: Kind, uuid: Uuid) -> Option<Self> {
        match kind {
            Kind::ClusterTemplate => Some(Self::Template(TemplateId(uuid))),
            Kind::Cluster => Some(Self::Cluster(ClusterId(uuid))),
            Kind::NodeGroup => Some(Self::Group(GroupId(uuid))),
            Kind::Node => Some(Self::Node(NodeId(uuid))),
            Kind::Release
            | Kind::ReleaseTags
            | Kind::Primary
            | Kind::Namespace
            | Kind::InspectionRule
            | Kind::Revision
            | Kind::Secret
            | Kind::Expectation
            | Kind::Allocation
            | Kind::Principal => None,
        }
    }

    /// Its uuid.
    pub const fn uuid(self) -> Uuid {
        match self {
            Self::Template(id) => id.0,
            Self::Cluster(id) => id.0,
            Self::Group(id) => id.0,
            Self::Node(id) => id.0,
        }
    }
}

macro_rules! kinds {
    (@is shared) => { true };
    (@is) => { false };
    ($($(#[$doc:meta])* $kind:ident $word:literal $($shared:ident)?,)+) => {
        /// The kinds of objects, those of later issues included, so that each has its place from the first store on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
        pub enum Kind {
            $($(#[$doc])* $kind,)+
        }

        impl Kind {
            /// All of them, in their order.
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// The name in `kind:`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)+
                }
            }

            /// The word in findings, answers, stored keys and on the command line.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)+
                }
            }

            /// Whether its objects stand in no cluster and are read by all.
            pub const fn is_shared(self) -> bool {
                match self {
                    $(Self::$kind => kinds!(@is $($shared)?),)+
                }
            }
        }
    };
}

kinds! {
    /// A versioned library of roles, tags and tasks.
    Release "release" shared,
    /// User-defined tags beside a release, for all its versions.
    ReleaseTags "releasetags" shared,
    /// Defaults for clusters.
    ClusterTemplate "clustertemplate" shared,
    /// A cluster.
    Cluster "cluster",
    /// The nodes of a cluster that are alike.
    NodeGroup "nodegroup",
    /// One host.
    Node "node",
    /// Which node holds a tag as primary: a stored choice.
    Primary "primary",
    /// The catalogue's namespace.
    Namespace "namespace" shared,
    /// Conditions over reported facts, and what they set.
    InspectionRule "inspectionrule" shared,
    /// A numbered snapshot of what a group's hosts run.
    Revision "revision",
    /// A secret value, written and never read.
    Secret "secret",
    /// What a repository of manifests is held to.
    Expectation "expectation",
    /// Which node is used for what was asked for.
    Allocation "allocation",
    /// Who may ask, and as what.
    Principal "principal",
}

impl Kind {
    /// Whether there are objects of it: the others have their place in a store for what is to come.
    pub const fn is_stored(self) -> bool {
        !matches!(self, Self::Revision | Self::Secret | Self::Expectation)
    }

    /// One of its objects in a sentence.
    pub const fn with_article(self) -> &'static str {
        match self {
            Self::Release => "a release",
            Self::ReleaseTags => "a release's set of tags",
            Self::ClusterTemplate => "a cluster template",
            Self::Cluster => "a cluster",
            Self::NodeGroup => "a node group",
            Self::Node => "a node",
            Self::Primary => "a primary",
            Self::Namespace => "a namespace",
            Self::InspectionRule => "an inspection rule",
            Self::Revision => "a revision",
            Self::Secret => "a secret",
            Self::Expectation => "an expectation",
            Self::Allocation => "an allocation",
            Self::Principal => "a principal",
        }
    }
}

/// What every object has beside its spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta<N> {
    /// The identity, for ever.
    pub uuid: Uuid,
    /// The name, unique in its kind (a group's in its cluster).
    pub name: N,
    /// Grows with each change of the spec; 1 at first.
    pub generation: u64,
    /// The store's revision that wrote the object; 0 before it is stored. `ETag` and `If-Match`.
    pub resource_version: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its spec was last changed.
    pub updated_at: Timestamp,
}

impl<N> Meta<N> {
    /// A new object's: generation 1, not yet stored.
    pub fn new(uuid: Uuid, name: N, now: Timestamp) -> Self {
        Self { uuid, name, generation: 1, resource_version: 0, created_at: now, updated_at: now }
    }
}

/// A spec: what an operator wants of one kind of object.
pub trait Spec: Serialize + DeserializeOwned + Clone + fmt::Debug + PartialEq {
    /// What the object is named by.
    type Name: Serialize + DeserializeOwned + Clone + fmt::Debug + PartialEq + Ord;
    /// The kind.
    const KIND: Kind;
}

/// An object: its meta and its spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Object<S: Spec> {
    /// Identity, name and versions.
    pub meta: Meta<S::Name>,
    /// What an operator wants.
    pub spec: S,
}

impl<S: Spec<Name = Option<N>>, N: fmt::Display> Object<S> {
    /// What an object is called in answers and as an origin that need not have a name: its name, else its uuid.
    pub fn display_name(&self) -> String {
        self.meta.name.as_ref().map_or_else(|| self.meta.uuid.to_string(), ToString::to_string)
    }
}

/// A versioned library.
pub type Release = Object<ReleaseSpec>;
/// User-defined tags beside a release.
pub type ReleaseTags = Object<ReleaseTagsSpec>;
/// Defaults for clusters.
pub type ClusterTemplate = Object<ClusterTemplateSpec>;
/// A cluster.
pub type Cluster = Object<ClusterSpec>;
/// A group of nodes.
pub type NodeGroup = Object<NodeGroupSpec>;
/// A node: what operators say of it. What it says itself is its [`Observation`].
pub type Node = Object<NodeSpec>;
/// Which node is used for what was asked for.
pub type Allocation = Object<AllocationSpec>;
/// Who may ask, and as what.
pub type Principal = Object<PrincipalSpec>;
/// A stored choice of a primary.
pub type Primary = Object<PrimarySpec>;
/// A namespace of the catalogue.
pub type Namespace = Object<NamespaceSpec>;
/// What follows from a host's report.
pub type InspectionRule = Object<InspectionRuleSpec>;

impl Spec for AllocationSpec {
    /// One without a name is named by its uuid.
    type Name = Option<ObjectName>;
    const KIND: Kind = Kind::Allocation;
}

impl Spec for InspectionRuleSpec {
    /// One without a name is named by its uuid, as Ironic's are.
    type Name = Option<ObjectName>;
    const KIND: Kind = Kind::InspectionRule;
}

impl Spec for PrincipalSpec {
    type Name = ObjectName;
    const KIND: Kind = Kind::Principal;
}

impl Spec for ReleaseSpec {
    type Name = ReleaseRef;
    const KIND: Kind = Kind::Release;
}

impl Spec for ReleaseTagsSpec {
    type Name = crate::name::Name;
    const KIND: Kind = Kind::ReleaseTags;
}

impl Spec for ClusterTemplateSpec {
    type Name = ObjectName;
    const KIND: Kind = Kind::ClusterTemplate;
}

impl Spec for ClusterSpec {
    type Name = ObjectName;
    const KIND: Kind = Kind::Cluster;
}

impl Spec for NodeGroupSpec {
    type Name = ObjectName;
    const KIND: Kind = Kind::NodeGroup;
}

impl Spec for NodeSpec {
    /// A node made by Ironic's POST may have no name; its uuid stands for it then.
    type Name = Option<NodeName>;
    const KIND: Kind = Kind::Node;
}

impl Spec for PrimarySpec {
    /// The tag.
    type Name = crate::name::TagName;
    const KIND: Kind = Kind::Primary;
}

impl Spec for NamespaceSpec {
    type Name = NamespaceName;
    const KIND: Kind = Kind::Namespace;
}

impl NodeSpec {
    /// The instance that uses the node, whatever form of a uuid an older store has.
    pub fn instance(&self) -> Option<Uuid> {
        Uuid::parse_str(self.extra.get("instance_uuid")?.as_str()?).ok()
    }
}

impl Node {
    /// How far its instance has come, in Ironic's words.
    pub fn provision_state(&self) -> &'static str {
        match self.spec.provision_state {
            None => "enroll",
            Some(ProvisionState::Manageable) => "manageable",
            Some(ProvisionState::Available) => "available",
            Some(ProvisionState::Active) => "active",
        }
    }

    /// Whether something uses it already: an instance, which an allocation may be.
    pub fn is_used(&self) -> bool {
        self.spec.extra.get("instance_uuid").is_some_and(|id| !id.is_null())
    }

    /// The node's id.
    pub fn id(&self) -> NodeId {
        NodeId(self.meta.uuid)
    }
}

/// Fields of Ironic's and Magnum's bodies that have no meaning here: stored and given back.
pub type Extra = Map<String, Value>;

/// Traits, sorted.
pub type TraitSet = BTreeSet<Trait>;

/// Who gave each top-level field of a spec that is no map of labels, by the field's name; owners sorted.
pub type FieldOwners = BTreeMap<String, Arc<[Owner]>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{kinds, kinds_of_api};

    #[test]
    fn every_kind_that_has_fields_is_among_all() {
        for fields in kinds().into_iter().chain(kinds_of_api()) {
            assert!(Kind::ALL.iter().any(|kind| kind.name() == fields.kind), "{}", fields.kind);
        }
    }
}
