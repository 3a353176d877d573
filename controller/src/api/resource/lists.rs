//! What lists have in common: the rows of a page, the body piece by piece.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use stemma_core::object::Object;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::filter::{Asked, Filters};
use super::objects::{Shown, body};
use crate::api::Api;
use crate::api::http::query::{BadQuery, Page};
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::cache::model::By;
use crate::registry::work::not_found;

/// How large a piece of a list's body grows before it is sent, in bytes.
const PIECE: usize = 64 * 1024;

/// How much of each object a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The fields that its kind lists.
    Listed,
    /// All fields.
    Whole,
}

/// `GET` of a page of a kind's objects.
///
/// # Errors
/// A selector, filter or page that is none.
pub(super) fn list<S: Shown<Name: Send + Sync> + Send + Sync>(
    api: &Api,
    request: &Request,
    detail: Detail,
) -> HandlerResult {
    let model = api.model();
    let detail = if request.query.flag("detail")? == Some(true) { Detail::Whole } else { detail };
    let rows = Rows::read(api, &model, request)?;
    let (api, model, base) = (api.clone(), Arc::clone(&model), request.base.clone());
    let fields = request.fields.clone();
    let shows = move |field: &str| fields.has(field, detail == Detail::Whole);
    Ok(rows.written(S::LIST, move |object, text| {
        let mut row = body(&api, &model, object, &base, &shows);
        if detail == Detail::Listed {
            S::summarize(object, &mut row);
            row.retain(|field, _| shows(field));
        }
        serde_json::to_writer(text, &row).expect("a value is written to memory");
    }))
}

/// `GET` of a page of rows that are no objects of their own, in the order in which they come; each is named by its field `id`.
///
/// # Errors
/// A page that is none; a marker that no row has.
pub(super) fn of_rows(request: &Request, id: &str, mut rows: Vec<Value>) -> HandlerResult {
    let page = Page::read(&request.query)?;
    let Some((fields, list)) = request.endpoint.fields().and_then(|fields| Some((fields, fields.list.as_ref()?)))
    else {
        return Err(ErrorType::ServerInternal.into());
    };
    match page.sort_key.as_deref() {
        None | Some("id") => {}
        Some(key) if fields.names.contains(key) => {
            rows.sort_by_cached_key(|row| (row[key].as_u64(), row[key].as_str().unwrap_or_default().to_owned()));
        }
        Some(key) => return Err(BadQuery::value("sort_key", key, "it is a field of the rows").into()),
    }
    if page.descending {
        rows.reverse();
    }
    if let Some(marker) = &page.marker {
        let at = rows.iter().position(|row| row[id] == **marker);
        let rule = "no row has it: where that is gone, begin without one";
        rows.drain(..=at.ok_or_else(|| BadQuery::value("marker", marker, rule))?);
    }
    rows.truncate(page.limit);
    let last = rows.last().and_then(|row| row[id].as_str()).map(str::to_owned);
    let next = page.next(&request.url(), &request.query, rows.len(), last);
    let mut body = json!({ list: rows });
    if let Some(next) = next {
        body["next"] = next.into();
    }
    Ok(Reply::ok(body))
}

/// The rows of one page, and the address of the next.
pub(super) struct Rows<S: Shown> {
    objects: Vec<Arc<Object<S>>>,
    next: Option<String>,
}

impl<S: Shown<Name: Send + Sync> + Send + Sync> Rows<S> {
    /// Takes the page that a request asks for out of all objects of a kind. In the order in which they were made, and by name, no
    /// more of them are looked at than the page needs; by anything else all that the filters keep are compared.
    ///
    /// # Errors
    /// A filter or a page that is none; a key that lists are not sorted by; a marker that is not there.
    pub(super) fn read(api: &Api, model: &Model, request: &Request) -> Result<Self, ApiError> {
        let page = Page::read(&request.query)?;
        let filters = Filters::read(S::FILTERS, &Asked { api, model, request })?;
        let marker = page.marker.as_deref().map(|text| marker::<S>(model, text)).transpose()?;
        let keeps = |object: &&Arc<Object<S>>| filters.keep(api, model, object);
        let walk = |by, behind, last_first| S::walk(model, filters.among(), by, behind, last_first).filter(keeps);
        let objects: Vec<_> = match page.sort_key.as_deref() {
            None | Some("id" | "created_at") => {
                walk(By::Made, marker.as_deref(), page.descending).take(page.limit).cloned().collect()
            }
            Some("name") => walk(By::Name, marker.as_deref(), page.descending).take(page.limit).cloned().collect(),
            Some(key) => {
                let key = key_of::<S>(key)?;
                let place = |one: &Object<S>| if page.descending { !key(one) } else { key(one) };
                let made = |one: &Object<S>| (S::shelf(model).made(one.meta.uuid), one.meta.uuid);
                let is_behind = |one: &&Arc<Object<S>>| {
                    let by_made = |end: &Object<S>| {
                        let order = made(one).cmp(&made(end));
                        if page.descending { order.reverse() } else { order }
                    };
                    let order = |end: &Object<S>| place(one).cmp(&place(end)).then_with(|| by_made(end));
                    marker.as_ref().is_none_or(|end| order(end).is_gt())
                };
                // They come as they were made, and those that are equal stay so.
                let rows = walk(By::Made, None, page.descending).filter(is_behind);
                first(rows.map(|one| (place(one), one)), page.limit).into_iter().cloned().collect()
            }
        };
        let last = objects.last().map(|object| object.meta.uuid.to_string());
        let next = page.next(&request.url(), &request.query, objects.len(), last);
        Ok(Self { objects, next })
    }

    /// The list's body, made piece by piece of how each row is written.
    pub(super) fn written(
        self,
        name: &'static str,
        write: impl Fn(&Object<S>, &mut Vec<u8>) + Send + 'static,
    ) -> Reply {
        let next = self.next.map(|next| format!("\"next\":{},", Value::from(next))).unwrap_or_default();
        let mut begin = Some(format!("{{{next}\"{name}\":[").into_bytes());
        let mut rows = self.objects.into_iter().peekable();
        let mut separator = false;
        Reply::pieces(std::iter::from_fn(move || {
            let first = begin.take();
            if first.is_none() && rows.peek().is_none() {
                return None;
            }
            let mut piece = first.unwrap_or_default();
            while let Some(row) = rows.next_if(|_| piece.len() < PIECE) {
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

/// The last row of the page before. It need not be in the list any more, since it may have changed meanwhile; one that is gone has no
/// place in it (as Ironic, 404).
fn marker<S: Shown>(model: &Model, text: &str) -> Result<Arc<Object<S>>, ApiError> {
    let uuid: Uuid = text.parse().map_err(|_| BadQuery::value("marker", text, "it is the uuid of a row"))?;
    S::shelf(model).get(uuid).cloned().ok_or_else(|| {
        let refusal = not_found(S::KIND, text).field("marker");
        refusal.detail("a marker is the uuid of the last row of the page before: where that is gone, begin without one")
    })
}

/// The first of some rows by their keys; those that are equal stay in their order. No more than two pages of them are held.
fn first<T>(rows: impl Iterator<Item = (u128, T)>, limit: usize) -> Vec<T> {
    let mut found = Vec::new();
    let cut = |found: &mut Vec<((u128, usize), T)>| {
        if found.len() > limit {
            found.select_nth_unstable_by_key(limit, |(place, _)| *place);
            found.truncate(limit);
        }
    };
    for (at, (key, row)) in rows.enumerate() {
        found.push(((key, at), row));
        if found.len() > 2 * limit {
            cut(&mut found);
        }
    }
    cut(&mut found);
    found.sort_unstable_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, row)| row).collect()
}

/// By what rows are sorted.
type KeyOf<S> = fn(&Object<S>) -> u128;

fn key_of<S: Shown>(key: &str) -> Result<KeyOf<S>, ApiError> {
    match key {
        "uuid" => Ok(|one| one.meta.uuid.as_u128()),
        "updated_at" => Ok(|one| one.meta.updated_at.0.into()),
        "generation" => Ok(|one| one.meta.generation.into()),
        other => {
            let rule = "lists are sorted by id, uuid, name, created_at, updated_at or generation";
            Err(BadQuery::value("sort_key", other, rule).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rows_are_those_of_a_stable_sort() {
        let rows: Vec<(u128, usize)> = (0..1_000).map(|at| ((at as u128 * 7_919) % 13, at)).collect();
        let mut sorted = rows.clone();
        sorted.sort_by_key(|(key, _)| *key);
        for limit in [1, 7, 499, 500, 501, 1_000, 2_000] {
            let expected: Vec<usize> = sorted.iter().take(limit).map(|(_, at)| *at).collect();
            assert_eq!(first(rows.iter().copied(), limit), expected, "{limit}");
        }
    }
}
