//! The endpoint that creates objects of each kind. A caller that may call this endpoint may also write objects of that
//! kind through other endpoints.

use stemma_core::object::{Kind, PrincipalRole};

use super::{CallerClass, Endpoint};

impl Endpoint {
    /// Returns the endpoint whose callers may write objects of a kind: the one that creates them, except for primaries.
    /// Returns `None` for a kind that no API request can write.
    pub const fn for_create(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Release => Some(Self::CreateRelease),
            Kind::ReleaseTags => Some(Self::CreateReleaseTag),
            Kind::Namespace => Some(Self::CreateNamespace),
            Kind::ClusterTemplate => Some(Self::CreateTemplate),
            Kind::Cluster => Some(Self::CreateCluster),
            Kind::NodeGroup => Some(Self::CreateGroup),
            // No endpoint creates primaries. A caller that may write nodes may also choose a node as primary.
            Kind::Node | Kind::Primary => Some(Self::CreateNode),
            Kind::Allocation => Some(Self::CreateAllocation),
            Kind::Principal => Some(Self::CreatePrincipal),
            Kind::InspectionRule => Some(Self::CreateInspectionRule),
            Kind::Revision | Kind::Secret | Kind::Expectation => None,
        }
    }
}

impl From<PrincipalRole> for CallerClass {
    /// Returns the class of callers with this role.
    fn from(role: PrincipalRole) -> Self {
        match role {
            PrincipalRole::Viewer => Self::Viewer,
            PrincipalRole::Operator => Self::Operator,
            PrincipalRole::Admin => Self::Admin,
        }
    }
}
