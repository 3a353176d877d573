//! One kind's objects on persistent maps: a snapshot is a clone of three roots, a change copies a few nodes of
//! each. Objects are shared, so the fleet that resolve reads holds the same ones.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use stemma_core::object::Object;
use uuid::Uuid;

use super::Resource;

/// The objects of one kind.
#[derive(Clone)]
pub struct Shelf<S: Resource> {
    by_uuid: OrdMap<Uuid, Held<S>>,
    by_name: OrdMap<(Option<Uuid>, String), Uuid>,
    by_key: OrdMap<String, Uuid>,
    in_order: OrdMap<(u64, Uuid), ()>,
    /// Those without a name, in the same order.
    nameless: OrdMap<(u64, Uuid), ()>,
    /// Which of them are seen; `None`: all.
    seen: Option<Seen>,
}

/// The order of a list that no list is sorted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// As they were made.
    Made,
    /// By name, within the scope of names; those without one come first.
    Name,
}

/// Which objects of a kind are seen by who is bound to a cluster.
#[derive(Clone)]
struct Seen {
    is_seen: Arc<dyn Fn(Uuid) -> bool + Send + Sync>,
    /// Those that stand in the cluster, where they are no more than so many, and known without a look at all.
    few: Arc<dyn Fn(usize) -> Option<Vec<Uuid>> + Send + Sync>,
}

/// A cluster that holds less than one in so many objects is listed by itself, and not among all.
const FEW: usize = 8;

/// An object with the revision that made it, which is its place in a list.
#[derive(Clone)]
struct Held<S: Resource> {
    made: u64,
    object: Arc<Object<S>>,
}

impl<S: Resource> Default for Shelf<S> {
    fn default() -> Self {
        Self {
            by_uuid: OrdMap::new(),
            by_name: OrdMap::new(),
            by_key: OrdMap::new(),
            in_order: OrdMap::new(),
            nameless: OrdMap::new(),
            seen: None,
        }
    }
}

impl<S: Resource> Shelf<S> {
    /// The object of a uuid.
    pub fn get(&self, uuid: Uuid) -> Option<&Arc<Object<S>>> {
        let held = self.by_uuid.get(&uuid)?;
        self.seen.as_ref().is_none_or(|seen| (seen.is_seen)(uuid)).then_some(&held.object)
    }

    /// Whether a uuid is taken, by one that is not seen too.
    pub fn holds(&self, uuid: Uuid) -> bool {
        self.by_uuid.contains_key(&uuid)
    }

    /// Who has a name within its scope, seen or not.
    pub fn holder(&self, scope: Option<Uuid>, name: &str) -> Option<Uuid> {
        self.by_name.get(&(scope, name.to_owned())).copied()
    }

    /// From now on only these are seen; `few` lists them, where they are no more than so many, and known without a look at all.
    pub(in crate::cache::model) fn see_only(
        &mut self,
        is_seen: impl Fn(Uuid) -> bool + Send + Sync + 'static,
        few: impl Fn(usize) -> Option<Vec<Uuid>> + Send + Sync + 'static,
    ) {
        self.seen = Some(Seen { is_seen: Arc::new(is_seen), few: Arc::new(few) });
    }

    /// From now on all are seen.
    pub(in crate::cache::model) fn see_all(&mut self) {
        self.seen = None;
    }

    /// The object that has a key ([`Resource::keys`]).
    pub fn keyed(&self, key: &str) -> Option<&Arc<Object<S>>> {
        self.by_key.get(key).and_then(|uuid| self.get(*uuid))
    }

    /// The object of a name, within its scope.
    pub fn named(&self, scope: Option<Uuid>, name: &str) -> Option<&Arc<Object<S>>> {
        self.by_name.get(&(scope, name.to_owned())).and_then(|uuid| self.get(*uuid))
    }

    /// The object that a path or a reference names: by uuid, else by name.
    pub fn find(&self, scope: Option<Uuid>, id: &str) -> Option<&Arc<Object<S>>> {
        let by_uuid = || self.get(id.parse().ok()?).filter(|o| scope.is_none() || o.spec.scope() == scope);
        self.named(scope, id).or_else(by_uuid)
    }

    /// All objects, in the order in which they were made.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Object<S>>> {
        let (few, all) = match self.few() {
            Some(few) => (few, None),
            None => (Vec::new(), Some(self.in_order.keys().map(|(_, uuid)| *uuid))),
        };
        few.into_iter().chain(all.into_iter().flatten()).filter_map(|uuid| self.get(uuid))
    }

    /// The objects in the order of a list, or the last first: those behind this one alone.
    pub fn walk(
        &self,
        by: By,
        behind: Option<&Object<S>>,
        last_first: bool,
    ) -> impl Iterator<Item = &Arc<Object<S>>> + use<'_, S> {
        let uuids: Box<dyn Iterator<Item = Uuid>> = match (self.few(), by) {
            (Some(few), _) => Box::new(self.walk_few(few, by, behind, last_first).into_iter()),
            (None, By::Made) => {
                let end = behind.map(|object| (self.made(object.meta.uuid), object.meta.uuid));
                directed(self.in_order.range(ahead(end, last_first)).map(|((_, uuid), ())| *uuid), last_first)
            }
            (None, By::Name) => self.walk_names(behind, last_first),
        };
        uuids.filter_map(|uuid| self.get(uuid))
    }

    fn walk_names(&self, behind: Option<&Object<S>>, last_first: bool) -> Box<dyn Iterator<Item = Uuid> + '_> {
        let end = behind.map(|object| (S::name_text(&object.meta.name), object));
        let named = match &end {
            Some((None, _)) if last_first => None,
            Some((Some(name), object)) => Some(Some((object.spec.scope(), name.clone()))),
            Some((None, _)) | None => Some(None),
        };
        let nameless = match &end {
            Some((Some(_), _)) if !last_first => None,
            Some((None, object)) => Some(Some((self.made(object.meta.uuid), object.meta.uuid))),
            Some((Some(_), _)) | None => Some(None),
        };
        let of_names = |end| directed(self.by_name.range(ahead(end, last_first)).map(|(_, uuid)| *uuid), last_first);
        let of_rest =
            |end| directed(self.nameless.range(ahead(end, last_first)).map(|((_, uuid), ())| *uuid), last_first);
        let (named, nameless) =
            (named.map(of_names).into_iter().flatten(), nameless.map(of_rest).into_iter().flatten());
        if last_first { Box::new(named.chain(nameless)) } else { Box::new(nameless.chain(named)) }
    }

    fn walk_few(&self, few: Vec<Uuid>, by: By, behind: Option<&Object<S>>, last_first: bool) -> Vec<Uuid> {
        let key = |uuid: Uuid| {
            let name = |held: &Held<S>| (held.object.spec.scope(), S::name_text(&held.object.meta.name));
            let named = self.by_uuid.get(&uuid).filter(|_| by == By::Name).map(name);
            (named, self.made(uuid), uuid)
        };
        let end = behind.map(|object| key(object.meta.uuid));
        let is_behind = |at: &_| end.as_ref().is_none_or(|end| if last_first { at < end } else { at > end });
        let mut rows: Vec<_> = few.into_iter().map(key).filter(is_behind).collect();
        rows.sort_unstable();
        if last_first {
            rows.reverse();
        }
        rows.into_iter().map(|(.., uuid)| uuid).collect()
    }

    /// Those that may be seen, in the same order, where they are few among all: with what was put here since.
    fn few(&self) -> Option<Vec<Uuid>> {
        let few = (self.seen.as_ref()?.few)(self.by_uuid.len() / FEW)?;
        let known = few.into_iter().filter_map(|uuid| Some((self.by_uuid.get(&uuid)?.made, uuid)));
        let new = self.in_order.range((u64::MAX, Uuid::nil())..).map(|(at, ())| *at);
        let in_order: BTreeSet<(u64, Uuid)> = known.chain(new).collect();
        Some(in_order.into_iter().map(|(_, uuid)| uuid).collect())
    }

    /// The revision that made an object; the last there is for one that is not here yet.
    pub fn made(&self, uuid: Uuid) -> u64 {
        self.by_uuid.get(&uuid).map_or(u64::MAX, |held| held.made)
    }

    /// How many are seen.
    pub fn len(&self) -> usize {
        if self.seen.is_some() { self.iter().count() } else { self.by_uuid.len() }
    }

    /// Whether none is seen.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Puts an object here, made at that revision; answers the one whose place it takes.
    pub fn put(&mut self, made: u64, object: Arc<Object<S>>) -> Option<Arc<Object<S>>> {
        let before = self.take(object.meta.uuid);
        let uuid = object.meta.uuid;
        match S::name_text(&object.meta.name) {
            Some(name) => drop(self.by_name.insert((object.spec.scope(), name), uuid)),
            None => drop(self.nameless.insert((made, uuid), ())),
        }
        for key in object.spec.keys() {
            self.by_key.insert(key, uuid);
        }
        self.in_order.insert((made, uuid), ());
        self.by_uuid.insert(uuid, Held { made, object });
        before
    }

    /// Takes an object away.
    pub fn take(&mut self, uuid: Uuid) -> Option<Arc<Object<S>>> {
        let held = self.by_uuid.remove(&uuid)?;
        self.in_order.remove(&(held.made, uuid));
        self.nameless.remove(&(held.made, uuid));
        for key in held.object.spec.keys() {
            self.by_key.remove(&key);
        }
        if let Some(name) = S::name_text(&held.object.meta.name) {
            let at = (held.object.spec.scope(), name);
            // Within one commit another object may have taken the name before this one is seen to give it up.
            if self.by_name.get(&at) == Some(&uuid) {
                self.by_name.remove(&at);
            }
        }
        Some(held.object)
    }
}

/// What is ahead of one who stands there.
fn ahead<K>(end: Option<K>, last_first: bool) -> (Bound<K>, Bound<K>) {
    let end = end.map_or(Bound::Unbounded, Bound::Excluded);
    if last_first { (Bound::Unbounded, end) } else { (end, Bound::Unbounded) }
}

fn directed<'a, T>(
    rows: impl DoubleEndedIterator<Item = T> + 'a,
    last_first: bool,
) -> Box<dyn Iterator<Item = T> + 'a> {
    if last_first { Box::new(rows.rev()) } else { Box::new(rows) }
}
