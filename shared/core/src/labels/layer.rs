//! The map that one level provides, and the decision whether the map is merged into the inherited map.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::field::parse_boolean;
use crate::name::truncated;
use crate::ownership::OwnedMap;

/// Maximum number of keys in one map (labels, annotations or parameters) of one level, including tombstones.
pub const MAX_KEYS: usize = 256;

/// The map (labels, annotations or parameters) that one level provides. An empty map, for example after the last key
/// was removed, differs from a map that was never provided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Ord + Deserialize<'de>, V: Deserialize<'de>"))]
pub struct Layer<K, V> {
    /// The entries that authors wrote. `None` if nothing was provided yet, or a write removed the whole map, so that
    /// the inherited map applies unchanged.
    pub provided: Option<OwnedMap<K, V>>,
    /// The stored value of `merge_labels`. `None` if no labels were provided and no write set the value, or if a write
    /// unset it. Always `None` for annotations and parameters, which always merge.
    pub merge: Option<bool>,
}

/// The form of the body of a write. It determines the default of `merge_labels`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyShape {
    /// The body of a POST that creates a cluster or node group. Clients of Magnum send such a POST, so the default of
    /// `merge_labels` is that of Magnum: false.
    Magnum,
    /// The body of any other write. The default of `merge_labels` is true.
    Native,
}

/// The error if one map (labels, annotations or parameters) of a level has more than [`MAX_KEYS`] keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a level may have at most {MAX_KEYS} keys, this one has {count}")]
pub struct TooManyKeys {
    /// Number of keys.
    pub count: usize,
}

/// The error for a `merge_labels` that is not a boolean.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("merge_labels is true or false (or one of 1 t on y yes, 0 f off n no), not {found}")]
pub struct InvalidMerge {
    /// The JSON text that was sent, cut at 64 characters.
    pub found: String,
}

impl<K, V> Default for Layer<K, V> {
    fn default() -> Self {
        Self { provided: None, merge: None }
    }
}

impl<K: Ord, V> Layer<K, V> {
    /// Returns whether the provided map is merged into the inherited map. The default is `true`.
    pub fn is_merging(&self) -> bool {
        self.merge.unwrap_or(true)
    }

    /// Returns whether the level hides the maps of all levels above. This is the case if the level does not merge and
    /// provides a map, even an empty map.
    pub fn is_replacing(&self) -> bool {
        self.provided.is_some() && !self.is_merging()
    }

    /// Checks the number of keys in this map, including tombstones.
    ///
    /// # Errors
    /// [`TooManyKeys`] if the map has more than [`MAX_KEYS`] keys.
    pub fn check_key_count(&self) -> Result<(), TooManyKeys> {
        let count = self.provided.as_ref().map_or(0, OwnedMap::len);
        if count > MAX_KEYS { Err(TooManyKeys { count }) } else { Ok(()) }
    }

    /// Returns whether an entry of a level above can change the effective value of a key on hosts below this level.
    /// `is_filled` returns whether an inspection rule or the host has a value for the key.
    ///
    /// An entry above has no effect if this level has a value for the key, or if this level merges and has a tombstone
    /// for the key. Otherwise a level that merges inherits the entry. A level that does not merge inherits nothing, but
    /// the entry above prevents that a rule or the host fills the key.
    pub fn is_inherited(&self, key: &K, is_filled: impl FnOnce() -> bool) -> bool {
        let Some(provided) = &self.provided else { return true };
        let is_decided = provided.get(key).is_some_and(|entry| self.is_merging() || !entry.value.is_tombstone());
        !is_decided && (self.is_merging() || is_filled())
    }

    /// Returns the keys whose tombstones have no effect, because the level does not merge and so inherits nothing.
    /// These tombstones are stored, and each causes a finding.
    pub fn ineffective_tombstones(&self) -> impl Iterator<Item = &K> {
        let provided = self.provided.iter().filter(|_| !self.is_merging());
        provided.flat_map(OwnedMap::iter).filter(|(_, entry)| entry.value.is_tombstone()).map(|(key, _)| key)
    }
}

/// Returns the value of `merge_labels` after a write. `stored` is the stored value, and `sent` is the value in the
/// write. `provides` is true if the level provides labels after the write.
///
/// A sent value is stored. Without a sent value, the stored value remains. If neither exists and `provides` is true,
/// the value becomes false for a Magnum body, and true for any other body.
pub fn merge_labels_after_write(stored: Option<bool>, sent: Option<bool>, provides: bool, shape: BodyShape) -> Option<bool> {
    sent.or(stored).or_else(|| provides.then_some(shape == BodyShape::Native))
}

/// Parses `merge_labels` as Magnum's API does: a boolean, 0 or 1, or a word for a boolean such as `yes`. `null` is
/// treated as not sent, and returns `None`.
///
/// # Errors
/// [`InvalidMerge`] for any other value. (Magnum answers such a value with status 500.)
pub fn parse_merge_labels(raw: &RawValue) -> Result<Option<bool>, InvalidMerge> {
    let invalid = || InvalidMerge { found: truncated(raw.get()) };
    let word = match raw.get().as_bytes().first() {
        Some(b'n') => return Ok(None),
        Some(b'"') => serde_json::from_str::<String>(raw.get()).map_err(|_| invalid())?,
        _ => raw.get().to_owned(),
    };
    parse_boolean(&word).map(Some).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{LabelKey, LabelValue};
    use crate::labels::LabelLayer;
    use crate::ownership::{Manager, ProvidedValue};

    #[test]
    fn merge_labels_after_write_prefers_sent_then_stored_value() {
        use BodyShape::{Magnum, Native};
        for (stored, sent, provides_labels, shape, expected) in [
            (None, None, false, Magnum, None),
            (None, None, true, Magnum, Some(false)),
            (None, None, true, Native, Some(true)),
            (None, Some(true), false, Magnum, Some(true)),
            (Some(false), None, true, Native, Some(false)),
            (Some(false), Some(true), true, Native, Some(true)),
            (Some(true), None, true, Magnum, Some(true)),
        ] {
            assert_eq!(
                merge_labels_after_write(stored, sent, provides_labels, shape),
                expected,
                "{stored:?} {sent:?} {provides_labels} {shape:?}"
            );
        }
    }

    #[test]
    fn is_inherited_depends_on_merge_entry_and_fill() {
        // In this test, the entry `-` stands for a tombstone.
        let layer = |merge, entry: Option<&str>| {
            let intent = entry.map(|value| {
                let entry = ProvidedValue::from((value != "-").then(|| LabelValue::new(value).unwrap()));
                (LabelKey::new("a").unwrap(), entry)
            });
            let provided = OwnedMap::default().apply(&Manager::new("m").unwrap(), &intent.into_iter().collect(), false);
            LabelLayer { provided: Some(provided.unwrap()), merge: Some(merge) }
        };
        let key = LabelKey::new("a").unwrap();
        for (layer, is_filled, expected) in [
            (LabelLayer::default(), false, true),
            (layer(true, None), false, true),
            (layer(true, Some("1")), true, false),
            (layer(true, Some("-")), true, false),
            (layer(false, None), false, false),
            (layer(false, None), true, true),
            (layer(false, Some("1")), true, false),
            (layer(false, Some("-")), true, true),
            (layer(false, Some("-")), false, false),
        ] {
            assert_eq!(layer.is_inherited(&key, || is_filled), expected, "{layer:?} {is_filled}");
        }
    }

    /// `Some(None)` is expected for a value that counts as not sent, and `None` for an error.
    #[test]
    fn parse_merge_labels_accepts_only_booleans_of_magnum() {
        for (sent, expected) in [
            ("true", Some(Some(true))),
            ("\" Yes \"", Some(Some(true))),
            ("1", Some(Some(true))),
            ("\"off\"", Some(Some(false))),
            ("null", Some(None)),
            ("2", None),
            ("\"\"", None),
            ("[]", None),
            ("{}", None),
            ("1.0", None),
        ] {
            let raw: Box<RawValue> = serde_json::from_str(sent).unwrap();
            assert_eq!(parse_merge_labels(&raw).ok(), expected, "{sent}");
        }
    }
}
