//! Which objects a list has. A filter is a row of its kind's table: its name, and how it is read into what it lets through. From when
//! on clients know it, and what it means, say the tables of endpoints and parameters.
//!
//! All filters of a request must hold; a repeated parameter is a union of its lists (as the API working group's guideline for tags
//! has it). What contradicts itself is an empty list. Each object is asked, also where an index found it: the index makes a list
//! cheap, and is not what makes it right.

use stemma_core::fleet::Among;
use stemma_core::object::Object;
use stemma_core::selector::Selector;
use stemma_wire::error::{ApiError, ErrorType};

use crate::api::Api;
use crate::api::http::query::{BadQuery, Parameters};
use crate::api::http::request::Request;
use crate::cache::Model;
use crate::cache::model::Resource;

/// What a filter is read with.
pub(super) struct Asked<'a> {
    /// The controller.
    pub api: &'a Api,
    /// The fleet.
    pub model: &'a Model,
    /// The request.
    pub request: &'a Request,
}

impl<'a> Asked<'a> {
    /// The query.
    pub(super) fn query(&self) -> &'a Parameters {
        &self.request.query
    }
}

/// Whether an object is let through.
type Keeps<S> = Box<dyn Fn(&Api, &Model, &Object<S>) -> bool>;

/// What a filter lets through.
pub(super) struct Kept<S: Resource> {
    /// Of nodes, a set that has all of them.
    among: Among,
    keeps: Keeps<S>,
}

impl<S: Resource> Kept<S> {
    /// Those for which this holds.
    pub(super) fn those(keeps: impl Fn(&Api, &Model, &Object<S>) -> bool + 'static) -> Self {
        Self { among: Among::All, keeps: Box::new(keeps) }
    }

    /// Those of a set.
    #[must_use]
    pub(super) fn among(self, among: Among) -> Self {
        Self { among, ..self }
    }
}

/// What a filter of a request lets through; `None`: the request does not have it.
type ReadFilter<S> = fn(&Asked<'_>, &'static str) -> Result<Option<Kept<S>>, ApiError>;

/// A row of a kind's table.
pub(super) struct Filter<S: Resource> {
    /// The parameter's name.
    pub name: &'static str,
    /// Reads its values.
    pub read: ReadFilter<S>,
}

/// The filters of one request.
pub(super) struct Filters<S: Resource>(Vec<Kept<S>>);

impl<S: Resource> Filters<S> {
    /// Reads all filters of a request.
    ///
    /// # Errors
    /// What is wrong with the first that is none.
    pub(super) fn read(table: &[Filter<S>], asked: &Asked<'_>) -> Result<Self, ApiError> {
        let read = table.iter().map(|filter| (filter.read)(asked, filter.name));
        read.filter_map(Result::transpose).collect::<Result<_, _>>().map(Self)
    }

    /// A set that has all nodes that they let through.
    pub(super) fn among(&self) -> Among {
        Among::AllOf(self.0.iter().map(|kept| kept.among.clone()).collect())
    }

    /// Whether all of them let an object through.
    pub(super) fn keep(&self, api: &Api, model: &Model, object: &Object<S>) -> bool {
        self.0.iter().all(|kept| (kept.keeps)(api, model, object))
    }
}

/// Reads `selector`.
///
/// # Errors
/// [`ErrorType::SelectorInvalid`].
pub(super) fn read_selector(parameters: &Parameters) -> Result<Option<Selector>, ApiError> {
    let refused = |e: stemma_core::selector::InvalidSelector| {
        ApiError::new(ErrorType::SelectorInvalid, e.to_string()).field("selector")
    };
    parameters.text("selector")?.map(|text| Selector::parse(text).map_err(refused)).transpose()
}

/// The objects of which a text is the parameter's.
pub(super) fn text<S: Resource + 'static>(
    asked: &Asked<'_>,
    name: &'static str,
    is: fn(&Object<S>, &str) -> bool,
) -> Result<Option<Kept<S>>, ApiError> {
    let value = asked.query().text(name)?.map(str::to_owned);
    Ok(value.map(|value| Kept::those(move |_, _, object| is(object, &value))))
}

/// A value that is none, and why.
pub(super) fn bad(name: &'static str, value: &str, reason: &dyn std::fmt::Display) -> ApiError {
    BadQuery::value(name, value, reason.to_string()).into()
}
