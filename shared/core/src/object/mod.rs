//! Objects: the specs that operators set, and their metadata, as they are stored.
//!
//! Every object has a [`Meta`] and a typed spec. What a host reports about its node is stored separately
//! ([`Observation`]), so that a report never conflicts with an edit. Names of other objects are resolved when a request
//! body arrives ([`crate::manifest`]). A stored spec refers to its parents by uuid, so that a rename moves no node. It
//! refers to releases by name and version, because a version *is* the content.
//!
//! The types are serialized as records with named fields, and fields at their defaults are omitted. The controller adds
//! a schema version to each record.

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

pub use allocation::{AllocationDecision, AllocationSpec, SelectionReason};
pub use cluster::{
    ClusterSpec, ClusterTemplateSpec, FreezeUntil, Inherited, MaxUnavailable, NodeGroupSpec, RoleChange, Rollout, Strategy,
    StrategyType, Window,
};
pub use hold::{Hold, HoldEnd, ReportedState};
pub use namespace::{
    Association, Dates, DefaultValue, Definition, ItemSchema, MAX_MEMBERS, NamedItem, NamespaceSpec, NamespaceTag, Properties,
    Property, PropertyType, Visibility,
};
pub use node::{
    DecidedTags, DroppedInput, DroppedReportCounts, FactMap, MAX_FACT_PATH_BYTES, MAX_FACT_VALUE_BYTES, MAX_FACTS_BYTES,
    MAX_RESULT_TEXT_BYTES, MAX_RESULTS, MAX_SENTENCE_BYTES, MAX_TASK_ID_BYTES, NodeSpec, NodeTags, Observation, ProvisionState,
    RefusedTraits, ReportedLabel, ReportedLabels,
};
pub use placement::{PrimarySpec, ReleaseTagsSpec};
pub use principal::{BearerToken, PrincipalCertificate, PrincipalRole, PrincipalSpec, Rights, TooManyCredentials};
pub use release::{ExtensionUse, MAX_TAGS, Matching, PrimaryMatching, ReleaseSpec, RoleMatching, RoleSpec, TagSpec};
pub use rule::{InspectionRuleSpec, MAX_PRIORITY, Multiple, RuleAction, RuleCondition, RulePhase};

use crate::name::{NamespaceName, NodeName, ObjectName, ReleaseRef};
use crate::ownership::Owner;
use crate::time::{self, InvalidTime};
use crate::traits::Trait;

/// Milliseconds since 1970-01-01T00:00:00Z. This crate never reads a clock: the caller passes the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Parses a time, as [`time::parse`] does.
    ///
    /// # Errors
    /// [`InvalidTime`].
    pub fn parse(text: &str) -> Result<Self, InvalidTime> {
        time::parse(text).map(Self)
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

/// The id of a level: a cluster template, cluster, node group or node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelId {
    /// A template.
    Template(TemplateId),
    /// A cluster.
    Cluster(ClusterId),
    /// A node group.
    Group(GroupId),
    /// A node.
    Node(NodeId),
}

impl LevelId {
    /// Returns the id of the object with this kind and uuid, or `None` if the kind is not a level of inheritance.
    pub fn new(kind: Kind, uuid: Uuid) -> Option<Self> {
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

    /// Returns the uuid.
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
        /// The kinds of objects. Kinds that only later versions can store are included, so that the order never
        /// changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
        pub enum Kind {
            $($(#[$doc])* $kind,)+
        }

        impl Kind {
            /// All kinds, in their order.
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// Returns the name, as in the field `kind` of a manifest.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)+
                }
            }

            /// Returns the word used in findings, responses, store keys and on the command line.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)+
                }
            }

            /// Returns whether objects of this kind belong to no cluster and can be read by every principal.
            pub const fn is_shared(self) -> bool {
                match self {
                    // `@is` expands to true if the word `shared` follows the kind in the list below.
                    $(Self::$kind => kinds!(@is $($shared)?),)+
                }
            }
        }
    };
}

kinds! {
    /// A versioned library of roles, tags and tasks.
    Release "release" shared,
    /// User-defined tags of a release, for all its versions.
    ReleaseTags "releasetags" shared,
    /// Defaults for clusters.
    ClusterTemplate "clustertemplate" shared,
    /// A cluster.
    Cluster "cluster",
    /// Nodes of a cluster with the same configuration.
    NodeGroup "nodegroup",
    /// One host.
    Node "node",
    /// The stored choice of the node that is primary of a tag.
    Primary "primary",
    /// A namespace of the catalogue: definitions of labels, parameters, properties and facts.
    Namespace "namespace" shared,
    /// A rule that sets traits, labels and properties of a node by conditions on what its host reports.
    InspectionRule "inspectionrule" shared,
    /// A numbered snapshot of the task sets of a group's hosts. Reserved for a later version.
    Revision "revision",
    /// A secret value, which can be written but not read. Reserved for a later version.
    Secret "secret",
    /// The expectations on a repository of manifests. Reserved for a later version.
    Expectation "expectation",
    /// A request for a node, with the node that was chosen for the request, or the reason why no node qualified.
    Allocation "allocation",
    /// A person or program that may send requests, with its role.
    Principal "principal",
}

impl Kind {
    /// Returns whether objects of this kind can be stored. The other kinds are reserved for a later version.
    pub const fn is_stored(self) -> bool {
        !matches!(self, Self::Revision | Self::Secret | Self::Expectation)
    }

    /// Returns the name of the kind in a sentence, with its article.
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

/// The metadata of every object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta<N> {
    /// The identity. It never changes.
    pub uuid: Uuid,
    /// The name. It is unique among the objects of its kind, and that of a node group or primary in its cluster.
    pub name: N,
    /// Number of the current spec: 1 for a new object, and one more after each change of the spec.
    pub generation: u64,
    /// The store revision that last wrote the object, or 0 before it is stored. It is the value of `ETag` and
    /// `If-Match`.
    pub resource_version: u64,
    /// Time at which the object was created.
    pub created_at: Timestamp,
    /// Time at which its spec or its name was last changed.
    pub updated_at: Timestamp,
}

impl<N> Meta<N> {
    /// Creates the metadata of a new object, with generation 1 and not yet stored.
    pub fn new(uuid: Uuid, name: N, now: Timestamp) -> Self {
        Self { uuid, name, generation: 1, resource_version: 0, created_at: now, updated_at: now }
    }
}

/// A spec: the part of an object that operators set, and in some kinds a decision of the controller.
pub trait Spec: Serialize + DeserializeOwned + Clone + fmt::Debug + PartialEq {
    /// The type of the object's name.
    type Name: Serialize + DeserializeOwned + Clone + fmt::Debug + PartialEq + Ord;
    /// The kind of the object.
    const KIND: Kind;
}

/// An object: its metadata and its spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Object<S: Spec> {
    /// Identity, name and versions.
    pub meta: Meta<S::Name>,
    /// The part that operators set.
    pub spec: S,
}

impl<S: Spec<Name = Option<N>>, N: fmt::Display> Object<S> {
    /// Returns the name of the object for messages and responses: its name, or its uuid if it has no name.
    pub fn display_name(&self) -> String {
        self.meta.name.as_ref().map_or_else(|| self.meta.uuid.to_string(), ToString::to_string)
    }
}

/// A versioned library of roles, tags and tasks.
pub type Release = Object<ReleaseSpec>;
/// User-defined tags of a release.
pub type ReleaseTags = Object<ReleaseTagsSpec>;
/// A cluster template: defaults for clusters.
pub type ClusterTemplate = Object<ClusterTemplateSpec>;
/// A cluster.
pub type Cluster = Object<ClusterSpec>;
/// A group of nodes.
pub type NodeGroup = Object<NodeGroupSpec>;
/// A node as operators set it. The values that its host reports are stored separately, as an [`Observation`].
pub type Node = Object<NodeSpec>;
/// A request for a node, with the node that was chosen for the request, or the reason why no node qualified.
pub type Allocation = Object<AllocationSpec>;
/// A person or program that may send requests, with its role.
pub type Principal = Object<PrincipalSpec>;
/// A stored choice of a primary.
pub type Primary = Object<PrimarySpec>;
/// A namespace of the catalogue: definitions of labels, parameters, properties and facts.
pub type Namespace = Object<NamespaceSpec>;
/// A rule that sets traits, labels and properties of a node by conditions on what its host reports.
pub type InspectionRule = Object<InspectionRuleSpec>;

impl Spec for AllocationSpec {
    /// The name of an allocation. An allocation without a name is referred to by its uuid.
    type Name = Option<ObjectName>;
    const KIND: Kind = Kind::Allocation;
}

impl Spec for InspectionRuleSpec {
    /// The name of a rule. A rule without a name is referred to by its uuid, as in Ironic.
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
    /// The name of a node. A node that was created through Ironic's API may have no name, and is then referred to by
    /// its uuid.
    type Name = Option<NodeName>;
    const KIND: Kind = Kind::Node;
}

impl Spec for PrimarySpec {
    /// The tag whose primary was chosen.
    type Name = crate::name::TagName;
    const KIND: Kind = Kind::Primary;
}

impl Spec for NamespaceSpec {
    type Name = NamespaceName;
    const KIND: Kind = Kind::Namespace;
}

impl NodeSpec {
    /// Returns the uuid of the instance that uses the node, or `None` if there is none. The stored text may be in any
    /// notation of a uuid, because older versions stored it as sent.
    pub fn instance(&self) -> Option<Uuid> {
        Uuid::parse_str(self.extra.get("instance_uuid")?.as_str()?).ok()
    }
}

impl Node {
    /// Returns the provision state that a client requested last, as Ironic names it. `enroll` if it was never set.
    pub fn provision_state(&self) -> &'static str {
        match self.spec.provision_state {
            None => "enroll",
            Some(ProvisionState::Manageable) => "manageable",
            Some(ProvisionState::Available) => "available",
            Some(ProvisionState::Active) => "active",
        }
    }

    /// Returns whether an instance, possibly of an allocation, uses the node.
    pub fn is_in_use(&self) -> bool {
        self.spec.extra.get("instance_uuid").is_some_and(|id| !id.is_null())
    }

    /// Returns the node's id.
    pub fn id(&self) -> NodeId {
        NodeId(self.meta.uuid)
    }
}

/// Passthrough fields, or a map of any JSON such as the `properties` of a node. They are stored and returned.
pub type Extra = Map<String, Value>;

/// A set of traits, sorted by name.
pub type TraitSet = BTreeSet<Trait>;

/// The owners of each top-level field of a spec, by the field's name. The owners of a field are sorted. Maps whose keys
/// have their own owners, such as labels, are not included.
pub type FieldOwners = BTreeMap<String, Arc<[Owner]>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{api_only_kinds, kinds};

    /// Each kind whose fields are described must be in `Kind::ALL`.
    #[test]
    fn kind_all_lists_every_kind_with_fields() {
        for fields in kinds().into_iter().chain(api_only_kinds()) {
            assert!(Kind::ALL.iter().any(|kind| kind.name() == fields.kind), "{}", fields.kind);
        }
    }
}
