//! The desired state of each node: the interface between the reconciler, which decides, and the listener, which
//! answers.
//!
//! The reconciler publishes one pass at a time, and one pass is one signed batch. A state with equal digests is left
//! unchanged here. So a pass that changed nothing (every full resolve, and the first one after a restart) signs
//! nothing, sends nothing and wakes no check-in. The table is in memory only. What must survive (what was released to
//! which node) is in the store, and a restarted controller publishes it again before it sends anything to an agent.

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
use stemma_wire::message::signed::{EpochChange, Grant, SignedDesired, SignedGrant};
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
/// agent speaks, with the names of that version.
pub const PUBLISHED_VERSION: WireVersion = WireVersion::CURRENT;

/// Bytes that are sent unchanged, with their name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBytes<N> {
    /// The name by which both ends know the bytes.
    pub name: N,
    /// The encoded form (postcard), without a version byte.
    pub bytes: Bytes,
}

impl NamedBytes<Hash> {
    /// Encodes a profile in a version.
    pub fn profile(version: WireVersion, profile: &Profile) -> Self {
        let bytes = Bytes::from(encode_part(version, profile));
        Self { name: hash_content(&bytes), bytes }
    }

    /// Decodes the profile from its bytes of this version. Returns `None` if they cannot be read.
    pub(crate) fn decode(&self, version: WireVersion) -> Option<Profile> {
        decode_part(version, &self.bytes).ok()
    }
}

/// A profile as it is sent: one form for each wire version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedProfile(Box<[NamedBytes<Hash>]>);

impl EncodedProfile {
    /// Encodes a profile in all versions.
    pub fn new(profile: &Profile) -> Self {
        Self(WireVersion::all().map(|version| NamedBytes::profile(version, profile)).collect())
    }

    /// Returns the form for a version.
    pub fn for_version(&self, version: WireVersion) -> &NamedBytes<Hash> {
        &self.0[version.index()]
    }

    /// Returns the form with this name, in whichever version it is.
    pub fn by_name(&self, name: Hash) -> Option<&NamedBytes<Hash>> {
        self.0.iter().find(|form| form.name == name)
    }
}

/// A part of a desired state in one wire version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedPart {
    /// The digest by which both ends know the part.
    pub name: PartDigest,
    /// The size of the part in bytes, as it is sent.
    pub bytes: usize,
}

impl NamedPart {
    fn new<M: Message>(version: WireVersion, part: &M) -> Self {
        let bytes = encode_part(version, part);
        Self { name: digest_part(version, &bytes), bytes: bytes.len() }
    }
}

/// The two parts of a desired state in one wire version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredParts {
    /// The part that is sent at once, `desired::Known`.
    pub known: NamedPart,
    /// The part that is released, `desired::TaskSet`. It names the profile of the same version.
    pub task_set: NamedPart,
}

/// The source of the parts of a desired state, which returns the same parts each time. The parts are encoded once to
/// compute their names, and again for each host that lacks them. They are not stored, because what all nodes of a group
/// inherit would then be stored once for each node.
pub trait DesiredContent: fmt::Debug + Send + Sync {
    /// Returns the part that is sent at once.
    fn known(&self) -> Known;
    /// Returns the part that is released.
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
    /// The revision of the snapshot that was resolved.
    pub revision: Revision,
    /// Both parts, in each wire version.
    parts: Arc<[DesiredParts]>,
    /// The source of both parts, which encodes them again when they are sent.
    content: Arc<dyn DesiredContent>,
    /// The `desired::Profile` that the task set names. Equal nodes share it.
    pub profile: Option<Arc<EncodedProfile>>,
    /// The blobs that the profile's tasks name, sorted. Equal nodes share them.
    pub blobs: Arc<[Hash]>,
    /// The time without a check-in after which the node counts as silent. Set by its group; 90 s by default.
    pub silent_after: Duration,
}

impl DesiredState {
    /// Creates a desired state, with the names of both parts in all versions. Both parts are stored in it.
    pub fn new(
        revision: Revision,
        (known, task_set): (&Known, &TaskSet),
        shared: (Option<Arc<EncodedProfile>>, Arc<[Hash]>),
        silent_after: Duration,
    ) -> Self {
        let content = Arc::new((known.clone(), task_set.clone()));
        Self::from_content(content, revision, (known, task_set), shared, silent_after)
    }

    /// Creates a desired state, with the names of both parts in all versions. The content returns the parts again when
    /// they are sent. The task set names the profile of the version in which it is encoded. Without a profile, its name
    /// is left unchanged.
    pub(crate) fn from_content(
        content: Arc<dyn DesiredContent>,
        revision: Revision,
        (known, task_set): (&Known, &TaskSet),
        (profile, blobs): (Option<Arc<EncodedProfile>>, Arc<[Hash]>),
        silent_after: Duration,
    ) -> Self {
        let parts = WireVersion::all().map(|version| {
            let name = profile.as_ref().map(|profile| profile.for_version(version).name);
            let task_set = task_set.with_profile(name);
            DesiredParts { known: NamedPart::new(version, known), task_set: NamedPart::new(version, &*task_set) }
        });
        Self { revision, parts: parts.collect(), content, profile, blobs, silent_after }
    }

    /// Returns the bytes of the part that is sent at once, in a version.
    fn known(&self, version: WireVersion) -> Vec<u8> {
        encode_part(version, &self.content.known())
    }

    /// Returns the bytes of the part that is released, in a version.
    fn task_set(&self, version: WireVersion) -> Vec<u8> {
        let name = self.profile.as_ref().map(|profile| profile.for_version(version).name);
        encode_part(version, &*self.content.task_set().with_profile(name))
    }

    /// Returns the names and sizes of both parts in a version.
    pub fn parts(&self, version: WireVersion) -> &DesiredParts {
        &self.parts[version.index()]
    }

    /// Returns whether another state has the same content in every version.
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        self.parts
            .iter()
            .zip(&*other.parts)
            .all(|(own, other)| own.known.name == other.known.name && own.task_set.name == other.task_set.name)
    }

    /// Returns whether the node's host may fetch the blob with this hash: only while this desired state names the blob.
    pub fn has_blob(&self, hash: Hash) -> bool {
        self.blobs.binary_search(&hash).is_ok()
    }
}

/// A change of one node: a new desired state, or its deletion.
#[derive(Clone, Debug)]
pub enum DesiredChange {
    /// The node has this desired state now.
    Release(Box<DesiredState>),
    /// The node was deleted. Its check-in is ended, and its certificates are invalid at once.
    Deleted,
}

/// The result of one pass of the reconciler.
#[derive(Clone, Debug)]
pub struct PassResult {
    /// The revision of the snapshot. All nodes are resolved as of this revision, also those without a change here.
    pub revision: Revision,
    /// The changes of the nodes that were resolved again.
    pub changes: Vec<(Uuid, DesiredChange)>,
}

/// A node's desired state with its places in a signed batch: one for each wire version, from `first_index` on.
#[derive(Debug)]
pub(crate) struct SignedState {
    pub(crate) desired: DesiredState,
    /// The epoch in which the state is signed.
    pub(crate) epoch: Epoch,
    batch: Arc<SignedBatch>,
    first_index: usize,
}

impl SignedState {
    /// Returns the message for an agent that speaks this version and holds `held`. It has the digests of both parts,
    /// but only those parts that the agent lacks. `change` is the signed change from the epoch of `held` to the epoch
    /// of this state, if they differ.
    pub(crate) fn message(&self, version: WireVersion, held: Option<&HeldDesired>, change: Option<EpochChange>) -> SignedDesired {
        let DesiredParts { known, task_set } = self.desired.parts(version);
        let held = held.filter(|held| held.epoch == self.epoch);
        let lacks = |part: &NamedPart, digest: Option<PartDigest>| digest != Some(part.name);
        let lacks_known = lacks(known, held.map(|held| held.known));
        let lacks_task_set = lacks(task_set, held.map(|held| held.task_set));
        let place = self.first_index + version.index();
        SignedDesired {
            epoch: self.epoch,
            revision: self.desired.revision,
            known_digest: known.name,
            task_set_digest: task_set.name,
            known: lacks_known.then(|| self.desired.known(version)),
            task_set: lacks_task_set.then(|| self.desired.task_set(version)),
            proof: self.batch.proof(place).expect("the place is that of a leaf of this batch"),
            epoch_change: change,
        }
    }

    /// Returns this state with the source of an equivalent later state. Otherwise this state would keep objects of an
    /// earlier revision in memory.
    pub(crate) fn with_content(&self, later: &DesiredState) -> Self {
        let desired = DesiredState { content: Arc::clone(&later.content), ..self.desired.clone() };
        Self { desired, epoch: self.epoch, batch: Arc::clone(&self.batch), first_index: self.first_index }
    }

    /// Returns what an agent holds after this state was sent to it.
    pub(crate) fn sent_revision(&self) -> HeldRevision {
        HeldRevision { epoch: Uuid::from_bytes(self.epoch.0), revision: self.desired.revision.0 }
    }

    /// Returns the digests of both parts, as they are recorded when the state is sent.
    pub(crate) fn sent_parts(&self) -> SentParts {
        let DesiredParts { known, task_set } = self.desired.parts(PUBLISHED_VERSION);
        SentParts { known: known.name, task_set: task_set.name }
    }

    /// Returns whether an agent that speaks this version and holds `held` has both parts of this state.
    pub(crate) fn is_held(&self, version: WireVersion, held: &HeldDesired) -> bool {
        let DesiredParts { known, task_set } = self.desired.parts(version);
        held.epoch == self.epoch && held.known == known.name && held.task_set == task_set.name
    }

    /// Returns whether an agent that holds `held` has both parts of this state, whichever version it speaks.
    pub(crate) fn is_held_in_any_version(&self, held: &HeldDesired) -> bool {
        WireVersion::all().any(|version| self.is_held(version, held))
    }
}

/// A signed grant. If it names a task set, it has one form for each wire version, because the digest differs in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantForms(Box<[SignedGrant]>);

impl GrantForms {
    /// Returns the form for a version.
    pub(crate) fn for_version(&self, version: WireVersion) -> &SignedGrant {
        self.0.get(version.index()).unwrap_or(&self.0[0])
    }

    /// Returns the grant, with the names that this controller uses.
    pub(crate) fn grant(&self) -> &Grant {
        &self.for_version(PUBLISHED_VERSION).grant
    }
}

/// The desired state of every node, and the check-ins that wait for it.
pub struct DesiredTable {
    /// The epochs of the store. Replaced under the lock of `publish_lock`.
    epoch_line: ArcSwap<EpochHistory>,
    signer: ArcSwap<Signer>,
    status: StatusTable,
    slots: RwLock<HashMap<Uuid, Arc<NodeSlot>>>,
    /// Held while states or grants are signed and published. Otherwise a pass could sign what another one has just
    /// replaced.
    publish_lock: Mutex<()>,
    /// The revision as of which all nodes are resolved; zero before the first pass.
    resolved_revision: AtomicU64,
    /// The nodes whose agents named a later revision than is resolved. `resolved_revision` is compared and advanced
    /// under this lock.
    waiting_for_revision: Mutex<HashMap<Uuid, Arc<NodeSlot>>>,
    /// Number of published desired states whose digest differs from the one before.
    pub published_count: Counter,
    /// Number of desired states sent to agents.
    pub sent_count: Counter,
    is_stopping: AtomicBool,
    /// When this table, and with it the controller, started.
    started_at: Instant,
}

impl DesiredTable {
    /// Creates an empty table. Nothing is sent to any agent before the first pass.
    pub fn new(line: EpochHistory, signer: Signer) -> Self {
        let status = StatusTable::default();
        status.set_store_waiting(line.waits);
        Self {
            epoch_line: ArcSwap::from_pointee(line),
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

    /// Applies one pass of the reconciler: signs the new states as one batch, and wakes the check-ins that they
    /// concern.
    ///
    /// May take a millisecond for each thousand new states, so call it from the reconciler's own thread. Returns the
    /// nodes with a new state.
    pub fn publish(&self, batch: PassResult) -> Vec<Uuid> {
        let _one_at_a_time = lock(&self.publish_lock);
        let mut new = Vec::new();
        for (node, change) in batch.changes {
            match change {
                DesiredChange::Deleted => self.remove(node),
                DesiredChange::Release(released) => {
                    let slot = self.slot(node);
                    if slot.should_publish(&released) {
                        new.push((slot, *released));
                    }
                }
            }
        }
        self.published_count.inc_by(new.len() as u64);
        let published = new.iter().map(|(slot, _)| slot.node()).collect();
        self.sign_and_wake(new);
        let mut behind = lock(&self.waiting_for_revision);
        self.resolved_revision.store(batch.revision.0, Ordering::Release);
        let waiting = std::mem::take(&mut *behind);
        drop(behind);
        for slot in waiting.into_values() {
            slot.wake();
        }
        published
    }

    /// Replaces the signer, and signs again what is published, so that agents accept it after the certificate of the
    /// old signer has expired. No check-in is woken, because no digest changes.
    pub fn change_signer(&self, signer: Signer) {
        self.signer.store(Arc::new(signer));
        let _one_at_a_time = lock(&self.publish_lock);
        let slots: Vec<_> = read(&self.slots).values().cloned().collect();
        let state = |slot: &Arc<NodeSlot>| slot.desired().map(|signed| (Arc::clone(slot), signed.desired.clone()));
        self.sign(slots.iter().filter_map(state).collect());
    }

    /// Continues in another epoch. Signs again what is published, as of the revision at which all nodes are resolved,
    /// and wakes all check-ins, because each agent must learn of the new epoch. Returns whether the epochs have
    /// changed.
    pub(crate) fn change_epoch(&self, line: &EpochHistory) -> bool {
        let _one_at_a_time = lock(&self.publish_lock);
        if **self.epoch_line.load() == *line {
            return false;
        }
        self.begin_epoch(line);
        self.status.set_store_waiting(line.waits);
        let revision = self.resolved_revision();
        let slots: Vec<_> = read(&self.slots).values().cloned().collect();
        let state = |slot: &Arc<NodeSlot>| {
            slot.desired().map(|signed| (Arc::clone(slot), DesiredState { revision, ..signed.desired.clone() }))
        };
        self.sign_and_wake(slots.iter().filter_map(state).collect());
        true
    }

    /// Begins another epoch. What is published is still signed in the previous one.
    pub(crate) fn begin_epoch(&self, line: &EpochHistory) {
        self.epoch_line.store(Arc::new(line.clone()));
    }

    /// Returns the signed change from the epoch of what an agent holds to the epoch `to`. Returns `None` if both are
    /// the same, or if `to` is not the present epoch.
    pub(crate) fn epoch_change(&self, line: &EpochHistory, held: Option<&HeldDesired>, to: Epoch) -> Option<EpochChange> {
        let from = held.map(|held| held.epoch).filter(|from| *from != to)?;
        let is_present = *line.now.as_bytes() == to.0;
        let at = Revision(line.at);
        is_present.then(|| self.signer.load().sign_epoch_change((from, to), at, &line.reason))
    }

    /// Returns the epochs of the store.
    pub(crate) fn epoch_line(&self) -> Arc<EpochHistory> {
        self.epoch_line.load_full()
    }

    /// Opens barriers for nodes. Each entry lists all barriers that are open now for the task set of the node's
    /// published state. An empty list shuts them. Returns the nodes whose open barriers changed.
    pub fn open_barriers(&self, opened: Vec<(Uuid, PartDigest, Vec<Barrier>)>, revision: Revision) -> Vec<Uuid> {
        // The signer must not change in the meantime, because the new one would not sign again the grants that are
        // signed here.
        let _one_at_a_time = lock(&self.publish_lock);
        let mut new = Vec::new();
        for (node, task_set, open) in opened {
            let (slot, grant) = (self.slot(node), Grant::Barriers { task_set, open });
            if !slot.has_grant(&grant) {
                let forms = grant_forms(&grant, slot.desired().as_ref().map(|signed| &signed.desired));
                new.push(UnsignedGrant { slot, revision, forms });
            }
        }
        let changed = new.iter().map(|grant| grant.slot.node()).collect();
        for (slot, grant) in self.signed_grants(new) {
            slot.set_grant(grant);
        }
        changed
    }

    /// Signs grants in one batch, and returns them in the same order.
    fn signed_grants(&self, grants: Vec<UnsignedGrant>) -> Vec<(Arc<NodeSlot>, GrantForms)> {
        if grants.is_empty() {
            return Vec::new();
        }
        let epoch = self.epoch();
        let leaves = grants.iter().flat_map(|UnsignedGrant { slot, revision, forms }| {
            forms.iter().map(move |form| Leaf::for_grant(slot.node(), epoch, *revision, form))
        });
        let batch = self.signer.load().sign(&leaves.collect());
        let mut places = 0..;
        let mut signed = |UnsignedGrant { slot, revision, forms }| {
            let forms = Vec::into_iter(forms).zip(&mut places).map(|(grant, place)| {
                let proof = batch.proof(place).expect("the place is that of a leaf of this batch");
                SignedGrant { epoch, revision, grant, proof }
            });
            (slot, GrantForms(forms.collect()))
        };
        grants.into_iter().map(&mut signed).collect()
    }

    /// Sets the inputs of a node's state, together with what its host has reported in the meantime.
    pub(crate) fn set_state_inputs(&self, node: Uuid, inputs: StateInputs) {
        let current_inputs = || read(&self.slots).get(&node).map_or(inputs, |slot| slot.state_inputs(inputs, Instant::now()));
        self.status.set_inputs(node, current_inputs);
    }

    /// Returns the liveness of a node's agent: from the status table or, before the first pass, from the node's slot.
    pub(crate) fn liveness(&self, node: Uuid) -> Liveness {
        let from_slot = || Some(read(&self.slots).get(&node)?.liveness(Instant::now()));
        self.status.inputs(node).map(|inputs| inputs.liveness).or_else(from_slot).unwrap_or_default()
    }

    /// Returns whether a node's host holds its desired state, by its last check-in since the start.
    pub(crate) fn confirmation(&self, node: Uuid) -> HostConfirmation {
        read(&self.slots).get(&node).map_or(HostConfirmation::Unknown, |slot| slot.confirmation())
    }

    /// Returns the slots whose hosts report to hold the state that was last sent to them, if that is not recorded yet.
    pub(crate) fn unrecorded_confirmations(&self) -> Vec<(Arc<NodeSlot>, ConfirmedState)> {
        let confirmation = |slot: &Arc<NodeSlot>| slot.unrecorded_confirmation().map(|confirmed| (Arc::clone(slot), confirmed));
        read(&self.slots).values().filter_map(confirmation).collect()
    }

    /// Returns the revisions that a node has reached.
    pub(crate) fn revisions(&self, node: Uuid) -> NodeRevisions {
        read(&self.slots).get(&node).map(|slot| slot.revisions()).unwrap_or_default()
    }

    /// Returns the status table of the nodes.
    pub fn status(&self) -> &StatusTable {
        &self.status
    }

    /// Returns the revision as of which all nodes are resolved.
    pub fn resolved_revision(&self) -> Revision {
        Revision(self.resolved_revision.load(Ordering::Acquire))
    }

    /// Returns the digests of the known part and task set that a node must hold, in the version in which it is decided.
    pub fn digests(&self, node: Uuid) -> Option<(PartDigest, PartDigest)> {
        let signed = read(&self.slots).get(&node)?.desired()?;
        let DesiredParts { known, task_set } = signed.desired.parts(PUBLISHED_VERSION);
        Some((known.name, task_set.name))
    }

    /// Returns whether this is the digest, in any wire version, of the task set that a node must hold.
    pub(crate) fn is_task_set(&self, node: Uuid, digest: PartDigest) -> bool {
        let signed = read(&self.slots).get(&node).and_then(|slot| slot.desired());
        signed.is_some_and(|signed| signed.desired.parts.iter().any(|parts| parts.task_set.name == digest))
    }

    /// Returns the time since a node last checked in, or `None` if it has not since this process started.
    pub(crate) fn time_since_check_in(&self, node: Uuid) -> Option<Duration> {
        read(&self.slots).get(&node)?.time_since_check_in(Instant::now())
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

    /// Returns the addresses from which two hosts check in with one node's identity, if there are two.
    pub(crate) fn duplicate_hosts(&self, node: Uuid) -> Option<HostAddresses> {
        read(&self.slots).get(&node)?.duplicate_hosts(Instant::now())
    }

    /// Returns the number of nodes that have two hosts.
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

    /// Answers every waiting check-in, and lets none wait from now on, because the controller is stopping.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        read(&self.slots).values().for_each(|slot| slot.wake());
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Returns the epoch in which states are signed.
    fn epoch(&self) -> Epoch {
        Epoch(*self.epoch_line.load().now.as_bytes())
    }

    /// Returns the node's slot, and creates it if there is none. An agent may check in before it has a desired state.
    pub(crate) fn slot(&self, node: Uuid) -> Arc<NodeSlot> {
        if let Some(slot) = read(&self.slots).get(&node) {
            return Arc::clone(slot);
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(node).or_insert_with(|| Arc::new(NodeSlot::new(node))))
    }

    /// Records that a node's host has enrolled.
    pub(crate) fn note_enrolled(&self, node: Uuid, is_enrolled: impl FnOnce() -> bool) {
        if let Some(slot) = self.enrolled_slot(node, is_enrolled) {
            slot.note_enrolled();
            self.status.set_enrolled(node);
        }
    }

    /// Returns the slot of a node whose agent is active. Creates it if there is none, and removes it again if the node
    /// is no longer enrolled. The order matters. A node is marked as deleted before its slot is removed, so one of the
    /// two always finds a slot that is created before the mark is read.
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

    /// Removes a node, and ends its waiting check-in.
    pub(crate) fn remove(&self, node: Uuid) {
        let slot = self.slots.write().unwrap_or_else(PoisonError::into_inner).remove(&node);
        if let Some(slot) = slot {
            slot.mark_deleted();
        }
        self.status.remove(node);
    }

    /// Returns whether this revision is later than what is resolved. If so, the slot is woken after the next pass.
    pub(crate) fn wait_for_revision(&self, slot: &Arc<NodeSlot>, revision: Revision) -> bool {
        if revision <= self.resolved_revision() {
            return false;
        }
        let mut waiting = lock(&self.waiting_for_revision);
        // Compared again, because a pass in between has woken only the slots that were registered before it.
        let must_wait = revision > self.resolved_revision();
        if must_wait {
            waiting.insert(slot.node(), Arc::clone(slot));
        }
        must_wait
    }

    /// Signs a node's state again, as of the revision at which all nodes are resolved. It is called if the agent holds
    /// another state at a later revision than that of the signed state, because the agent would refuse the signed
    /// state.
    pub(crate) fn sign_again(&self, slot: &Arc<NodeSlot>) {
        let _one_at_a_time = lock(&self.publish_lock);
        if let Some(signed) = slot.desired() {
            let revision = self.resolved_revision();
            self.sign(vec![(Arc::clone(slot), DesiredState { revision, ..signed.desired.clone() })]);
        }
    }

    fn sign_and_wake(&self, new: Vec<(Arc<NodeSlot>, DesiredState)>) {
        let slots: Vec<_> = new.iter().map(|(slot, _)| Arc::clone(slot)).collect();
        self.sign(new);
        for slot in slots {
            slot.wake();
        }
    }

    /// Signs states, and replaces the published ones with them. A grant that is retained gets the revision of the
    /// state, because an agent that applies the state would treat an earlier grant as one of an earlier wave.
    fn sign(&self, new: Vec<(Arc<NodeSlot>, DesiredState)>) {
        if new.is_empty() {
            return;
        }
        let epoch = self.epoch();
        let leaves = new.iter().flat_map(|(slot, released)| {
            released.parts.iter().map(move |DesiredParts { known, task_set }| {
                Leaf::for_desired(slot.node(), epoch, released.revision, known.name, task_set.name)
            })
        });
        let batch = Arc::new(self.signer.load().sign(&leaves.collect()));
        let retained: Vec<_> = new.iter().map(|(slot, released)| retained_grants(slot, released)).collect();
        let counts: Vec<_> = retained.iter().map(Vec::len).collect();
        let mut grants = self.signed_grants(retained.into_iter().flatten().collect()).into_iter().map(|(_, grant)| grant);
        let mut first_index = 0;
        for ((slot, released), count) in new.into_iter().zip(counts) {
            let next = first_index + released.parts.len();
            let retained = grants.by_ref().take(count).collect();
            slot.set_desired(
                Arc::new(SignedState { desired: released, epoch, batch: Arc::clone(&batch), first_index }),
                retained,
            );
            first_index = next;
        }
    }
}

/// Converts what an agent holds to core's form.
pub(crate) fn held_revision(held: &HeldDesired) -> HeldRevision {
    HeldRevision { epoch: Uuid::from_bytes(held.epoch.0), revision: held.revision.0 }
}

/// A grant before it is signed.
struct UnsignedGrant {
    slot: Arc<NodeSlot>,
    revision: Revision,
    /// The forms for hosts of each version.
    forms: Vec<Grant>,
}

/// Returns the forms of a grant for a node with this state. A grant for a task set that is not the node's matches
/// nothing in any version.
fn grant_forms(grant: &Grant, released: Option<&DesiredState>) -> Vec<Grant> {
    let Grant::Barriers { task_set, open } = grant else { return vec![grant.clone()] };
    let matching = released.filter(|released| released.parts(PUBLISHED_VERSION).task_set.name == *task_set);
    let name = |version| matching.map_or(*task_set, |released| released.parts(version).task_set.name);
    WireVersion::all().map(|version| Grant::Barriers { task_set: name(version), open: open.clone() }).collect()
}

/// Returns the grants that a node retains with a new state, at the state's revision or a later one. Grants for another
/// task set end.
fn retained_grants(slot: &Arc<NodeSlot>, released: &DesiredState) -> Vec<UnsignedGrant> {
    let task_set = released.parts(PUBLISHED_VERSION).task_set.name;
    let is_retained = |grant: &Grant| !matches!(grant, Grant::Barriers { task_set: of, .. } if *of != task_set);
    let unsigned = |grant: &GrantForms| UnsignedGrant {
        slot: Arc::clone(slot),
        revision: grant.for_version(PUBLISHED_VERSION).revision.max(released.revision),
        forms: grant_forms(grant.grant(), Some(released)),
    };
    slot.grants().iter().filter(|grant| is_retained(grant.grant())).map(unsigned).collect()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
