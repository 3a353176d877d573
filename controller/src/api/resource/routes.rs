//! What each route does. Exhaustive: a route without a line here does not compile.

use std::sync::Arc;

use axum::http::StatusCode;
use stemma_core::object::{ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec, ReleaseSpec};
use stemma_wire::endpoint::{Endpoint, openapi};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::serve::Rejected;

use super::maps::{self, MapCall};
use super::objects::{self, Shown};
use super::releases;
use super::roles::{self, RoleCall};
use super::tags::node::NodeTagCall;
use super::tags::{self, TagCall};
use super::{apply, clusters, explain, groups, machine, nodes, patching, resolved, templates, traits, writes};
use crate::api::Api;
use crate::api::http::query::Parameters;
use crate::api::http::request::{Outcome, Reply, Request};
use crate::api::http::serve::{Guarding, Operations};
use crate::blobs::Put;
use crate::enrol::token;

impl Operations for Api {
    fn guarding(&self) -> Guarding {
        self.guarding
    }

    fn rejected(&self) -> &Rejected {
        &self.rejected
    }

    async fn call(&self, endpoint: Endpoint, request: &Request) -> Outcome {
        call(self, endpoint, request).await
    }
}

async fn call(api: &Api, endpoint: Endpoint, request: &Request) -> Outcome {
    wait_at_least(api, request).await?;
    match endpoint {
        Endpoint::Enroll | Endpoint::Renew | Endpoint::CheckIn | Endpoint::AgentProfile | Endpoint::AgentBlob => {
            Err(ApiError::new(ErrorType::PathUnknown, "agents are served on their own listener"))
        }
        Endpoint::Versions | Endpoint::VersionsList => machine::versions(request),
        Endpoint::Version1 => machine::version_1_document(request),
        Endpoint::Version2 => machine::version_2_document(request),
        Endpoint::Healthz => Ok(Reply::ok("ok".into())),
        Endpoint::Readyz => Ok(machine::ready(api)),
        Endpoint::Metrics => {
            Ok(Reply::ok(api.metrics.as_ref().map(|metrics| metrics.text()).unwrap_or_default().into()))
        }
        Endpoint::OpenApi => Ok(Reply::ok(openapi(env!("CARGO_PKG_VERSION")))),
        Endpoint::Apply => apply::post(api, request).await,
        Endpoint::PutBlob => put_blob(api, request).await,
        Endpoint::GetRequest => machine::request(api, request),
        Endpoint::ListTokens => Ok(Reply::ok(token::list(&api.registry)?)),
        Endpoint::CreateToken => {
            let answer = token::create(&api.registry, &objects::caller(request)?, &request.json()?).await?;
            Ok(Reply::written(answer, &request.base))
        }
        Endpoint::GetToken => Ok(Reply::ok(token::get(&api.registry, request.part("token"))?)),
        Endpoint::DeleteToken => {
            let answer = token::delete(&api.registry, &objects::caller(request)?, request.part("token")).await?;
            Ok(Reply::written(answer, &request.base))
        }
        other => call_object(api, other, request).await,
    }
}

async fn call_object(api: &Api, endpoint: Endpoint, request: &Request) -> Outcome {
    match endpoint {
        Endpoint::ListTemplates => templates::list(api, request),
        Endpoint::CreateTemplate => templates::post(api, request).await,
        Endpoint::GetTemplate => objects::get::<ClusterTemplateSpec>(api, request),
        Endpoint::PatchTemplate => patching::patch::<ClusterTemplateSpec>(api, request).await,
        Endpoint::DeleteTemplate => writes::delete::<ClusterTemplateSpec>(api, request).await,
        Endpoint::PutTemplateMap => map::<ClusterTemplateSpec>(api, request, MapCall::Replace).await,
        Endpoint::PatchTemplateMap => map::<ClusterTemplateSpec>(api, request, MapCall::Merge).await,
        Endpoint::TombstoneTemplate => map::<ClusterTemplateSpec>(api, request, MapCall::Tombstones).await,
        Endpoint::OwnersTemplate => map::<ClusterTemplateSpec>(api, request, MapCall::Owners).await,
        Endpoint::ListClusters => clusters::list(api, request, false),
        Endpoint::ListClustersDetail => clusters::list(api, request, true),
        Endpoint::CreateCluster => clusters::post(api, request).await,
        Endpoint::GetCluster => objects::get::<ClusterSpec>(api, request),
        Endpoint::PatchCluster => patching::patch::<ClusterSpec>(api, request).await,
        Endpoint::DeleteCluster => writes::delete::<ClusterSpec>(api, request).await,
        Endpoint::ListClusterTags => tags::cluster::tags(api, request),
        Endpoint::CreateClusterTag => tags::cluster::write_tag(api, request, TagCall::Create).await,
        Endpoint::GetClusterTag => tags::cluster::tag(api, request),
        Endpoint::PutClusterTag => tags::cluster::write_tag(api, request, TagCall::Put).await,
        Endpoint::DeleteClusterTag => tags::cluster::write_tag(api, request, TagCall::Delete).await,
        Endpoint::ListClusterRoles => roles::cluster_roles(api, request),
        Endpoint::PutClusterRoles => roles::write_cluster_roles(api, request).await,
        Endpoint::ValidateCluster => resolved::validate_cluster(api, request),
        Endpoint::PutClusterMap => map::<ClusterSpec>(api, request, MapCall::Replace).await,
        Endpoint::PatchClusterMap => map::<ClusterSpec>(api, request, MapCall::Merge).await,
        Endpoint::TombstoneCluster => map::<ClusterSpec>(api, request, MapCall::Tombstones).await,
        Endpoint::OwnersCluster => map::<ClusterSpec>(api, request, MapCall::Owners).await,
        Endpoint::ListGroups => groups::list(api, request),
        Endpoint::CreateGroup => groups::post(api, request).await,
        Endpoint::GetGroup => groups::get(api, request),
        Endpoint::PatchGroup => patching::patch::<NodeGroupSpec>(api, request).await,
        Endpoint::DeleteGroup => groups::delete(api, request).await,
        Endpoint::PutGroupMap => map::<NodeGroupSpec>(api, request, MapCall::Replace).await,
        Endpoint::PatchGroupMap => map::<NodeGroupSpec>(api, request, MapCall::Merge).await,
        Endpoint::TombstoneGroup => map::<NodeGroupSpec>(api, request, MapCall::Tombstones).await,
        Endpoint::OwnersGroup => map::<NodeGroupSpec>(api, request, MapCall::Owners).await,
        other => call_release(api, other, request).await,
    }
}

async fn call_release(api: &Api, endpoint: Endpoint, request: &Request) -> Outcome {
    match endpoint {
        Endpoint::ListReleases => releases::list(api, request),
        Endpoint::CreateRelease => releases::post(api, request).await,
        Endpoint::GetRelease => objects::get::<ReleaseSpec>(api, request),
        Endpoint::PatchRelease => patching::patch::<ReleaseSpec>(api, request).await,
        Endpoint::DeleteRelease => writes::delete::<ReleaseSpec>(api, request).await,
        Endpoint::PutReleaseMap => releases::write_map(api, request, MapCall::Replace).await,
        Endpoint::PatchReleaseMap => releases::write_map(api, request, MapCall::Merge).await,
        Endpoint::OwnersRelease => releases::write_map(api, request, MapCall::Owners).await,
        Endpoint::ListReleaseTasks => releases::tasks(api, request),
        Endpoint::ListReleaseTags => tags::release::tags(api, request),
        Endpoint::CreateReleaseTag => tags::release::write_tag(api, request, TagCall::Create).await,
        Endpoint::GetReleaseTag => tags::release::tag(api, request),
        Endpoint::PutReleaseTag => tags::release::write_tag(api, request, TagCall::Put).await,
        Endpoint::DeleteReleaseTag => tags::release::write_tag(api, request, TagCall::Delete).await,
        other => call_node(api, other, request).await,
    }
}

async fn call_node(api: &Api, endpoint: Endpoint, request: &Request) -> Outcome {
    match endpoint {
        Endpoint::ListNodes => nodes::list(api, request, false),
        Endpoint::ListNodesDetail => nodes::list(api, request, true),
        Endpoint::CreateNode => nodes::post(api, request).await,
        Endpoint::GetNode => nodes::get(api, request),
        Endpoint::PatchNode => patching::patch::<NodeSpec>(api, request).await,
        Endpoint::DeleteNode => writes::delete::<NodeSpec>(api, request).await,
        Endpoint::ListNodeTraits => traits::list(api, request),
        Endpoint::ReplaceNodeTraits => traits::replace(api, request).await,
        Endpoint::DeleteNodeTraits => traits::clear(api, request).await,
        Endpoint::AddNodeTrait => traits::add(api, request).await,
        Endpoint::DeleteNodeTrait => traits::remove(api, request).await,
        Endpoint::ListNodeRoles => roles::roles(api, request),
        Endpoint::GiveNodeRoles => roles::write_roles(api, request, RoleCall::Give).await,
        Endpoint::ReplaceNodeRoles => roles::write_roles(api, request, RoleCall::Replace).await,
        Endpoint::TakeNodeRoles => roles::write_roles(api, request, RoleCall::Take).await,
        Endpoint::ListNodeTags => tags::node::tags(api, request),
        Endpoint::AssignNodeTags => tags::node::write_tags(api, request, NodeTagCall::Both).await,
        Endpoint::UnassignNodeTags => tags::node::write_tags(api, request, NodeTagCall::Unassign).await,
        Endpoint::AssignNodeTag => tags::node::write_tags(api, request, NodeTagCall::AssignOne).await,
        Endpoint::UnassignNodeTag => tags::node::write_tags(api, request, NodeTagCall::UnassignOne).await,
        Endpoint::ResolvedNode => resolved::get(api, request),
        Endpoint::NodeReport => nodes::report(api, request),
        Endpoint::ExplainNode => explain::get(api, request),
        Endpoint::PutNodeMap => map::<NodeSpec>(api, request, MapCall::Replace).await,
        Endpoint::PatchNodeMap => map::<NodeSpec>(api, request, MapCall::Merge).await,
        Endpoint::TombstoneNode => map::<NodeSpec>(api, request, MapCall::Tombstones).await,
        Endpoint::OwnersNode => map::<NodeSpec>(api, request, MapCall::Owners).await,
        other => unreachable!("{other:?} is among the routes above"),
    }
}

async fn map<S: Shown>(api: &Api, request: &Request, call: MapCall) -> Outcome {
    maps::write_map::<S>(api, request, call).await
}

/// Makes a read wait until the fleet is as of the revision that it names.
async fn wait_at_least(api: &Api, request: &Request) -> Result<(), ApiError> {
    if !request.uri.query().unwrap_or_default().contains("at_least=") {
        return Ok(());
    }
    let Ok(parameters) = Parameters::read_any(&request.uri) else { return Ok(()) };
    let Some(text) = parameters.one("at_least").map_err(crate::api::http::request::bad_query)? else { return Ok(()) };
    let refused =
        || ApiError::new(ErrorType::RequestQuery, format!("at_least={} is no revision", quote(text))).field("at_least");
    let wanted: u64 = text.parse().map_err(|_| refused())?;
    let head = api.registry.store().head();
    if wanted > head.get() {
        let message = format!("revision {wanted} is ahead of the store's, which is {head}");
        return Err(ApiError::new(ErrorType::RevisionAhead, message).field("at_least"));
    }
    api.cache().reached(crate::store::Revision::new(wanted)).await;
    Ok(())
}

/// `PUT /v1/blobs/{hash}`: a file body, before the manifest that names it.
async fn put_blob(api: &Api, request: &Request) -> Outcome {
    let name = request.part("hash");
    let wrong =
        || ApiError::new(ErrorType::FieldInvalid, format!("{} is no SHA-256: 64 digits in small letters", quote(name)));
    let hash = name.parse().map_err(|_| wrong())?;
    let (blobs, body) = (Arc::clone(&api.blobs), request.body.clone());
    let put = tokio::task::spawn_blocking(move || blobs.put(hash, &body)).await;
    match put {
        Ok(Ok(Put::New | Put::Known)) => Ok(Reply::empty(StatusCode::NO_CONTENT)),
        Ok(Ok(Put::OtherHash(found))) => {
            let message = format!("the body has the hash {found}, not that which the path names; nothing was kept");
            Err(ApiError::new(ErrorType::BlobMismatch, message))
        }
        Ok(Err(failure)) => {
            log::error!(error:err = failure; "a file body could not be kept");
            Err(ApiError::new(ErrorType::ServerInternal, "the file body could not be kept; the journal says why"))
        }
        Err(_) => Err(ApiError::new(ErrorType::ServerInternal, ErrorType::ServerInternal.title())),
    }
}
