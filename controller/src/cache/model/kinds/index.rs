//! The objects of one kind in persistent maps. A snapshot clones the roots of the maps, and a change copies a few nodes
//! of each. The objects are shared with the fleet that is resolved.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use stemma_core::object::Object;
use uuid::Uuid;

use super::Resource;

/// The index of the objects of one kind.
#[derive(Clone)]
pub struct ObjectIndex<S: Resource> {
    by_uuid: OrdMap<Uuid, IndexedObject<S>>,
    by_name: OrdMap<(Option<Uuid>, String), Uuid>,
    by_key: OrdMap<String, Uuid>,
    by_creation: OrdMap<(u64, Uuid), ()>,
    /// The objects without a name, in the order of creation.
    unnamed: OrdMap<(u64, Uuid), ()>,
    /// The visible objects; `None` means all.
    visible: Option<VisibilityFilter>,
}

/// The order of a list. An index exists for each order, so that lists need not be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOrder {
    /// By time of creation.
    Created,
    /// By scope and name. Objects without a name come first.
    Name,
}

/// The objects of a kind that a principal that is bound to a cluster can see.
#[derive(Clone)]
struct VisibilityFilter {
    is_visible: Arc<dyn Fn(Uuid) -> bool + Send + Sync>,
    /// Lists the objects in the cluster if there are at most the given number and no full scan is needed.
    short_list: Arc<dyn Fn(usize) -> Option<Vec<Uuid>> + Send + Sync>,
}

/// If a cluster has at most this fraction (1/8) of all objects, they are listed directly, without a scan of all
/// objects.
const SHORT_LIST_RATIO: usize = 8;

/// An object with its create revision, which decides its place in a list.
#[derive(Clone)]
struct IndexedObject<S: Resource> {
    create_revision: u64,
    object: Arc<Object<S>>,
}

impl<S: Resource> Default for ObjectIndex<S> {
    fn default() -> Self {
        Self {
            by_uuid: OrdMap::new(),
            by_name: OrdMap::new(),
            by_key: OrdMap::new(),
            by_creation: OrdMap::new(),
            unnamed: OrdMap::new(),
            visible: None,
        }
    }
}

impl<S: Resource> ObjectIndex<S> {
    /// Returns the object with this uuid if it is visible.
    pub fn get(&self, uuid: Uuid) -> Option<&Arc<Object<S>>> {
        let entry = self.by_uuid.get(&uuid)?;
        self.visible.as_ref().is_none_or(|seen| (seen.is_visible)(uuid)).then_some(&entry.object)
    }

    /// Returns whether a uuid is in use, also by an object that is not visible.
    pub fn contains(&self, uuid: Uuid) -> bool {
        self.by_uuid.contains_key(&uuid)
    }

    /// Returns the uuid of the object with this name within its scope, visible or not.
    pub fn uuid_by_name(&self, scope: Option<Uuid>, name: &str) -> Option<Uuid> {
        self.by_name.get(&(scope, name.to_owned())).copied()
    }

    /// Restricts the index to visible objects. `short_list(n)` returns the visible objects if there are at most `n` of
    /// them and no full scan is needed.
    pub(in crate::cache::model) fn show_only(
        &mut self,
        is_visible: impl Fn(Uuid) -> bool + Send + Sync + 'static,
        short_list: impl Fn(usize) -> Option<Vec<Uuid>> + Send + Sync + 'static,
    ) {
        self.visible = Some(VisibilityFilter { is_visible: Arc::new(is_visible), short_list: Arc::new(short_list) });
    }

    /// Makes all objects visible again.
    pub(in crate::cache::model) fn show_all(&mut self) {
        self.visible = None;
    }

    /// Returns the object that has a key ([`Resource::lookup_keys`]).
    pub fn get_by_key(&self, key: &str) -> Option<&Arc<Object<S>>> {
        self.by_key.get(key).and_then(|uuid| self.get(*uuid))
    }

    /// Returns the object with this name within its scope.
    pub fn get_by_name(&self, scope: Option<Uuid>, name: &str) -> Option<&Arc<Object<S>>> {
        self.by_name.get(&(scope, name.to_owned())).and_then(|uuid| self.get(*uuid))
    }

    /// Returns the object that a path or a reference names: by name, else by uuid.
    pub fn find(&self, scope: Option<Uuid>, id: &str) -> Option<&Arc<Object<S>>> {
        let by_uuid = || self.get(id.parse().ok()?).filter(|o| scope.is_none() || o.spec.scope() == scope);
        self.get_by_name(scope, id).or_else(by_uuid)
    }

    /// Iterates over all visible objects, in order of creation.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Object<S>>> {
        let (few, all) = match self.short_list() {
            Some(few) => (few, None),
            None => (Vec::new(), Some(self.by_creation.keys().map(|(_, uuid)| *uuid))),
        };
        few.into_iter().chain(all.into_iter().flatten()).filter_map(|uuid| self.get(uuid))
    }

    /// Iterates over the visible objects that follow `after` in the order of a list, or in its reverse.
    pub fn iter_from(
        &self,
        by: ListOrder,
        after: Option<&Object<S>>,
        last_first: bool,
    ) -> impl Iterator<Item = &Arc<Object<S>>> + use<'_, S> {
        let uuids: Box<dyn Iterator<Item = Uuid>> = match (self.short_list(), by) {
            (Some(few), _) => Box::new(self.sort_short_list(few, by, after, last_first).into_iter()),
            (None, ListOrder::Created) => {
                let end = after.map(|object| (self.create_revision(object.meta.uuid), object.meta.uuid));
                in_direction(self.by_creation.range(range_after(end, last_first)).map(|((_, uuid), ())| *uuid), last_first)
            }
            (None, ListOrder::Name) => self.iter_names(after, last_first),
        };
        uuids.filter_map(|uuid| self.get(uuid))
    }

    /// Iterates by name over the objects that follow `after`, or in reverse over those before it. Objects without a
    /// name come first, in order of creation, and are in an index of their own. So the two indexes are chained, each
    /// from the position of `after`; the one that `after` has already passed is left out.
    fn iter_names(&self, after: Option<&Object<S>>, last_first: bool) -> Box<dyn Iterator<Item = Uuid> + '_> {
        let end = after.map(|object| (S::name_text(&object.meta.name), object));
        let named = match &end {
            Some((None, _)) if last_first => None,
            Some((Some(name), object)) => Some(Some((object.spec.scope(), name.clone()))),
            Some((None, _)) | None => Some(None),
        };
        let nameless = match &end {
            Some((Some(_), _)) if !last_first => None,
            Some((None, object)) => Some(Some((self.create_revision(object.meta.uuid), object.meta.uuid))),
            Some((Some(_), _)) | None => Some(None),
        };
        let of_names = |end| in_direction(self.by_name.range(range_after(end, last_first)).map(|(_, uuid)| *uuid), last_first);
        let of_rest =
            |end| in_direction(self.unnamed.range(range_after(end, last_first)).map(|((_, uuid), ())| *uuid), last_first);
        let (named, nameless) = (named.map(of_names).into_iter().flatten(), nameless.map(of_rest).into_iter().flatten());
        if last_first { Box::new(named.chain(nameless)) } else { Box::new(nameless.chain(named)) }
    }

    /// Sorts a short list in the order of a list, and removes the objects up to `after`.
    fn sort_short_list(&self, uuids: Vec<Uuid>, by: ListOrder, after: Option<&Object<S>>, last_first: bool) -> Vec<Uuid> {
        let key = |uuid: Uuid| {
            let name = |held: &IndexedObject<S>| (held.object.spec.scope(), S::name_text(&held.object.meta.name));
            let named = self.by_uuid.get(&uuid).filter(|_| by == ListOrder::Name).map(name);
            (named, self.create_revision(uuid), uuid)
        };
        let end = after.map(|object| key(object.meta.uuid));
        let is_after = |at: &_| end.as_ref().is_none_or(|end| if last_first { at < end } else { at > end });
        let mut rows: Vec<_> = uuids.into_iter().map(key).filter(is_after).collect();
        rows.sort_unstable();
        if last_first {
            rows.reverse();
        }
        rows.into_iter().map(|(.., uuid)| uuid).collect()
    }

    /// Returns the visible objects in order of creation, if the index is restricted and they are at most one in
    /// [`SHORT_LIST_RATIO`] of all objects. Includes objects that a draft added after the restriction; these have no
    /// create revision yet.
    fn short_list(&self) -> Option<Vec<Uuid>> {
        let visible = (self.visible.as_ref()?.short_list)(self.by_uuid.len() / SHORT_LIST_RATIO)?;
        let known = visible.into_iter().filter_map(|uuid| Some((self.by_uuid.get(&uuid)?.create_revision, uuid)));
        let new = self.by_creation.range((u64::MAX, Uuid::nil())..).map(|(at, ())| *at);
        let sorted: BTreeSet<(u64, Uuid)> = known.chain(new).collect();
        Some(sorted.into_iter().map(|(_, uuid)| uuid).collect())
    }

    /// Returns the create revision of an object, or the maximum if the object does not exist yet.
    pub fn create_revision(&self, uuid: Uuid) -> u64 {
        self.by_uuid.get(&uuid).map_or(u64::MAX, |held| held.create_revision)
    }

    /// Returns the number of visible objects.
    pub fn len(&self) -> usize {
        if self.visible.is_some() { self.iter().count() } else { self.by_uuid.len() }
    }

    /// Returns whether no object is visible.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Inserts an object with its create revision. Returns the object that it replaces.
    pub fn insert(&mut self, create_revision: u64, object: Arc<Object<S>>) -> Option<Arc<Object<S>>> {
        let before = self.remove(object.meta.uuid);
        let uuid = object.meta.uuid;
        match S::name_text(&object.meta.name) {
            Some(name) => drop(self.by_name.insert((object.spec.scope(), name), uuid)),
            None => drop(self.unnamed.insert((create_revision, uuid), ())),
        }
        for key in object.spec.lookup_keys() {
            self.by_key.insert(key, uuid);
        }
        self.by_creation.insert((create_revision, uuid), ());
        self.by_uuid.insert(uuid, IndexedObject { create_revision, object });
        before
    }

    /// Removes an object.
    pub fn remove(&mut self, uuid: Uuid) -> Option<Arc<Object<S>>> {
        let entry = self.by_uuid.remove(&uuid)?;
        self.by_creation.remove(&(entry.create_revision, uuid));
        self.unnamed.remove(&(entry.create_revision, uuid));
        for key in entry.object.spec.lookup_keys() {
            self.by_key.remove(&key);
        }
        if let Some(name) = S::name_text(&entry.object.meta.name) {
            let at = (entry.object.spec.scope(), name);
            // One commit may give the name of this object to another one. If the other was inserted first, the name now
            // belongs to it.
            if self.by_name.get(&at) == Some(&uuid) {
                self.by_name.remove(&at);
            }
        }
        Some(entry.object)
    }
}

/// Returns the range that follows a position in the direction of a list.
fn range_after<K>(end: Option<K>, last_first: bool) -> (Bound<K>, Bound<K>) {
    let end = end.map_or(Bound::Unbounded, Bound::Excluded);
    if last_first { (Bound::Unbounded, end) } else { (end, Bound::Unbounded) }
}

fn in_direction<'a, T>(rows: impl DoubleEndedIterator<Item = T> + 'a, last_first: bool) -> Box<dyn Iterator<Item = T> + 'a> {
    if last_first { Box::new(rows.rev()) } else { Box::new(rows) }
}
