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

/// Maximum number of entries for which space is reserved before they arrive.
const MAX_RESERVED_ENTRIES: usize = 16;

/// Deserializes a list of at most `N` entries.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(ListVisitor::<T, N>(PhantomData))
}

/// Deserializes a map of at most `N` entries. Fails on a duplicate key.
pub(super) fn map<'de, D, K, V, const N: usize>(from: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
{
    from.deserialize_map(MapVisitor::<K, V, N>(PhantomData))
}

/// Deserializes at most `N` bytes.
pub(super) fn bytes<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<Vec<u8>, D::Error> {
    from.deserialize_bytes(BytesVisitor::<N>)
}

/// Deserializes an optional value of at most `N` bytes.
pub(super) fn maybe_bytes<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
    Ok(Option::<BoundedBytes<N>>::deserialize(from)?.map(|bytes| bytes.0))
}

/// Deserializes a certificate chain: at most three certificates of at most 4 KiB each.
pub(super) fn chain<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
    let chain = list::<_, BoundedBytes<{ crate::tls::MAX_CERTIFICATE_BYTES }>, { crate::tls::MAX_CHAIN_CERTIFICATES }>(from)?;
    Ok(chain.into_iter().map(|certificate| certificate.0).collect())
}

/// Deserializes a text of at most `N` bytes.
pub(super) fn text<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<String, D::Error> {
    from.deserialize_str(TextVisitor::<N>)
}

/// At most `N` bytes, for use as the entry of a list or the value of an option.
struct BoundedBytes<const N: usize>(Vec<u8>);

impl<'de, const N: usize> Deserialize<'de> for BoundedBytes<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        bytes::<_, N>(from).map(Self)
    }
}

struct ListVisitor<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for ListVisitor<T, N> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
        let length = entries.size_hint().unwrap_or(0);
        if length > N {
            return Err(A::Error::invalid_length(length, &self));
        }
        let mut list = Vec::with_capacity(length.min(MAX_RESERVED_ENTRIES));
        while let Some(entry) = entries.next_element()? {
            if list.len() == N {
                return Err(A::Error::invalid_length(N + 1, &self));
            }
            list.push(entry);
        }
        Ok(list)
    }
}

struct MapVisitor<K, V, const N: usize>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>, const N: usize> Visitor<'de> for MapVisitor<K, V, N> {
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} entries, each key once")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<BTreeMap<K, V>, A::Error> {
        let length = entries.size_hint().unwrap_or(0);
        if length > N {
            return Err(A::Error::invalid_length(length, &self));
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
