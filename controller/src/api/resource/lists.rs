//! The common part of lists: the rows of a page, and a body that is sent in pieces.

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

/// The fields of each object that a list shows.
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

/// `GET` of a page of rows that are not objects, in the given order. `id` is the field that identifies a row.
///
/// # Errors
/// Fails if a page parameter is invalid, or if no row has the marker.
pub(super) fn list_rows(request: &HttpRequest, id: &str, mut rows: Vec<Value>) -> HandlerResult {
    let page = PageQuery::read(&request.query)?;
    let Some((fields, list)) = request.endpoint.selectable_fields().and_then(|fields| Some((fields, fields.list_name.as_ref()?)))
    else {
        return Err(ErrorType::ServerInternal.into());
    };
    match page.sort_key.as_deref() {
        None | Some("id") => {}
        Some(key) if fields.names.contains(key) => {
            rows.sort_by_cached_key(|row| (row[key].as_u64(), row[key].as_str().unwrap_or_default().to_owned()));
        }
        Some(key) => return Err(BadQuery::bad_value("sort_key", key, "it is a field of the rows").into()),
    }
    if page.is_descending {
        rows.reverse();
    }
    if let Some(marker) = &page.marker {
        let at = rows.iter().position(|row| row[id] == **marker);
        let rule = "no row has this id: if the row was deleted, begin without a marker";
        rows.drain(..=at.ok_or_else(|| BadQuery::bad_value("marker", marker, rule))?);
    }
    rows.truncate(page.limit);
    let last = rows.last().and_then(|row| row[id].as_str()).map(str::to_owned);
    let next = page.next_link(&request.path(), &request.query, rows.len(), last);
    let mut body = json!({ list: rows });
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
    /// Reads the page that a request selects. In the order of creation or of names, it visits only as many objects as
    /// the page needs. For any other sort key, it compares all objects that the filters match.
    ///
    /// # Errors
    /// Fails if a filter, page parameter or sort key is invalid, or if the marker does not exist.
    pub(super) fn read(api: &Api, model: &Model, request: &HttpRequest) -> Result<Self, ApiError> {
        let page = PageQuery::read(&request.query)?;
        let filters = RequestFilters::read(S::FILTERS, &FilterContext { api, model, request })?;
        let marker = page.marker.as_deref().map(|text| find_marker::<S>(model, text)).transpose()?;
        let keeps = |object: &&Arc<Object<S>>| filters.is_match(api, model, object);
        let walk = |by, behind, last_first| S::walk(model, filters.candidates(), by, behind, last_first).filter(keeps);
        let objects: Vec<_> = match page.sort_key.as_deref() {
            None | Some("id" | "created_at") => {
                walk(ListOrder::Created, marker.as_deref(), page.is_descending).take(page.limit).cloned().collect()
            }
            Some("name") => walk(ListOrder::Name, marker.as_deref(), page.is_descending).take(page.limit).cloned().collect(),
            Some(key) => {
                let key = sort_key_fn::<S>(key)?;
                let sort_key = |object: &Object<S>| if page.is_descending { !key(object) } else { key(object) };
                let created = |one: &Object<S>| (S::index(model).create_revision(one.meta.uuid), one.meta.uuid);
                let is_after_marker = |one: &&Arc<Object<S>>| {
                    let by_creation = |end: &Object<S>| {
                        let order = created(one).cmp(&created(end));
                        if page.is_descending { order.reverse() } else { order }
                    };
                    let order = |end: &Object<S>| sort_key(one).cmp(&sort_key(end)).then_with(|| by_creation(end));
                    marker.as_ref().is_none_or(|end| order(end).is_gt())
                };
                // Rows with equal sort keys stay in the order of creation, in which they arrive here.
                let rows = walk(ListOrder::Created, None, page.is_descending).filter(is_after_marker);
                first_rows(rows.map(|one| (sort_key(one), one)), page.limit).into_iter().cloned().collect()
            }
        };
        let last = objects.last().map(|object| object.meta.uuid.to_string());
        let next = page.next_link(&request.path(), &request.query, objects.len(), last);
        Ok(Self { objects, next })
    }

    /// Returns a response whose body is the list `name`, sent in pieces. `write` writes one row as JSON.
    pub(super) fn into_stream(
        self,
        name: &'static str,
        write: impl Fn(&Object<S>, &mut Vec<u8>) + Send + 'static,
    ) -> HttpResponse {
        let next = self.next.map(|next| format!("\"next\":{},", Value::from(next))).unwrap_or_default();
        let mut begin = Some(format!("{{{next}\"{name}\":[").into_bytes());
        let mut rows = self.objects.into_iter().peekable();
        let mut separator = false;
        HttpResponse::stream(std::iter::from_fn(move || {
            let first = begin.take();
            if first.is_none() && rows.peek().is_none() {
                return None;
            }
            let mut piece = first.unwrap_or_default();
            while let Some(row) = rows.next_if(|_| piece.len() < PIECE_BYTES) {
                if std::mem::replace(&mut separator, true) {
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

/// Finds the object of a marker: the last row of the previous page. The object may have changed in the meantime and no
/// longer match the filters. If it was deleted, its place in the list is unknown, and the answer is 404, as in Ironic.
fn find_marker<S: ApiResource>(model: &Model, text: &str) -> Result<Arc<Object<S>>, ApiError> {
    let uuid: Uuid = text.parse().map_err(|_| BadQuery::bad_value("marker", text, "it is the uuid of a row"))?;
    S::index(model).get(uuid).cloned().ok_or_else(|| {
        let refusal = not_found(S::KIND, text).field("marker");
        refusal.detail("a marker is the uuid of the last row of the previous page: if it was deleted, begin without a marker")
    })
}

/// Returns the first `limit` rows in the order of their keys. Rows with equal keys keep their order. At most twice that
/// number of rows is held in memory.
fn first_rows<T>(rows: impl Iterator<Item = (u128, T)>, limit: usize) -> Vec<T> {
    let mut found = Vec::new();
    let cut = |found: &mut Vec<((u128, usize), T)>| {
        if found.len() > limit {
            found.select_nth_unstable_by_key(limit, |(place, _)| *place);
            found.truncate(limit);
        }
    };
    for (index, (key, row)) in rows.enumerate() {
        found.push(((key, index), row));
        if found.len() > 2 * limit {
            cut(&mut found);
        }
    }
    cut(&mut found);
    found.sort_unstable_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, row)| row).collect()
}

/// A function that returns the sort key of an object.
type SortKeyFn<S> = fn(&Object<S>) -> u128;

/// Returns the function for a sort key of the request.
fn sort_key_fn<S: ApiResource>(key: &str) -> Result<SortKeyFn<S>, ApiError> {
    match key {
        "uuid" => Ok(|one| one.meta.uuid.as_u128()),
        "updated_at" => Ok(|one| one.meta.updated_at.0.into()),
        "generation" => Ok(|one| one.meta.generation.into()),
        other => {
            let rule = "lists are sorted by id, uuid, name, created_at, updated_at or generation";
            Err(BadQuery::bad_value("sort_key", other, rule).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rows_keeps_order_of_equal_keys() {
        let rows: Vec<(u128, usize)> = (0..1_000).map(|at| ((at as u128 * 7_919) % 13, at)).collect();
        let mut sorted = rows.clone();
        sorted.sort_by_key(|(key, _)| *key);
        for limit in [1, 7, 499, 500, 501, 1_000, 2_000] {
            let expected: Vec<usize> = sorted.iter().take(limit).map(|(_, at)| *at).collect();
            assert_eq!(first_rows(rows.iter().copied(), limit), expected, "{limit}");
        }
    }
}
