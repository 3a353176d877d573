//! Who may write a kind of objects: the callers of the row that makes one, by whichever row it is written.

use stemma_core::object::{Kind, PrincipalRole};

use super::{Caller, Endpoint};

impl Endpoint {
    /// The row that makes an object of a kind; `None` for a kind that no request writes.
    pub const fn creating(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Release => Some(Self::CreateRelease),
            Kind::ReleaseTags => Some(Self::CreateReleaseTag),
            Kind::Namespace => Some(Self::CreateNamespace),
            Kind::ClusterTemplate => Some(Self::CreateTemplate),
            Kind::Cluster => Some(Self::CreateCluster),
            Kind::NodeGroup => Some(Self::CreateGroup),
            // A stored choice among nodes goes with its node.
            Kind::Node | Kind::Primary => Some(Self::CreateNode),
            Kind::Allocation => Some(Self::CreateAllocation),
            Kind::Principal => Some(Self::CreatePrincipal),
            Kind::InspectionRule => Some(Self::CreateInspectionRule),
            Kind::Revision | Kind::Secret | Kind::Expectation => None,
        }
    }
}

impl From<PrincipalRole> for Caller {
    fn from(role: PrincipalRole) -> Self {
        match role {
            PrincipalRole::Viewer => Self::Viewer,
            PrincipalRole::Operator => Self::Operator,
            PrincipalRole::Admin => Self::Admin,
        }
    }
}
