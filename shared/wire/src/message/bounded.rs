//! Collections and texts that are refused as soon as they pass their bound (S50).
//!
//! postcard has no limit on growth, and an empty `Vec` is one byte on the wire and 24 in memory; serde itself reserves a mebibyte
//! on the word of a length. Here a length is compared with its bound before anything is kept, and no more is reserved than a few entries.
//! Used as `#[serde(deserialize_with = "bounded::list::<_, _, 64>")]`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// How many entries are reserved before the first is there.
const RESERVED: usize = 16;

/// A list of at most `N` entries.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(List::<T, N>(PhantomData))
}

/// A map of at most `N` entries, each key once.
pub(super) fn map<'de, D, K, V, const N: usize>(from: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
{
    from.deserialize_map(Map::<K, V, N>(PhantomData))
}

/// At most `N` bytes.
pub(super) fn bytes<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<Vec<u8>, D::Error> {
    from.deserialize_bytes(Octets::<N>)
}

/// At most `N` bytes, or nothing.
pub(super) fn maybe_bytes<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
    Ok(Option::<Bytes<N>>::deserialize(from)?.map(|bytes| bytes.0))
}

/// A chain of certificates: at most three, of at most 4 KiB each.
pub(super) fn chain<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
    let chain = list::<_, Bytes<{ crate::tls::MAX_CERTIFICATE_BYTES }>, { crate::tls::MAX_CHAIN }>(from)?;
    Ok(chain.into_iter().map(|certificate| certificate.0).collect())
}

/// A text of at most `N` bytes.
pub(super) fn text<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<String, D::Error> {
    from.deserialize_str(Text::<N>)
}

/// At most `N` bytes inside of another type.
struct Bytes<const N: usize>(Vec<u8>);

impl<'de, const N: usize> Deserialize<'de> for Bytes<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        bytes::<_, N>(from).map(Self)
    }
}

struct List<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
        let said = entries.size_hint().unwrap_or(0);
        if said > N {
            return Err(A::Error::invalid_length(said, &self));
        }
        let mut list = Vec::with_capacity(said.min(RESERVED));
        while let Some(entry) = entries.next_element()? {
            if list.len() == N {
                return Err(A::Error::invalid_length(N + 1, &self));
            }
            list.push(entry);
        }
        Ok(list)
    }
}

struct Map<K, V, const N: usize>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>, const N: usize> Visitor<'de> for Map<K, V, N> {
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} entries, each key once")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<BTreeMap<K, V>, A::Error> {
        let said = entries.size_hint().unwrap_or(0);
        if said > N {
            return Err(A::Error::invalid_length(said, &self));
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

struct Octets<const N: usize>;

impl<const N: usize> Visitor<'_> for Octets<N> {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        if bytes.len() > N { Err(E::invalid_length(bytes.len(), &self)) } else { Ok(bytes.to_vec()) }
    }
}

struct Text<const N: usize>;

impl<const N: usize> Visitor<'_> for Text<N> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {N} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() > N { Err(E::invalid_length(text.len(), &self)) } else { Ok(text.to_owned()) }
    }
}
