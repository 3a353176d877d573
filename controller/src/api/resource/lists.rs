//! The parts that all lists share: the rows of a page, and a body that is sent in pieces.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use stemma_core::object::Object;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::filter::{FilterContext, RequestFilters};
use super::objects::{ApiResource, body};
use crate::api::Api;
use crate::api::http::query::{BadQuery, PageQuery};
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::cache::model::ListOrder;
use crate::registry::work::not_found;

/// Size at which a piece of a list's body is sent, in bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// The set of fields that a list shows of each object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The default fields of a list of the kind.
    Summary,
    /// All fields.
    Full,
}

/// `GET` of a page of a kind's objects.
///
/// # Errors
/// Fails if a selector, filter or page parameter is invalid.
pub(super) fn list<S: ApiResource<Name: Send + Sync> + Send + Sync>(
    api: &Api,
    request: &HttpRequest,
    detail: Detail,
) -> HandlerResult {
    let model = api.model();
    let detail = if request.query.flag("detail")? == Some(true) { Detail::Full } else { detail };
    let rows = ListPage::read(api, &model, request)?;
    let (api, model, base) = (api.clone(), Arc::clone(&model), request.base_url.clone());
    let fields = request.fields.clone();
    let is_shown = move |field: &str| fields.has(field, detail == Detail::Full);
    Ok(rows.into_stream(S::LIST, move |object, text| {
        let mut row = body(&api, &model, object, &base, &is_shown);
        if detail == Detail::Summary {
            S::summarize(object, &mut row);
            row.retain(|field, _| is_shown(field));
        }
        serde_json::to_writer(text, &row).expect("a value is written to memory");
    }))
}

/// `GET` of a page of rows that the caller has computed, such as tasks. Without a `sort_key`, or with `id`, they stay
/// in the given order. `id` is the field that identifies a row and that a marker contains.
///
/// # Errors
/// Fails if a page parameter is invalid, if the rows lack the field to sort by, or if no row has the marker.
pub(super) fn list_rows(request: &HttpRequest, id: &str, mut rows: Vec<Value>) -> HandlerResult {
    let page = PageQuery::read(&request.query)?;
    let Some((fields, name)) = request.endpoint.selectable_fields().and_then(|fields| Some((fields, fields.list_name.as_ref()?)))
    else {
        return Err(ErrorType::ServerInternal.into());
    };
    match page.sort_key.as_deref() {
        None | Some("id") => {}
        // Numbers are sorted by value, and texts by their characters.
        Some(key) if fields.names.contains(key) => {
            rows.sort_by_cached_key(|row| (row[key].as_u64(), row[key].as_str().unwrap_or_default().to_owned()));
        }
        Some(key) => return Err(BadQuery::bad_value("sort_key", key, "it is a field of the rows").into()),
    }
    if page.is_descending {
        rows.reverse();
    }
    if let Some(marker) = &page.marker {
        let marker_index = rows.iter().position(|row| row[id] == **marker);
        let rule = "no row has this id: if the row was deleted, begin without a marker";
        rows.drain(..=marker_index.ok_or_else(|| BadQuery::bad_value("marker", marker, rule))?);
    }
    rows.truncate(page.limit);
    let last = rows.last().and_then(|row| row[id].as_str()).map(str::to_owned);
    let next = page.next_link(&request.url(), &request.query, rows.len(), last);
    let mut body = json!({ name: rows });
    if let Some(next) = next {
        body["next"] = next.into();
    }
    Ok(HttpResponse::ok(body))
}

/// The objects of one page of a list, and the URL of the next page.
pub(super) struct ListPage<S: ApiResource> {
    objects: Vec<Arc<Object<S>>>,
    next: Option<String>,
}

impl<S: ApiResource<Name: Send + Sync> + Send + Sync> ListPage<S> {
    /// Reads the page that a request selects. In the order of creation or of names, only as many objects are visited as
    /// the page needs. For any other sort key, all objects that match the filters are compared.
    ///
    /// # Errors
    /// Fails if a filter, page parameter or sort key is invalid, or if the marker does not exist.
    pub(super) fn read(api: &Api, model: &Model, request: &HttpRequest) -> Result<Self, ApiError> {
        let page = PageQuery::read(&request.query)?;
        let filters = RequestFilters::read(S::FILTERS, &FilterContext { api, model, request })?;
        let marker = page.marker.as_deref().map(|text| find_marker::<S>(model, text)).transpose()?;
        let is_match = |object: &&Arc<Object<S>>| filters.is_match(api, model, object);
        let walk = |by, after, is_descending| S::walk(model, filters.candidates(), by, after, is_descending).filter(is_match);
        let objects: Vec<_> = match page.sort_key.as_deref() {
            None | Some("id" | "created_at") => {
                walk(ListOrder::Created, marker.as_deref(), page.is_descending).take(page.limit).cloned().collect()
            }
            Some("name") => walk(ListOrder::Name, marker.as_deref(), page.is_descending).take(page.limit).cloned().collect(),
            Some(key) => {
                let key = sort_key_fn::<S>(key)?;
                // `!` reverses the order of the keys.
                let sort_key = |object: &Object<S>| if page.is_descending { !key(object) } else { key(object) };
                let created = |candidate: &Object<S>| (S::index(model).create_revision(candidate.meta.uuid), candidate.meta.uuid);
                let is_after_marker = |candidate: &&Arc<Object<S>>| {
                    let by_creation = |start: &Object<S>| {
                        let order = created(candidate).cmp(&created(start));
                        if page.is_descending { order.reverse() } else { order }
                    };
                    let order = |start: &Object<S>| sort_key(candidate).cmp(&sort_key(start)).then_with(|| by_creation(start));
                    marker.as_ref().is_none_or(|start| order(start).is_gt())
                };
                // Rows with equal sort keys stay in the order of creation, in which they arrive here.
                let rows = walk(ListOrder::Created, None, page.is_descending).filter(is_after_marker);
                first_rows(rows.map(|candidate| (sort_key(candidate), candidate)), page.limit).into_iter().cloned().collect()
            }
        };
        let last = objects.last().map(|object| object.meta.uuid.to_string());
        let next = page.next_link(&request.url(), &request.query, objects.len(), last);
        Ok(Self { objects, next })
    }

    /// Returns a response whose body is the list `name`, sent in pieces. `write` writes one row as JSON.
    pub(super) fn into_stream(
        self,
        name: &'static str,
        write: impl Fn(&Object<S>, &mut Vec<u8>) + Send + 'static,
    ) -> HttpResponse {
        let next = self.next.map(|next| format!("\"next\":{},", Value::from(next))).unwrap_or_default();
        let mut list_start = Some(format!("{{{next}\"{name}\":[").into_bytes());
        let mut rows = self.objects.into_iter().peekable();
        let mut needs_comma = false;
        HttpResponse::stream(std::iter::from_fn(move || {
            let first = list_start.take();
            if first.is_none() && rows.peek().is_none() {
                return None;
            }
            let mut piece = first.unwrap_or_default();
            while let Some(row) = rows.next_if(|_| piece.len() < PIECE_BYTES) {
                if std::mem::replace(&mut needs_comma, true) {
                    piece.push(b',');
                }
                write(&row, &mut piece);
            }
            if rows.peek().is_none() {
                piece.extend_from_slice(b"]}");
            }
            Some(Bytes::from(piece))
        }))
    }
}

/// Finds the object of a marker: the last row of the previous page. The object is found even if it has changed and no
/// longer matches the filters. If it was deleted, its place in the list is unknown, and the response is 404, as in
/// Ironic.
fn find_marker<S: ApiResource>(model: &Model, text: &str) -> Result<Arc<Object<S>>, ApiError> {
    let uuid: Uuid = text.parse().map_err(|_| BadQuery::bad_value("marker", text, "it is the uuid of a row"))?;
    S::index(model).get(uuid).cloned().ok_or_else(|| {
        let refusal = not_found(S::KIND, text).field("marker");
        refusal.detail("a marker is the uuid of the last row of the previous page: if it was deleted, begin without a marker")
    })
}

/// Returns the first `limit` rows in the order of their keys. Rows with equal keys stay in their order. At most one row
/// more than twice `limit` is in memory at a time.
fn first_rows<T>(rows: impl Iterator<Item = (u128, T)>, limit: usize) -> Vec<T> {
    let mut smallest = Vec::new();
    let cut = |smallest: &mut Vec<((u128, usize), T)>| {
        if smallest.len() > limit {
            smallest.select_nth_unstable_by_key(limit, |(place, _)| *place);
            smallest.truncate(limit);
        }
    };
    for (index, (key, row)) in rows.enumerate() {
        smallest.push(((key, index), row));
        if smallest.len() > 2 * limit {
            cut(&mut smallest);
        }
    }
    cut(&mut smallest);
    smallest.sort_unstable_by_key(|(place, _)| *place);
    smallest.into_iter().map(|(_, row)| row).collect()
}

/// A function that returns the sort key of an object.
type SortKeyFn<S> = fn(&Object<S>) -> u128;

/// Returns the function that computes the value by which the sort key `key` of a request orders objects. These values
/// are numbers of at most 128 bits. Fails for an unknown sort key. The caller handles `id`, `created_at` and `name`.
fn sort_key_fn<S: ApiResource>(key: &str) -> Result<SortKeyFn<S>, ApiError> {
    match key {
        "uuid" => Ok(|object| object.meta.uuid.as_u128()),
        "updated_at" => Ok(|object| object.meta.updated_at.0.into()),
        "generation" => Ok(|object| object.meta.generation.into()),
        unknown_key => {
            let rule = "lists are sorted by id, uuid, name, created_at, updated_at or generation";
            Err(BadQuery::bad_value("sort_key", unknown_key, rule).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rows_keeps_order_of_equal_keys() {
        let rows: Vec<(u128, usize)> = (0..1_000).map(|index| ((index as u128 * 7_919) % 13, index)).collect();
        let mut sorted = rows.clone();
        sorted.sort_by_key(|(key, _)| *key);
        for limit in [1, 7, 499, 500, 501, 1_000, 2_000] {
            let expected: Vec<usize> = sorted.iter().take(limit).map(|(_, index)| *index).collect();
            assert_eq!(first_rows(rows.iter().copied(), limit), expected, "{limit}");
        }
    }
}
