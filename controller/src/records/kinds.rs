//! What the registry knows of each kind: by what it is named, within what, and what it refers to.

use stemma_core::name::ReleaseRef;
use stemma_core::object::{
    ClusterSpec, ClusterTemplateSpec, Kind, NodeGroupSpec, NodeSpec, PrimarySpec, ReleaseSpec, ReleaseTagsSpec, Spec,
};
use uuid::Uuid;

/// What an object refers to: the kind, and the uuid or (of a release) the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The kind referred to.
    pub kind: Kind,
    /// Its uuid, or a release's name.
    pub id: String,
}

/// What the registry has to know of a kind.
pub trait Stored: Spec {
    /// The name as text; `None` for a node without one.
    fn name_text(name: &Self::Name) -> Option<String>;
    /// Within what the name is unique; `None`: in the whole fleet.
    fn scope(&self) -> Option<Uuid> {
        None
    }
    /// What it refers to. Each must exist, and can't be deleted while it does.
    fn references(&self) -> Vec<Reference>;
}

impl Stored for ReleaseSpec {
    fn name_text(name: &Self::Name) -> Option<String> {
        Some(name.to_string())
    }

    fn references(&self) -> Vec<Reference> {
        self.imports.iter().map(release).collect()
    }
}

impl Stored for ReleaseTagsSpec {
    fn name_text(name: &Self::Name) -> Option<String> {
        Some(name.to_string())
    }

    fn references(&self) -> Vec<Reference> {
        Vec::new()
    }
}

impl Stored for ClusterTemplateSpec {
    fn name_text(name: &Self::Name) -> Option<String> {
        Some(name.to_string())
    }

    fn references(&self) -> Vec<Reference> {
        self.release.iter().map(release).collect()
    }
}

impl Stored for ClusterSpec {
    fn name_text(name: &Self::Name) -> Option<String> {
        Some(name.to_string())
    }

    fn references(&self) -> Vec<Reference> {
        let template = self.cluster_template.map(|id| by_uuid(Kind::ClusterTemplate, id.0));
        template.into_iter().chain(self.release.as_ref().map(release)).collect()
    }
}

impl Stored for NodeGroupSpec {
    fn name_text(name: &Self::Name) -> Option<String> {
        Some(name.to_string())
    }

    fn scope(&self) -> Option<Uuid> {
        Some(self.cluster.0)
    }

    fn references(&self) -> Vec<Reference> {
        let cluster = by_uuid(Kind::Cluster, self.cluster.0);
        std::iter::once(cluster).chain(self.release.as_ref().map(release)).collect()
    }
}

impl Stored for NodeSpec {
    fn name_text(name: &Self::Name) -> Option<String> {
        name.as_ref().map(ToString::to_string)
    }

    fn references(&self) -> Vec<Reference> {
        self.nodegroup.map(|id| by_uuid(Kind::NodeGroup, id.0)).into_iter().collect()
    }
}

impl Stored for PrimarySpec {
    fn name_text(name: &Self::Name) -> Option<String> {
        Some(name.to_string())
    }

    fn scope(&self) -> Option<Uuid> {
        Some(self.cluster.0)
    }

    /// None: a primary ends with its cluster or its node, and holds neither.
    fn references(&self) -> Vec<Reference> {
        Vec::new()
    }
}

fn release(name: &ReleaseRef) -> Reference {
    Reference { kind: Kind::Release, id: name.to_string() }
}

fn by_uuid(kind: Kind, uuid: Uuid) -> Reference {
    Reference { kind, id: uuid.to_string() }
}
