//! The map that one level provides, and whether it merges with the inherited one.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::field::parse_boolean;
use crate::name::truncated;
use crate::ownership::OwnedMap;

/// Maximum number of keys of one level, including tombstones.
pub const MAX_KEYS: usize = 256;

/// The map of one level. A map that was never provided differs from an empty one, even after the last key was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Ord + Deserialize<'de>, V: Deserialize<'de>"))]
pub struct Layer<K, V> {
    /// The entries that authors wrote. `None` if nothing was ever provided, so that the inherited map applies
    /// unchanged.
    pub provided: Option<OwnedMap<K, V>>,
    /// The stored `merge_labels`. `None` if it was never set and nothing was provided yet. Never set for annotations
    /// and parameters, which always merge.
    pub merge: Option<bool>,
}

/// The kind of a write's body, which decides the default of `merge_labels`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyShape {
    /// The POST of a cluster or node group, as Magnum's clients send it. The default is false.
    Magnum,
    /// Any other write. The default is true.
    Native,
}

/// A level provides more than [`MAX_KEYS`] keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a level may have at most {MAX_KEYS} keys, this one has {count}")]
pub struct TooManyKeys {
    /// Number of keys.
    pub count: usize,
}

/// `merge_labels` is not a boolean.
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
    /// Returns whether the provided map merges with the inherited one. This is the default.
    pub fn is_merging(&self) -> bool {
        self.merge.unwrap_or(true)
    }

    /// Returns whether the level hides everything above it: it provides a map, even an empty one, and does not merge.
    pub fn is_replacing(&self) -> bool {
        self.provided.is_some() && !self.is_merging()
    }

    /// Checks the number of keys.
    ///
    /// # Errors
    /// [`TooManyKeys`].
    pub fn check_key_count(&self) -> Result<(), TooManyKeys> {
        let count = self.provided.as_ref().map_or(0, OwnedMap::len);
        if count > MAX_KEYS { Err(TooManyKeys { count }) } else { Ok(()) }
    }

    /// Returns whether the levels above can decide a key below this level. They can if this level merges and does not
    /// decide the key itself. If it does not merge, they can still prevent that a rule or host fills the key. So
    /// `is_filled` returns whether one has a value for the key.
    pub fn is_inherited(&self, key: &K, is_filled: impl FnOnce() -> bool) -> bool {
        let Some(provided) = &self.provided else { return true };
        let is_decided = provided.get(key).is_some_and(|entry| self.is_merging() || !entry.value.is_tombstone());
        !is_decided && (self.is_merging() || is_filled())
    }

    /// Returns the tombstones that have no effect because the level does not merge. They are stored, and each is a
    /// finding.
    pub fn ineffective_tombstones(&self) -> impl Iterator<Item = &K> {
        let provided = self.provided.iter().filter(|_| !self.is_merging());
        provided.flat_map(OwnedMap::iter).filter(|(_, entry)| entry.value.is_tombstone()).map(|(key, _)| key)
    }
}

/// Returns `merge_labels` after a write. `stored` is the stored value, `sent` the value in the write. `provides` is
/// true if the write provides labels.
///
/// A sent value applies. Without a sent value, the stored value remains. If neither exists, the first write that
/// provides labels sets the value: to false for a Magnum body, to true for any other.
pub fn merge_after(stored: Option<bool>, sent: Option<bool>, provides: bool, shape: BodyShape) -> Option<bool> {
    sent.or(stored).or_else(|| provides.then_some(shape == BodyShape::Native))
}

/// Reads `merge_labels` as Magnum's API does: a boolean, 0 or 1, or a word for one. `null` counts as not sent.
///
/// # Errors
/// [`InvalidMerge`] for anything else (upstream answers 500).
pub fn read_merge(raw: &RawValue) -> Result<Option<bool>, InvalidMerge> {
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
    fn merge_after_depends_on_body_shape_and_stored_value() {
        use BodyShape::{Magnum, Native};
        for (stored, sent, provides, shape, after) in [
            (None, None, false, Magnum, None),
            (None, None, true, Magnum, Some(false)),
            (None, None, true, Native, Some(true)),
            (None, Some(true), false, Magnum, Some(true)),
            (Some(false), None, true, Native, Some(false)),
            (Some(false), Some(true), true, Native, Some(true)),
            (Some(true), None, true, Magnum, Some(true)),
        ] {
            assert_eq!(merge_after(stored, sent, provides, shape), after, "{stored:?} {sent:?} {provides} {shape:?}");
        }
    }

    #[test]
    fn key_is_inherited_when_level_has_no_entry() {
        let layer = |merge, said: Option<&str>| {
            let intent = said.map(|value| {
                let said = ProvidedValue::from((value != "-").then(|| LabelValue::new(value).unwrap()));
                (LabelKey::new("a").unwrap(), said)
            });
            let provided = OwnedMap::default().apply(&Manager::new("m").unwrap(), &intent.into_iter().collect(), false);
            LabelLayer { provided: Some(provided.unwrap()), merge: Some(merge) }
        };
        let key = LabelKey::new("a").unwrap();
        for (layer, is_filled, inherits) in [
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
            assert_eq!(layer.is_inherited(&key, || is_filled), inherits, "{layer:?} {is_filled}");
        }
    }

    #[test]
    fn read_merge_accepts_words_of_magnum() {
        for (sent, read) in [
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
            assert_eq!(read_merge(&raw).ok(), read, "{sent}");
        }
    }
}
