//! The table of the handlers, by endpoint. The compiler refuses this module if an endpoint has no handler.

use std::convert::Infallible;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;

use hyper::HeaderMap;
use stemma_core::field::parse_integer;
use stemma_core::object::{
    AllocationSpec, Association, ClusterSpec, ClusterTemplateSpec, Definition, InspectionRuleSpec, NamespaceSpec, NamespaceTag,
    NodeGroupSpec, NodeSpec, ReleaseSpec,
};
use stemma_wire::endpoint::{Delivery, Endpoint, Method};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::serve::{Peer, RejectionCounter};
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
    actions, apply, audit, blobs, credentials, discovery, events, explain, fleet, lists, maps, nodes, objects, patching,
    primaries, principals, provision, reboot, releases, resolved, roles, tags, tasks, tokens, traits, writes,
};
use crate::api::Api;
use crate::api::http::auth::AuthFailure;
use crate::api::http::body::while_authorized;
use crate::api::http::budget::Budgets;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse, ResponseBody};
use crate::api::http::serve::{ListenerAuth, RequestHandler};
use crate::registry::{Requester, store_error};
use crate::store::Revision;

/// The future of an asynchronous handler, which resolves to the response.
type ResponseFuture<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

/// The handler of an endpoint. The variant determines the thread on which the handler runs, and the permit that it
/// needs. A permit limits how many handlers run at the same time.
enum RouteHandler {
    /// The handler reports on the process. It runs at once on the thread that serves connections, so it responds even
    /// if all permits are in use.
    Inline(fn(&Api, &HttpRequest) -> HandlerResult),
    /// The handler responds from the fleet in memory. It runs on a blocking thread.
    Read(fn(&Api, &HttpRequest) -> HandlerResult),
    /// The handler reads data that only the store has. Its permit differs from those of writes, so it does not wait
    /// behind them.
    StoreRead(for<'a> fn(&'a Api, &'a HttpRequest) -> ResponseFuture<'a>),
    /// The handler commits a write.
    Write(for<'a> fn(&'a Api, &'a HttpRequest) -> ResponseFuture<'a>),
}

macro_rules! handlers {
    ($($endpoint:ident => $kind:ident $handler:path $(, $argument:expr)?;)+) => {
        /// Returns the handler of an endpoint, from the table that the macro was called with.
        const fn handler(endpoint: Endpoint) -> RouteHandler {
            match endpoint {
                $(Endpoint::$endpoint => handlers!(@$kind $handler $(, $argument)?),)+
            }
        }
    };
    (@now $handler:path) => { RouteHandler::Inline(|api, request| Ok($handler(api, request))) };
    (@ask $handler:path) => { RouteHandler::StoreRead(|api, request| Box::pin($handler(api, request))) };
    (@answer $handler:path) => { RouteHandler::Read(|api, request| Ok($handler(api, request))) };
    (@read $handler:path $(, $argument:expr)?) => { RouteHandler::Read(|api, request| $handler(api, request $(, $argument)?)) };
    (@write $handler:path $(, $argument:expr)?) => {
        RouteHandler::Write(|api, request| Box::pin($handler(api, request $(, $argument)?)))
    };
}

handlers! {
    Enroll => read discovery::refuse_agent_path;
    Renew => read discovery::refuse_agent_path;
    CheckIn => read discovery::refuse_agent_path;
    AgentProfile => read discovery::refuse_agent_path;
    AgentBlob => read discovery::refuse_agent_path;
    Versions => answer discovery::root;
    VersionsList => answer discovery::versions_list;
    Version1 => answer discovery::version_1_document;
    Version2 => answer discovery::version_2_document;
    Healthz => now discovery::alive;
    Readyz => now discovery::ready;
    Metrics => answer discovery::metrics;
    OpenApi => answer discovery::openapi_document;
    ListNodes => read nodes::list, Detail::Summary;
    ListNodesDetail => read nodes::list, Detail::Full;
    CreateNode => write writes::post::<NodeSpec>;
    GetNode => read nodes::get;
    PatchNode => write patching::patch::<NodeSpec>;
    DeleteNode => write writes::delete::<NodeSpec>;
    ValidateNamedNode => read provision::validate_named;
    ValidateNode => read provision::validate;
    NodeStates => read provision::states;
    SetNodeProvisionState => write provision::set_provision_state;
    ParkNode => write provision::set_maintenance, true;
    UnparkNode => write provision::set_maintenance, false;
    RebootNode => write reboot::request_reboot;
    ListNodeTraits => read traits::list;
    ReplaceNodeTraits => write traits::replace;
    DeleteNodeTraits => write traits::clear;
    AddNodeTrait => write traits::add;
    DeleteNodeTrait => write traits::remove;
    ListNodeRoles => read roles::roles;
    GiveNodeRoles => write roles::write_roles, RoleCall::Add;
    ReplaceNodeRoles => write roles::write_roles, RoleCall::Replace;
    TakeNodeRoles => write roles::write_roles, RoleCall::Remove;
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
    ListTemplates => read lists::list::<ClusterTemplateSpec>, Detail::Summary;
    CreateTemplate => write writes::post::<ClusterTemplateSpec>;
    GetTemplate => read objects::get::<ClusterTemplateSpec>;
    PatchTemplate => write patching::patch::<ClusterTemplateSpec>;
    DeleteTemplate => write writes::delete::<ClusterTemplateSpec>;
    PutTemplateMap => write maps::write_map::<ClusterTemplateSpec>, MapCall::Replace;
    PatchTemplateMap => write maps::write_map::<ClusterTemplateSpec>, MapCall::Merge;
    TombstoneTemplate => write maps::write_map::<ClusterTemplateSpec>, MapCall::Tombstones;
    OwnersTemplate => write maps::write_map::<ClusterTemplateSpec>, MapCall::Owners;
    ListClusters => read lists::list::<ClusterSpec>, Detail::Summary;
    ListClustersDetail => read lists::list::<ClusterSpec>, Detail::Full;
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
    ListGroups => read lists::list::<NodeGroupSpec>, Detail::Summary;
    CreateGroup => write writes::post::<NodeGroupSpec>;
    GetGroup => read objects::get::<NodeGroupSpec>;
    PatchGroup => write patching::patch::<NodeGroupSpec>;
    DeleteGroup => write writes::delete::<NodeGroupSpec>;
    PutGroupMap => write maps::write_map::<NodeGroupSpec>, MapCall::Replace;
    PatchGroupMap => write maps::write_map::<NodeGroupSpec>, MapCall::Merge;
    TombstoneGroup => write maps::write_map::<NodeGroupSpec>, MapCall::Tombstones;
    OwnersGroup => write maps::write_map::<NodeGroupSpec>, MapCall::Owners;
    ListAllocations => read lists::list::<AllocationSpec>, Detail::Full;
    CreateAllocation => write writes::post::<AllocationSpec>;
    GetAllocation => read objects::get::<AllocationSpec>;
    PatchAllocation => write patching::patch::<AllocationSpec>;
    DeleteAllocation => write writes::delete::<AllocationSpec>;
    NodeAllocation => read objects::get::<AllocationSpec>;
    DeleteNodeAllocation => write writes::delete::<AllocationSpec>;
    ListInspectionRules => read lists::list::<InspectionRuleSpec>, Detail::Summary;
    CreateInspectionRule => write writes::post::<InspectionRuleSpec>;
    DeleteInspectionRules => write writes::delete_all::<InspectionRuleSpec>;
    GetInspectionRule => read objects::get::<InspectionRuleSpec>;
    PatchInspectionRule => write patching::patch::<InspectionRuleSpec>;
    DeleteInspectionRule => write writes::delete::<InspectionRuleSpec>;
    ListReleases => read lists::list::<ReleaseSpec>, Detail::Summary;
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
    GetRequest => ask discovery::get_request;
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

impl RequestHandler for Api {
    fn listener_auth(&self) -> ListenerAuth {
        self.listener_auth
    }

    fn rejections(&self) -> &RejectionCounter {
        &self.rejections
    }

    fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    fn authenticate(&self, peer: Option<&Peer>, headers: &HeaderMap) -> Result<Option<Requester>, AuthFailure> {
        self.authenticate(peer, headers)
    }

    fn recheck(&self, requester: &Requester) -> Result<(), ApiError> {
        self.recheck(requester)
    }

    /// Calls the handler of an endpoint when a permit is free, and returns its response. A handler may resolve much of
    /// the fleet. So all but the inline handlers, which need no permit, run on a blocking thread, not on the thread
    /// that serves connections and follows the store.
    async fn call(self: Arc<Self>, endpoint: Endpoint, request: HttpRequest) -> HandlerResult {
        let visible_api = self.visible_to(&request.requester);
        wait_for_revision(&visible_api, &request).await?;
        let visible_api = if has_states(endpoint) { with_current_states(visible_api).await } else { visible_api };
        let (api, caller, limiter) = (Arc::clone(&visible_api), request.requester.clone(), visible_api.stream_limiter.clone());
        let reply = match handler(endpoint) {
            RouteHandler::Inline(respond) => respond(&visible_api, &request)?,
            RouteHandler::Read(read) => {
                let permit = visible_api.write_limiter.acquire_memory_read(&caller).await?;
                run_blocking(move || {
                    // The permit limits the number of responses that are built at the same time. A thread finishes its
                    // response even if the client disconnects, so the thread holds the permit until then.
                    let _permit = permit;
                    read(&visible_api, &request).map(|reply| reply.select_fields(&request).encode())
                })
                .await?
            }
            RouteHandler::StoreRead(read) => {
                let permit = visible_api.write_limiter.acquire_store_read(&caller).await?;
                run_async(visible_api, permit, read, request).await?
            }
            RouteHandler::Write(write) => {
                let permit = visible_api.write_limiter.acquire(&caller).await?;
                run_async(visible_api, permit, write, request).await?
            }
        };
        // A read may have waited since the first check of the caller's access, so the access is checked again. A write
        // checks the access when it is decided.
        if endpoint.route().method == Method::Get {
            api.recheck(&caller)?;
        }
        let admit_stream = |chunks| {
            let requester = caller.clone();
            limiter.admit(&caller, while_authorized(chunks, move || api.recheck(&requester).is_ok()))
        };
        let body = match (endpoint.route().delivery, reply.body) {
            (Delivery::Streamed, ResponseBody::JsonStream(chunks)) => ResponseBody::JsonStream(admit_stream(chunks)?),
            (Delivery::Streamed, ResponseBody::FileStream(chunks)) => ResponseBody::FileStream(admit_stream(chunks)?),
            (_, body) => body,
        };
        Ok(HttpResponse { body, ..reply })
    }
}

/// Runs an asynchronous handler on a blocking thread. When the client disconnects, a handler that waits is dropped, and
/// a handler that computes stops at the next node that it examines. The handler's permit is held until the thread has
/// finished.
async fn run_async(
    api: Arc<Api>,
    permit: impl Send + 'static,
    handle: for<'a> fn(&'a Api, &'a HttpRequest) -> ResponseFuture<'a>,
    request: HttpRequest,
) -> HandlerResult {
    // If this future is dropped, the guard sets `canceled`, and the end of the sender ends the `select` below.
    let _guard = request.canceled.guard();
    let (_disconnect_sender, disconnected) = oneshot::channel::<Infallible>();
    let runtime = Handle::current();
    let run_handler = move || {
        // The permit limits the number of blocking threads in use, so this thread holds it until its end.
        let _permit = permit;
        runtime.block_on(async {
            tokio::select! {
                result = handle(&api, &request) => result.map(|reply| reply.select_fields(&request)),
                _ = disconnected => Err(ErrorType::ServerStopping.into()),
            }
        })
    };
    run_blocking(run_handler).await
}

/// Runs a handler on a blocking thread and returns its response. If the handler panics, the panic continues in the
/// calling task. If the runtime stops, the result is an error.
async fn run_blocking(handle: impl FnOnce() -> HandlerResult + Send + 'static) -> HandlerResult {
    spawn_blocking(handle).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Err(ErrorType::ServerStopping.into()),
    })
}

/// Returns whether the response of an endpoint depends on the states of nodes. Such a response waits until the states
/// are up to date.
fn has_states(endpoint: Endpoint) -> bool {
    use Endpoint::{
        ExplainNode, GetCluster, GetGroup, GetNode, ListClusters, ListClustersDetail, ListGroups, ListNodes, ListNodesDetail,
        ListTasks, Metrics, ResolvedNode, ShowTask, ValidateCluster, WatchEvents,
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

/// Waits at most two seconds until the table of node states includes the current revision. Then a client that has
/// written something reads the effect of its write. If the table is still behind, the returned API computes the states
/// itself from the fleet in memory. For example, the table stays behind if the store accepts no writes.
async fn with_current_states(api: Arc<Api>) -> Arc<Api> {
    let Some(desired) = api.desired.clone().filter(|_| api.reconciler.is_some()) else { return api };
    if desired.status().wait_for_revision(api.cache().model().revision).await {
        return api;
    }
    Arc::new(Api { is_stale: true, ..Api::clone(&api) })
}

/// Waits until the fleet in memory has reached the revision in the query parameter `at_least`. Fails if the store
/// itself has not reached this revision.
async fn wait_for_revision(api: &Api, request: &HttpRequest) -> Result<(), ApiError> {
    let Some(text) = request.query.get("at_least")? else { return Ok(()) };
    let bad_revision =
        || ApiError::new(ErrorType::RequestQuery, format!("at_least={} is not a revision", quote(text))).field("at_least");
    let revision: u64 = parse_integer(text).ok_or_else(bad_revision)?;
    let head = api.registry.store().head().await.map_err(|error| store_error(&error))?;
    if revision > head.get() {
        let message = format!("revision {revision} is ahead of the store's, which is {head}");
        return Err(ApiError::new(ErrorType::RevisionAhead, message).field("at_least"));
    }
    api.cache().wait_for(Revision::new(revision)).await;
    Ok(())
}
