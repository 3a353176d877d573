//! The endpoint that creates objects of each kind. Its callers are the callers that may write objects of that kind, by
//! any endpoint.

use stemma_core::object::{Kind, PrincipalRole};

use super::{CallerClass, Endpoint};

impl Endpoint {
    /// Returns the endpoint that creates an object of a kind, or `None` for a kind that no request writes.
    pub const fn for_create(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Release => Some(Self::CreateRelease),
            Kind::ReleaseTags => Some(Self::CreateReleaseTag),
            Kind::Namespace => Some(Self::CreateNamespace),
            Kind::ClusterTemplate => Some(Self::CreateTemplate),
            Kind::Cluster => Some(Self::CreateCluster),
            Kind::NodeGroup => Some(Self::CreateGroup),
            // A caller that may write nodes may choose a node as primary.
            Kind::Node | Kind::Primary => Some(Self::CreateNode),
            Kind::Allocation => Some(Self::CreateAllocation),
            Kind::Principal => Some(Self::CreatePrincipal),
            Kind::InspectionRule => Some(Self::CreateInspectionRule),
            Kind::Revision | Kind::Secret | Kind::Expectation => None,
        }
    }
}

impl From<PrincipalRole> for CallerClass {
    fn from(role: PrincipalRole) -> Self {
        match role {
            PrincipalRole::Viewer => Self::Viewer,
            PrincipalRole::Operator => Self::Operator,
            PrincipalRole::Admin => Self::Admin,
        }
    }
}
