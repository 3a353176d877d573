//! What lists have in common: selectors, sorting, the body with its `next`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use stemma_core::object::Object;
use stemma_core::selector::Selector;
use stemma_wire::error::{ApiError, ErrorType};

use super::objects::Shown;
use crate::api::http::query::{BadQuery, Page, Parameters};

/// Reads `selector`.
///
/// # Errors
/// [`ErrorType::SelectorInvalid`].
pub(super) fn selector(parameters: &Parameters) -> Result<Option<Selector>, ApiError> {
    let text = parameters.one("selector")?;
    let refused = |e: stemma_core::selector::InvalidSelector| {
        ApiError::new(ErrorType::SelectorInvalid, e.to_string()).field("selector")
    };
    text.map(|text| Selector::parse(text).map_err(refused)).transpose()
}

/// Whether an object's labels are selected.
pub(super) fn selected(selector: Option<&Selector>, labels: impl FnOnce() -> BTreeMap<String, String>) -> bool {
    selector.is_none_or(|selector| selector.matches(&labels(), &()))
}

/// Sorts rows, which come in the order in which they were made.
///
/// # Errors
/// A key that lists are not sorted by.
pub(super) fn sort<S: Shown>(
    rows: &mut [Arc<Object<S>>],
    page: &Page,
    name_of: impl Fn(&Object<S>) -> String,
) -> Result<(), ApiError> {
    match page.sort_key.as_deref() {
        None | Some("id" | "created_at") => {}
        Some("uuid") => rows.sort_by_key(|row| row.meta.uuid),
        Some("name") => rows.sort_by_key(|row| name_of(row)),
        Some("updated_at") => rows.sort_by_key(|row| row.meta.updated_at),
        Some("generation") => rows.sort_by_key(|row| row.meta.generation),
        Some(other) => {
            let rule = "lists are sorted by id, uuid, name, created_at, updated_at or generation";
            return Err(ApiError::from(BadQuery::value("sort_key", other, rule)));
        }
    }
    Ok(())
}

/// A list's body.
pub(super) fn body(name: &str, rows: Vec<Value>, next: Option<String>) -> Value {
    let mut body = Map::new();
    body.insert(name.to_owned(), rows.into());
    if let Some(next) = next {
        body.insert("next".into(), next.into());
    }
    body.into()
}
