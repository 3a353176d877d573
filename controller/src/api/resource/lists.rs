//! What lists have in common: selectors, the rows of a page, the body piece by piece.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};
use stemma_core::object::Object;
use stemma_core::selector::Selector;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::objects::Shown;
use crate::api::http::query::{BadQuery, Page, Parameters};
use crate::api::http::request::{Reply, Request};
use crate::registry::work::not_found;

/// How large a piece of a list's body grows before it is sent, in bytes.
const PIECE: usize = 64 * 1024;

/// Reads `selector`.
///
/// # Errors
/// [`ErrorType::SelectorInvalid`].
pub(super) fn selector(parameters: &Parameters) -> Result<Option<Selector>, ApiError> {
    let refused = |e: stemma_core::selector::InvalidSelector| {
        ApiError::new(ErrorType::SelectorInvalid, e.to_string()).field("selector")
    };
    parameters.one("selector")?.map(|text| Selector::parse(text).map_err(refused)).transpose()
}

/// Whether an object's labels are selected.
pub(super) fn selected(selector: Option<&Selector>, labels: impl FnOnce() -> BTreeMap<String, String>) -> bool {
    selector.is_none_or(|selector| selector.matches(&labels(), &()))
}

/// The rows of one page, and the address of the next.
pub(super) struct Rows<S: Shown> {
    objects: Vec<Arc<Object<S>>>,
    next: Option<String>,
}

impl<S: Shown + Send + Sync> Rows<S>
where
    S::Name: Send + Sync,
{
    /// Takes the page that a request asks for out of all objects of a kind, which come in the order in which they were made.
    /// In that order no more of them are looked at than the page needs.
    ///
    /// # Errors
    /// A page that is none; a key that lists are not sorted by; a marker that no row has.
    pub(super) fn read<'m>(
        request: &Request,
        objects: impl DoubleEndedIterator<Item = &'m Arc<Object<S>>>,
        keeps: impl Fn(&Object<S>) -> bool,
        name_of: impl Fn(&Object<S>) -> String,
    ) -> Result<Self, ApiError> {
        let page = Page::read(&request.query)?;
        let objects = match page.sort_key.as_deref() {
            None | Some("id" | "created_at") if page.descending => cut(&page, objects.rev(), keeps),
            None | Some("id" | "created_at") => cut(&page, objects, keeps),
            Some(key) => {
                let mut sorted: Vec<_> = objects.filter(|object| keeps(object)).collect();
                sort(&mut sorted, key, name_of)?;
                if page.descending {
                    sorted.reverse();
                }
                cut(&page, sorted.into_iter(), |_| true)
            }
        }?;
        let last = objects.last().map(|object| object.meta.uuid.to_string());
        let next = page.next(&request.url(), &request.query, objects.len(), last);
        Ok(Self { objects, next })
    }

    /// The list's body, made piece by piece of how each row looks.
    pub(super) fn reply(
        self,
        name: &'static str,
        show: impl Fn(&Object<S>) -> Map<String, Value> + Send + 'static,
    ) -> Reply {
        self.written(name, move |object, text| {
            serde_json::to_writer(text, &show(object)).expect("a value is written to memory");
        })
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

/// The rows behind the page's marker, no more than it holds.
fn cut<'m, S: Shown>(
    page: &Page,
    objects: impl Iterator<Item = &'m Arc<Object<S>>>,
    keeps: impl Fn(&Object<S>) -> bool,
) -> Result<Vec<Arc<Object<S>>>, ApiError> {
    let is_marker = |object: &&Arc<Object<S>>, marker: &str| {
        marker == &*object.meta.uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer())
    };
    let rows = page.cut(objects, is_marker, |object| keeps(object));
    let missing = || not_found(S::KIND, page.marker.as_deref().unwrap_or_default());
    Ok(rows.ok_or_else(missing)?.into_iter().cloned().collect())
}

fn sort<S: Shown>(
    rows: &mut [&Arc<Object<S>>],
    key: &str,
    name_of: impl Fn(&Object<S>) -> String,
) -> Result<(), ApiError> {
    match key {
        "uuid" => rows.sort_by_key(|row| row.meta.uuid),
        "name" => rows.sort_by_cached_key(|row| name_of(row)),
        "updated_at" => rows.sort_by_key(|row| row.meta.updated_at),
        "generation" => rows.sort_by_key(|row| row.meta.generation),
        other => {
            let rule = "lists are sorted by id, uuid, name, created_at, updated_at or generation";
            return Err(BadQuery::value("sort_key", other, rule).into());
        }
    }
    Ok(())
}
