//! A node's tags by hand: of each tag operators say that it is assigned, or that it is unassigned.
//!
//! The two sets are stored apart and owned as one map: to say one of them takes back the other. So who says the other one is in conflict, as
//! who says another value of a label is.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::body::is_null;
use super::super::declared::{declared_tags, taken_away_tags};
use super::super::error::BodyError;
use super::super::parts::WrittenTags;
use super::super::reader;
use crate::json::members;
use crate::name::TagName;
use crate::object::NodeTags;
use crate::ownership::{Entry, Intent, OwnedMap, OwnedSet, Said};

/// What is said of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::manifest) enum ByHand {
    /// The node has it, whatever its roles.
    Assigned,
    /// The node has it not, though a role produces it.
    Unassigned,
}

/// Reads the tags of a body. `null` of all, or of one set, says that there are none where the author takes back by it, and nothing elsewhere.
pub(super) fn read(raw: &RawValue, takes_back: bool) -> Result<WrittenTags, BodyError> {
    let none = || takes_back.then(Vec::new);
    if is_null(raw) {
        return Ok(WrittenTags { assigned: none(), unassigned: none() });
    }
    let WrittenTags { assigned, unassigned } = reader::read(raw)?;
    let named = members(raw).unwrap_or_default();
    let none_of = |set: &str| none().filter(|_| named.iter().any(|(name, one)| name == set && is_null(one)));
    let sent = WrittenTags {
        assigned: assigned.or_else(|| none_of("assigned")),
        unassigned: unassigned.or_else(|| none_of("unassigned")),
    };
    let is_unassigned = |tag: &TagName| sent.unassigned.iter().flatten().any(|other| other == tag);
    let both = sent.assigned.iter().flatten().find(|tag| is_unassigned(tag)).cloned();
    match both {
        Some(tag) => {
            let why = format!("the tag '{tag}' can't be assigned and unassigned at once: name it in one of them");
            Err(BodyError::new("", why))
        }
        None => Ok(sent),
    }
}

/// Checks the names of tags that are sent, but for those that stand there.
pub(super) fn check_declared(sent: &WrittenTags, stood: &NodeTags) -> Result<(), BodyError> {
    let stands = |set: &OwnedSet<TagName>, tag: &TagName| set.members().any(|one| one == tag);
    let assigned = declared_tags(sent.assigned.iter().flatten(), |tag| stands(&stood.assigned, tag));
    assigned.map_err(|error| error.within("assigned"))?;
    let unassigned = taken_away_tags(sent.unassigned.iter().flatten(), |tag| stands(&stood.unassigned, tag));
    unassigned.map_err(|error| error.within("unassigned"))
}

/// What a body says of each tag. The set that it leaves out is as it stands where its author changes only what is named.
pub(super) fn intent(
    sent: WrittenTags,
    stood: &OwnedMap<TagName, ByHand>,
    keeps_unnamed: bool,
) -> Intent<TagName, ByHand> {
    let is_named = |said: &Said<ByHand>| match said {
        Said::Value(ByHand::Assigned) => sent.assigned.is_some(),
        Said::Value(ByHand::Unassigned) => sent.unassigned.is_some(),
        Said::Tombstone => true,
    };
    let kept = stood.iter().filter(|(_, entry)| keeps_unnamed && !is_named(&entry.said));
    let mut intent: Intent<TagName, ByHand> = kept.map(|(tag, entry)| (tag.clone(), entry.said)).collect();
    for (tags, said) in [(sent.assigned, ByHand::Assigned), (sent.unassigned, ByHand::Unassigned)] {
        intent.extend(tags.into_iter().flatten().map(|tag| (tag, Said::Value(said))));
    }
    intent
}

/// Both sets as one map. A node has no tag in both; of one that had, it would be assigned.
pub(in crate::manifest) fn by_hand(tags: &NodeTags) -> OwnedMap<TagName, ByHand> {
    let unassigned = said_of(&tags.unassigned, ByHand::Unassigned);
    OwnedMap::from_entries(unassigned.chain(said_of(&tags.assigned, ByHand::Assigned)))
}

/// Puts what is said of each tag back in its set.
pub(super) fn set_by_hand(tags: &mut NodeTags, said: &OwnedMap<TagName, ByHand>) {
    tags.assigned = set_of(said, ByHand::Assigned);
    tags.unassigned = set_of(said, ByHand::Unassigned);
}

fn said_of(set: &OwnedSet<TagName>, said: ByHand) -> impl Iterator<Item = (TagName, Entry<ByHand>)> {
    set.iter().map(move |(tag, entry)| (tag.clone(), with_said(entry, Said::Value(said))))
}

fn set_of(all: &OwnedMap<TagName, ByHand>, said: ByHand) -> OwnedSet<TagName> {
    let those = all.iter().filter(|(_, entry)| entry.said == Said::Value(said));
    OwnedMap::from_entries(those.map(|(tag, entry)| (tag.clone(), with_said(entry, Said::Value(())))))
}

/// The same owners, of something else.
fn with_said<A, B>(entry: &Entry<A>, said: Said<B>) -> Entry<B> {
    Entry { said, owners: Arc::clone(&entry.owners), since_ms: entry.since_ms }
}
