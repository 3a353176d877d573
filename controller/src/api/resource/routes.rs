//! What each row of the endpoint table does. A row without a line here does not compile.

use std::convert::Infallible;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;

use hyper::HeaderMap;
use stemma_core::field::whole;
use stemma_core::object::{
    AllocationSpec, Association, ClusterSpec, ClusterTemplateSpec, Definition, InspectionRuleSpec, NamespaceSpec,
    NamespaceTag, NodeGroupSpec, NodeSpec, ReleaseSpec,
};
use stemma_wire::endpoint::{Delivery, Endpoint, Method};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::serve::{Peer, Rejected};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::catalog::{keys, members, namespaces, properties};
use super::lists::Detail;
use super::maps::MapCall;
use super::roles::RoleCall;
use super::tags::TagCall;
use super::tags::node::NodeTagCall;
use super::{
    actions, apply, audit, blobs, credentials, events, explain, fleet, lists, machine, maps, nodes, objects, patching,
    primaries, principals, provision, releases, resolved, roles, tags, tasks, tokens, traits, writes,
};
use crate::api::Api;
use crate::api::http::body::while_good;
use crate::api::http::budget::Budgets;
use crate::api::http::request::{Body, HandlerResult, Reply, Request};
use crate::api::http::serve::{Guarding, Operations};
use crate::api::http::who::Unknown;
use crate::registry::{Who, store_error};
use crate::store::Revision;

/// An answer that is waited for.
type Waiting<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

/// What a row does.
enum Handler {
    /// Says how the process is, on the thread that serves: whoever asks waits for no other answer.
    Now(fn(&Api, &Request) -> HandlerResult),
    /// Answers from the fleet in memory.
    Read(fn(&Api, &Request) -> HandlerResult),
    /// Reads what the store alone has, and waits for no commit.
    Ask(for<'a> fn(&'a Api, &'a Request) -> Waiting<'a>),
    /// Commits.
    Write(for<'a> fn(&'a Api, &'a Request) -> Waiting<'a>),
}

macro_rules! handlers {
    ($($endpoint:ident => $kind:ident $handler:path $(, $argument:expr)?;)+) => {
        /// What a row does.
        const fn handler(endpoint: Endpoint) -> Handler {
            match endpoint {
                $(Endpoint::$endpoint => handlers!(@$kind $handler $(, $argument)?),)+
            }
        }
    };
    (@now $handler:path) => { Handler::Now(|api, request| Ok($handler(api, request))) };
    (@ask $handler:path) => { Handler::Ask(|api, request| Box::pin($handler(api, request))) };
    (@answer $handler:path) => { Handler::Read(|api, request| Ok($handler(api, request))) };
    (@read $handler:path $(, $argument:expr)?) => { Handler::Read(|api, request| $handler(api, request $(, $argument)?)) };
    (@write $handler:path $(, $argument:expr)?) => {
        Handler::Write(|api, request| Box::pin($handler(api, request $(, $argument)?)))
    };
}

handlers! {
    Enroll => read machine::agents_path;
    Renew => read machine::agents_path;
    CheckIn => read machine::agents_path;
    AgentProfile => read machine::agents_path;
    AgentBlob => read machine::agents_path;
    Versions => answer machine::root;
    VersionsList => answer machine::versions_list;
    Version1 => answer machine::version_1_document;
    Version2 => answer machine::version_2_document;
    Healthz => now machine::alive;
    Readyz => now machine::ready;
    Metrics => answer machine::metrics;
    OpenApi => answer machine::description;
    ListNodes => read nodes::list, Detail::Listed;
    ListNodesDetail => read nodes::list, Detail::Whole;
    CreateNode => write writes::post::<NodeSpec>;
    GetNode => read nodes::get;
    PatchNode => write patching::patch::<NodeSpec>;
    DeleteNode => write writes::delete::<NodeSpec>;
    ValidateNamedNode => read provision::validate_named;
    ValidateNode => read provision::validate;
    NodeStates => read provision::states;
    SetNodeProvisionState => write provision::provision;
    ParkNode => write provision::maintenance, true;
    UnparkNode => write provision::maintenance, false;
    ListNodeTraits => read traits::list;
    ReplaceNodeTraits => write traits::replace;
    DeleteNodeTraits => write traits::clear;
    AddNodeTrait => write traits::add;
    DeleteNodeTrait => write traits::remove;
    ListNodeRoles => read roles::roles;
    GiveNodeRoles => write roles::write_roles, RoleCall::Give;
    ReplaceNodeRoles => write roles::write_roles, RoleCall::Replace;
    TakeNodeRoles => write roles::write_roles, RoleCall::Take;
    RefreshNodeRoles => write roles::write_roles, RoleCall::Refresh;
    ListNodeTags => read tags::node::tags;
    AssignNodeTags => write tags::node::write_tags, NodeTagCall::Both;
    UnassignNodeTags => write tags::node::write_tags, NodeTagCall::Unassign;
    AssignNodeTag => write tags::node::write_tags, NodeTagCall::AssignOne;
    UnassignNodeTag => write tags::node::write_tags, NodeTagCall::UnassignOne;
    ResolvedNode => read resolved::get;
    NodeReport => read nodes::report;
    ExplainNode => read explain::get;
    PutNodeMap => write maps::write_map::<NodeSpec>, MapCall::Replace;
    PatchNodeMap => write maps::write_map::<NodeSpec>, MapCall::Merge;
    TombstoneNode => write maps::write_map::<NodeSpec>, MapCall::Tombstones;
    OwnersNode => write maps::write_map::<NodeSpec>, MapCall::Owners;
    ListTemplates => read lists::list::<ClusterTemplateSpec>, Detail::Listed;
    CreateTemplate => write writes::post::<ClusterTemplateSpec>;
    GetTemplate => read objects::get::<ClusterTemplateSpec>;
    PatchTemplate => write patching::patch::<ClusterTemplateSpec>;
    DeleteTemplate => write writes::delete::<ClusterTemplateSpec>;
    PutTemplateMap => write maps::write_map::<ClusterTemplateSpec>, MapCall::Replace;
    PatchTemplateMap => write maps::write_map::<ClusterTemplateSpec>, MapCall::Merge;
    TombstoneTemplate => write maps::write_map::<ClusterTemplateSpec>, MapCall::Tombstones;
    OwnersTemplate => write maps::write_map::<ClusterTemplateSpec>, MapCall::Owners;
    ListClusters => read lists::list::<ClusterSpec>, Detail::Listed;
    ListClustersDetail => read lists::list::<ClusterSpec>, Detail::Whole;
    CreateCluster => write writes::post::<ClusterSpec>;
    GetCluster => read objects::get::<ClusterSpec>;
    PatchCluster => write patching::patch::<ClusterSpec>;
    DeleteCluster => write writes::delete::<ClusterSpec>;
    UpgradeCluster => write actions::upgrade;
    ResizeCluster => read actions::resize;
    ListClusterTags => read tags::cluster::tags;
    CreateClusterTag => write tags::cluster::write_tag, TagCall::Create;
    GetClusterTag => read tags::cluster::tag;
    PutClusterTag => write tags::cluster::write_tag, TagCall::Put;
    DeleteClusterTag => write tags::cluster::write_tag, TagCall::Delete;
    ListClusterRoles => read roles::cluster_roles;
    PutClusterRoles => write roles::write_cluster_roles;
    ListPrimaries => read primaries::list;
    ChoosePrimary => write primaries::choose;
    ValidateCluster => read resolved::validate_cluster;
    PutClusterMap => write maps::write_map::<ClusterSpec>, MapCall::Replace;
    PatchClusterMap => write maps::write_map::<ClusterSpec>, MapCall::Merge;
    TombstoneCluster => write maps::write_map::<ClusterSpec>, MapCall::Tombstones;
    OwnersCluster => write maps::write_map::<ClusterSpec>, MapCall::Owners;
    ListGroups => read lists::list::<NodeGroupSpec>, Detail::Listed;
    CreateGroup => write writes::post::<NodeGroupSpec>;
    GetGroup => read objects::get::<NodeGroupSpec>;
    PatchGroup => write patching::patch::<NodeGroupSpec>;
    DeleteGroup => write writes::delete::<NodeGroupSpec>;
    PutGroupMap => write maps::write_map::<NodeGroupSpec>, MapCall::Replace;
    PatchGroupMap => write maps::write_map::<NodeGroupSpec>, MapCall::Merge;
    TombstoneGroup => write maps::write_map::<NodeGroupSpec>, MapCall::Tombstones;
    OwnersGroup => write maps::write_map::<NodeGroupSpec>, MapCall::Owners;
    ListAllocations => read lists::list::<AllocationSpec>, Detail::Whole;
    CreateAllocation => write writes::post::<AllocationSpec>;
    GetAllocation => read objects::get::<AllocationSpec>;
    PatchAllocation => write patching::patch::<AllocationSpec>;
    DeleteAllocation => write writes::delete::<AllocationSpec>;
    NodeAllocation => read objects::get::<AllocationSpec>;
    DeleteNodeAllocation => write writes::delete::<AllocationSpec>;
    ListInspectionRules => read lists::list::<InspectionRuleSpec>, Detail::Listed;
    CreateInspectionRule => write writes::post::<InspectionRuleSpec>;
    DeleteInspectionRules => write writes::delete_all::<InspectionRuleSpec>;
    GetInspectionRule => read objects::get::<InspectionRuleSpec>;
    PatchInspectionRule => write patching::patch::<InspectionRuleSpec>;
    DeleteInspectionRule => write writes::delete::<InspectionRuleSpec>;
    ListReleases => read lists::list::<ReleaseSpec>, Detail::Listed;
    CreateRelease => write writes::post::<ReleaseSpec>;
    GetRelease => read objects::get::<ReleaseSpec>;
    PatchRelease => write patching::patch::<ReleaseSpec>;
    DeleteRelease => write writes::delete::<ReleaseSpec>;
    PutReleaseMap => write releases::write_map, MapCall::Replace;
    PatchReleaseMap => write releases::write_map, MapCall::Merge;
    OwnersRelease => write releases::write_map, MapCall::Owners;
    ListReleaseTasks => read releases::tasks;
    ListReleaseRoles => read tags::release::roles;
    ListReleaseRoleTags => read tags::release::tags_of_role;
    ListReleaseTags => read tags::release::tags;
    CreateReleaseTag => write tags::release::write_tag, TagCall::Create;
    GetReleaseTag => read tags::release::tag;
    PutReleaseTag => write tags::release::write_tag, TagCall::Put;
    DeleteReleaseTag => write tags::release::write_tag, TagCall::Delete;
    ListNamespaces => read namespaces::list;
    CreateNamespace => write namespaces::create;
    GetNamespace => read namespaces::get;
    PutNamespace => write namespaces::put;
    DeleteNamespace => write writes::delete::<NamespaceSpec>;
    ListProperties => read properties::list;
    CreateProperty => write properties::create;
    DeleteProperties => write properties::clear;
    GetProperty => read properties::get;
    PutProperty => write properties::put;
    DeleteProperty => write properties::remove;
    ListDefinitions => read members::list_definitions;
    CreateDefinition => write members::create::<Definition>;
    DeleteDefinitions => write members::clear::<Definition>;
    GetDefinition => read members::get::<Definition>;
    PutDefinition => write members::put::<Definition>;
    DeleteDefinition => write members::remove::<Definition>;
    ListNamespaceTags => read members::list_tags;
    CreateNamespaceTags => write members::replace_tags;
    DeleteNamespaceTags => write members::clear::<NamespaceTag>;
    GetNamespaceTag => read members::get::<NamespaceTag>;
    CreateNamespaceTag => write members::create_tag;
    PutNamespaceTag => write members::put::<NamespaceTag>;
    DeleteNamespaceTag => write members::remove::<NamespaceTag>;
    ListAssociations => read members::list_associations;
    CreateAssociation => write members::create::<Association>;
    DeleteAssociation => write members::remove::<Association>;
    ListResourceTypes => answer members::list_resource_types;
    GetSchema => read namespaces::schema;
    ExplainKey => read keys::explain;
    Apply => write apply::post;
    PutBlob => write blobs::put;
    WatchEvents => ask events::watch;
    ShowFleet => answer fleet::show;
    GetBackup => ask fleet::backup;
    RecordBackup => write fleet::record_backup;
    ResumeFleet => write fleet::resume;
    ListTasks => read tasks::list;
    ShowTask => read tasks::show;
    ListAudit => ask audit::list;
    GetRequest => ask machine::request;
    ListTokens => read tokens::list;
    CreateToken => write tokens::create;
    GetToken => read tokens::get;
    DeleteToken => write tokens::delete;
    ListPrincipals => read principals::list;
    CreatePrincipal => write principals::create;
    GetPrincipal => read principals::get;
    PatchPrincipal => write principals::patch;
    DeletePrincipal => write principals::delete;
    CreateBearerToken => write credentials::create_token;
    RevokeBearerToken => write credentials::revoke_token;
    ListCertificates => read credentials::certificates;
    IssueCertificate => write credentials::issue;
    RevokeCertificate => write credentials::revoke;
}

impl Operations for Api {
    fn guarding(&self) -> Guarding {
        self.guarding
    }

    fn rejected(&self) -> &Rejected {
        &self.rejected
    }

    fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    fn who(&self, peer: Option<&Peer>, headers: &HeaderMap) -> Result<Option<Who>, Unknown> {
        self.who(peer, headers)
    }

    fn check_still(&self, who: &Who) -> Result<(), ApiError> {
        self.check_still(who)
    }

    /// Handlers run where threads may compute: each may resolve much of the fleet, and the thread that serves connections also follows
    /// the store.
    async fn call(self: Arc<Self>, endpoint: Endpoint, request: Request) -> HandlerResult {
        let this = self.seen_by(&request.who);
        wait_at_least(&this, &request).await?;
        let this = if shows_states(endpoint) { as_of_now(this).await } else { this };
        let (api, who, readers) = (Arc::clone(&this), request.who.clone(), this.readers.clone());
        let reply = match handler(endpoint) {
            Handler::Now(say) => say(&this, &request)?,
            Handler::Read(read) => {
                // Held until its answer has room: so few answers are made that may have none.
                let _turn = this.writers.turn_to_read(&who).await?;
                aside(move || read(&this, &request).map(|reply| reply.chosen(&request).written_out())).await?
            }
            Handler::Ask(ask) => {
                let turn = this.writers.turn_to_ask(&who).await?;
                waited(this, turn, ask, request).await?
            }
            Handler::Write(write) => {
                let turn = this.writers.turn(&who).await?;
                waited(this, turn, write, request).await?
            }
        };
        // A write asked in its decision. A read may have waited.
        if endpoint.route().method == Method::Get {
            api.check_still(&who)?;
        }
        let admitted = |pieces| {
            let asker = who.clone();
            readers.admit(&who, while_good(pieces, move || api.check_still(&asker).is_ok()))
        };
        let body = match (endpoint.route().delivery, reply.body) {
            (Delivery::Streamed, Body::Pieces(pieces)) => Body::Pieces(admitted(pieces)?),
            (Delivery::Streamed, Body::File(pieces)) => Body::File(admitted(pieces)?),
            (_, body) => body,
        };
        Ok(Reply { body, ..reply })
    }
}

/// Runs a handler that waits. It is dropped where it waits when nobody waits for the answer any more; a decision ends at the next node
/// that it looks at.
async fn waited(
    api: Arc<Api>,
    turn: impl Send + 'static,
    handle: for<'a> fn(&'a Api, &'a Request) -> Waiting<'a>,
    request: Request,
) -> HandlerResult {
    let _asking = request.abandoned.until_dropped();
    let (_waiting, gone) = oneshot::channel::<Infallible>();
    let runtime = Handle::current();
    let writing = move || {
        // Its thread is what it has a turn for.
        let _turn = turn;
        runtime.block_on(async {
            tokio::select! {
                answer = handle(&api, &request) => answer.map(|reply| reply.chosen(&request)),
                _ = gone => Err(ErrorType::ServerStopping.into()),
            }
        })
    };
    aside(writing).await
}

/// Runs a handler on a thread of its own. A panic goes on where its answer is waited for.
async fn aside(handle: impl FnOnce() -> HandlerResult + Send + 'static) -> HandlerResult {
    spawn_blocking(handle).await.unwrap_or_else(|failed| match failed.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Err(ErrorType::ServerStopping.into()),
    })
}

/// Whether an answer says where nodes stand, or what keeps them from standing elsewhere.
fn shows_states(endpoint: Endpoint) -> bool {
    use Endpoint::{
        ExplainNode, GetCluster, GetGroup, GetNode, ListClusters, ListClustersDetail, ListGroups, ListNodes,
        ListNodesDetail, ListTasks, Metrics, ResolvedNode, ShowTask, ValidateCluster, WatchEvents,
    };
    matches!(
        endpoint,
        ListNodes
            | ListNodesDetail
            | GetNode
            | ExplainNode
            | ResolvedNode
            | ValidateCluster
            | ListClusters
            | ListClustersDetail
            | GetCluster
            | ListGroups
            | GetGroup
            | ListTasks
            | ShowTask
            | Metrics
            | WatchEvents
    )
}

/// Waits until the nodes' states are those that follow from what is written now, for two seconds at most: so whoever wrote something reads what
/// follows from it. A store that takes no write holds the reconciler up; the states are worked out of the model then.
async fn as_of_now(api: Arc<Api>) -> Arc<Api> {
    let Some(desired) = api.desired.clone().filter(|_| api.reconciler.is_some()) else { return api };
    if desired.status().reached(api.cache().model().revision).await {
        return api;
    }
    Arc::new(Api { is_behind: true, ..Api::clone(&api) })
}

/// Makes a read wait until the fleet is as of the revision that it names.
async fn wait_at_least(api: &Api, request: &Request) -> Result<(), ApiError> {
    let Some(text) = request.query.one("at_least")? else { return Ok(()) };
    let refused =
        || ApiError::new(ErrorType::RequestQuery, format!("at_least={} is no revision", quote(text))).field("at_least");
    let wanted: u64 = whole(text).ok_or_else(refused)?;
    let head = api.registry.store().head().await.map_err(|error| store_error(&error))?;
    if wanted > head.get() {
        let message = format!("revision {wanted} is ahead of the store's, which is {head}");
        return Err(ApiError::new(ErrorType::RevisionAhead, message).field("at_least"));
    }
    api.cache().reached(Revision::new(wanted)).await;
    Ok(())
}
