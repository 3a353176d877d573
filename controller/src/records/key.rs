//! The keys of the store. All of them are defined here, so that no prefix has two meanings.
//!
//! Keys are text with slashes. They contain uuids instead of names, so that a rename changes one index entry and no
//! history. In the few keys that contain a name, the name comes last, because it can be long.

use std::fmt;

use stemma_core::object::Kind;
use stemma_wire::message::Hash;
use uuid::Uuid;

use crate::store::Revision;

/// Objects, by kind and uuid.
pub const OBJECTS: &str = "object/";
/// Images of objects after each change, by kind, uuid and revision.
pub const HISTORY: &str = "history/";
/// Audit events, by revision.
pub const AUDIT: &str = "audit/";
/// Records of requests, by the uuid of the principal and by request key. A caller that is not a principal is identified
/// by name.
pub const REQUESTS: &str = "request/";
/// The last Observation of each node.
pub const OBSERVATIONS: &str = "observation/";
/// The latest images of a node's Observations, by node and revision.
pub const OBSERVATION_IMAGES: &str = "observed/";
/// The task set that was released to each node.
pub const RELEASED: &str = "released/";
/// Profiles that released task sets refer to, by their hash.
pub const PROFILES: &str = "profile/";
/// Common values that released task sets refer to, by their hash. Read before the task sets, at a start and in a
/// commit.
pub const COMMON_VALUES: &str = "common/";
/// Parts of common values, by their hash. Read before the common values.
pub const COMMON_PARTS: &str = "common-part/";
/// Chunks of large texts of common values, by their hash. Read before the common values and their parts.
pub const COMMON_CHUNKS: &str = "common-chunk/";
/// The task results of each node.
pub const RESULTS: &str = "result/";
/// The last Report of each node.
pub const REPORTS: &str = "report/";
/// The state that was set on a node's host itself, such as a hold. Absent if there is none.
pub const REPORTED_STATES: &str = "said/";
/// The time at which a node's silence began or ended.
pub const LIVENESS: &str = "seen/";
/// The state last sent to each node's host: epoch and revision, and the digests of its parts. It is stored before it is
/// sent. So a host that holds a later state received it from another copy of the store.
pub const SENT_STATES: &str = "told/";
/// Agents' records, by node. They outlive the node (see [`super::enrolled`]).
pub const AGENTS: &str = "agent/";
/// The owner of each certificate key, by the SHA-256 of the key.
pub const AGENT_KEYS: &str = "agent-key/";
/// Join tokens, by id.
pub const TOKENS: &str = "token/";
/// The time at which a namespace of the catalogue first named a resource type, by its name. The entry stays when no
/// namespace names the type any more.
pub const RESOURCE_TYPES: &str = "resource-type/";

/// The revision of the store when the first record under [`SENT_STATES`] was written. A host without such a record was
/// sent nothing later.
pub const SENT_SINCE: &str = "told-since";
/// The history of the store's epochs. Absent until the first epoch has ended.
pub const EPOCH_LINE: &str = "epoch/line";
/// The last backup.
pub const LAST_BACKUP: &str = "backup/last";
/// The last time at which the controller's clock was trusted.
pub const CLOCK: &str = "clock/last";

/// The prefixes of marks. A mark is an entry without a value that orders writes of different objects: a write that
/// needs something unchanged requires that the revision of its mark is unchanged.
pub const MARKS: [&str; 9] = ["referred/", "order/", "placed/", "fixed/", "allocated/", "instance/", "makers/", ADMINS, RULES];

/// The key of a mark that is written by every write that removes an admin, and required unchanged by such a write. So
/// two concurrent writes cannot remove the last two admins.
pub const ADMINS: &str = "admins/";

/// The prefixes of entries by node that are deleted with the node: what its host reported and what it was sent.
const NODE_PREFIXES: [&str; 7] = [OBSERVATIONS, REPORTED_STATES, RELEASED, RESULTS, REPORTS, LIVENESS, SENT_STATES];

/// Returns the key of an object.
pub fn object(kind: Kind, uuid: Uuid) -> String {
    format!("{OBJECTS}{}/{uuid}", kind.word())
}

/// Returns the prefix of an object's images in the history.
pub fn history(kind: Kind, uuid: Uuid) -> String {
    format!("{HISTORY}{}/{uuid}/", kind.word())
}

/// Returns the key of the entry that names the owner of a name. The name of a group is unique within its cluster, the
/// `scope`.
pub fn name(kind: Kind, scope: Option<Uuid>, name: &str) -> String {
    match scope {
        Some(scope) => format!("name/{}/{scope}/{name}", kind.word()),
        None => format!("name/{}//{name}", kind.word()),
    }
}

/// Returns the key of a mark that is written by every write that adds a reference to an object, and required unchanged
/// by the write that deletes the object. So no reference to a deleted object can arise, while any number of references
/// can be added concurrently.
pub fn reference_mark(kind: Kind, id: &dyn fmt::Display) -> String {
    format!("referred/{}/{id}", kind.word())
}

/// Returns the key of a mark that is written by every write that extends a cluster, as `registry::work::order` defines
/// it. It is required unchanged by every write that relies on the cluster's tasks: one that places nodes there.
pub fn order_mark(cluster: Uuid) -> String {
    format!("order/{cluster}")
}

/// Returns the key of a mark that is written by every write that places a node in a cluster, and required unchanged by
/// every write that extends the cluster.
pub fn placement_mark(cluster: Uuid) -> String {
    format!("placed/{cluster}")
}

/// Returns the key of a mark that is written with the first released task set that uses a version of a release,
/// directly or through an import. From then on, the content of that version is fixed. The mark is deleted with the
/// release.
pub fn pin_mark(release: &str) -> String {
    format!("fixed/{release}")
}

/// The key of a mark that is written with each inspection rule, and required unchanged by every write that relies on
/// what the rules give a node.
pub const RULES: &str = "rules/";

/// Returns the key of an audit event.
pub fn audit(revision: Revision) -> Vec<u8> {
    [AUDIT.as_bytes(), &revision.to_key()].concat()
}

/// Returns the key of a mark that is written and required unchanged by each allocation of nodes of a class. So these
/// allocations are created one after the other, and each sees which nodes the earlier ones took.
pub fn allocation_mark(resource_class: &str) -> String {
    format!("allocated/{resource_class}")
}

/// Returns the key of a mark that is written by every write that gives an instance to a node or an allocation, and
/// required unchanged by it. So concurrent writes cannot give one instance to two nodes. The mark is deleted
/// when no node and no allocation has the instance any more.
pub fn instance_mark(uuid: Uuid) -> String {
    format!("instance/{uuid}")
}

/// Returns the key of a mark that is written with each join token of a principal, and required unchanged by every write
/// that deletes the principal or changes its rights. So no token is created concurrently with such a write.
pub fn maker_mark(principal: Uuid) -> String {
    format!("makers/{principal}")
}

/// Returns the key of the record of a request. `requester` is the uuid of the principal, or the name of a caller that
/// is not one.
pub fn request(requester: &str, id: Uuid) -> String {
    format!("{REQUESTS}{requester}/{id}")
}

/// Returns the key of a node's entry under a prefix of entries by node.
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

/// Returns the key of a profile.
pub fn profile(hash: &Hash) -> String {
    format!("{PROFILES}{hash}")
}

/// Returns the hash of a key under [`PROFILES`].
pub fn read_profile(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(PROFILES)?.parse().ok()
}

/// Returns the key of common values.
pub fn common_values(hash: &Hash) -> String {
    format!("{COMMON_VALUES}{hash}")
}

/// Returns the hash of a key under [`COMMON_VALUES`].
pub fn read_common_values(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(COMMON_VALUES)?.parse().ok()
}

/// Returns the key of a part of common values.
pub fn common_part(hash: &Hash) -> String {
    format!("{COMMON_PARTS}{hash}")
}

/// Returns the hash of a key under [`COMMON_PARTS`].
pub fn read_common_part(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(COMMON_PARTS)?.parse().ok()
}

/// Returns the key of a chunk of a large text.
pub fn common_chunk(hash: &Hash) -> String {
    format!("{COMMON_CHUNKS}{hash}")
}

/// Returns the hash of a key under [`COMMON_CHUNKS`].
pub fn read_common_chunk(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(COMMON_CHUNKS)?.parse().ok()
}

/// Returns the kind and the uuid of a key under [`OBJECTS`].
pub fn read_object(key: &[u8]) -> Option<(&str, Uuid)> {
    let (kind, uuid) = std::str::from_utf8(key).ok()?.strip_prefix(OBJECTS)?.split_once('/')?;
    Some((kind, uuid.parse().ok()?))
}

/// Splits a key under [`HISTORY`] into the bytes that identify the object and the revision at its end.
pub fn read_image(key: &[u8]) -> Option<(&[u8], u64)> {
    let (object, revision) = key.strip_prefix(HISTORY.as_bytes())?.split_last_chunk::<8>()?;
    Some((object, u64::from_be_bytes(*revision)))
}

/// Returns the key under [`HISTORY`] for the values that [`read_image`] returns.
pub fn image(object: &[u8], revision: u64) -> Vec<u8> {
    [HISTORY.as_bytes(), object, &revision.to_be_bytes()].concat()
}

/// Returns the uuid or name of the caller in a key under [`REQUESTS`].
pub fn read_request(key: &[u8]) -> Option<&[u8]> {
    let rest = key.strip_prefix(REQUESTS.as_bytes())?;
    let slash = rest.iter().rposition(|byte| *byte == b'/')?;
    Some(&rest[..slash])
}

/// Returns the key as text if it is the key of a mark.
pub fn read_mark(key: &[u8]) -> Option<&str> {
    let key = std::str::from_utf8(key).ok()?;
    MARKS.iter().any(|prefix| key.starts_with(prefix)).then_some(key)
}

/// Returns the key of a resource type.
pub fn resource_type(name: &str) -> String {
    format!("{RESOURCE_TYPES}{name}")
}

/// Returns the name in a key under [`RESOURCE_TYPES`].
pub fn read_resource_type(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(RESOURCE_TYPES)
}

/// Returns the token's id in a key under [`TOKENS`].
pub fn read_token(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(TOKENS)
}

/// Returns the node of a key under a prefix of entries by node.
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
        let at = [history(Kind::Node, uuid).as_bytes(), &Revision::new(0x2f2f).to_key()].concat();
        let (object, revision) = read_image(&at).unwrap();
        assert_eq!((object, revision), (format!("node/{uuid}/").as_bytes(), 0x2f2f));
        assert_eq!(image(object, revision), at);
        assert_eq!(read_image(b"history/node"), None);
        assert_eq!(read_request(request("node/a", uuid).as_bytes()), Some(&b"node/a"[..]));
    }

    #[test]
    fn key_prefixes_are_prefix_free() {
        let all = [
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
        for one in all {
            assert_eq!(all.iter().filter(|other| other.starts_with(one)).count(), 1, "{one}");
        }
    }
}
