//! Enrolment: creates a node and its first certificate from a token and a certificate request.
//!
//! Until the token is known to be valid, every refusal is the same. So an unknown, a wrong, a used-up and an expired
//! token cannot be distinguished, and no name can be probed (S30). A text that cannot be a token is refused with its
//! correct form. With a valid token, refusals give the reason.

use std::net::SocketAddr;
use std::sync::Arc;

use stemma_core::access::AccessScope;
use stemma_core::name::{InvalidName, NodeName};
use stemma_core::object::{GroupId, Kind, Node, NodeSpec, PrincipalRole, Timestamp};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::enroll::{EnrollRequest, EnrollResponse, NotAToken, check_token};
use uuid::Uuid;

use super::token::{ReadAgent, find_unjoined};
use super::{Enrolment, keys, new_caller, new_uuid, token};
use crate::ca::csr::CertificateRequest;
use crate::cache::model::Versioned;
use crate::records::audit::PartAction;
use crate::records::enrolled::{AgentRecord, HexBytes, TokenRecord, TokenTarget, agent_key, token_key};
use crate::records::request::StoredAnswer;
use crate::records::{codec, key};
use crate::registry::work::PendingWrite;
use crate::registry::{Context, Decision, DecisionError};
use crate::store::{Op, Precondition, Revision};

/// The result of an enrolment: the node, the chain of the host's new certificate, and the node's agent record.
pub(super) struct EnrolResult {
    pub(super) node: Uuid,
    pub(super) chain: Vec<Vec<u8>>,
    pub(super) record: AgentRecord,
}

/// An enrolment request whose name and certificate request are checked. `token` is the id of the token.
struct JoinRequest<'a> {
    token: &'a str,
    name: NodeName,
    request: CertificateRequest,
    seal_key: [u8; 32],
}

impl Enrolment {
    /// Enrols a host: creates its node or takes over an existing one, and issues the first certificate. A repeated
    /// request gets another certificate and uses up nothing.
    ///
    /// # Errors
    /// Fails with the error for the host. For a text that cannot be a token, it states the correct form. It is the same
    /// for every other invalid token. After too many wrong tokens, it is [`ErrorType::ServerBusy`]. With a valid token,
    /// it states what is wrong with the request, or why the name or group of the node is refused.
    pub async fn enrol(&self, from: SocketAddr, request: EnrollRequest) -> Result<EnrollResponse, ApiError> {
        let now_s = self.clock.unix_seconds();
        if !self.token_attempts.is_allowed(from.ip(), now_s) {
            self.rejected.record("token_guesses", Some(from.ip()));
            return Err(ApiError::from(ErrorType::ServerBusy));
        }
        let repeat = self.repeated_join(&request, Timestamp(now_s * 1000));
        let token = repeat.as_ref().map_or_else(|| self.verify_token(&request.token, from), |join| Ok(join.token.clone()))?;
        let result = match repeat {
            Some(repeat) => self.answer_repeat(&repeat, from).await,
            None => self.enrol_by_token(&token, from, request).await,
        };
        // The caller has a valid token, so a refusal is audited under the id of the token.
        result.inspect_err(|refusal| {
            // An error from 500 on is a failure of the controller and not a refusal.
            if refusal.status() < 500 {
                self.rejected.notify(refusal.kind.name(), &format!("token/{token}"), None, from);
            }
        })
    }

    /// Enrols a host with a valid token that it uses for the first time.
    async fn enrol_by_token(&self, token: &str, from: SocketAddr, request: EnrollRequest) -> Result<EnrollResponse, ApiError> {
        let name = NodeName::new(&request.name).map_err(|error| bad_name_error(&error))?;
        let join = JoinRequest { token, name, request: self.check_request(&request.csr, None)?, seal_key: request.seal_key };
        let caller = new_caller(format!("token/{token}"), from, "joined");
        let (result, revision) = self.commit(&caller, |context| self.decide_join(context, &join)).await?;
        // The watch of the store delivers the record too, but perhaps only after the agent's first request.
        self.identities.put(result.node, &result.record, revision);
        self.counters.enrolments.inc();
        log::info!(node:% = result.node, name:% = join.name, token = token; "node joined");
        Ok(self.response(result))
    }

    /// Builds the response to a host that has joined.
    pub(super) fn response(&self, result: EnrolResult) -> EnrollResponse {
        EnrollResponse {
            node: result.node,
            fleet: self.authority.fleet().to_string(),
            chain: result.chain,
            root: self.authority.root().to_vec(),
        }
    }

    /// Returns the id of a token that is valid now. A wrong token counts as a failure of the client's network. A text
    /// that cannot be a token does not count, because it is not a guess. After too many failures of all networks
    /// together, the error is `ServerBusy` instead of `TokenInvalid`.
    fn verify_token(&self, text: &str, from: SocketAddr) -> Result<String, ApiError> {
        let now_s = self.clock.unix_seconds();
        let may_reveal = match token::find(&self.registry.cache().model(), text) {
            Some(token) if is_valid(token, Timestamp(now_s * 1000)) => return Ok(token.id.clone()),
            // This token has the right secret, so it is not a guess. It has expired or is used up.
            Some(_) => self.token_attempts.may_reveal(now_s),
            None => {
                check_token(text).map_err(bad_token_error)?;
                self.token_attempts.record_failure(from.ip(), now_s)
            }
        };
        if may_reveal {
            return Err(ApiError::from(ErrorType::TokenInvalid));
        }
        self.rejected.record("token_guesses", Some(from.ip()));
        Err(ApiError::from(ErrorType::ServerBusy))
    }

    /// Decides an enrolment: creates the node or takes over an existing one, issues its first certificate, and consumes
    /// one use of the token.
    fn decide_join(&self, context: &Context<'_>, join: &JoinRequest<'_>) -> Result<(Decision, EnrolResult), DecisionError> {
        let token = context.model.tokens.get(join.token).filter(|token| is_valid(&token.record, context.now));
        let Versioned { record: token, mod_revision: token_revision } =
            token.map(|token| token.as_ref().clone()).ok_or(ApiError::from(ErrorType::TokenInvalid))?;
        // Read before anything is created. If the node's record is not in memory yet, the decision is made again after
        // a read of the store.
        let existing = find_node(context, &token, &join.name)?;
        check_token_scope(context, &token)?;
        let mut work = PendingWrite::new(context);
        place_with_maker_rights(context, &mut work, &token);
        let (node, earlier_agent) = match existing {
            Some((node, earlier_agent)) => {
                work.check_joining(TokenTarget::Node(node.meta.uuid))?;
                take_over_node(&mut work, &node, &token)?;
                (node.meta.uuid, earlier_agent)
            }
            None => {
                // Only a new node needs a name that commands accept. An existing node keeps the name that it has.
                join.name.check_host_name().map_err(|error| bad_name_error(&error))?;
                (create_node(&mut work, join.name.clone(), &token)?, None)
            }
        };
        let mut record = AgentRecord {
            seal_key: HexBytes(join.seal_key),
            joined_at: context.now,
            token: token.id.clone(),
            certificates: retired_certificates(earlier_agent.as_ref()),
            retired: false,
        }
        .without_expired(context.prune_before());
        let earlier_record = earlier_agent.as_ref().map(|(record, _)| record);
        let new_key = HexBytes(join.request.spki_sha256);
        keys::update_keys(context, work.draft(), node, earlier_record, &record.certificates, &new_key)?;
        let (chain, certificate) = self.issue_certificate(node, &join.request, context.now)?;
        record.certificates.push(certificate);
        record_join(&mut work, node, &record, earlier_agent.map(|(_, revision)| revision));
        consume_token(&mut work, token, token_revision);
        Ok((work.finish(StoredAnswer::empty(201))?, EnrolResult { node, chain, record }))
    }
}

/// Fails if the token's node or group is no longer in the cluster to which the creator of the token was bound. The node
/// may have been moved to another cluster since the token was created.
fn check_token_scope(context: &Context<'_>, token: &TokenRecord) -> Result<(), ApiError> {
    match token.within {
        Some(cluster) if context.model.token_scope(token.bound) != AccessScope::Cluster(cluster) => {
            let message = "the token's node or node group is no longer in the cluster of the principal that created the token";
            Err(ApiError::new(ErrorType::TokenInvalid, message).detail("the token was not used up; ask for another token"))
        }
        _ => Ok(()),
    }
}

/// Sets the role with whose rights the host's node is placed: the present role of the principal that created the token.
/// If no principal created it, the write keeps the rights of an admin, because the creator used a listener for admins,
/// such as root's socket. A token of a deleted principal does not exist, because it is deleted with the principal.
fn place_with_maker_rights(context: &Context<'_>, work: &mut PendingWrite<'_>, token: &TokenRecord) {
    let principals = &context.full_model.principals;
    let maker = match token.maker {
        Some(uuid) => principals.get(uuid),
        // The token is of an earlier version, or no principal created it.
        None => principals.get_by_name(None, &token.created_by),
    };
    let Some(maker) = maker else { return };
    work.set_placement_role(maker.spec.role);
    // An admin may place privileged tasks. So the commit requires that the principal is unchanged, and still an admin.
    if maker.spec.role == PrincipalRole::Admin {
        let principal_key = key::object(Kind::Principal, maker.meta.uuid);
        work.draft().add_precondition(Precondition::unchanged(principal_key, Revision::new(maker.meta.resource_version)));
    }
}

/// Returns the node that the host takes over, with the record of the node's earlier agent if there was one. Returns
/// `None` if a new node is to be created. Fails if the token does not permit this name, if the node already has a host,
/// or if the node or group of the token no longer exists.
fn find_node(
    context: &Context<'_>,
    token: &TokenRecord,
    name: &NodeName,
) -> Result<Option<(Arc<Node>, ReadAgent)>, DecisionError> {
    let model = context.model;
    let node_of_name = model.nodes.get_by_name(None, name.as_str());
    let name_taken = |why: &str| {
        let message = format!("the name {} is taken: {why}", quote(name.as_str()));
        Err(ApiError::new(ErrorType::ObjectExists, message).field("name").detail("join with --name and another name").into())
    };
    let host_error = |node: &Node| token::has_host_error(node).field("name");
    let invalid_token = |why: String| Err(ApiError::new(ErrorType::TokenInvalid, why).detail("the token was not used up").into());
    match token.bound {
        TokenTarget::Fleet => node_of_name
            .map_or(Ok(None), |_| name_taken("a token that is bound to neither node nor group cannot take over a node")),
        TokenTarget::Group(group) => {
            if model.groups.get(group).is_none() {
                return invalid_token("the node group that the token is bound to no longer exists".to_owned());
            }
            match node_of_name {
                None => Ok(None),
                Some(node) if node.spec.nodegroup != Some(GroupId(group)) => name_taken("that node is not in the token's group"),
                Some(node) => match find_unjoined(context, node)? {
                    Some(unjoined) => Ok(Some(unjoined)),
                    None => Err(host_error(node).detail("another host joins with --name and another name").into()),
                },
            }
        }
        TokenTarget::Node(uuid) => match model.nodes.get(uuid) {
            None => invalid_token("the node that the token is bound to no longer exists".to_owned()),
            Some(node) if !accepts_name(node, name) => {
                invalid_token(format!("the token is bound to another node than {}", quote(name.as_str())))
            }
            Some(node) => find_unjoined(context, node)?.map_or_else(|| Err(host_error(node).into()), |found| Ok(Some(found))),
        },
    }
}

/// Returns whether a token has uses left and has not expired.
pub(super) fn is_valid(token: &TokenRecord, now: Timestamp) -> bool {
    token.uses_left > 0 && now < token.expires_at
}

/// Returns whether a host with this name may join as the node. A node without a name accepts every name.
fn accepts_name(node: &Node, name: &NodeName) -> bool {
    node.meta.name.as_ref().is_none_or(|node_name| node_name == name)
}

/// Builds the error for a text that cannot be a token. It reveals nothing about existing tokens.
fn bad_token_error(error: NotAToken) -> ApiError {
    let message = format!("the text is not a join token: {error}; nothing was changed");
    ApiError::new(ErrorType::FieldInvalid, message).field("token").detail("send it as `stemma token create` prints it")
}

/// Builds the error for a host name that is invalid, with the advice to choose another.
fn bad_name_error(error: &InvalidName) -> ApiError {
    ApiError::new(ErrorType::FieldInvalid, format!("{error}; join with --name and another name")).field("name")
}

/// Creates the node of a host that joins, with the mode of the token. If the token is bound to a group, the node is in
/// that group, otherwise in none.
fn create_node(work: &mut PendingWrite<'_>, name: NodeName, token: &TokenRecord) -> Result<Uuid, ApiError> {
    let nodegroup = match token.bound {
        TokenTarget::Group(group) => Some(GroupId(group)),
        TokenTarget::Fleet | TokenTarget::Node(_) => None,
    };
    let uuid = new_uuid(work.now())?;
    work.create(uuid, Some(name), NodeSpec { nodegroup, mode: token.mode, ..NodeSpec::default() })?;
    Ok(uuid)
}

/// Takes over an existing node for the host. Leaves the spec as the operator wrote it, except that a node without a
/// mode gets the mode of the token. The commit requires that the node is unchanged.
fn take_over_node(work: &mut PendingWrite<'_>, node: &Arc<Node>, token: &TokenRecord) -> Result<(), ApiError> {
    if node.spec.mode.is_none() && token.mode.is_some() {
        let spec = NodeSpec { mode: token.mode, ..node.spec.clone() };
        work.update(node, node.meta.name.clone(), spec)?;
    } else {
        let node_key = key::object(Kind::Node, node.meta.uuid);
        work.draft().add_precondition(Precondition::unchanged(node_key, Revision::new(node.meta.resource_version)));
        work.draft().audit_unchanged(node);
    }
    Ok(())
}

/// Returns the certificates of the node's earlier agent, marked as revoked. They stay in the record, so that their
/// revocation is known.
fn retired_certificates(earlier: Option<&(AgentRecord, Revision)>) -> Vec<super::CertificateRecord> {
    let Some((record, _)) = earlier else { return Vec::new() };
    record.certificates.iter().map(|certificate| super::CertificateRecord { revoked: true, ..certificate.clone() }).collect()
}

/// Adds the agent record of a node to the commit, and names its newest certificate in the audit event. The node must be
/// the object that was added last to that event. `earlier_revision` is the revision of the stored record, which the
/// commit requires unchanged. If it is `None`, the commit requires that no record is stored.
pub(super) fn record_join(work: &mut PendingWrite<'_>, node: Uuid, record: &AgentRecord, earlier_revision: Option<Revision>) {
    if let Some(certificate) = record.certificates.last() {
        let part = format!("certificates.{}", stemma_core::digest::Hex(&certificate.serial.0));
        work.draft().set_part(PartAction::Issued, part);
    }
    let record_key = agent_key(node);
    work.draft().add_precondition(Precondition::unchanged_since(record_key.clone(), earlier_revision));
    work.draft().add_op(Op::Put { key: record_key.into(), value: codec::encode(record) });
}

/// Adds to the commit that one use of the token is consumed. `token_revision` is the revision of the stored token,
/// which the commit requires unchanged.
fn consume_token(work: &mut PendingWrite<'_>, token: TokenRecord, token_revision: Revision) {
    let stored_key = token_key(&token.id);
    work.draft().add_precondition(Precondition::unchanged(stored_key.clone(), token_revision));
    let uses_left = token.uses_left - 1;
    let updated = TokenRecord { uses_left, spent_at: (uses_left == 0).then_some(work.now()), ..token };
    work.draft().add_op(Op::Put { key: stored_key.into(), value: codec::encode(&updated) });
}
