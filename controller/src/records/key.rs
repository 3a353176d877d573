//! Where what stands in the store: one place that knows the keys, so that a prefix can never mean two things.
//!
//! Text with slashes, and names last where they can be long. Uuids rather than names, so that a rename moves one
//! index entry and no history.

use std::fmt;

use stemma_core::object::Kind;
use stemma_wire::message::Hash;
use uuid::Uuid;

use crate::store::Revision;

/// Objects, by kind and uuid.
pub const OBJECTS: &str = "object/";
/// After-images, by kind, uuid and revision.
pub const HISTORY: &str = "history/";
/// Audit events, by revision.
pub const AUDIT: &str = "audit/";
/// Records of requests, by the uuid of the principal, or the name of who is none, and by key.
pub const REQUESTS: &str = "request/";
/// The last Observation of each node.
pub const OBSERVATIONS: &str = "observation/";
/// The last images of a node's Observations, by node and revision.
pub const OBSERVED: &str = "observed/";
/// What was released to each node.
pub const RELEASED: &str = "released/";
/// Profiles that released task sets name, by their hash.
pub const PROFILES: &str = "profile/";
/// Values that released task sets name, by their hash. Read before these, at a start and in a commit.
pub const COMMON: &str = "common/";
/// Parts of these, by their hash. Read before them.
pub const COMMON_PARTS: &str = "common-part/";
/// Chunks of large texts of values, by their hash. Read before all of these.
pub const COMMON_CHUNKS: &str = "common-chunk/";
/// Where each node stands with its tasks.
pub const RESULTS: &str = "result/";
/// The last Report of each node.
pub const REPORTS: &str = "report/";
/// What was said on a node's host itself, while something is.
pub const SAID: &str = "said/";
/// When a node's silence began or ended.
pub const SEEN: &str = "seen/";
/// What each node's host was told last: epoch and revision, and the digests of its parts. Stored before it is told, so that a host which holds a later one
/// was told it by another copy of the store.
pub const TOLD: &str = "told/";
/// Agents' records, by node. They outlive the node (see [`super::enrolled`]).
pub const AGENTS: &str = "agent/";
/// Whose each key of a certificate is, by the SHA-256 of the key.
pub const AGENT_KEYS: &str = "agent-key/";
/// Join tokens, by id.
pub const TOKENS: &str = "token/";
/// When each resource type was first named by a namespace of the catalogue, by its name. It stays when none names it any more.
pub const RESOURCE_TYPES: &str = "resource-type/";

/// To which revision the store had come when a record under [`TOLD`] was first written: hosts without one were told nothing later.
pub const TOLD_SINCE: &str = "told-since";
/// The epochs of the store, since the first one ended.
pub const EPOCH_LINE: &str = "epoch/line";
/// The last backup.
pub const LAST_BACKUP: &str = "backup/last";
/// When the controller's clock was believed last.
pub const CLOCK: &str = "clock/last";

/// Marks: entries without a value, of which only counts which revision wrote them.
pub const MARKS: [&str; 9] =
    ["referred/", "order/", "placed/", "fixed/", "allocated/", "instance/", "makers/", ADMINS, RULES];

/// Written by whoever takes an admin away, and required unchanged by it: so that no two take the last two away.
pub const ADMINS: &str = "admins/";

/// The prefixes of entries by node that go with their node: what it said and what it was told.
const OF_NODE: [&str; 7] = [OBSERVATIONS, SAID, RELEASED, RESULTS, REPORTS, SEEN, TOLD];

/// An object.
pub fn object(kind: Kind, uuid: Uuid) -> String {
    format!("{OBJECTS}{}/{uuid}", kind.word())
}

/// The prefix of an object's after-images.
pub fn history(kind: Kind, uuid: Uuid) -> String {
    format!("{HISTORY}{}/{uuid}/", kind.word())
}

/// Whose name it is; a group's name is its cluster's affair.
pub fn name(kind: Kind, scope: Option<Uuid>, name: &str) -> String {
    match scope {
        Some(scope) => format!("name/{}/{scope}/{name}", kind.word()),
        None => format!("name/{}//{name}", kind.word()),
    }
}

/// Written by whoever begins to refer to an object, and required unchanged by whoever deletes it: so that a
/// reference and a deletion can't pass each other, while any number of references can be made at once.
pub fn referred(kind: Kind, id: &dyn fmt::Display) -> String {
    format!("referred/{}/{id}", kind.word())
}

/// Written by whoever extends what stands in a cluster, and required unchanged by whoever counts on it: by a
/// write that places nodes there.
pub fn order(cluster: Uuid) -> String {
    format!("order/{cluster}")
}

/// Written by whoever places a node of a cluster, and required unchanged by whoever extends what stands there.
pub fn placed(cluster: Uuid) -> String {
    format!("placed/{cluster}")
}

/// Written with the first task set that was released with a version of a release, or with one that imports it: its content
/// is fixed from then on. Goes with the release.
pub fn fixed(release: &str) -> String {
    format!("fixed/{release}")
}

/// Written with each inspection rule, and required unchanged by whoever counts on what rules give a node.
pub const RULES: &str = "rules/";

/// An audit event.
pub fn audit(revision: Revision) -> Vec<u8> {
    [AUDIT.as_bytes(), &revision.to_key()].concat()
}

/// Written by each allocation of nodes of a class, and required unchanged by each: so that every one sees which nodes those before it
/// took, and all of them are made in turn.
pub fn allocated(resource_class: &str) -> String {
    format!("allocated/{resource_class}")
}

/// Written by whoever makes a node, or an allocation, that of an instance, and required unchanged by each: so that it is of one alone.
/// It goes with the last of them.
pub fn instance(uuid: Uuid) -> String {
    format!("instance/{uuid}")
}

/// Written with each join token of a principal, and required unchanged by whoever takes the principal or its rights away: so that no
/// token is made beside that.
pub fn maker(principal: Uuid) -> String {
    format!("makers/{principal}")
}

/// The record of a request: of a principal by its uuid, of who is none by name.
pub fn request(asked_by: &str, id: Uuid) -> String {
    format!("{REQUESTS}{asked_by}/{id}")
}

/// One node's entry under a prefix of entries by node.
pub fn of_node(prefix: &str, node: Uuid) -> String {
    format!("{prefix}{node}")
}

/// All entries of a node that go with it, but for the images of its Observations ([`observed`]).
pub fn all_of_node(node: Uuid) -> impl Iterator<Item = String> {
    OF_NODE.into_iter().map(move |prefix| of_node(prefix, node))
}

/// The prefix of the images of a node's Observations, which go with it too.
pub fn observed(node: Uuid) -> String {
    format!("{OBSERVED}{node}/")
}

/// A profile.
pub fn profile(hash: &Hash) -> String {
    format!("{PROFILES}{hash}")
}

/// The hash of a key under [`PROFILES`].
pub fn read_profile(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(PROFILES)?.parse().ok()
}

/// Values that released task sets name.
pub fn common(hash: &Hash) -> String {
    format!("{COMMON}{hash}")
}

/// The hash of a key under [`COMMON`].
pub fn read_common(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(COMMON)?.parse().ok()
}

/// A part of values that released task sets name.
pub fn common_part(hash: &Hash) -> String {
    format!("{COMMON_PARTS}{hash}")
}

/// The hash of a key under [`COMMON_PARTS`].
pub fn read_common_part(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(COMMON_PARTS)?.parse().ok()
}

/// A chunk of a large text of values.
pub fn common_chunk(hash: &Hash) -> String {
    format!("{COMMON_CHUNKS}{hash}")
}

/// The hash of a key under [`COMMON_CHUNKS`].
pub fn read_common_chunk(key: &[u8]) -> Option<Hash> {
    std::str::from_utf8(key).ok()?.strip_prefix(COMMON_CHUNKS)?.parse().ok()
}

/// What a key under [`OBJECTS`] names.
pub fn read_object(key: &[u8]) -> Option<(&str, Uuid)> {
    let (kind, uuid) = std::str::from_utf8(key).ok()?.strip_prefix(OBJECTS)?.split_once('/')?;
    Some((kind, uuid.parse().ok()?))
}

/// What of a key under [`HISTORY`] names the object, and the revision that it ends in.
pub fn read_image(key: &[u8]) -> Option<(&[u8], u64)> {
    let (object, revision) = key.strip_prefix(HISTORY.as_bytes())?.split_last_chunk::<8>()?;
    Some((object, u64::from_be_bytes(*revision)))
}

/// A key under [`HISTORY`], of what [`read_image`] gives.
pub fn image(object: &[u8], revision: u64) -> Vec<u8> {
    [HISTORY.as_bytes(), object, &revision.to_be_bytes()].concat()
}

/// Whose request the record at a key under [`REQUESTS`] is of.
pub fn read_request(key: &[u8]) -> Option<&[u8]> {
    let rest = key.strip_prefix(REQUESTS.as_bytes())?;
    let slash = rest.iter().rposition(|byte| *byte == b'/')?;
    Some(&rest[..slash])
}

/// A key of a mark.
pub fn read_mark(key: &[u8]) -> Option<&str> {
    let key = std::str::from_utf8(key).ok()?;
    MARKS.iter().any(|prefix| key.starts_with(prefix)).then_some(key)
}

/// A resource type.
pub fn resource_type(name: &str) -> String {
    format!("{RESOURCE_TYPES}{name}")
}

/// The name of a key under [`RESOURCE_TYPES`].
pub fn read_resource_type(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(RESOURCE_TYPES)
}

/// The token of a key under [`TOKENS`].
pub fn read_token(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(TOKENS)
}

/// The node of a key under a prefix of entries by node.
pub fn read_node(prefix: &str, key: &[u8]) -> Option<Uuid> {
    std::str::from_utf8(key).ok()?.strip_prefix(prefix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let uuid = Uuid::from_u128(7);
        assert_eq!(read_object(object(Kind::NodeGroup, uuid).as_bytes()), Some(("nodegroup", uuid)));
        assert_eq!(read_node(SEEN, of_node(SEEN, uuid).as_bytes()), Some(uuid));
        assert_eq!(read_object(b"object/node/no-uuid"), None);
        assert_eq!(read_profile(profile(&Hash([0xa5; 32])).as_bytes()), Some(Hash([0xa5; 32])));
        assert_eq!(read_profile(b"profile/a5"), None);
        assert_eq!(read_common(common(&Hash([0xa5; 32])).as_bytes()), Some(Hash([0xa5; 32])));
        assert_eq!(read_common_part(common_part(&Hash([0xa5; 32])).as_bytes()), Some(Hash([0xa5; 32])));
        assert_eq!(read_common_chunk(common_chunk(&Hash([0xa5; 32])).as_bytes()), Some(Hash([0xa5; 32])));
        assert!(
            [COMMON_CHUNKS, COMMON_PARTS, COMMON, RELEASED].is_sorted(),
            "the events of a commit are read in the order of their keys"
        );
        assert_eq!(read_node(SEEN, b"seen/\xff"), None);
        // A revision may hold a slash.
        let at = [history(Kind::Node, uuid).as_bytes(), &Revision::new(0x2f2f).to_key()].concat();
        let (object, revision) = read_image(&at).unwrap();
        assert_eq!((object, revision), (format!("node/{uuid}/").as_bytes(), 0x2f2f));
        assert_eq!(image(object, revision), at);
        assert_eq!(read_image(b"history/node"), None);
        assert_eq!(read_request(request("node/a", uuid).as_bytes()), Some(&b"node/a"[..]));
    }

    #[test]
    fn no_prefix_begins_with_another() {
        let all = [
            OBJECTS,
            HISTORY,
            AUDIT,
            REQUESTS,
            OBSERVATIONS,
            OBSERVED,
            RELEASED,
            PROFILES,
            COMMON,
            COMMON_PARTS,
            COMMON_CHUNKS,
            RESULTS,
            REPORTS,
            SAID,
            SEEN,
            TOLD,
            AGENTS,
            AGENT_KEYS,
            TOKENS,
            RESOURCE_TYPES,
            TOLD_SINCE,
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
