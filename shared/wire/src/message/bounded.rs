//! Deserializers for collections and texts that fail as soon as a bound is exceeded (S50).
//!
//! postcard does not limit how much memory a message needs. An empty `Vec` is one byte on the wire and 24 bytes in
//! memory, and serde reserves up to a mebibyte for a length before any entry has arrived. The functions here compare a
//! length with its bound before they store anything, and reserve space for a few entries at most.
//!
//! Used as `#[serde(deserialize_with = "bounded::list::<_, _, 64>")]`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Maximum number of entries for which a list reserves memory before the entries arrive.
const MAX_RESERVED_ENTRIES: usize = 16;

/// Deserializes a list of at most `N` entries. Fails on a longer list.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(ListVisitor::<T, N>(PhantomData))
}

/// Deserializes a map of at most `N` entries. Fails on a larger map, or on a duplicate key.
pub(super) fn map<'de, D, K, V, const N: usize>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
{
    deserializer.deserialize_map(MapVisitor::<K, V, N>(PhantomData))
}

/// Deserializes a byte string of at most `N` bytes. Fails on a longer one.
pub(super) fn bytes<'de, D: Deserializer<'de>, const N: usize>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_bytes(BytesVisitor::<N>)
}

/// Deserializes an optional byte string of at most `N` bytes. Fails on a longer one.
pub(super) fn maybe_bytes<'de, D: Deserializer<'de>, const N: usize>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    Ok(Option::<BoundedBytes<N>>::deserialize(deserializer)?.map(|bytes| bytes.0))
}

/// Deserializes a certificate chain: at most three certificates of at most 4 KiB each.
pub(super) fn chain<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Vec<u8>>, D::Error> {
    let chain = list::<_, BoundedBytes<{ crate::tls::MAX_CERTIFICATE_BYTES }>, { crate::tls::MAX_CHAIN_CERTIFICATES }>(input)?;
    Ok(chain.into_iter().map(|certificate| certificate.0).collect())
}

/// Deserializes a text of at most `N` bytes. Fails on a longer one.
pub(super) fn text<'de, D: Deserializer<'de>, const N: usize>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_str(TextVisitor::<N>)
}

/// A byte string of at most `N` bytes, for use as the entry of a list or the value of an option.
struct BoundedBytes<const N: usize>(Vec<u8>);

impl<'de, const N: usize> Deserialize<'de> for BoundedBytes<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bytes::<_, N>(deserializer).map(Self)
    }
}

/// The visitor of [`list()`], which fails on more than `N` entries.
struct ListVisitor<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for ListVisitor<T, N> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} entries")
    }

    /// Collects the entries of a list. If the declared length exceeds `N`, fails before the first entry is read. A
    /// format without a declared length fails at the entry after the `N`th.
    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
        let declared_length = entries.size_hint().unwrap_or(0);
        if declared_length > N {
            return Err(A::Error::invalid_length(declared_length, &self));
        }
        let mut list = Vec::with_capacity(declared_length.min(MAX_RESERVED_ENTRIES));
        while let Some(entry) = entries.next_element()? {
            if list.len() == N {
                return Err(A::Error::invalid_length(N + 1, &self));
            }
            list.push(entry);
        }
        Ok(list)
    }
}

/// The visitor of [`map()`], which fails on more than `N` entries, or on a duplicate key.
struct MapVisitor<K, V, const N: usize>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>, const N: usize> Visitor<'de> for MapVisitor<K, V, N> {
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} entries, each key once")
    }

    /// Collects the entries of a map. If the declared length exceeds `N`, fails before the first entry is read. Also
    /// fails at the entry after the `N`th, and at a duplicate key.
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<BTreeMap<K, V>, A::Error> {
        let declared_length = entries.size_hint().unwrap_or(0);
        if declared_length > N {
            return Err(A::Error::invalid_length(declared_length, &self));
        }
        let mut map = BTreeMap::new();
        while let Some((key, value)) = entries.next_entry()? {
            if map.len() == N || map.insert(key, value).is_some() {
                return Err(A::Error::invalid_length(map.len() + 1, &self));
            }
        }
        Ok(map)
    }
}

/// The visitor of [`bytes()`], which fails on more than `N` bytes.
struct BytesVisitor<const N: usize>;

impl<const N: usize> Visitor<'_> for BytesVisitor<N> {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        if bytes.len() > N { Err(E::invalid_length(bytes.len(), &self)) } else { Ok(bytes.to_vec()) }
    }
}

/// The visitor of [`text()`], which fails on more than `N` bytes.
struct TextVisitor<const N: usize>;

impl<const N: usize> Visitor<'_> for TextVisitor<N> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {N} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() > N { Err(E::invalid_length(text.len(), &self)) } else { Ok(text.to_owned()) }
    }
}
