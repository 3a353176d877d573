//! A controller that a test drives, and what it sends.

use std::rc::Rc;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519,
    SanType, SigningKey as _, date_time_ymd,
};
use serde_json::{Value, json};
use stemma_core::digest::sha256;
use stemma_core::task::Mode;
use stemma_wire::message::desired::{InputValue, Known, KnownLabel, Profile, ProfileTask, REMOVE_ORPHANS, TaskSet};
use stemma_wire::message::signed::{EpochChange, Grant, Signature, SignedDesired, SignedGrant};
use stemma_wire::message::{Epoch, Hash, PartDigest, Revision, WireVersion, digest_part};
use stemma_wire::sign::{Leaf, Signer, SigningBatch};
use uuid::Uuid;

use super::ledger::{ACCEPTED, AcceptedState, Desired, Ledger};
use crate::host::real::RealHost;
use crate::identity::HostIdentity;
use crate::sync::TlsCredentials;

pub(crate) const NODE: Uuid = Uuid::from_u128(0x0190_b6c8_4c1e_7d2a_9f00_0123_4567_89ab);
pub(crate) const EPOCH: Epoch = Epoch([1; 16]);

/// A controller that signs desired states and grants, with the certificate authorities of its fleet `prod`.
pub(crate) struct TestController {
    signer: Signer,
    /// The private key of the signer, for messages that a test signs without `signer`.
    key: KeyPair,
    /// The certificate chain of the signer: its own certificate, and that of the authority for signers.
    chain: Vec<Vec<u8>>,
    root: Vec<u8>,
    agents: (CertificateParams, KeyPair, Vec<u8>),
}

impl TestController {
    /// Creates a controller with a new root certificate, and with authorities for signers and agents below it.
    pub(crate) fn new() -> Self {
        let (root, root_key) = test_authority("root", vec![], 1);
        let root_der = root.self_signed(&root_key).unwrap().der().to_vec();
        let (signers, signers_key) = test_authority("signers", vec![ExtendedKeyUsagePurpose::CodeSigning], 0);
        let root_issuer = Issuer::from_params(&root, &root_key);
        let signers_der = signers.signed_by(&signers_key, &root_issuer).unwrap().der().to_vec();
        let (agents, agents_key) = test_authority("agents", vec![ExtendedKeyUsagePurpose::ClientAuth], 0);
        let agents_der = agents.signed_by(&agents_key, &root_issuer).unwrap().der().to_vec();
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut leaf = dated_params();
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        let uri = format!("spiffe://prod/signer/{}", Uuid::from_u128(7));
        leaf.subject_alt_names = vec![SanType::URI(uri.as_str().try_into().unwrap())];
        let leaf_der = leaf.signed_by(&key, &Issuer::from_params(&signers, &signers_key)).unwrap().der().to_vec();
        let chain = vec![leaf_der, signers_der];
        let signer = Signer::new(&key.serialize_der(), chain.clone()).unwrap();
        Self { signer, key, chain, root: root_der, agents: (agents, agents_key, agents_der) }
    }

    /// Returns the certificate chain of [`NODE`] for this key. `change` edits the certificate before it is signed.
    pub(crate) fn node_chain(&self, key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Vec<Vec<u8>> {
        let mut leaf = dated_params();
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        leaf.subject_alt_names = vec![node_uri("prod", NODE)];
        change(&mut leaf);
        let (agents, agents_key, agents_der) = &self.agents;
        let leaf = leaf.signed_by(key, &Issuer::from_params(agents, agents_key)).unwrap();
        vec![leaf.der().to_vec(), agents_der.clone()]
    }

    /// Returns the identity that a host of this fleet stores when it joins as [`NODE`].
    pub(crate) fn identity(&self) -> HostIdentity {
        HostIdentity { node: NODE, fleet: "prod".into(), root: self.root.clone() }
    }

    /// Returns a signed desired state of a node, in the first wire version.
    pub(crate) fn desired_for(&self, node: Uuid, epoch: Epoch, revision: u64, desired: &Desired) -> SignedDesired {
        let (known, task_set) = encode_parts(desired);
        let digests = [&known, &task_set].map(|part| PartDigest(sha256(part)));
        self.signed_for((node, epoch, Revision(revision)), [known, task_set], digests)
    }

    /// Returns a signed desired state of [`NODE`] from encoded parts. The digests are those of this wire version.
    #[cfg(debug_assertions)]
    pub(crate) fn signed(&self, version: WireVersion, revision: u64, known: Vec<u8>, task_set: Vec<u8>) -> SignedDesired {
        let digests = [&known, &task_set].map(|part| digest_part(version, part));
        self.signed_for((NODE, EPOCH, Revision(revision)), [known, task_set], digests)
    }

    /// Returns a signed desired state of a node from encoded parts and their digests.
    fn signed_for(
        &self,
        (node, epoch, revision): (Uuid, Epoch, Revision),
        [known, task_set]: [Vec<u8>; 2],
        [known_digest, task_set_digest]: [PartDigest; 2],
    ) -> SignedDesired {
        let leaf = Leaf::for_desired(node, epoch, revision, known_digest, task_set_digest);
        SignedDesired {
            epoch,
            revision,
            known_digest,
            task_set_digest,
            known: Some(known),
            task_set: Some(task_set),
            proof: self.proof(leaf),
            epoch_change: None,
        }
    }

    /// Returns a signed desired state of [`NODE`] in [`EPOCH`].
    pub(crate) fn desired(&self, revision: u64, desired: &Desired) -> SignedDesired {
        self.desired_for(NODE, EPOCH, revision, desired)
    }

    /// Returns a signed grant (open barriers, or a lease) for [`NODE`] in [`EPOCH`].
    pub(crate) fn grant(&self, revision: u64, grant: Grant) -> SignedGrant {
        self.grant_in_epoch(EPOCH, revision, grant)
    }

    /// Returns a signed grant for [`NODE`] in an epoch.
    pub(crate) fn grant_in_epoch(&self, epoch: Epoch, revision: u64, grant: Grant) -> SignedGrant {
        let leaf = Leaf::for_grant(NODE, epoch, Revision(revision), &grant);
        SignedGrant { epoch, revision: Revision(revision), grant, proof: self.proof(leaf) }
    }

    /// Returns a signed change of the epoch. `first_revision` is the first revision of the new epoch. This builds the
    /// signed bytes itself, so that tests notice a change of the format.
    pub(crate) fn epoch_change(&self, from: Epoch, to: Epoch, first_revision: u64) -> EpochChange {
        // The bytes before the reason are its length.
        let parts: [&[u8]; 5] = [&from.0, &to.0, &first_revision.to_be_bytes(), &[0, 0, 0, 6], b"a test"];
        let statement = [&b"stemma/epoch-change/v1\0"[..], &parts.concat()].concat();
        let signature = Signature { bytes: self.key.sign(&statement).unwrap(), signer: self.chain.clone() };
        EpochChange { from, to, at: Revision(first_revision), reason: "a test".into(), signature }
    }

    /// Signs a leaf together with two other leaves, and returns the proof of this leaf. With several leaves, the proof
    /// contains a path of a Merkle tree.
    fn proof(&self, leaf: Leaf) -> stemma_wire::message::signed::Proof {
        let batch: SigningBatch = [Leaf([9; 32]), leaf, Leaf([8; 32])].into_iter().collect();
        self.signer.sign(&batch).proof(1).unwrap()
    }
}

/// Returns the URI by which a certificate names a node of a fleet.
pub(crate) fn node_uri(fleet: &str, node: Uuid) -> SanType {
    SanType::URI(format!("spiffe://{fleet}/node/{node}").as_str().try_into().unwrap())
}

/// Returns the parameters and a new key of a certificate authority. `path_length` is the maximum number of authorities
/// below it.
fn test_authority(name: &str, usages: Vec<ExtendedKeyUsagePurpose>, path_length: u8) -> (CertificateParams, KeyPair) {
    let mut params = dated_params();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
    params.extended_key_usages = usages;
    (params, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap())
}

/// Returns parameters of a certificate that is valid from 2020 to 2040.
fn dated_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2040, 1, 1);
    params
}

/// Returns both parts (known and task set) as the bytes that a controller sends.
pub(crate) fn encode_parts(desired: &Desired) -> (Vec<u8>, Vec<u8>) {
    (postcard::to_stdvec(&desired.known).unwrap(), postcard::to_stdvec(&desired.task_set).unwrap())
}

/// Returns a desired state in the form in which the ledger stores it, at this revision in [`EPOCH`].
pub(crate) fn accepted_state(revision: u64, desired: &Desired) -> AcceptedState {
    let (known, task_set) = encode_parts(desired);
    AcceptedState { version: WireVersion::FIRST, epoch: EPOCH, revision: Revision(revision), known, task_set }
}

/// Returns credentials that expired long ago and that no controller accepts.
pub(crate) fn expired_credentials(controller: String) -> TlsCredentials {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = CertificateParams::default().self_signed(&key).unwrap();
    let chain = vec![certificate.der().to_vec()];
    // The last field has the first and the last second of the validity, since 1970.
    TlsCredentials { controllers: vec![controller], key: key.serialize_der(), chain, validity: (1, 2) }
}

/// Returns a host below the directory `root` that has joined a fleet and has accepted this task set.
pub(crate) fn joined_host(root: &std::path::Path, set: &TestTaskSet) -> Rc<RealHost> {
    let host = Rc::new(RealHost::new(root).unwrap());
    TestController::new().identity().store(&*host).unwrap();
    // No controller listens at this address.
    expired_credentials("https://127.0.0.1:1".to_owned()).store(&*host).unwrap();
    store_accepted(&host, 1, set);
    host
}

/// Stores a task set and its profile on a host, as a desired state that the host accepted at this revision.
pub(crate) fn store_accepted(host: &Rc<RealHost>, revision: u64, set: &TestTaskSet) {
    let ledger = Ledger::open(host.clone()).unwrap();
    ledger.put(&ACCEPTED, &accepted_state(revision, &set.desired())).unwrap();
    let (hash, bytes) = set.profile();
    ledger.store_body(hash, &bytes).unwrap();
}

/// A file system in memory with little room, below the root of a host. It is removed when the value is dropped.
pub(crate) struct SmallDisk(pub(crate) std::path::PathBuf);

impl SmallDisk {
    /// Mounts a file system with this size at a path. Returns `None` if the test may not mount.
    #[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
    pub(crate) fn new(path: std::path::PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        if !run_mount(&["-t", "tmpfs", "-o", &format!("size={size},mode=0755"), "tmpfs"], &path) {
            eprintln!("skipped: who runs the test may not mount");
            return None;
        }
        Some(Self(path))
    }

    /// Changes the size of the file system.
    pub(crate) fn resize(&self, size: &str) {
        assert!(run_mount(&["-o", &format!("remount,size={size}")], &self.0));
    }

    /// Returns the names in the file system, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

fn run_mount(words: &[&str], mount_point: &std::path::Path) -> bool {
    let output = std::process::Command::new("mount").args(words).arg(mount_point).output();
    output.is_ok_and(|output| output.status.success())
}

/// A builder of a desired state (labels and a task set) and of the profile (the list of tasks) that the task set names.
#[derive(Default)]
pub(crate) struct TestTaskSet {
    profile: Profile,
    inputs: Vec<(String, InputValue)>,
    labels: Vec<(String, String)>,
    left_out: Vec<(String, String)>,
    removes_orphans: bool,
    mode: Mode,
    revision: u64,
}

impl TestTaskSet {
    /// Adds a task that requires the tasks with the indexes in `after`. `kind` is the task type. `fields` are the other
    /// fields of the definition, as a JSON object.
    pub(crate) fn task(mut self, id: &str, kind: &str, after: &[u16], fields: &Value) -> Self {
        let mut definition = json!({"id": id, "type": kind});
        definition.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.profile.tasks.push(ProfileTask {
            id: id.into(),
            definition: definition.to_string(),
            references: Vec::new(),
            after: after.to_vec(),
            barriers: Vec::new(),
        });
        self
    }

    /// Adds a task that the host gets only because another task names it in `on_unassign`. The task set leaves it out.
    pub(crate) fn unassign_task(self, id: &str, kind: &str, fields: &Value) -> Self {
        self.task(id, kind, &[], fields).leave_out(id, stemma_core::task::UNASSIGN_REASON)
    }

    /// Lets the task set leave out a task for this reason.
    pub(crate) fn leave_out(mut self, id: &str, reason: &str) -> Self {
        self.left_out.push((id.into(), reason.into()));
        self
    }

    /// Adds a task of type `file` that writes this content to a path.
    pub(crate) fn file(self, id: &str, after: &[u16], path: &str, content: &str) -> Self {
        self.task(id, "file", after, &json!({"parameters": {"path": path, "content": content}}))
    }

    /// Adds a task of type `shell` with these words as its command. It has no guards (conditions on the run).
    pub(crate) fn command(self, id: &str, after: &[u16], words: &[&str]) -> Self {
        self.task(id, "shell", after, &json!({"parameters": {"command": words}}))
    }

    /// Lets the last task read a value. `reference` is the text by which templates name the value, such as `labels.a`.
    pub(crate) fn with_input(mut self, reference: &str, value: &str) -> Self {
        self.profile.tasks.last_mut().unwrap().references.push(reference.into());
        self.inputs.push((reference.into(), InputValue::Json(json!(value).to_string().into())));
        self
    }

    /// Lets the last task read the secret with this name.
    pub(crate) fn with_secret(mut self, name: &str) -> Self {
        let reference = format!("secret('{name}')");
        self.profile.tasks.last_mut().unwrap().references.push(reference.clone());
        self.inputs.push((reference, InputValue::Secret { name: name.into(), version: 3 }));
        self
    }

    /// Adds a marker (a task of type `skipped`, which only orders other tasks). The task set lists it as left out, as a
    /// controller does.
    pub(crate) fn marker(self, id: &str, after: &[u16]) -> Self {
        self.task(id, "skipped", after, &json!({})).leave_out(id, "type is skipped")
    }

    /// Lets the last task wait for a barrier.
    pub(crate) fn with_barrier(mut self, barrier: stemma_wire::message::desired::Barrier) -> Self {
        self.profile.tasks.last_mut().unwrap().barriers.push(barrier);
        self
    }

    /// Lets the host remove orphans, as a nodegroup with `remove_orphans` does.
    pub(crate) fn removing_orphans(mut self) -> Self {
        self.removes_orphans = true;
        self
    }

    /// Adds a label of the node.
    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.push((key.into(), value.into()));
        self
    }

    /// Sets the mode of the task set.
    pub(crate) fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the group revision, a field of the task set. So the same tasks form another task set, with another digest.
    pub(crate) fn with_release(mut self, group_revision: u64) -> Self {
        self.revision = group_revision;
        self
    }

    /// Returns the hash and the bytes of the profile.
    pub(crate) fn profile(&self) -> (Hash, Vec<u8>) {
        let bytes = postcard::to_stdvec(&self.profile).unwrap();
        (Hash(sha256(&bytes)), bytes)
    }

    /// Returns the desired state of a node `web-1` with these labels and this task set.
    pub(crate) fn desired(&self) -> Desired {
        let label = |value: &str| KnownLabel { value: value.into(), to_host: false, origin: "node n".into() };
        let known = Known {
            name: "web-1".into(),
            group: "prod/web".into(),
            labels: self.labels.iter().map(|(key, value)| (key.clone(), label(value))).collect(),
            ceiling: Mode::Apply,
            lifecycle: self.removes_orphans.then(|| (REMOVE_ORPHANS.to_owned(), 1)).into_iter().collect(),
            ..Known::default()
        };
        let task_set = TaskSet {
            group_revision: self.revision,
            mode: self.mode,
            profile: Some(self.profile().0),
            inputs: self.inputs.iter().cloned().collect(),
            left_out: self.left_out.iter().map(|(id, reason)| (id.clone(), reason.as_str().into())).collect(),
            ..TaskSet::default()
        };
        let digest = PartDigest(sha256(&postcard::to_stdvec(&task_set).unwrap()));
        Desired { version: WireVersion::FIRST, known, task_set, digest }
    }
}
