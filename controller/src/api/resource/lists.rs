//! What lists have in common: selectors, the rows of a page, the body piece by piece.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use stemma_core::object::Object;
use stemma_core::selector::Selector;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::objects::{Shown, body};
use crate::api::Api;
use crate::api::http::query::{BadQuery, Page, Parameters};
use crate::api::http::request::{HandlerResult, Reply, Request};
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
    let filter = S::filter(&model, request)?;
    let selector = selector(&request.query)?;
    let selected = |object: &Object<S>| selector.as_ref().is_none_or(|s| s.matches(&S::labels(&model, object), &()));
    let rows = Rows::read(request, S::shelf(&model).iter(), |object| filter(object) && selected(object))?;
    let (api, model, base) = (api.clone(), Arc::clone(&model), request.base.clone());
    Ok(rows.written(S::LIST, move |object, text| {
        let mut row = body(&api, &model, object, &base, &|field| detail == Detail::Whole || S::is_listed(field));
        if detail == Detail::Listed {
            S::summarize(object, &mut row);
        }
        serde_json::to_writer(text, &row).expect("a value is written to memory");
    }))
}

/// The rows of one page, and the address of the next.
pub(super) struct Rows<S: Shown> {
    objects: Vec<Arc<Object<S>>>,
    next: Option<String>,
}

impl<S: Shown<Name: Send + Sync> + Send + Sync> Rows<S> {
    /// Takes the page that a request asks for out of all objects of a kind, which come in the order in which they were made.
    /// In that order no more of them are looked at than the page needs.
    ///
    /// # Errors
    /// A page that is none; a key that lists are not sorted by; a marker that no row has.
    pub(super) fn read<'m>(
        request: &Request,
        objects: impl DoubleEndedIterator<Item = &'m Arc<Object<S>>>,
        keeps: impl Fn(&Object<S>) -> bool,
    ) -> Result<Self, ApiError> {
        let page = Page::read(&request.query)?;
        let objects = match page.sort_key.as_deref() {
            None | Some("id" | "created_at") if page.descending => cut(&page, objects.rev(), keeps),
            None | Some("id" | "created_at") => cut(&page, objects, keeps),
            Some(key) => {
                let mut sorted: Vec<_> = objects.filter(|object| keeps(object)).collect();
                sort(&mut sorted, key)?;
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
    let missing = || {
        let refusal = not_found(S::KIND, page.marker.as_deref().unwrap_or_default()).field("marker");
        refusal.detail("a marker is the uuid of the last row of the page before: where that is gone, begin without one")
    };
    Ok(rows.ok_or_else(missing)?.into_iter().cloned().collect())
}

fn sort<S: Shown>(rows: &mut [&Arc<Object<S>>], key: &str) -> Result<(), ApiError> {
    match key {
        "uuid" => rows.sort_by_key(|row| row.meta.uuid),
        "name" => rows.sort_by_cached_key(|row| S::name_text(&row.meta.name)),
        "updated_at" => rows.sort_by_key(|row| row.meta.updated_at),
        "generation" => rows.sort_by_key(|row| row.meta.generation),
        other => {
            let rule = "lists are sorted by id, uuid, name, created_at, updated_at or generation";
            return Err(BadQuery::value("sort_key", other, rule).into());
        }
    }
    Ok(())
}
