//! Pages as in Glance: a marker is a name, the newest rows come first, and links are paths.

use std::cmp::Ordering;

use stemma_core::object::{Dates, Kind};
use stemma_wire::error::ApiError;

use crate::api::http::query::{BadQuery, MAX_PAGE_ROWS, QueryString};
use crate::registry::work::not_found;

/// The page of a list that a request selects.
pub(super) struct SortedPageQuery {
    /// Maximum number of rows. `None` for all rows.
    pub limit: Option<usize>,
    marker: Option<String>,
    key: SortKey,
    is_descending: bool,
}

/// The sort key of a list.
#[derive(Clone, Copy)]
enum SortKey {
    Name,
    Created,
    Updated,
}

impl SortedPageQuery {
    /// Reads the parameters of a page. `name` is the value of `sort_key` that sorts by name.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(super) fn read(parameters: &QueryString, name: &'static str) -> Result<Self, BadQuery> {
        let key = match parameters.get("sort_key")? {
            None | Some("created_at") => SortKey::Created,
            Some("updated_at") => SortKey::Updated,
            Some(key) if key == name => SortKey::Name,
            Some(other) => {
                return Err(BadQuery::bad_value("sort_key", other, format!("it is {name}, created_at or updated_at")));
            }
        };
        let is_descending = match parameters.get("sort_dir")? {
            None | Some("desc") => true,
            Some("asc") => false,
            Some(other) => return Err(BadQuery::bad_value("sort_dir", other, "it is asc or desc")),
        };
        let marker = parameters.get("marker")?.map(str::to_owned);
        Ok(Self { limit: read_limit(parameters)?, marker, key, is_descending })
    }

    /// Sets the maximum number of rows of the page to `rows`, unless the request has a `limit`.
    #[must_use]
    pub(super) fn with_default_limit(self, rows: usize) -> Self {
        Self { limit: self.limit.or(Some(rows)), ..self }
    }

    /// Returns the rows of the page, which begins after the row that the marker names. `rows` must be in the order of
    /// their creation. Rows with equal sort keys stay in that order, or in its reverse on a descending page.
    /// `sort_keys` returns the name and the dates of a row.
    ///
    /// # Errors
    /// Fails if no row has the name in the marker.
    pub(super) fn page_rows<T>(
        &self,
        mut rows: Vec<T>,
        kind: Kind,
        sort_keys: impl Fn(&T) -> (String, Dates),
    ) -> Result<Vec<T>, ApiError> {
        let compare = |left: &T, right: &T| -> Ordering {
            let ((name, dates), (other_name, other_dates)) = (sort_keys(left), sort_keys(right));
            match self.key {
                SortKey::Name => name.cmp(&other_name),
                SortKey::Created => dates.created_at.cmp(&other_dates.created_at),
                SortKey::Updated => dates.updated_at.cmp(&other_dates.updated_at),
            }
        };
        rows.sort_by(compare);
        if self.is_descending {
            rows.reverse();
        }
        if let Some(marker) = &self.marker {
            let marker_index = rows.iter().position(|row| sort_keys(row).0 == *marker).ok_or_else(|| not_found(kind, marker))?;
            rows.drain(..=marker_index);
        }
        rows.truncate(self.limit.unwrap_or(usize::MAX));
        Ok(rows)
    }
}

/// Reads the parameter `limit`, lowered to at most [`MAX_PAGE_ROWS`]. With 0 the page has no rows.
///
/// # Errors
/// [`BadQuery`].
pub(super) fn read_limit(parameters: &QueryString) -> Result<Option<usize>, BadQuery> {
    let limit: Option<usize> = parameters.integer("limit", "it is a whole number, 0 or more")?;
    Ok(limit.map(|limit| limit.min(MAX_PAGE_ROWS)))
}
