//! The keys of the store. All of them are defined here, so that no prefix has two meanings.
//!
//! Keys are text with slashes. They contain uuids instead of names, so that a rename changes one index entry and no
//! history. In most keys that contain a name, the name is last, because it can be long.

use std::fmt;

use stemma_core::object::Kind;
use stemma_wire::message::Hash;
use uuid::Uuid;

use crate::store::Revision;

/// Prefix of the objects, by kind and uuid.
pub const OBJECTS: &str = "object/";
/// Prefix of the images of objects in the history, by kind, uuid and revision. An image is the state after a change.
pub const HISTORY: &str = "history/";
/// Prefix of the audit events, by revision.
pub const AUDIT: &str = "audit/";
/// Prefix of the records of requests, by the uuid of the principal and by the idempotency key of the request. If the
/// caller is not a principal, the caller's name replaces the uuid.
pub const REQUESTS: &str = "request/";
/// Prefix of the last Observation of each node: the facts, traits and labels that its host reported.
pub const OBSERVATIONS: &str = "observation/";
/// Prefix of the latest images of a node's Observations, the current one included, by node and revision.
pub const OBSERVATION_IMAGES: &str = "observed/";
/// Prefix of the task set that was released to each node, by node.
pub const RELEASED: &str = "released/";
/// Prefix of the profiles to which released task sets refer, by hash.
pub const PROFILES: &str = "profile/";
/// Prefix of the common values to which released task sets refer, by hash. Each entry lists the hashes of its parts
/// ([`COMMON_PARTS`]). The cache reads the entries of a commit in the order of their keys, so chunks, parts, these
/// entries and task sets must sort in this order.
pub const COMMON_VALUES: &str = "common/";
/// Prefix of the parts of common values, by hash. A part has some of the values.
pub const COMMON_PARTS: &str = "common-part/";
/// Prefix of the chunks of large texts of inputs, by hash. Released task sets and parts of common values refer to them.
pub const COMMON_CHUNKS: &str = "common-chunk/";
/// Prefix of the task results of each node, by node.
pub const RESULTS: &str = "result/";
/// Prefix of the last Report of each node: what its agent reported about itself.
pub const REPORTS: &str = "report/";
/// Prefix of the state that was set on a node's host itself, such as a pause, by node. A node without such a state has
/// no entry.
pub const REPORTED_STATES: &str = "said/";
/// Prefix of the last change of each node from silent to not silent, or back, by node.
pub const LIVENESS: &str = "seen/";
/// Prefix of the record of the desired state that was last sent to each node's host. The record is stored before the
/// state is sent. So if a host holds a later state, it received that from another copy of the store.
pub const SENT_STATES: &str = "told/";
/// Prefix of the records of agents, by node. A record outlives its node (see [`super::enrolled`]).
pub const AGENTS: &str = "agent/";
/// Prefix of the entries that name the node which owns a certificate key, by the SHA-256 of that key.
pub const AGENT_KEYS: &str = "agent-key/";
/// Prefix of the join tokens, by id.
pub const TOKENS: &str = "token/";
/// Prefix of the entries of resource types, by name. An entry has the time at which a namespace of the metadata
/// catalogue first named the type. The entry stays even if no namespace names the type any more.
pub const RESOURCE_TYPES: &str = "resource-type/";

/// The key of the epoch and the revision of the store just before the first record under [`SENT_STATES`] was written.
/// If a host has no such record, no state of a later revision was sent to it.
pub const SENT_SINCE: &str = "told-since";
/// The key of the history of the store's epochs. It is absent until the first epoch has ended.
pub const EPOCH_LINE: &str = "epoch/line";
/// The key of the record of the last backup.
pub const LAST_BACKUP: &str = "backup/last";
/// The key of the record of the controller's clock: its last trusted time, its jumps, and whether it is suspect now.
pub const CLOCK: &str = "clock/last";

/// The prefixes of marks. A mark is an entry without a value that orders writes of different objects. A write that
/// needs something to be unchanged requires that the revision of its mark is unchanged.
pub const MARKS: [&str; 9] = ["referred/", "order/", "placed/", "fixed/", "allocated/", "instance/", "makers/", ADMINS, RULES];

/// The key of the mark (an empty entry that orders writes) for admins of the whole fleet. Every write that removes such
/// an admin or its rights writes it and requires it unchanged. So two concurrent writes cannot remove the last two.
pub const ADMINS: &str = "admins/";

/// The prefixes of entries by node that are deleted with the node. The images of its Observations are deleted too, but
/// have keys of another form ([`observation_images`]).
const NODE_PREFIXES: [&str; 7] = [OBSERVATIONS, REPORTED_STATES, RELEASED, RESULTS, REPORTS, LIVENESS, SENT_STATES];

/// Returns the key of an object.
pub fn object(kind: Kind, uuid: Uuid) -> String {
    format!("{OBJECTS}{}/{uuid}", kind.word())
}

/// Returns the prefix of an object's images in the history.
pub fn history(kind: Kind, uuid: Uuid) -> String {
    format!("{HISTORY}{}/{uuid}/", kind.word())
}

/// Returns the key of the index entry that contains the uuid of the object with a name. A name is unique within its
/// kind and `scope`: for a node group or a primary its cluster, otherwise the fleet (`None`).
pub fn name(kind: Kind, scope: Option<Uuid>, name: &str) -> String {
    match scope {
        Some(scope) => format!("name/{}/{scope}/{name}", kind.word()),
        None => format!("name/{}//{name}", kind.word()),
    }
}

/// Returns the key of the mark (an empty entry that orders writes) for references to an object. Every write that adds a
/// reference to the object writes it. The write that deletes the object requires it unchanged. So no reference to a
/// deleted object can arise, and many references can be added concurrently. `id` is the uuid of the object, or the name
/// of a release.
pub fn reference_mark(kind: Kind, id: &dyn fmt::Display) -> String {
    format!("referred/{}/{id}", kind.word())
}

/// Returns the key of the mark (an empty entry that orders writes) for the tasks of a cluster. Every write that extends
/// the cluster writes it: a write that could close a cycle of tasks together with a concurrent write
/// (`registry::work::order` lists the cases). Every write that places nodes in the cluster requires it unchanged,
/// because it relies on the cluster's tasks.
pub fn order_mark(cluster: Uuid) -> String {
    format!("order/{cluster}")
}

/// Returns the key of the mark (an empty entry that orders writes) for the nodes of a cluster. Every write that places
/// a node in the cluster, or extends the cluster, writes the mark. A write that extends the cluster ([`order_mark`])
/// also requires the mark unchanged, because it relies on the nodes that were placed before.
pub fn placement_mark(cluster: Uuid) -> String {
    format!("placed/{cluster}")
}

/// Returns the key of the mark (an empty entry) that pins a version of a release: from then on, the content of the
/// version is fixed. The mark is written with the first released task set that uses the version, directly or through an
/// import. It is deleted when the release is deleted or gets another name.
pub fn pin_mark(release: &str) -> String {
    format!("fixed/{release}")
}

/// The key of the mark (an empty entry that orders writes) for inspection rules. Every write of an inspection rule
/// writes the mark. A write that accepts a node because of what the rules give the node requires it unchanged.
pub const RULES: &str = "rules/";

/// Returns the key of an audit event.
pub fn audit(revision: Revision) -> Vec<u8> {
    [AUDIT.as_bytes(), &revision.to_key()].concat()
}

/// Returns the key of the mark (an empty entry that orders writes) for the allocations of nodes of a resource class.
/// Each such allocation writes it and requires it unchanged. So these allocations are created one after another, and
/// each sees which nodes the earlier ones have.
pub fn allocation_mark(resource_class: &str) -> String {
    format!("allocated/{resource_class}")
}

/// Returns the key of the mark (an empty entry that orders writes) for an instance (in Ironic, the uuid of a workload).
/// Every write that gives the instance to a node or an allocation, or takes it away, writes the mark and requires it
/// unchanged. So concurrent writes cannot give one instance to two nodes. The mark is deleted with the last use.
pub fn instance_mark(uuid: Uuid) -> String {
    format!("instance/{uuid}")
}

/// Returns the key of the mark (an empty entry that orders writes) for the join tokens of a principal. Every write that
/// creates such a token writes it. Every write that deletes the principal or changes its rights requires it unchanged.
/// So no token is created concurrently with such a write.
pub fn maker_mark(principal: Uuid) -> String {
    format!("makers/{principal}")
}

/// Returns the key of the record of a request. `requester` is the uuid of the principal, or the name of a caller that
/// is not a principal.
pub fn request(requester: &str, id: Uuid) -> String {
    format!("{REQUESTS}{requester}/{id}")
}

/// Returns the key of a node's entry under `prefix`, a prefix of entries by node such as [`RELEASED`].
pub fn node_entry(prefix: &str, node: Uuid) -> String {
    format!("{prefix}{node}")
}

/// Returns the keys of all entries that are deleted with a node, except the images of its Observations
/// ([`observation_images`]).
pub fn node_entries(node: Uuid) -> impl Iterator<Item = String> {
    NODE_PREFIXES.into_iter().map(move |prefix| node_entry(prefix, node))
}

/// Returns the prefix of the images of a node's Observations, which are also deleted with the node.
pub fn observation_images(node: Uuid) -> String {
    format!("{OBSERVATION_IMAGES}{node}/")
}

/// Returns the key of the profile with this hash.
pub fn profile(hash: &Hash) -> String {
    format!("{PROFILES}{hash}")
}

/// Returns the hash in a key under [`PROFILES`], or `None` for any other key.
pub fn read_profile(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(PROFILES)?.parse().ok()
}

/// Returns the key of the list of common values with this hash.
pub fn common_values(hash: &Hash) -> String {
    format!("{COMMON_VALUES}{hash}")
}

/// Returns the hash in a key under [`COMMON_VALUES`], or `None` for any other key.
pub fn read_common_values(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(COMMON_VALUES)?.parse().ok()
}

/// Returns the key of the part of common values with this hash.
pub fn common_part(hash: &Hash) -> String {
    format!("{COMMON_PARTS}{hash}")
}

/// Returns the hash in a key under [`COMMON_PARTS`], or `None` for any other key.
pub fn read_common_part(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(COMMON_PARTS)?.parse().ok()
}

/// Returns the key of the chunk of a large text with this hash.
pub fn common_chunk(hash: &Hash) -> String {
    format!("{COMMON_CHUNKS}{hash}")
}

/// Returns the hash in a key under [`COMMON_CHUNKS`], or `None` for any other key.
pub fn read_common_chunk(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(COMMON_CHUNKS)?.parse().ok()
}

/// Returns the kind and the uuid in a key under [`OBJECTS`], or `None` for any other key.
pub fn read_object(key: &[u8]) -> Option<(&str, Uuid)> {
    let (kind, uuid) = std::str::from_utf8(key).ok()?.strip_prefix(OBJECTS)?.split_once('/')?;
    Some((kind, uuid.parse().ok()?))
}

/// Splits a key under [`HISTORY`] into the bytes that identify the object, and the revision at its end. Returns `None`
/// for any other key.
pub fn read_image(key: &[u8]) -> Option<(&[u8], u64)> {
    let (object, revision) = key.strip_prefix(HISTORY.as_bytes())?.split_last_chunk::<8>()?;
    Some((object, u64::from_be_bytes(*revision)))
}

/// Returns the key under [`HISTORY`] of an object's image at a revision. It is the reverse of [`read_image`].
pub fn image(object: &[u8], revision: u64) -> Vec<u8> {
    [HISTORY.as_bytes(), object, &revision.to_be_bytes()].concat()
}

/// Returns the uuid or name of the caller in a key under [`REQUESTS`], or `None` for any other key.
pub fn read_request(key: &[u8]) -> Option<&[u8]> {
    let requester_and_id = key.strip_prefix(REQUESTS.as_bytes())?;
    // The idempotency key follows the last slash. The name of a caller may contain slashes.
    let slash = requester_and_id.iter().rposition(|byte| *byte == b'/')?;
    Some(&requester_and_id[..slash])
}

/// Returns the key as text if it is the key of a mark, otherwise `None`.
pub fn read_mark(key: &[u8]) -> Option<&str> {
    let key = std::str::from_utf8(key).ok()?;
    MARKS.iter().any(|prefix| key.starts_with(prefix)).then_some(key)
}

/// Returns the key of a resource type.
pub fn resource_type(name: &str) -> String {
    format!("{RESOURCE_TYPES}{name}")
}

/// Returns the name in a key under [`RESOURCE_TYPES`], or `None` for any other key.
pub fn read_resource_type(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(RESOURCE_TYPES)
}

/// Returns the token's id in a key under [`TOKENS`], or `None` for any other key.
pub fn read_token(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(TOKENS)
}

/// Returns the node in a key under `prefix`, a prefix of entries by node, or `None` for any other key.
pub fn read_node(prefix: &str, key: &[u8]) -> Option<Uuid> {
    std::str::from_utf8(key).ok()?.strip_prefix(prefix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip() {
        let uuid = Uuid::from_u128(7);
        assert_eq!(read_object(object(Kind::NodeGroup, uuid).as_bytes()), Some(("nodegroup", uuid)));
        assert_eq!(read_node(LIVENESS, node_entry(LIVENESS, uuid).as_bytes()), Some(uuid));
        assert_eq!(read_object(b"object/node/no-uuid"), None);
        assert_eq!(read_profile(profile(&Hash([0xa5; 32])).as_bytes()), Some(Hash([0xa5; 32])));
        assert_eq!(read_profile(b"profile/a5"), None);
        assert_eq!(read_common_values(common_values(&Hash([0xa5; 32])).as_bytes()), Some(Hash([0xa5; 32])));
        assert_eq!(read_common_part(common_part(&Hash([0xa5; 32])).as_bytes()), Some(Hash([0xa5; 32])));
        assert_eq!(read_common_chunk(common_chunk(&Hash([0xa5; 32])).as_bytes()), Some(Hash([0xa5; 32])));
        assert!(
            [COMMON_CHUNKS, COMMON_PARTS, COMMON_VALUES, RELEASED].is_sorted(),
            "the events of a commit are read in the order of their keys"
        );
        assert_eq!(read_node(LIVENESS, b"seen/\xff"), None);
        // The bytes of a revision may include a slash.
        let image_key = [history(Kind::Node, uuid).as_bytes(), &Revision::new(0x2f2f).to_key()].concat();
        let (object, revision) = read_image(&image_key).unwrap();
        assert_eq!((object, revision), (format!("node/{uuid}/").as_bytes(), 0x2f2f));
        assert_eq!(image(object, revision), image_key);
        assert_eq!(read_image(b"history/node"), None);
        assert_eq!(read_request(request("node/a", uuid).as_bytes()), Some(&b"node/a"[..]));
    }

    #[test]
    fn no_key_prefix_begins_with_another_prefix() {
        let prefixes = [
            OBJECTS,
            HISTORY,
            AUDIT,
            REQUESTS,
            OBSERVATIONS,
            OBSERVATION_IMAGES,
            RELEASED,
            PROFILES,
            COMMON_VALUES,
            COMMON_PARTS,
            COMMON_CHUNKS,
            RESULTS,
            REPORTS,
            REPORTED_STATES,
            LIVENESS,
            SENT_STATES,
            AGENTS,
            AGENT_KEYS,
            TOKENS,
            RESOURCE_TYPES,
            SENT_SINCE,
            EPOCH_LINE,
            LAST_BACKUP,
            CLOCK,
            "name/",
            "referred/",
            "order/",
            "placed/",
            "fixed/",
            "allocated/",
            ADMINS,
        ];
        for prefix in prefixes {
            assert_eq!(prefixes.iter().filter(|other| other.starts_with(prefix)).count(), 1, "{prefix}");
        }
    }
}
