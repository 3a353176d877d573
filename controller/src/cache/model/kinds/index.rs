//! The index of the objects of one kind, in persistent (immutable, shared) maps. Cloning a model copies only the roots
//! of the maps, and a change copies only a few inner nodes.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use stemma_core::object::Object;
use uuid::Uuid;

use super::Resource;

/// The index of the objects of one kind: by uuid, by name, by further keys ([`Resource::lookup_keys`]) and by creation.
#[derive(Clone)]
pub struct ObjectIndex<S: Resource> {
    by_uuid: OrdMap<Uuid, IndexedObject<S>>,
    by_name: OrdMap<(Option<Uuid>, String), Uuid>,
    by_key: OrdMap<String, Uuid>,
    by_creation: OrdMap<(u64, Uuid), ()>,
    /// The objects without a name, in the order of their creation.
    nameless: OrdMap<(u64, Uuid), ()>,
    /// The filter of the objects that the caller may see, or `None` if all are visible.
    visible: Option<VisibilityFilter>,
}

/// The order of a list. The index has a map for each order, so that a list need not be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOrder {
    /// By the revision of the store that created the object, oldest first.
    Created,
    /// By scope (the uuid of the parent, for example the cluster of a group), and then by name. Objects without a name
    /// come first.
    Name,
}

/// A filter for a caller that is bound to a cluster: the objects of one kind that the caller can see.
#[derive(Clone)]
struct VisibilityFilter {
    is_visible: Arc<dyn Fn(Uuid) -> bool + Send + Sync>,
    /// A function that lists the visible objects. It returns `None` if there are more than the given number, or if it
    /// could only find them by a scan of all objects.
    short_list: Arc<dyn Fn(usize) -> Option<Vec<Uuid>> + Send + Sync>,
}

/// Minimum number of all objects per visible object. If a caller can see at most one object in this number, its objects
/// are listed directly, without a scan of all objects.
const SHORT_LIST_RATIO: usize = 8;

/// An object with the revision at which it was created. This revision determines its place in lists. It is the maximum
/// number for an object that a pending write has created.
#[derive(Clone)]
struct IndexedObject<S: Resource> {
    create_revision: u64,
    object: Arc<Object<S>>,
}

impl<S: Resource> Default for ObjectIndex<S> {
    /// Returns an index without objects and without a filter.
    fn default() -> Self {
        Self {
            by_uuid: OrdMap::new(),
            by_name: OrdMap::new(),
            by_key: OrdMap::new(),
            by_creation: OrdMap::new(),
            nameless: OrdMap::new(),
            visible: None,
        }
    }
}

impl<S: Resource> ObjectIndex<S> {
    /// Returns the object with this uuid if it is visible.
    pub fn get(&self, uuid: Uuid) -> Option<&Arc<Object<S>>> {
        let entry = self.by_uuid.get(&uuid)?;
        self.visible.as_ref().is_none_or(|filter| (filter.is_visible)(uuid)).then_some(&entry.object)
    }

    /// Returns whether an object has this uuid. Objects that the caller cannot see count too.
    pub fn contains(&self, uuid: Uuid) -> bool {
        self.by_uuid.contains_key(&uuid)
    }

    /// Returns the uuid of the object with this name in this scope (its parent). Objects that the caller cannot see are
    /// included.
    pub fn uuid_by_name(&self, scope: Option<Uuid>, name: &str) -> Option<Uuid> {
        self.by_name.get(&(scope, name.to_owned())).copied()
    }

    /// Hides the objects for which `is_visible` is false. They stay in the index. `short_list(n)` returns the uuids of
    /// the visible objects, or `None` if there are more than `n` or if only a scan of all objects could find them.
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

    /// Returns the object that has this key among its [`Resource::lookup_keys`], if the object is visible.
    pub fn get_by_key(&self, key: &str) -> Option<&Arc<Object<S>>> {
        self.by_key.get(key).and_then(|uuid| self.get(*uuid))
    }

    /// Returns the object with this name in this scope (its parent), if it is visible.
    pub fn get_by_name(&self, scope: Option<Uuid>, name: &str) -> Option<&Arc<Object<S>>> {
        self.by_name.get(&(scope, name.to_owned())).and_then(|uuid| self.get(*uuid))
    }

    /// Returns the visible object with this name, or else with this uuid. With a scope (the object's parent), the
    /// object must be in it.
    pub fn find(&self, scope: Option<Uuid>, id: &str) -> Option<&Arc<Object<S>>> {
        let by_uuid = || self.get(id.parse().ok()?).filter(|object| scope.is_none() || object.spec.scope() == scope);
        self.get_by_name(scope, id).or_else(by_uuid)
    }

    /// Iterates over all visible objects, in the order of their creation. A caller that sees few objects has a short
    /// list of their uuids, so not all objects are scanned.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Object<S>>> {
        let (listed, scanned) = match self.short_list() {
            Some(listed) => (listed, None),
            None => (Vec::new(), Some(self.by_creation.keys().map(|(_, uuid)| *uuid))),
        };
        listed.into_iter().chain(scanned.into_iter().flatten()).filter_map(|uuid| self.get(uuid))
    }

    /// Iterates over the visible objects in the order `order`, or in reverse order if `is_reversed` is true. If `after`
    /// is an object, the iteration begins after it.
    pub fn iter_from(
        &self,
        order: ListOrder,
        after: Option<&Object<S>>,
        is_reversed: bool,
    ) -> impl Iterator<Item = &Arc<Object<S>>> + use<'_, S> {
        let uuids: Box<dyn Iterator<Item = Uuid>> = match (self.short_list(), order) {
            (Some(list), _) => Box::new(self.sort_short_list(list, order, after, is_reversed).into_iter()),
            (None, ListOrder::Created) => {
                let start = after.map(|object| (self.create_revision(object.meta.uuid), object.meta.uuid));
                in_direction(self.by_creation.range(range_after(start, is_reversed)).map(|((_, uuid), ())| *uuid), is_reversed)
            }
            (None, ListOrder::Name) => self.iter_names(after, is_reversed),
        };
        uuids.filter_map(|uuid| self.get(uuid))
    }

    /// Iterates over the uuids of the objects after `after` in the order [`ListOrder::Name`], or over those before it
    /// in reverse order if `is_reversed` is true. Hidden objects are included. Objects without a name come first (last
    /// in reverse order), in the order of creation. They are in another map, so the iterators of both maps are chained.
    /// Each of them starts at the position of `after`. A map whose objects all precede this position is left out.
    fn iter_names(&self, after: Option<&Object<S>>, is_reversed: bool) -> Box<dyn Iterator<Item = Uuid> + '_> {
        let start = after.map(|object| (S::name_text(&object.meta.name), object));
        // For each map, `None` leaves the map out, and `Some(None)` iterates over the whole map.
        let with_name = match &start {
            Some((None, _)) if is_reversed => None,
            Some((Some(name), object)) => Some(Some((object.spec.scope(), name.clone()))),
            Some((None, _)) | None => Some(None),
        };
        let nameless = match &start {
            Some((Some(_), _)) if !is_reversed => None,
            Some((None, object)) => Some(Some((self.create_revision(object.meta.uuid), object.meta.uuid))),
            Some((Some(_), _)) | None => Some(None),
        };
        let names = |key| in_direction(self.by_name.range(range_after(key, is_reversed)).map(|(_, uuid)| *uuid), is_reversed);
        let unnamed =
            |key| in_direction(self.nameless.range(range_after(key, is_reversed)).map(|((_, uuid), ())| *uuid), is_reversed);
        let (with_name, nameless) = (with_name.map(names).into_iter().flatten(), nameless.map(unnamed).into_iter().flatten());
        if is_reversed { Box::new(with_name.chain(nameless)) } else { Box::new(nameless.chain(with_name)) }
    }

    /// Sorts the objects of a short list in the order `order`, or reversed if `is_reversed` is true. Objects up to and
    /// including `after` are left out.
    fn sort_short_list(&self, uuids: Vec<Uuid>, order: ListOrder, after: Option<&Object<S>>, is_reversed: bool) -> Vec<Uuid> {
        let sort_key = |uuid: Uuid| {
            let scope_and_name = |entry: &IndexedObject<S>| (entry.object.spec.scope(), S::name_text(&entry.object.meta.name));
            // In the order of creation, `scoped_name` is `None` for all objects, so that the revision decides.
            let scoped_name = self.by_uuid.get(&uuid).filter(|_| order == ListOrder::Name).map(scope_and_name);
            (scoped_name, self.create_revision(uuid), uuid)
        };
        let start = after.map(|object| sort_key(object.meta.uuid));
        let is_after = |key: &_| start.as_ref().is_none_or(|start| if is_reversed { key < start } else { key > start });
        let mut sort_keys: Vec<_> = uuids.into_iter().map(sort_key).filter(is_after).collect();
        sort_keys.sort_unstable();
        if is_reversed {
            sort_keys.reverse();
        }
        sort_keys.into_iter().map(|(.., uuid)| uuid).collect()
    }

    /// Returns the uuids of the visible objects in the order of creation, if these objects are at most one in
    /// [`SHORT_LIST_RATIO`] of all objects. Otherwise returns `None`, also without a filter or if only a scan of all
    /// objects could find them. Objects that a pending write has created since the filter was set are included.
    fn short_list(&self) -> Option<Vec<Uuid>> {
        let visible = (self.visible.as_ref()?.short_list)(self.by_uuid.len() / SHORT_LIST_RATIO)?;
        let stored = visible.into_iter().filter_map(|uuid| Some((self.by_uuid.get(&uuid)?.create_revision, uuid)));
        let uncommitted = self.by_creation.range((u64::MAX, Uuid::nil())..).map(|(key, ())| *key);
        let sorted: BTreeSet<(u64, Uuid)> = stored.chain(uncommitted).collect();
        Some(sorted.into_iter().map(|(_, uuid)| uuid).collect())
    }

    /// Returns the revision at which an object was created, or the maximum if the object is not in the index.
    pub fn create_revision(&self, uuid: Uuid) -> u64 {
        self.by_uuid.get(&uuid).map_or(u64::MAX, |entry| entry.create_revision)
    }

    /// Returns the number of visible objects.
    pub fn len(&self) -> usize {
        if self.visible.is_some() { self.iter().count() } else { self.by_uuid.len() }
    }

    /// Returns whether no object is visible.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Inserts an object with its create revision. Returns the object with the same uuid that it replaces.
    pub fn insert(&mut self, create_revision: u64, object: Arc<Object<S>>) -> Option<Arc<Object<S>>> {
        let old_object = self.remove(object.meta.uuid);
        let uuid = object.meta.uuid;
        match S::name_text(&object.meta.name) {
            Some(name) => drop(self.by_name.insert((object.spec.scope(), name), uuid)),
            None => drop(self.nameless.insert((create_revision, uuid), ())),
        }
        for key in object.spec.lookup_keys() {
            self.by_key.insert(key, uuid);
        }
        self.by_creation.insert((create_revision, uuid), ());
        self.by_uuid.insert(uuid, IndexedObject { create_revision, object });
        old_object
    }

    /// Removes the object with this uuid, and returns it.
    pub fn remove(&mut self, uuid: Uuid) -> Option<Arc<Object<S>>> {
        let entry = self.by_uuid.remove(&uuid)?;
        self.by_creation.remove(&(entry.create_revision, uuid));
        self.nameless.remove(&(entry.create_revision, uuid));
        for key in entry.object.spec.lookup_keys() {
            self.by_key.remove(&key);
        }
        if let Some(name) = S::name_text(&entry.object.meta.name) {
            let scoped_name = (entry.object.spec.scope(), name);
            // One commit can give this object's name to another object. If the other object was inserted first, the
            // name now belongs to it, and its entry must remain.
            if self.by_name.get(&scoped_name) == Some(&uuid) {
                self.by_name.remove(&scoped_name);
            }
        }
        Some(entry.object)
    }
}

/// Returns the range of keys after a position, or before it if `is_reversed` is true. Without a position, the range has
/// all keys.
fn range_after<K>(position: Option<K>, is_reversed: bool) -> (Bound<K>, Bound<K>) {
    let position = position.map_or(Bound::Unbounded, Bound::Excluded);
    if is_reversed { (Bound::Unbounded, position) } else { (position, Bound::Unbounded) }
}

/// Returns the iterator itself, or its reverse if `is_reversed` is true.
fn in_direction<'a, T>(items: impl DoubleEndedIterator<Item = T> + 'a, is_reversed: bool) -> Box<dyn Iterator<Item = T> + 'a> {
    if is_reversed { Box::new(items.rev()) } else { Box::new(items) }
}
