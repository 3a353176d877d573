//! The desired state of each node: the interface between the reconciler, which decides, and the listener, which
//! answers.
//!
//! The reconciler publishes one pass at a time, and one pass is one signed batch. A state with equal digests is left
//! unchanged here. So a pass that changed nothing, such as a full resolve, signs nothing, sends nothing and wakes no
//! check-in. The table is in memory only. What must survive (what was released to which node) is in the store, and a
//! restarted controller signs and publishes it again before it sends anything to an agent.

pub(crate) mod duplicates;
pub(crate) mod encode;
pub(crate) mod size;
pub(crate) mod slot;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use stemma_core::epoch::{EpochHistory, HeldRevision};
use stemma_core::status::{HostConfirmation, Liveness, StateInputs};
use stemma_wire::message::checkin::HeldDesired;
use stemma_wire::message::desired::{Barrier, Known, Profile, TaskSet};
use stemma_wire::message::signed::{EpochChange, Grant, LeaseKind, SignedDesired, SignedGrant};
use stemma_wire::message::{
    Epoch, Hash, Message, PartDigest, Revision, WireVersion, decode_part, digest_part, encode_part, hash_content,
};
use stemma_wire::sign::{Leaf, SignedBatch, Signer};
use tokio::time::Instant;
use uuid::Uuid;

use duplicates::HostAddresses;
use slot::{NodeRevisions, NodeSlot};

use crate::intake::{ConfirmedState, SentParts};
use crate::status::StatusTable;

/// The wire version in which desired states are decided, compared and stored. A host gets them in the version that its
/// agent speaks, with the digests of that version.
pub const PUBLISHED_VERSION: WireVersion = WireVersion::CURRENT;

/// The duration of a lease for a reboot. Within it, the host must have begun to reboot.
const REBOOT_LEASE: Duration = Duration::from_mins(10);

/// Encoded bytes that are sent unchanged, and the name by which controller and agent refer to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBytes<N> {
    /// The name by which controller and agent refer to the bytes, such as a hash.
    pub name: N,
    /// The encoded form (postcard), without a version byte.
    pub bytes: Bytes,
}

impl NamedBytes<Hash> {
    /// Encodes a profile in a wire version, and names the bytes by their hash.
    pub fn profile(version: WireVersion, profile: &Profile) -> Self {
        let bytes = Bytes::from(encode_part(version, profile));
        Self { name: hash_content(&bytes), bytes }
    }

    /// Decodes the profile. `version` is the wire version in which the bytes are encoded. Returns `None` if they cannot
    /// be decoded.
    pub(crate) fn decode(&self, version: WireVersion) -> Option<Profile> {
        decode_part(version, &self.bytes).ok()
    }
}

/// A profile as it is sent: one encoded form for each wire version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedProfile(Box<[NamedBytes<Hash>]>);

impl EncodedProfile {
    /// Encodes a profile in all wire versions.
    pub fn new(profile: &Profile) -> Self {
        Self(WireVersion::all().map(|version| NamedBytes::profile(version, profile)).collect())
    }

    /// Returns the form for a wire version.
    pub fn for_version(&self, version: WireVersion) -> &NamedBytes<Hash> {
        &self.0[version.index()]
    }

    /// Returns the form with this hash, in whichever wire version it is encoded.
    pub fn by_name(&self, name: Hash) -> Option<&NamedBytes<Hash>> {
        self.0.iter().find(|form| form.name == name)
    }
}

/// The digest and the size of one part (known part or task set) of a desired state in one wire version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedPart {
    /// The digest by which controller and agent refer to the part.
    pub name: PartDigest,
    /// The size of the part in bytes, as it is sent.
    pub bytes: usize,
}

impl NamedPart {
    /// Encodes a part to compute its digest and size. The encoded bytes are not stored.
    fn new<M: Message>(version: WireVersion, part: &M) -> Self {
        let bytes = encode_part(version, part);
        Self { name: digest_part(version, &bytes), bytes: bytes.len() }
    }
}

/// The digests and sizes of both parts of a desired state in one wire version. The parts themselves are not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredParts {
    /// The digest and size of the known part, which is sent at once.
    pub known: NamedPart,
    /// The digest and size of the task set (sent when released), which names the profile of the same wire version.
    pub task_set: NamedPart,
}

/// The source of the parts of a desired state, which returns the same parts each time. The parts are encoded once to
/// compute their digests, and again each time they are sent. The encoded parts are not kept in memory, because what all
/// nodes of a group inherit would then be there once for each node.
pub trait DesiredContent: fmt::Debug + Send + Sync {
    /// Returns the known part, which is sent at once.
    fn known(&self) -> Known;
    /// Returns the task set, which is sent when it is released.
    fn task_set(&self) -> Cow<'_, TaskSet>;
}

impl DesiredContent for (Known, TaskSet) {
    fn known(&self) -> Known {
        self.0.clone()
    }

    fn task_set(&self) -> Cow<'_, TaskSet> {
        Cow::Borrowed(&self.1)
    }
}

/// The desired state that was decided for one node.
#[derive(Clone, Debug)]
pub struct DesiredState {
    /// The revision of the store at which the node was resolved.
    pub revision: Revision,
    /// The digests and sizes of both parts, one entry for each wire version.
    parts: Arc<[DesiredParts]>,
    /// The source of both parts, which are encoded again when they are sent.
    content: Arc<dyn DesiredContent>,
    /// The profile that the task set names, or `None` without one that can be read. Equal nodes share it.
    pub profile: Option<Arc<EncodedProfile>>,
    /// The blobs that the profile's tasks name, sorted. Equal nodes share them.
    pub blobs: Arc<[Hash]>,
    /// The time without a check-in after which the node is silent. The node group sets this time, and the default is 90
    /// s.
    pub silent_after: Duration,
}

impl DesiredState {
    /// Creates a desired state that holds copies of both parts. `shared` has the profile and its blobs, which equal
    /// nodes share.
    pub fn new(
        revision: Revision,
        (known, task_set): (&Known, &TaskSet),
        shared: (Option<Arc<EncodedProfile>>, Arc<[Hash]>),
        silent_after: Duration,
    ) -> Self {
        let content = Arc::new((known.clone(), task_set.clone()));
        Self::from_content(content, revision, (known, task_set), shared, silent_after)
    }

    /// Creates a desired state, and computes the digests and sizes of both parts in all wire versions. `content` must
    /// return the same parts again when they are sent. In each version, the task set names the profile as encoded in
    /// that version. If there is no profile, the task set is encoded unchanged.
    pub(crate) fn from_content(
        content: Arc<dyn DesiredContent>,
        revision: Revision,
        (known, task_set): (&Known, &TaskSet),
        (profile, blobs): (Option<Arc<EncodedProfile>>, Arc<[Hash]>),
        silent_after: Duration,
    ) -> Self {
        let parts = WireVersion::all().map(|version| {
            let profile_name = profile.as_ref().map(|profile| profile.for_version(version).name);
            let task_set = task_set.with_profile(profile_name);
            DesiredParts { known: NamedPart::new(version, known), task_set: NamedPart::new(version, &*task_set) }
        });
        Self { revision, parts: parts.collect(), content, profile, blobs, silent_after }
    }

    /// Returns the encoded known part in a wire version.
    fn known(&self, version: WireVersion) -> Vec<u8> {
        encode_part(version, &self.content.known())
    }

    /// Returns the encoded task set in a wire version.
    fn task_set(&self, version: WireVersion) -> Vec<u8> {
        let profile_name = self.profile.as_ref().map(|profile| profile.for_version(version).name);
        encode_part(version, &*self.content.task_set().with_profile(profile_name))
    }

    /// Returns the digests and sizes of both parts in a wire version.
    pub fn parts(&self, version: WireVersion) -> &DesiredParts {
        &self.parts[version.index()]
    }

    /// Returns whether both parts of another desired state have the same digests as those of this one, in every wire
    /// version.
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        self.parts.iter().zip(&*other.parts).all(|(parts, other_parts)| {
            parts.known.name == other_parts.known.name && parts.task_set.name == other_parts.task_set.name
        })
    }

    /// Returns whether this desired state names the blob with this hash. The node's host may fetch only such blobs.
    pub fn has_blob(&self, hash: Hash) -> bool {
        self.blobs.binary_search(&hash).is_ok()
    }
}

/// The result of a pass of the reconciler for one node: the node's desired state, or that the node was deleted.
#[derive(Clone, Debug)]
pub enum DesiredChange {
    /// The node has this desired state now. It may equal the published one, and then it is not published again.
    Release(Box<DesiredState>),
    /// The node was deleted. Its waiting check-in ends, and its certificates are invalid at once.
    Deleted,
}

/// The result of one pass of the reconciler.
#[derive(Clone, Debug)]
pub struct PassResult {
    /// The revision of the store at which all nodes are resolved, also the nodes without a change in this pass.
    pub revision: Revision,
    /// The results for the nodes that were resolved in this pass.
    pub changes: Vec<(Uuid, DesiredChange)>,
}

/// A node's desired state with its leaves in a signed batch. A leaf is an entry of the batch, and a proof shows that it
/// is in the batch. The state has one leaf for each wire version, and the first leaf is at `first_index`.
#[derive(Debug)]
pub(crate) struct SignedState {
    pub(crate) desired: DesiredState,
    /// The epoch in which the state is signed.
    pub(crate) epoch: Epoch,
    batch: Arc<SignedBatch>,
    first_index: usize,
}

impl SignedState {
    /// Returns the message for an agent that speaks this wire version. The message has the digests of both parts, and
    /// the content of those parts that the agent lacks. `held` is the desired state that the agent holds. If
    /// that is of another epoch, `change` is the signed change from that epoch to the epoch of this state.
    pub(crate) fn message(&self, version: WireVersion, held: Option<&HeldDesired>, change: Option<EpochChange>) -> SignedDesired {
        let DesiredParts { known, task_set } = self.desired.parts(version);
        // An agent of another epoch counts as without any part, so it gets both parts.
        let held = held.filter(|held| held.epoch == self.epoch);
        let lacks = |part: &NamedPart, digest: Option<PartDigest>| digest != Some(part.name);
        let lacks_known = lacks(known, held.map(|held| held.known));
        let lacks_task_set = lacks(task_set, held.map(|held| held.task_set));
        let leaf_index = self.first_index + version.index();
        SignedDesired {
            epoch: self.epoch,
            revision: self.desired.revision,
            known_digest: known.name,
            task_set_digest: task_set.name,
            known: lacks_known.then(|| self.desired.known(version)),
            task_set: lacks_task_set.then(|| self.desired.task_set(version)),
            proof: self.batch.proof(leaf_index).expect("the batch has a leaf for each wire version of this state"),
            epoch_change: change,
        }
    }

    /// Returns this state with the content source of `later`, an equivalent state of a later revision. Otherwise the
    /// present source would hold objects of an earlier revision in memory.
    pub(crate) fn with_content(&self, later: &DesiredState) -> Self {
        let desired = DesiredState { content: Arc::clone(&later.content), ..self.desired.clone() };
        Self { desired, epoch: self.epoch, batch: Arc::clone(&self.batch), first_index: self.first_index }
    }

    /// Returns the epoch and revision that an agent holds after it received this state.
    pub(crate) fn sent_revision(&self) -> HeldRevision {
        HeldRevision { epoch: Uuid::from_bytes(self.epoch.0), revision: self.desired.revision.0 }
    }

    /// Returns the digests of both parts in [`PUBLISHED_VERSION`], as they are stored when the state is sent.
    pub(crate) fn sent_parts(&self) -> SentParts {
        let DesiredParts { known, task_set } = self.desired.parts(PUBLISHED_VERSION);
        SentParts { known: known.name, task_set: task_set.name }
    }

    /// Returns whether `agent_state`, which an agent of this wire version holds, has the same epoch and parts as this
    /// state.
    pub(crate) fn matches_agent_state(&self, version: WireVersion, agent_state: &HeldDesired) -> bool {
        let DesiredParts { known, task_set } = self.desired.parts(version);
        agent_state.epoch == self.epoch && agent_state.known == known.name && agent_state.task_set == task_set.name
    }

    /// Returns whether `agent_state`, which an agent holds, has the same epoch and parts as this state, in any wire
    /// version.
    pub(crate) fn matches_agent_state_in_any_version(&self, agent_state: &HeldDesired) -> bool {
        WireVersion::all().any(|version| self.matches_agent_state(version, agent_state))
    }
}

/// A signed grant: a permission for one host to run tasks whose barriers have opened, or a lease. A lease permits
/// something that only a limited number of hosts may do at the same time. A grant that names a task set has one form
/// for each wire version, because the digest of the task set differs in each. Any other grant has one form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantForms(Box<[SignedGrant]>);

impl GrantForms {
    /// Returns the form for a wire version. A grant with a single form has this form in every version.
    pub(crate) fn for_version(&self, version: WireVersion) -> &SignedGrant {
        self.0.get(version.index()).unwrap_or(&self.0[0])
    }

    /// Returns the grant as the controller compares it: with the digests of [`PUBLISHED_VERSION`].
    pub(crate) fn grant(&self) -> &Grant {
        &self.for_version(PUBLISHED_VERSION).grant
    }
}

/// The desired state of every node, and the check-ins that wait for a change of it.
pub struct DesiredTable {
    /// The history of the store's epochs. It changes only while `publish_lock` is held.
    epoch_line: ArcSwap<EpochHistory>,
    signer: ArcSwap<Signer>,
    status: StatusTable,
    slots: RwLock<HashMap<Uuid, Arc<NodeSlot>>>,
    /// The lock for signing and publishing states or grants. Without it, a thread could sign a state that another
    /// thread has just replaced.
    publish_lock: Mutex<()>,
    /// The revision of the store at which all nodes are resolved; zero before the first pass.
    resolved_revision: AtomicU64,
    /// The slots of nodes whose agents hold a later revision than `resolved_revision`. The next pass wakes these slots,
    /// and so the check-ins that wait. `resolved_revision` is compared and advanced under this lock.
    waiting_for_revision: Mutex<HashMap<Uuid, Arc<NodeSlot>>>,
    /// Number of published desired states whose content is new. A state that is only signed again does not count.
    pub published_count: Counter,
    /// Number of desired states that were sent to agents.
    pub sent_count: Counter,
    is_stopping: AtomicBool,
    /// The time at which this table, and so the controller, started.
    started_at: Instant,
}

impl DesiredTable {
    /// Creates an empty table. Nothing is sent to any agent before the first pass of the reconciler.
    pub fn new(epochs: EpochHistory, signer: Signer) -> Self {
        let status = StatusTable::default();
        status.set_store_waiting(epochs.waits);
        Self {
            epoch_line: ArcSwap::from_pointee(epochs),
            signer: ArcSwap::from_pointee(signer),
            status,
            slots: RwLock::default(),
            publish_lock: Mutex::default(),
            resolved_revision: AtomicU64::new(0),
            waiting_for_revision: Mutex::default(),
            published_count: Counter::default(),
            sent_count: Counter::default(),
            is_stopping: AtomicBool::new(false),
            started_at: Instant::now(),
        }
    }

    /// Applies one pass of the reconciler: signs the changed states as one batch, removes deleted nodes, and wakes the
    /// check-ins of these nodes, and all that wait for a later revision. Returns the nodes with a changed state,
    /// without the deleted nodes.
    ///
    /// May take a millisecond for each thousand changed states, so call it from the reconciler's own thread.
    pub fn publish(&self, batch: PassResult) -> Vec<Uuid> {
        let _one_at_a_time = lock(&self.publish_lock);
        let mut changed_states = Vec::new();
        for (node, change) in batch.changes {
            match change {
                DesiredChange::Deleted => self.remove(node),
                DesiredChange::Release(released) => {
                    let slot = self.slot(node);
                    if slot.should_publish(&released) {
                        changed_states.push((slot, *released));
                    }
                }
            }
        }
        self.published_count.inc_by(changed_states.len() as u64);
        let changed_nodes = changed_states.iter().map(|(slot, _)| slot.node()).collect();
        self.sign_and_wake(changed_states);
        let mut waiting_slots = lock(&self.waiting_for_revision);
        self.resolved_revision.store(batch.revision.0, Ordering::Release);
        let slots_to_wake = std::mem::take(&mut *waiting_slots);
        drop(waiting_slots);
        for slot in slots_to_wake.into_values() {
            slot.wake();
        }
        changed_nodes
    }

    /// Replaces the signer, and signs all published states and their grants again. So agents accept them after the
    /// certificate of the old signer has expired. No check-in is woken, because no digest changes.
    pub fn change_signer(&self, signer: Signer) {
        self.signer.store(Arc::new(signer));
        let _one_at_a_time = lock(&self.publish_lock);
        let slots: Vec<_> = read(&self.slots).values().cloned().collect();
        let slot_with_state = |slot: &Arc<NodeSlot>| slot.desired().map(|signed| (Arc::clone(slot), signed.desired.clone()));
        self.sign(slots.iter().filter_map(slot_with_state).collect());
    }

    /// Continues in another epoch. Signs all published states again, with the revision at which all nodes are resolved.
    /// Wakes the check-ins of all nodes with a published state, because their agents must learn of the new epoch.
    /// Returns false and does nothing if the epochs are the present ones.
    pub(crate) fn change_epoch(&self, epochs: &EpochHistory) -> bool {
        let _one_at_a_time = lock(&self.publish_lock);
        if **self.epoch_line.load() == *epochs {
            return false;
        }
        self.begin_epoch(epochs);
        self.status.set_store_waiting(epochs.waits);
        let revision = self.resolved_revision();
        let slots: Vec<_> = read(&self.slots).values().cloned().collect();
        let slot_with_state = |slot: &Arc<NodeSlot>| {
            slot.desired().map(|signed| (Arc::clone(slot), DesiredState { revision, ..signed.desired.clone() }))
        };
        self.sign_and_wake(slots.iter().filter_map(slot_with_state).collect());
        true
    }

    /// Replaces the history of epochs. Published states are still signed in the previous epoch, until the caller signs
    /// them again.
    pub(crate) fn begin_epoch(&self, epochs: &EpochHistory) {
        self.epoch_line.store(Arc::new(epochs.clone()));
    }

    /// Returns the signed change from the epoch of the desired state that an agent holds to the epoch `target`. Returns
    /// `None` if both are the same, if the agent holds no state, or if `target` is not the present epoch.
    pub(crate) fn epoch_change(&self, epochs: &EpochHistory, state: Option<&HeldDesired>, target: Epoch) -> Option<EpochChange> {
        let agent_epoch = state.map(|state| state.epoch).filter(|epoch| *epoch != target)?;
        let is_present = *epochs.now.as_bytes() == target.0;
        let start_revision = Revision(epochs.at);
        is_present.then(|| self.signer.load().sign_epoch_change((agent_epoch, target), start_revision, &epochs.reason))
    }

    /// Returns the history of the store's epochs.
    pub(crate) fn epoch_line(&self) -> Arc<EpochHistory> {
        self.epoch_line.load_full()
    }

    /// Sets the open barriers of nodes. Each entry has a node, the digest of its published task set, and all barriers
    /// that are now open for that task set. Signs a grant with `revision` for each node whose open barriers changed,
    /// and wakes the node's check-ins. Returns these nodes.
    pub fn open_barriers(&self, open_by_node: Vec<(Uuid, PartDigest, Vec<Barrier>)>, revision: Revision) -> Vec<Uuid> {
        // The lock is held until the grants are published. Otherwise `change_signer` could sign all published grants
        // again before that, and the grants that the old signer signs here would remain.
        let _one_at_a_time = lock(&self.publish_lock);
        let mut new_grants = Vec::new();
        for (node, task_set, open) in open_by_node {
            let (slot, grant) = (self.slot(node), Grant::Barriers { task_set, open });
            if !slot.has_grant(&grant) {
                let forms = grant_forms(&grant, slot.desired().as_ref().map(|signed| &signed.desired));
                new_grants.push(UnsignedGrant { slot, revision, forms });
            }
        }
        let changed_nodes = new_grants.iter().map(|grant| grant.slot.node()).collect();
        for (slot, grant) in self.sign_grants(new_grants) {
            slot.set_grant(grant);
        }
        changed_nodes
    }

    /// Grants a node's host one reboot, as an operator requested at this revision of the store. The lease ends after
    /// [`REBOOT_LEASE`], or with the boot `boot_id` of the host. Wakes the node's check-ins.
    pub(crate) fn grant_reboot(&self, node: Uuid, boot_id: [u8; 16], revision: Revision) {
        let _one_at_a_time = lock(&self.publish_lock);
        let duration_s = u32::try_from(REBOOT_LEASE.as_secs()).expect("some minutes");
        let forms = vec![Grant::Lease { kind: LeaseKind::Reboot, duration_s }];
        let ends_at = Instant::now() + REBOOT_LEASE;
        for (slot, grant) in self.sign_grants(vec![UnsignedGrant { slot: self.slot(node), revision, forms }]) {
            slot.set_reboot_lease(grant, boot_id, ends_at);
        }
    }

    /// Signs grants in one batch, with one leaf for each form. Returns the signed grants in the same order, each with
    /// its slot.
    fn sign_grants(&self, grants: Vec<UnsignedGrant>) -> Vec<(Arc<NodeSlot>, GrantForms)> {
        if grants.is_empty() {
            return Vec::new();
        }
        let epoch = self.epoch();
        let leaves = grants.iter().flat_map(|UnsignedGrant { slot, revision, forms }| {
            forms.iter().map(move |form| Leaf::for_grant(slot.node(), epoch, *revision, form))
        });
        let batch = self.signer.load().sign(&leaves.collect());
        // The leaves were added in the same order, so each form uses the next index.
        let mut leaf_indexes = 0..;
        let mut sign_forms = |UnsignedGrant { slot, revision, forms }| {
            let forms = Vec::into_iter(forms).zip(&mut leaf_indexes).map(|(grant, leaf_index)| {
                let proof = batch.proof(leaf_index).expect("the batch has a leaf for each form");
                SignedGrant { epoch, revision, grant, proof }
            });
            (slot, GrantForms(forms.collect()))
        };
        grants.into_iter().map(&mut sign_forms).collect()
    }

    /// Sets the inputs of a node's state in the status table. Those that a check-in may have changed after `inputs` was
    /// computed, such as the liveness, are first replaced by those of the node's slot.
    pub(crate) fn set_state_inputs(&self, node: Uuid, inputs: StateInputs) {
        let inputs_with_slot = || read(&self.slots).get(&node).map_or(inputs, |slot| slot.state_inputs(inputs, Instant::now()));
        self.status.set_inputs(node, inputs_with_slot);
    }

    /// Returns the liveness of a node's agent: from the status table or, before the node's first pass, from its slot.
    pub(crate) fn liveness(&self, node: Uuid) -> Liveness {
        let from_slot = || Some(read(&self.slots).get(&node)?.liveness(Instant::now()));
        self.status.inputs(node).map(|inputs| inputs.liveness).or_else(from_slot).unwrap_or_default()
    }

    /// Returns whether a node's host holds its desired state, by the host's last check-in. This is unknown if the host
    /// has not checked in since the controller started, or if nothing is published for the node.
    pub(crate) fn confirmation(&self, node: Uuid) -> HostConfirmation {
        read(&self.slots).get(&node).map_or(HostConfirmation::Unknown, |slot| slot.confirmation())
    }

    /// Returns the confirmations that are not stored yet: each slot whose host reports to hold the state that was last
    /// sent to it, with what to store.
    pub(crate) fn unrecorded_confirmations(&self) -> Vec<(Arc<NodeSlot>, ConfirmedState)> {
        let confirmation = |slot: &Arc<NodeSlot>| slot.unrecorded_confirmation().map(|confirmed| (Arc::clone(slot), confirmed));
        read(&self.slots).values().filter_map(confirmation).collect()
    }

    /// Returns the revision that is published for a node, and the revision that its host last reported to hold.
    pub(crate) fn revisions(&self, node: Uuid) -> NodeRevisions {
        read(&self.slots).get(&node).map(|slot| slot.revisions()).unwrap_or_default()
    }

    /// Returns the status table of the nodes.
    pub fn status(&self) -> &StatusTable {
        &self.status
    }

    /// Returns the revision of the store at which all nodes are resolved.
    pub fn resolved_revision(&self) -> Revision {
        Revision(self.resolved_revision.load(Ordering::Acquire))
    }

    /// Returns the digests of the known part and of the task set that a node must hold, in [`PUBLISHED_VERSION`].
    /// Returns `None` if nothing is published for the node.
    pub fn digests(&self, node: Uuid) -> Option<(PartDigest, PartDigest)> {
        let signed = read(&self.slots).get(&node)?.desired()?;
        let DesiredParts { known, task_set } = signed.desired.parts(PUBLISHED_VERSION);
        Some((known.name, task_set.name))
    }

    /// Returns whether `digest` is the digest of the task set that a node must hold, in any wire version.
    pub(crate) fn is_task_set(&self, node: Uuid, digest: PartDigest) -> bool {
        let signed = read(&self.slots).get(&node).and_then(|slot| slot.desired());
        signed.is_some_and(|signed| signed.desired.parts.iter().any(|parts| parts.task_set.name == digest))
    }

    /// Returns [`NodeSlot::time_since_contact`] of a node. `None` if it has not checked in since this process started.
    pub(crate) fn time_since_contact(&self, node: Uuid) -> Option<Duration> {
        read(&self.slots).get(&node)?.time_since_contact(Instant::now())
    }

    /// Returns how long this process has run.
    pub(crate) fn uptime(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Returns the digest of the task set that a node's agent last reported to hold. `None` if it holds none, or has
    /// not checked in since this process started.
    pub(crate) fn held_task_set(&self, node: Uuid) -> Option<PartDigest> {
        read(&self.slots).get(&node)?.held().map(|held| held.task_set)
    }

    /// Returns the addresses from which two hosts check in with a node's identity, if there are two.
    pub(crate) fn duplicate_hosts(&self, node: Uuid) -> Option<HostAddresses> {
        read(&self.slots).get(&node)?.duplicate_hosts(Instant::now())
    }

    /// Returns the number of nodes whose identity two hosts use.
    pub fn duplicate_count(&self) -> usize {
        let now = Instant::now();
        read(&self.slots).values().filter(|slot| slot.duplicate_hosts(now).is_some()).count()
    }

    /// Returns whether a check-in of the node is waiting now.
    pub fn is_waiting(&self, node: Uuid) -> bool {
        read(&self.slots).get(&node).is_some_and(|slot| slot.is_waiting())
    }

    /// Returns the number of check-ins that are waiting now.
    pub fn waiting_check_ins(&self) -> usize {
        read(&self.slots).values().filter(|slot| slot.is_waiting()).count()
    }

    /// Wakes every waiting check-in so that it is answered, and lets no check-in wait from now on, because the
    /// controller is stopping.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        read(&self.slots).values().for_each(|slot| slot.wake());
    }

    /// Returns whether the controller is stopping, so that no check-in may wait.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Returns the epoch in which states are signed.
    fn epoch(&self) -> Epoch {
        Epoch(*self.epoch_line.load().now.as_bytes())
    }

    /// Returns the node's slot, and creates an empty one if there is none. An agent may check in before its node has a
    /// desired state.
    pub(crate) fn slot(&self, node: Uuid) -> Arc<NodeSlot> {
        if let Some(slot) = read(&self.slots).get(&node) {
            return Arc::clone(slot);
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(node).or_insert_with(|| Arc::new(NodeSlot::new(node))))
    }

    /// Records in the node's slot and in the status table that its host has enrolled. Records nothing if the node was
    /// deleted in the meantime ([`Self::enrolled_slot`]).
    pub(crate) fn note_enrolled(&self, node: Uuid, is_enrolled: impl FnOnce() -> bool) {
        if let Some(slot) = self.enrolled_slot(node, is_enrolled) {
            slot.note_enrolled();
            self.status.set_enrolled(node);
        }
    }

    /// Returns the slot of an enrolled node. If there is none, creates a slot and then calls `is_enrolled`. If that
    /// returns false, removes the slot again and returns `None`.
    ///
    /// The order matters. A deletion marks the node as deleted and then removes its slot. So either `is_enrolled` sees
    /// the mark, or the deletion finds the new slot.
    pub(crate) fn enrolled_slot(&self, node: Uuid, is_enrolled: impl FnOnce() -> bool) -> Option<Arc<NodeSlot>> {
        if let Some(slot) = read(&self.slots).get(&node) {
            return Some(Arc::clone(slot));
        }
        let slot = self.slot(node);
        if is_enrolled() {
            return Some(slot);
        }
        self.remove(node);
        None
    }

    /// Removes a node's slot and status, and ends its waiting check-in.
    pub(crate) fn remove(&self, node: Uuid) {
        let slot = self.slots.write().unwrap_or_else(PoisonError::into_inner).remove(&node);
        if let Some(slot) = slot {
            slot.mark_deleted();
        }
        self.status.remove(node);
    }

    /// Returns whether this revision is later than the one at which all nodes are resolved. If so, registers the slot,
    /// and the next pass wakes the slot's check-ins. This function itself does not wait.
    pub(crate) fn wait_for_revision(&self, slot: &Arc<NodeSlot>, revision: Revision) -> bool {
        if revision <= self.resolved_revision() {
            return false;
        }
        let mut waiting_slots = lock(&self.waiting_for_revision);
        // Compared again under the lock, because a pass in the meantime has woken only the slots that were registered
        // before it.
        let must_wait = revision > self.resolved_revision();
        if must_wait {
            waiting_slots.insert(slot.node(), Arc::clone(slot));
        }
        must_wait
    }

    /// Signs a node's published state again, with the revision at which all nodes are resolved. It is called if the
    /// agent holds another state of a later revision than the published state. The agent would refuse the published
    /// state, because that has an earlier revision.
    pub(crate) fn sign_again(&self, slot: &Arc<NodeSlot>) {
        let _one_at_a_time = lock(&self.publish_lock);
        if let Some(signed) = slot.desired() {
            let revision = self.resolved_revision();
            self.sign(vec![(Arc::clone(slot), DesiredState { revision, ..signed.desired.clone() })]);
        }
    }

    /// Signs states in one batch, publishes them in their slots, and wakes the check-ins of these nodes.
    fn sign_and_wake(&self, states: Vec<(Arc<NodeSlot>, DesiredState)>) {
        let slots: Vec<_> = states.iter().map(|(slot, _)| Arc::clone(slot)).collect();
        self.sign(states);
        for slot in slots {
            slot.wake();
        }
    }

    /// Signs states in one batch, and publishes them in their slots. A grant that stays in force is signed again, with
    /// at least the revision of the new state. An agent that applies this state would otherwise treat the grant as one
    /// of an earlier task set.
    fn sign(&self, states: Vec<(Arc<NodeSlot>, DesiredState)>) {
        if states.is_empty() {
            return;
        }
        let epoch = self.epoch();
        let leaves = states.iter().flat_map(|(slot, state)| {
            state.parts.iter().map(move |DesiredParts { known, task_set }| {
                Leaf::for_desired(slot.node(), epoch, state.revision, known.name, task_set.name)
            })
        });
        let batch = Arc::new(self.signer.load().sign(&leaves.collect()));
        let grants_by_slot: Vec<_> = states.iter().map(|(slot, state)| retained_grants(slot, state)).collect();
        let grant_counts: Vec<_> = grants_by_slot.iter().map(Vec::len).collect();
        let mut grants = self.sign_grants(grants_by_slot.into_iter().flatten().collect()).into_iter().map(|(_, grant)| grant);
        let mut first_index = 0;
        for ((slot, state), grant_count) in states.into_iter().zip(grant_counts) {
            let next_index = first_index + state.parts.len();
            let retained = grants.by_ref().take(grant_count).collect();
            slot.set_desired(Arc::new(SignedState { desired: state, epoch, batch: Arc::clone(&batch), first_index }), retained);
            first_index = next_index;
        }
    }
}

/// Returns the epoch and revision of a desired state that an agent holds, in the form of `stemma_core`.
pub(crate) fn held_revision(agent_state: &HeldDesired) -> HeldRevision {
    HeldRevision { epoch: Uuid::from_bytes(agent_state.epoch.0), revision: agent_state.revision.0 }
}

/// A grant before it is signed.
struct UnsignedGrant {
    slot: Arc<NodeSlot>,
    revision: Revision,
    /// The grant in one form for each wire version or, if it names no task set, in a single form.
    forms: Vec<Grant>,
}

/// Returns the forms of a grant. `state` is the desired state of the node. A grant of barriers names a task set and
/// gets one form for each wire version. If that is the node's task set, each form has the digest of its version.
/// Otherwise the digest is unchanged, and matches no task set of the node. A lease has a single form.
fn grant_forms(grant: &Grant, state: Option<&DesiredState>) -> Vec<Grant> {
    let Grant::Barriers { task_set, open } = grant else { return vec![grant.clone()] };
    let matching_state = state.filter(|state| state.parts(PUBLISHED_VERSION).task_set.name == *task_set);
    let digest_for = |version| matching_state.map_or(*task_set, |state| state.parts(version).task_set.name);
    WireVersion::all().map(|version| Grant::Barriers { task_set: digest_for(version), open: open.clone() }).collect()
}

/// Returns the grants of barriers of a node that stay in force with a new state, to be signed again. Each gets the revision
/// of the new state, or keeps its own revision if that is later. A grant for another task set is dropped.
fn retained_grants(slot: &Arc<NodeSlot>, state: &DesiredState) -> Vec<UnsignedGrant> {
    let task_set = state.parts(PUBLISHED_VERSION).task_set.name;
    let is_retained = |grant: &Grant| matches!(grant, Grant::Barriers { task_set: digest, .. } if *digest == task_set);
    let to_unsigned = |grant: &GrantForms| UnsignedGrant {
        slot: Arc::clone(slot),
        revision: grant.for_version(PUBLISHED_VERSION).revision.max(state.revision),
        forms: grant_forms(grant.grant(), Some(state)),
    };
    slot.grants().iter().filter(|grant| is_retained(grant.grant())).map(to_unsigned).collect()
}

/// Locks a mutex, also if another thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading, also if another thread panicked while it held the lock.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
