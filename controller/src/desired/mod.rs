//! What each node is to be told: the seam between reconcile, which decides, and the listener, which answers.
//!
//! Reconcile publishes one pass at a time, and one pass is one signed batch. Equal digests are left alone here,
//! so a pass that changed nothing (every full resolve, and the first one after a restart) signs nothing, sends nothing and wakes
//! nobody. The table is memory: what must survive (what was released to whom) is in the store, and a restarted
//! controller publishes it again before an agent is told anything.

pub(crate) mod encode;
pub(crate) mod hosts;
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
use stemma_core::epoch::{EpochLine, HeldRevision};
use stemma_core::status::{Facts, Liveness, Told};
use stemma_wire::message::checkin::Held;
use stemma_wire::message::desired::{Barrier, Known, Profile, TaskSet};
use stemma_wire::message::signed::{EpochChange, Grant, SignedDesired, SignedGrant};
use stemma_wire::message::{
    Epoch, Hash, Message, PartDigest, Revision, WireVersion, decode_part, digest_part, encode_part, hash_content,
};
use stemma_wire::sign::{Leaf, SignedBatch, Signer};
use tokio::time::Instant;
use uuid::Uuid;

use hosts::Addresses;
use slot::{Revisions, Slot};

use crate::intake::{Confirmed, ToldParts};
use crate::status::StatusTable;

/// The wire version in which what nodes are told is decided on, compared and stored. A host is given it in the version that its agent
/// speaks, and by the names of that one.
pub const PUBLISHED: WireVersion = WireVersion::CURRENT;

/// Bytes that are sent as they are, with their name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded<N> {
    /// The name by which both ends know them.
    pub name: N,
    /// Postcard, without a version byte.
    pub bytes: Bytes,
}

impl Encoded<Hash> {
    /// Encodes a profile in a version.
    pub fn profile(version: WireVersion, profile: &Profile) -> Self {
        let bytes = Bytes::from(encode_part(version, profile));
        Self { name: hash_content(&bytes), bytes }
    }

    /// The profile, from its bytes of this version; `None` where they cannot be read.
    pub(crate) fn read(&self, version: WireVersion) -> Option<Profile> {
        decode_part(version, &self.bytes).ok()
    }
}

/// A profile as it is sent: one form for each wire version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedProfile(Box<[Encoded<Hash>]>);

impl EncodedProfile {
    /// Encodes a profile in all versions.
    pub fn new(profile: &Profile) -> Self {
        Self(WireVersion::all().map(|version| Encoded::profile(version, profile)).collect())
    }

    /// The form of a version.
    pub fn form(&self, version: WireVersion) -> &Encoded<Hash> {
        &self.0[version.index()]
    }

    /// The bytes of this name, in whichever version they are.
    pub fn named(&self, name: Hash) -> Option<&Encoded<Hash>> {
        self.0.iter().find(|form| form.name == name)
    }
}

/// A part of a desired state in one wire version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedPart {
    /// The digest by which both ends know it.
    pub name: PartDigest,
    /// How many bytes it has as it is sent.
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
    /// `desired::Known`.
    pub known: NamedPart,
    /// `desired::TaskSet`. The profile that it names is the one of the same version.
    pub task_set: NamedPart,
}

/// What the parts of a desired state are made from, the same each time. They are encoded to be named, and again for each host that lacks
/// them, and are not kept: what all nodes of a group inherit would be kept once for each of them.
pub trait DesiredContent: fmt::Debug + Send + Sync {
    /// The part that is sent at once.
    fn known(&self) -> Known;
    /// The part that is released.
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

/// What was decided for one node.
#[derive(Clone, Debug)]
pub struct Released {
    /// The revision of the snapshot that was resolved.
    pub revision: Revision,
    /// Both parts, in each wire version.
    parts: Arc<[DesiredParts]>,
    /// What they are made from.
    content: Arc<dyn DesiredContent>,
    /// `desired::Profile` that the task set names; shared by all nodes alike.
    pub profile: Option<Arc<EncodedProfile>>,
    /// The blobs that the profile's tasks name, sorted; shared likewise.
    pub blobs: Arc<[Hash]>,
    /// After so long without a check-in the node counts as silent (of its group; 90 s).
    pub silent_after: Duration,
}

impl Released {
    /// Names what was decided in all versions; both parts are kept.
    pub fn new(
        revision: Revision,
        (known, task_set): (&Known, &TaskSet),
        shared: (Option<Arc<EncodedProfile>>, Arc<[Hash]>),
        silent_after: Duration,
    ) -> Self {
        let content = Arc::new((known.clone(), task_set.clone()));
        Self::made_from(content, revision, (known, task_set), shared, silent_after)
    }

    /// Names what was decided in all versions: the two parts, which the content gives again when they are sent. The task set names the profile
    /// by its name of the version in which it is encoded; without a profile it keeps the name that it has.
    pub(crate) fn made_from(
        content: Arc<dyn DesiredContent>,
        revision: Revision,
        (known, task_set): (&Known, &TaskSet),
        (profile, blobs): (Option<Arc<EncodedProfile>>, Arc<[Hash]>),
        silent_after: Duration,
    ) -> Self {
        let parts = WireVersion::all().map(|version| {
            let name = profile.as_ref().map(|profile| profile.form(version).name);
            let task_set = task_set.naming(name);
            DesiredParts { known: NamedPart::new(version, known), task_set: NamedPart::new(version, &*task_set) }
        });
        Self { revision, parts: parts.collect(), content, profile, blobs, silent_after }
    }

    /// The bytes of the part that is sent at once, in a version.
    fn known(&self, version: WireVersion) -> Vec<u8> {
        encode_part(version, &self.content.known())
    }

    /// The bytes of the part that is released, in a version.
    fn task_set(&self, version: WireVersion) -> Vec<u8> {
        let name = self.profile.as_ref().map(|profile| profile.form(version).name);
        encode_part(version, &*self.content.task_set().naming(name))
    }

    /// Both parts in a version.
    pub fn parts(&self, version: WireVersion) -> &DesiredParts {
        &self.parts[version.index()]
    }

    /// Whether another one says the same, in every version.
    pub(crate) fn is_told_as(&self, other: &Self) -> bool {
        self.parts
            .iter()
            .zip(&*other.parts)
            .all(|(own, other)| own.known.name == other.known.name && own.task_set.name == other.task_set.name)
    }

    /// Whether this node may fetch the body of this name: only while its own desired state names it.
    pub fn names_blob(&self, hash: Hash) -> bool {
        self.blobs.binary_search(&hash).is_ok()
    }
}

/// One change of a batch: a node's desired state, or that it has none any more (the node is gone).
#[derive(Clone, Debug)]
pub enum Change {
    /// The node is to be this.
    Release(Box<Released>),
    /// The node was deleted: its check-in is cut and its certificates are dead at once.
    Gone,
}

/// What one pass of the reconciler answered.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The snapshot's revision: all nodes, also those not named here, are resolved as of it.
    pub revision: Revision,
    /// Nodes that were resolved again.
    pub changes: Vec<(Uuid, Change)>,
}

/// A node's desired state with its places in a signed batch: one for each wire version, from the first one's on.
#[derive(Debug)]
pub(crate) struct Signed {
    pub(crate) released: Released,
    /// The epoch in which it is signed.
    pub(crate) epoch: Epoch,
    batch: Arc<SignedBatch>,
    first: usize,
}

impl Signed {
    /// The message for an agent that speaks this version and holds `held`: parts that it has are left out, their digests never. `change` is
    /// what leads it here from the epoch of what it holds.
    pub(crate) fn message(
        &self,
        version: WireVersion,
        held: Option<&Held>,
        change: Option<EpochChange>,
    ) -> SignedDesired {
        let DesiredParts { known, task_set } = self.released.parts(version);
        let held = held.filter(|held| held.epoch == self.epoch);
        let lacks = |part: &NamedPart, digest: Option<PartDigest>| digest != Some(part.name);
        let lacks_known = lacks(known, held.map(|held| held.known));
        let lacks_task_set = lacks(task_set, held.map(|held| held.task_set));
        let place = self.first + version.index();
        SignedDesired {
            epoch: self.epoch,
            revision: self.released.revision,
            known_digest: known.name,
            task_set_digest: task_set.name,
            known: lacks_known.then(|| self.released.known(version)),
            task_set: lacks_task_set.then(|| self.released.task_set(version)),
            proof: self.batch.proof(place).expect("the place is that of a leaf of this batch"),
            epoch_change: change,
        }
    }

    /// The same, with what says the same and was decided later: so that nothing of earlier objects is kept.
    pub(crate) fn with_content_of(&self, later: &Released) -> Self {
        let released = Released { content: Arc::clone(&later.content), ..self.released.clone() };
        Self { released, epoch: self.epoch, batch: Arc::clone(&self.batch), first: self.first }
    }

    /// What an agent holds that was told it.
    pub(crate) fn told(&self) -> HeldRevision {
        HeldRevision { epoch: Uuid::from_bytes(self.epoch.0), revision: self.released.revision.0 }
    }

    /// The parts of that, as they are recorded.
    pub(crate) fn told_parts(&self) -> ToldParts {
        let DesiredParts { known, task_set } = self.released.parts(PUBLISHED);
        ToldParts { known: known.name, task_set: task_set.name }
    }

    /// Whether an agent that speaks this version and holds `held` has all of it.
    pub(crate) fn is_held(&self, version: WireVersion, held: &Held) -> bool {
        let DesiredParts { known, task_set } = self.released.parts(version);
        held.epoch == self.epoch && held.known == known.name && held.task_set == task_set.name
    }

    /// Whether an agent that holds `held` has all of it, whichever version it speaks.
    pub(crate) fn is_held_in_any(&self, held: &Held) -> bool {
        WireVersion::all().any(|version| self.is_held(version, held))
    }
}

/// A grant as it is signed: one form for each wire version where it names a task set, whose digest is another one in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenGrant(Box<[SignedGrant]>);

impl GivenGrant {
    /// The form of a version.
    pub(crate) fn form(&self, version: WireVersion) -> &SignedGrant {
        self.0.get(version.index()).unwrap_or(&self.0[0])
    }

    /// What is given, as this controller names it.
    pub(crate) fn grant(&self) -> &Grant {
        &self.form(PUBLISHED).grant
    }
}

/// What every node is to be told, and who waits to hear it.
pub struct DesiredTable {
    /// The epochs of the store. Replaced under the lock of `publishing`.
    line: ArcSwap<EpochLine>,
    signer: ArcSwap<Signer>,
    status: StatusTable,
    slots: RwLock<HashMap<Uuid, Arc<Slot>>>,
    /// One pass at a time: two would sign what the other had just replaced.
    publishing: Mutex<()>,
    /// All nodes are resolved as of this revision; zero before the first pass.
    resolved: AtomicU64,
    /// Those whose agents named a later revision than is resolved. Compared with `resolved`, and `resolved` moved on, under this lock.
    behind: Mutex<HashMap<Uuid, Arc<Slot>>>,
    /// Desired states published whose digest differs from what stood here before.
    pub published: Counter,
    /// Desired states sent to agents.
    pub sent: Counter,
    stopping: AtomicBool,
    /// Since when it is there, as the controller is.
    began: Instant,
}

impl DesiredTable {
    /// An empty table: nobody is told anything until the first batch.
    pub fn new(line: EpochLine, signer: Signer) -> Self {
        let status = StatusTable::default();
        status.note_store_waiting(line.waits);
        Self {
            line: ArcSwap::from_pointee(line),
            signer: ArcSwap::from_pointee(signer),
            status,
            slots: RwLock::default(),
            publishing: Mutex::default(),
            resolved: AtomicU64::new(0),
            behind: Mutex::default(),
            published: Counter::default(),
            sent: Counter::default(),
            stopping: AtomicBool::new(false),
            began: Instant::now(),
        }
    }

    /// Takes in one pass of the reconciler: signs what is new as one batch, and wakes those whom it concerns.
    ///
    /// May take a millisecond for each thousand nodes that are new; call it from the reconciler's own thread. Gives the nodes that
    /// are new.
    pub fn publish(&self, batch: Batch) -> Vec<Uuid> {
        let _one_at_a_time = lock(&self.publishing);
        let mut new = Vec::new();
        for (node, change) in batch.changes {
            match change {
                Change::Gone => self.remove(node),
                Change::Release(released) => {
                    let slot = self.slot(node);
                    if slot.differs(&released) {
                        new.push((slot, *released));
                    }
                }
            }
        }
        self.published.inc_by(new.len() as u64);
        let published = new.iter().map(|(slot, _)| slot.node()).collect();
        self.sign_and_tell(new);
        let mut behind = lock(&self.behind);
        self.resolved.store(batch.revision.0, Ordering::Release);
        let waiting = std::mem::take(&mut *behind);
        drop(behind);
        for slot in waiting.into_values() {
            slot.wake();
        }
        published
    }

    /// Changes the signer, and signs again what is published: an agent must be able to take it after the old signer's certificate
    /// has ended. Nobody is woken, since no digest changes.
    pub fn change_signer(&self, signer: Signer) {
        self.signer.store(Arc::new(signer));
        let _one_at_a_time = lock(&self.publishing);
        let slots: Vec<_> = read(&self.slots).values().cloned().collect();
        let state = |slot: &Arc<Slot>| slot.desired().map(|signed| (Arc::clone(slot), signed.released.clone()));
        self.sign(slots.iter().filter_map(state).collect());
    }

    /// Goes on in another epoch: signs what is published again, as of the revision up to which all nodes are resolved, and wakes all, since
    /// each agent has to be led there. Returns whether it is another one.
    pub(crate) fn change_epoch(&self, line: &EpochLine) -> bool {
        let _one_at_a_time = lock(&self.publishing);
        if **self.line.load() == *line {
            return false;
        }
        self.begin_epoch(line);
        self.status.note_store_waiting(line.waits);
        let revision = self.resolved();
        let slots: Vec<_> = read(&self.slots).values().cloned().collect();
        let state = |slot: &Arc<Slot>| {
            slot.desired().map(|signed| (Arc::clone(slot), Released { revision, ..signed.released.clone() }))
        };
        self.sign_and_tell(slots.iter().filter_map(state).collect());
        true
    }

    /// Another epoch begins; what is published is still signed in the one before.
    pub(crate) fn begin_epoch(&self, line: &EpochLine) {
        self.line.store(Arc::new(line.clone()));
    }

    /// What leads an agent from the epoch of what it holds to that of a state; `None`: it is there, or cannot be led there.
    pub(crate) fn epoch_change(&self, line: &EpochLine, held: Option<&Held>, to: Epoch) -> Option<EpochChange> {
        let from = held.map(|held| held.epoch).filter(|from| *from != to)?;
        let is_present = *line.now.as_bytes() == to.0;
        let at = Revision(line.at);
        is_present.then(|| self.signer.load().sign_epoch_change((from, to), at, &line.reason))
    }

    /// The epochs of the store.
    pub(crate) fn epoch_line(&self) -> Arc<EpochLine> {
        self.line.load_full()
    }

    /// Opens barriers for nodes: all that are open now for the task set of a node's published state. An empty list shuts them.
    /// Returns the nodes whose open barriers changed.
    pub fn open_barriers(&self, opened: Vec<(Uuid, PartDigest, Vec<Barrier>)>, revision: Revision) -> Vec<Uuid> {
        // Not while the signer changes, which would miss what the old one has just signed.
        let _one_at_a_time = lock(&self.publishing);
        let mut new = Vec::new();
        for (node, task_set, open) in opened {
            let (slot, grant) = (self.slot(node), Grant::Barriers { task_set, open });
            if !slot.has_grant(&grant) {
                let forms = grant_forms(&grant, slot.desired().as_ref().map(|signed| &signed.released));
                new.push(UnsignedGrant { slot, revision, forms });
            }
        }
        let changed = new.iter().map(|grant| grant.slot.node()).collect();
        for (slot, grant) in self.signed_grants(new) {
            slot.set_grant(grant);
        }
        changed
    }

    /// Signs grants in one batch. They stay in their order.
    fn signed_grants(&self, grants: Vec<UnsignedGrant>) -> Vec<(Arc<Slot>, GivenGrant)> {
        if grants.is_empty() {
            return Vec::new();
        }
        let epoch = self.epoch();
        let leaves = grants.iter().flat_map(|UnsignedGrant { slot, revision, forms }| {
            forms.iter().map(move |form| Leaf::grant(slot.node(), epoch, *revision, form))
        });
        let batch = self.signer.load().sign(&leaves.collect());
        let mut places = 0..;
        let mut signed = |UnsignedGrant { slot, revision, forms }| {
            let forms = Vec::into_iter(forms).zip(&mut places).map(|(grant, place)| {
                let proof = batch.proof(place).expect("the place is that of a leaf of this batch");
                SignedGrant { epoch, revision, grant, proof }
            });
            (slot, GivenGrant(forms.collect()))
        };
        grants.into_iter().map(&mut signed).collect()
    }

    /// Takes in what decides a node's state, with what its host has said meanwhile.
    pub(crate) fn set_facts(&self, node: Uuid, facts: Facts) {
        let of_now = || read(&self.slots).get(&node).map_or(facts, |slot| slot.facts(facts, Instant::now()));
        self.status.set_facts(node, of_now);
    }

    /// Whether a node's agent is there: as the table of statuses has it, and before the first pass as what is stored says.
    pub(crate) fn liveness(&self, node: Uuid) -> Liveness {
        let of_place = || Some(read(&self.slots).get(&node)?.liveness(Instant::now()));
        self.status.facts(node).map(|facts| facts.liveness).or_else(of_place).unwrap_or_default()
    }

    /// Whether a node's host holds what it was told, as its last check-in since the start said.
    pub(crate) fn told(&self, node: Uuid) -> Told {
        read(&self.slots).get(&node).map_or(Told::Unknown, |slot| slot.confirmed())
    }

    /// The places whose hosts say that they hold what they were told last, where the records of it do not say so yet.
    pub(crate) fn to_confirm(&self) -> Vec<(Arc<Slot>, Confirmed)> {
        let of_slot = |slot: &Arc<Slot>| slot.to_confirm().map(|confirmed| (Arc::clone(slot), confirmed));
        read(&self.slots).values().filter_map(of_slot).collect()
    }

    /// How far a node has come.
    pub(crate) fn revisions(&self, node: Uuid) -> Revisions {
        read(&self.slots).get(&node).map(|slot| slot.revisions()).unwrap_or_default()
    }

    /// Where nodes stand.
    pub fn status(&self) -> &StatusTable {
        &self.status
    }

    /// The revision as of which all nodes are resolved.
    pub fn resolved(&self) -> Revision {
        Revision(self.resolved.load(Ordering::Acquire))
    }

    /// The digests that a node is to hold, of the version in which it is decided: known part and task set.
    pub fn digests(&self, node: Uuid) -> Option<(PartDigest, PartDigest)> {
        let signed = read(&self.slots).get(&node)?.desired()?;
        let DesiredParts { known, task_set } = signed.released.parts(PUBLISHED);
        Some((known.name, task_set.name))
    }

    /// Whether this is the task set that a node is to hold, by its digest in any wire version.
    pub(crate) fn is_task_set(&self, node: Uuid, digest: PartDigest) -> bool {
        let signed = read(&self.slots).get(&node).and_then(|slot| slot.desired());
        signed.is_some_and(|signed| signed.released.parts.iter().any(|parts| parts.task_set.name == digest))
    }

    /// How long ago a node was last heard of; `None`: not since this process has started.
    pub(crate) fn heard(&self, node: Uuid) -> Option<Duration> {
        read(&self.slots).get(&node)?.heard(Instant::now())
    }

    /// How long this process has run.
    pub(crate) fn running(&self) -> Duration {
        self.began.elapsed()
    }

    /// The digest of the task set that a node's agent said it holds; `None`: it holds none, or said nothing since this process has started.
    pub(crate) fn held_task_set(&self, node: Uuid) -> Option<PartDigest> {
        read(&self.slots).get(&node)?.held().map(|held| held.task_set)
    }

    /// From where two hosts check in with one node's identity, if they do.
    pub(crate) fn two_hosts(&self, node: Uuid) -> Option<Addresses> {
        read(&self.slots).get(&node)?.two_hosts(Instant::now())
    }

    /// How many nodes have two hosts.
    pub fn doubled(&self) -> usize {
        let now = Instant::now();
        read(&self.slots).values().filter(|slot| slot.two_hosts(now).is_some()).count()
    }

    /// Whether a node's check-in is held right now.
    pub fn is_parked(&self, node: Uuid) -> bool {
        read(&self.slots).get(&node).is_some_and(|slot| slot.is_parked())
    }

    /// How many check-ins are held right now.
    pub fn parked(&self) -> usize {
        read(&self.slots).values().filter(|slot| slot.is_parked()).count()
    }

    /// Answers every check-in that is held, and holds none from now on: the controller is stopping.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        read(&self.slots).values().for_each(|slot| slot.wake());
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The epoch in which is signed.
    fn epoch(&self) -> Epoch {
        Epoch(*self.line.load().now.as_bytes())
    }

    /// The node's place, made when there is none: an agent may be here before its first desired state.
    pub(crate) fn slot(&self, node: Uuid) -> Arc<Slot> {
        if let Some(slot) = read(&self.slots).get(&node) {
            return Arc::clone(slot);
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(node).or_insert_with(|| Arc::new(Slot::new(node))))
    }

    /// Notes that a node's host has enrolled.
    pub(crate) fn note_enrolled(&self, node: Uuid, is_enrolled: impl FnOnce() -> bool) {
        if let Some(slot) = self.slot_of_agent(node, is_enrolled) {
            slot.note_enrolled();
            self.status.set_enrolled(node);
        }
    }

    /// The place of a node whose agent is at work, made where there is none, and taken away again where the node is no longer
    /// enrolled. The order matters: a node is marked as deleted before its place is taken away, so a place that is made before the
    /// mark is read is always found by one of the two.
    pub(crate) fn slot_of_agent(&self, node: Uuid, is_enrolled: impl FnOnce() -> bool) -> Option<Arc<Slot>> {
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

    /// Forgets a node: whoever is parked for it is let go.
    pub(crate) fn remove(&self, node: Uuid) {
        let slot = self.slots.write().unwrap_or_else(PoisonError::into_inner).remove(&node);
        if let Some(slot) = slot {
            slot.end();
        }
        self.status.remove(node);
    }

    /// Whether this revision is later than what is resolved; then this place is woken when the next batch has come.
    pub(crate) fn is_behind(&self, slot: &Arc<Slot>, named: Revision) -> bool {
        if named <= self.resolved() {
            return false;
        }
        let mut behind = lock(&self.behind);
        // Compared again: a batch that came in between has woken only those who were here before it.
        let is_behind = named > self.resolved();
        if is_behind {
            behind.insert(slot.node(), Arc::clone(slot));
        }
        is_behind
    }

    /// Signs a node's state again, as of the revision up to which all nodes are resolved. Its agent holds another state at a later
    /// revision than this one has, and would refuse it.
    pub(crate) fn restamp(&self, slot: &Arc<Slot>) {
        let _one_at_a_time = lock(&self.publishing);
        if let Some(signed) = slot.desired() {
            let revision = self.resolved();
            self.sign(vec![(Arc::clone(slot), Released { revision, ..signed.released.clone() })]);
        }
    }

    fn sign_and_tell(&self, new: Vec<(Arc<Slot>, Released)>) {
        let slots: Vec<_> = new.iter().map(|(slot, _)| Arc::clone(slot)).collect();
        self.sign(new);
        for slot in slots {
            slot.wake();
        }
    }

    /// Signs states, and puts them in the place of the ones that were published. A grant that stays beside its state gets the state's
    /// revision: an agent that takes up the state takes an earlier grant for one of an earlier wave.
    fn sign(&self, new: Vec<(Arc<Slot>, Released)>) {
        if new.is_empty() {
            return;
        }
        let epoch = self.epoch();
        let leaves = new.iter().flat_map(|(slot, released)| {
            released.parts.iter().map(move |DesiredParts { known, task_set }| {
                Leaf::desired(slot.node(), epoch, released.revision, known.name, task_set.name)
            })
        });
        let batch = Arc::new(self.signer.load().sign(&leaves.collect()));
        let staying: Vec<_> = new.iter().map(|(slot, released)| staying_grants(slot, released)).collect();
        let counts: Vec<_> = staying.iter().map(Vec::len).collect();
        let mut grants =
            self.signed_grants(staying.into_iter().flatten().collect()).into_iter().map(|(_, grant)| grant);
        let mut first = 0;
        for ((slot, released), count) in new.into_iter().zip(counts) {
            let next = first + released.parts.len();
            let staying = grants.by_ref().take(count).collect();
            slot.set_desired(Arc::new(Signed { released, epoch, batch: Arc::clone(&batch), first }), staying);
            first = next;
        }
    }
}

/// What an agent holds, as core compares it.
pub(crate) fn held_revision(held: &Held) -> HeldRevision {
    HeldRevision { epoch: Uuid::from_bytes(held.epoch.0), revision: held.revision.0 }
}

/// A grant before it is signed.
struct UnsignedGrant {
    slot: Arc<Slot>,
    revision: Revision,
    /// As hosts of each version are given it.
    forms: Vec<Grant>,
}

/// The forms of a grant beside a node's state. One for a task set that is not the node's is for nothing in any version.
fn grant_forms(grant: &Grant, released: Option<&Released>) -> Vec<Grant> {
    let Grant::Barriers { task_set, open } = grant else { return vec![grant.clone()] };
    let named = released.filter(|released| released.parts(PUBLISHED).task_set.name == *task_set);
    let name = |version| named.map_or(*task_set, |released| released.parts(version).task_set.name);
    WireVersion::all().map(|version| Grant::Barriers { task_set: name(version), open: open.clone() }).collect()
}

/// The grants that a node keeps beside a new state, at the state's revision at least. Those for another task set end.
fn staying_grants(slot: &Arc<Slot>, released: &Released) -> Vec<UnsignedGrant> {
    let task_set = released.parts(PUBLISHED).task_set.name;
    let stays = |grant: &Grant| !matches!(grant, Grant::Barriers { task_set: of, .. } if *of != task_set);
    let unsigned = |given: &GivenGrant| UnsignedGrant {
        slot: Arc::clone(slot),
        revision: given.form(PUBLISHED).revision.max(released.revision),
        forms: grant_forms(given.grant(), Some(released)),
    };
    slot.grants().iter().filter(|given| stays(given.grant())).map(unsigned).collect()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
