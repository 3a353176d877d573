//! Pages as Glance cuts them: a marker is a name, the last made come first, and links are paths.

use std::cmp::Ordering;

use stemma_core::object::{Dates, Kind};
use stemma_wire::error::ApiError;

use crate::api::http::query::{BadQuery, MOST_A_PAGE, Parameters};
use crate::registry::work::not_found;

/// Which part of a list is asked for.
pub(super) struct Page {
    /// At most so many rows; none where everything is shown.
    pub limit: Option<usize>,
    marker: Option<String>,
    key: Key,
    descending: bool,
}

/// What a list is sorted by.
#[derive(Clone, Copy)]
enum Key {
    Name,
    Created,
    Updated,
}

impl Page {
    /// Reads the parameters of a page; `name` is what the list calls the name in `sort_key`.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(super) fn read(parameters: &Parameters, name: &'static str) -> Result<Self, BadQuery> {
        let key = match parameters.one("sort_key")? {
            None | Some("created_at") => Key::Created,
            Some("updated_at") => Key::Updated,
            Some(key) if key == name => Key::Name,
            Some(other) => {
                return Err(BadQuery::value("sort_key", other, format!("it is {name}, created_at or updated_at")));
            }
        };
        let descending = match parameters.one("sort_dir")? {
            None | Some("desc") => true,
            Some("asc") => false,
            Some(other) => return Err(BadQuery::value("sort_dir", other, "it is asc or desc")),
        };
        let marker = parameters.one("marker")?.map(str::to_owned);
        Ok(Self { limit: limit(parameters)?, marker, key, descending })
    }

    /// The same, with so many rows where nobody says.
    #[must_use]
    pub(super) fn of_at_most(self, rows: usize) -> Self {
        Self { limit: self.limit.or(Some(rows)), ..self }
    }

    /// The rows of the page, of rows in the order in which they were made.
    ///
    /// # Errors
    /// When no row has the marker.
    pub(super) fn cut<T>(
        &self,
        mut rows: Vec<T>,
        kind: Kind,
        of: impl Fn(&T) -> (String, Dates),
    ) -> Result<Vec<T>, ApiError> {
        let compare = |one: &T, other: &T| -> Ordering {
            let ((name, dates), (other_name, other_dates)) = (of(one), of(other));
            match self.key {
                Key::Name => name.cmp(&other_name),
                Key::Created => dates.created_at.cmp(&other_dates.created_at),
                Key::Updated => dates.updated_at.cmp(&other_dates.updated_at),
            }
        };
        rows.sort_by(compare);
        if self.descending {
            rows.reverse();
        }
        if let Some(marker) = &self.marker {
            let at = rows.iter().position(|row| of(row).0 == *marker).ok_or_else(|| not_found(kind, marker))?;
            rows.drain(..=at);
        }
        rows.truncate(self.limit.unwrap_or(usize::MAX));
        Ok(rows)
    }
}

/// `limit`; 0 is a page without rows.
///
/// # Errors
/// [`BadQuery`].
pub(super) fn limit(parameters: &Parameters) -> Result<Option<usize>, BadQuery> {
    let limit: Option<usize> = parameters.whole("limit", "it is a whole number, 0 or more")?;
    Ok(limit.map(|limit| limit.min(MOST_A_PAGE)))
}
