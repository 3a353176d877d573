//! Enrolment: a token and a request for a certificate make a node and its first certificate.
//!
//! Until the token is known to be good, every refusal is the same answer: what is unknown, wrong, used up or expired cannot be told
//! apart, and no name can be probed (S30). Of what no token could read as, its form is said. After it, everything is said.

use std::net::SocketAddr;
use std::sync::Arc;

use stemma_core::access::Place;
use stemma_core::name::{InvalidName, NodeName};
use stemma_core::object::{GroupId, Kind, Node, NodeSpec, PrincipalRole, Timestamp};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::enroll::{EnrollAnswer, EnrollRequest, NotAToken, check_token};
use uuid::Uuid;

use super::token::{Known, not_joined};
use super::{Enrolment, caller, keys, new_uuid, token};
use crate::ca::csr::Request;
use crate::cache::model::Entry;
use crate::records::audit::PartAction;
use crate::records::enrolled::{AgentRecord, Bound, Hex, TokenRecord, agent_key, token_key};
use crate::records::request::Answer;
use crate::records::{codec, key};
use crate::registry::work::Work;
use crate::registry::{Context, Decision, Undecided};
use crate::store::{Op, Precondition, Revision};

/// What an enrolment has made, once it is committed.
pub(super) struct Made {
    pub(super) node: Uuid,
    pub(super) chain: Vec<Vec<u8>>,
    pub(super) record: AgentRecord,
}

/// What an enrolment asks for, found good as far as it can be without the fleet.
struct JoinRequest<'a> {
    token: &'a str,
    name: NodeName,
    request: Request,
    seal_key: [u8; 32],
}

impl Enrolment {
    /// Lets a host join.
    ///
    /// # Errors
    /// The answer to give: the same one for every token that is no good; then what is wrong with request, name or place.
    pub async fn enrol(&self, from: SocketAddr, request: EnrollRequest) -> Result<EnrollAnswer, ApiError> {
        let now_s = self.clock.unix_seconds();
        if !self.guesses.allowed(from.ip(), now_s) {
            self.rejected.refuse("token_guesses", Some(from.ip()));
            return Err(ApiError::from(ErrorType::ServerBusy));
        }
        let again = self.asks_again(&request, Timestamp(now_s * 1000));
        let token =
            again.as_ref().map_or_else(|| self.good_token(&request.token, from), |again| Ok(again.token.clone()))?;
        let joined = match again {
            Some(again) => self.answer_again(&again, from).await,
            None => self.enrol_with(&token, from, request).await,
        };
        // Who holds a good token has shown that much: what is refused from here on is told of.
        joined.inspect_err(|refusal| {
            if refusal.status() < 500 {
                self.rejected.tell(refusal.kind.name(), &format!("token/{token}"), None, from);
            }
        })
    }

    async fn enrol_with(
        &self,
        token: &str,
        from: SocketAddr,
        request: EnrollRequest,
    ) -> Result<EnrollAnswer, ApiError> {
        let name = NodeName::new(&request.name).map_err(|error| bad_name(&error))?;
        let join =
            JoinRequest { token, name, request: self.check_request(&request.csr, None)?, seal_key: request.seal_key };
        let caller = caller(format!("token/{token}"), from, "joined");
        let (made, written) = self.write(&caller, |context| self.decide(context, &join)).await?;
        // The store's watch says it too, and later: the agent may ask before.
        self.identities.put(made.node, &made.record, written);
        self.counters.enrolments.inc();
        log::info!(node:% = made.node, name:% = join.name, token = token; "node joined");
        Ok(self.answer(made))
    }

    /// What a host is told that has joined.
    pub(super) fn answer(&self, made: Made) -> EnrollAnswer {
        EnrollAnswer {
            node: made.node,
            fleet: self.authority.fleet().to_string(),
            chain: made.chain,
            root: self.authority.root().to_vec(),
        }
    }

    /// The id of a token that is good now; a wrong one is counted, unless no token could read so: nobody guesses with that.
    fn good_token(&self, text: &str, from: SocketAddr) -> Result<String, ApiError> {
        let now_s = self.clock.unix_seconds();
        let told = match token::find(&self.registry.cache().model(), text) {
            Some(token) if is_good(token, Timestamp(now_s * 1000)) => return Ok(token.id.clone()),
            Some(_) => self.guesses.may_tell(now_s),
            None => {
                check_token(text).map_err(no_token)?;
                self.guesses.note(from.ip(), now_s)
            }
        };
        if told {
            return Err(ApiError::from(ErrorType::TokenInvalid));
        }
        self.rejected.refuse("token_guesses", Some(from.ip()));
        Err(ApiError::from(ErrorType::ServerBusy))
    }

    fn decide(&self, context: &Context<'_>, join: &JoinRequest<'_>) -> Result<(Decision, Made), Undecided> {
        let token = context.model.tokens.get(join.token).filter(|token| is_good(&token.record, context.now));
        let Entry { record: token, written } =
            token.map(|token| token.as_ref().clone()).ok_or(ApiError::from(ErrorType::TokenInvalid))?;
        // Read before anything is made, so that a decision that has to wait for it has cost nothing.
        let place = place(context, &token, &join.name)?;
        check_within(context, &token)?;
        let mut work = Work::on(context);
        place_as_maker(context, &mut work, &token);
        let (node, earlier) = match place {
            Some((node, earlier)) => {
                work.check_joining(Bound::Node(node.meta.uuid))?;
                take_over(&mut work, &node, &token)?;
                (node.meta.uuid, earlier)
            }
            None => {
                join.name.check_of_host().map_err(|error| bad_name(&error))?;
                (make_node(&mut work, join.name.clone(), &token)?, None)
            }
        };
        let mut record = AgentRecord {
            seal_key: Hex(join.seal_key),
            joined_at: context.now,
            token: token.id.clone(),
            certificates: retired_certificates(earlier.as_ref()),
            retired: false,
        }
        .without_over(context.forgets_until());
        let before = earlier.as_ref().map(|(record, _)| record);
        let key = Hex(join.request.spki_sha256);
        keys::follow(context, work.draft(), node, before, &record.certificates, &key)?;
        let (chain, certificate) = self.issue(node, &join.request, context.now)?;
        record.certificates.push(certificate);
        record_join(&mut work, node, &record, earlier.map(|(_, revision)| revision));
        consume(&mut work, token, written);
        Ok((work.finish(Answer::empty(201))?, Made { node, chain, record }))
    }
}

/// Refuses where hosts would join by a token in another cluster than that to which its maker was bound: a node may have been moved.
fn check_within(context: &Context<'_>, token: &TokenRecord) -> Result<(), ApiError> {
    match token.within {
        Some(own) if context.model.place_of_bound(token.bound) != Place::Cluster(own) => {
            let message = "what the token is bound to stands no longer in the cluster of who made it";
            Err(ApiError::new(ErrorType::TokenInvalid, message).detail("the token was not used up; have another made"))
        }
        _ => Ok(()),
    }
}

/// Places the host with the rights that the token's maker has now. A maker who is no principal came in by a way that is an admin's, as
/// root's socket: the tokens of a principal end with it.
fn place_as_maker(context: &Context<'_>, work: &mut Work<'_>, token: &TokenRecord) {
    let principals = &context.whole.principals;
    let maker = match token.maker {
        Some(uuid) => principals.get(uuid),
        // Of an earlier version, or of none who is a principal.
        None => principals.named(None, &token.created_by),
    };
    let Some(maker) = maker else { return };
    work.place_as(maker.spec.role);
    if maker.spec.role == PrincipalRole::Admin {
        let at = key::object(Kind::Principal, maker.meta.uuid);
        work.draft().require(Precondition::unchanged(at, Revision::new(maker.meta.resource_version)));
    }
}

/// The node that is taken over, with its agent's record if it had one before; `None` when a new one is made.
fn place(context: &Context<'_>, token: &TokenRecord, name: &NodeName) -> Result<Option<(Arc<Node>, Known)>, Undecided> {
    let model = context.model;
    let named = model.nodes.named(None, name.as_str());
    let taken = |why: &str| {
        let message = format!("the name {} is taken: {why}", quote(name.as_str()));
        Err(ApiError::new(ErrorType::ObjectExists, message)
            .field("name")
            .detail("join with --name and another name")
            .into())
    };
    let has_host = |node: &Node| token::has_host(node).field("name");
    let elsewhere =
        |why: String| Err(ApiError::new(ErrorType::TokenInvalid, why).detail("the token was not used up").into());
    match token.bound {
        Bound::Fleet => {
            named.map_or(Ok(None), |_| taken("a token that is bound to neither node nor group takes over no node"))
        }
        Bound::Group(group) => {
            if model.groups.get(group).is_none() {
                return elsewhere("the node group that the token is bound to is gone".to_owned());
            }
            match named {
                None => Ok(None),
                Some(node) if node.spec.nodegroup != Some(GroupId(group)) => {
                    taken("that node is not in the token's group")
                }
                Some(node) => match not_joined(context, node)? {
                    Some(found) => Ok(Some(found)),
                    None => Err(has_host(node).detail("another host joins with --name and another name").into()),
                },
            }
        }
        Bound::Node(uuid) => match model.nodes.get(uuid) {
            None => elsewhere("the node that the token is bound to is gone".to_owned()),
            Some(node) if !answers_to(node, name) => {
                elsewhere(format!("the token is bound to another node than {}", quote(name.as_str())))
            }
            Some(node) => {
                not_joined(context, node)?.map_or_else(|| Err(has_host(node).into()), |found| Ok(Some(found)))
            }
        },
    }
}

pub(super) fn is_good(token: &TokenRecord, now: Timestamp) -> bool {
    token.uses_left > 0 && now < token.expires_at
}

/// A node without a name is called by whatever name its host has.
fn answers_to(node: &Node, name: &NodeName) -> bool {
    node.meta.name.as_ref().is_none_or(|own| own == name)
}

/// The refusal of what cannot be a token. It says nothing of the tokens that there are.
fn no_token(error: NotAToken) -> ApiError {
    let message = format!("the text is no join token: {error}; nothing was changed");
    ApiError::new(ErrorType::FieldInvalid, message).field("token").detail("send it as `stemma token create` prints it")
}

fn bad_name(error: &InvalidName) -> ApiError {
    ApiError::new(ErrorType::FieldInvalid, format!("{error}; join with --name and another name")).field("name")
}

fn make_node(work: &mut Work<'_>, name: NodeName, token: &TokenRecord) -> Result<Uuid, ApiError> {
    let nodegroup = match token.bound {
        Bound::Group(group) => Some(GroupId(group)),
        Bound::Fleet | Bound::Node(_) => None,
    };
    let uuid = new_uuid(work.now())?;
    work.create(uuid, Some(name), NodeSpec { nodegroup, mode: token.mode, ..NodeSpec::default() })?;
    Ok(uuid)
}

/// The node stays as its operator wrote it, but for a mode where it has none. It must still be so when this is committed.
fn take_over(work: &mut Work<'_>, node: &Arc<Node>, token: &TokenRecord) -> Result<(), ApiError> {
    if node.spec.mode.is_none() && token.mode.is_some() {
        let spec = NodeSpec { mode: token.mode, ..node.spec.clone() };
        work.update(node, node.meta.name.clone(), spec)?;
    } else {
        let at = key::object(Kind::Node, node.meta.uuid);
        work.draft().require(Precondition::unchanged(at, Revision::new(node.meta.resource_version)));
        work.draft().note(node);
    }
    Ok(())
}

/// Certificates of an agent that is gone stay on record, as denied ones.
fn retired_certificates(earlier: Option<&(AgentRecord, Revision)>) -> Vec<super::CertificateRecord> {
    let Some((record, _)) = earlier else { return Vec::new() };
    record.certificates.iter().map(|old| super::CertificateRecord { revoked: true, ..old.clone() }).collect()
}

/// Stores what is recorded of a node that was written or noted last, and names its newest certificate in the audit.
pub(super) fn record_join(work: &mut Work<'_>, node: Uuid, record: &AgentRecord, earlier: Option<Revision>) {
    if let Some(certificate) = record.certificates.last() {
        let part = format!("certificates.{}", stemma_core::digest::Hex(&certificate.serial.0));
        work.draft().name_part(PartAction::Issued, part);
    }
    let at = agent_key(node);
    work.draft().require(Precondition::as_read(at.clone(), earlier));
    work.draft().entry(Op::Put { key: at.into(), value: codec::encode(record) });
}

fn consume(work: &mut Work<'_>, token: TokenRecord, written: Revision) {
    let at = token_key(&token.id);
    work.draft().require(Precondition::unchanged(at.clone(), written));
    let uses_left = token.uses_left - 1;
    let left = TokenRecord { uses_left, spent_at: (uses_left == 0).then_some(work.now()), ..token };
    work.draft().entry(Op::Put { key: at.into(), value: codec::encode(&left) });
}
