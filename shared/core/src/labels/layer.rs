//! What one level provides, and whether it merges with what comes from above.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::field::truth;
use crate::name::cut;
use crate::ownership::OwnedMap;

/// How many keys one level may provide, tombstones among them.
pub const MAX_KEYS: usize = 256;

/// A level's own map. Not provided and provided empty differ, also after the last key was taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Ord + Deserialize<'de>, V: Deserialize<'de>"))]
pub struct Layer<K, V> {
    /// What its authors wrote; `None`: nothing was ever provided, so the parent's map holds.
    pub provided: Option<OwnedMap<K, V>>,
    /// `merge_labels` as it is stored; `None`: nobody said, and nothing was provided yet. Never set for
    /// annotations and parameters, which always merge.
    pub merge: Option<bool>,
}

/// What kind of body a write came in, which decides what `merge_labels` left out means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyShape {
    /// The POST of a cluster or node group, as Magnum's clients send it: left out is false.
    Magnum,
    /// Any other write: left out is true.
    Own,
}

/// A level provides more than [`MAX_KEYS`] keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("one level has at most {MAX_KEYS} keys, this one {count}")]
pub struct TooManyKeys {
    /// How many.
    pub count: usize,
}

/// `merge_labels` is no boolean.
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
    /// Whether what is provided merges with the parent's.
    pub fn merges(&self) -> bool {
        self.merge.unwrap_or(true)
    }

    /// Whether nothing comes through it from above: it provides a map, be it empty, and does not merge.
    pub fn replaces(&self) -> bool {
        self.provided.is_some() && !self.merges()
    }

    /// Checks the limit of keys.
    ///
    /// # Errors
    /// [`TooManyKeys`].
    pub fn check(&self) -> Result<(), TooManyKeys> {
        let count = self.provided.as_ref().map_or(0, OwnedMap::len);
        if count > MAX_KEYS { Err(TooManyKeys { count }) } else { Ok(()) }
    }

    /// Whether what the levels above say of a key decides what it is below this one. It does if this level does not speak for
    /// the key itself, and either merges or has something beside the levels that fills the key while none of them speaks for it.
    pub fn inherits(&self, key: &K, is_filled: impl FnOnce() -> bool) -> bool {
        let Some(provided) = &self.provided else { return true };
        let speaks = provided.get(key).is_some_and(|entry| self.merges() || !entry.said.is_tombstone());
        !speaks && (self.merges() || is_filled())
    }

    /// Tombstones without effect, since the level does not merge: stored all the same, and a finding each.
    pub fn idle_tombstones(&self) -> impl Iterator<Item = &K> {
        let provided = self.provided.iter().filter(|_| !self.merges());
        provided.flat_map(OwnedMap::iter).filter(|(_, entry)| entry.said.is_tombstone()).map(|(key, _)| key)
    }
}

/// What `merge_labels` is after a write, from what is stored, what was sent, and the body's shape.
///
/// What was sent holds. Left out, a stored value stays as it is; where none is stored, the first write that
/// provides labels sets it, to false in a Magnum-shaped body and to true in any other.
pub fn merge_after(stored: Option<bool>, sent: Option<bool>, provides: bool, shape: BodyShape) -> Option<bool> {
    sent.or(stored).or_else(|| provides.then_some(shape == BodyShape::Own))
}

/// Reads `merge_labels` as Magnum's API does: a boolean, 0 or 1, or a word for one; `null` is left out.
///
/// # Errors
/// [`InvalidMerge`] for anything else (upstream answers 500).
pub fn read_merge(raw: &RawValue) -> Result<Option<bool>, InvalidMerge> {
    let wrong = || InvalidMerge { found: cut(raw.get()) };
    let word = match raw.get().as_bytes().first() {
        Some(b'n') => return Ok(None),
        Some(b'"') => serde_json::from_str::<String>(raw.get()).map_err(|_| wrong())?,
        _ => raw.get().to_owned(),
    };
    truth(&word).map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{LabelKey, LabelValue};
    use crate::labels::LabelLayer;
    use crate::ownership::{Manager, Said};

    #[test]
    fn merge_left_out_depends_on_the_body_and_on_what_is_stored() {
        use BodyShape::{Magnum, Own};
        for (stored, sent, provides, shape, after) in [
            (None, None, false, Magnum, None),
            (None, None, true, Magnum, Some(false)),
            (None, None, true, Own, Some(true)),
            (None, Some(true), false, Magnum, Some(true)),
            (Some(false), None, true, Own, Some(false)),
            (Some(false), Some(true), true, Own, Some(true)),
            (Some(true), None, true, Magnum, Some(true)),
        ] {
            assert_eq!(merge_after(stored, sent, provides, shape), after, "{stored:?} {sent:?} {provides} {shape:?}");
        }
    }

    #[test]
    fn a_key_comes_from_above_where_its_level_leaves_it_alone() {
        let layer = |merge, said: Option<&str>| {
            let intent = said.map(|value| {
                let said = Said::from((value != "-").then(|| LabelValue::new(value).unwrap()));
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
            assert_eq!(layer.inherits(&key, || is_filled), inherits, "{layer:?} {is_filled}");
        }
    }

    #[test]
    fn the_flag_is_read_as_magnum_reads_it() {
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
