//! Filters of lists. A filter is an entry in the table of its kind: its name, and the function that reads it into a
//! predicate. The tables of endpoints and parameters document each filter, and the API version that introduced it.
//!
//! All filters of a request must match. A parameter whose value is a list can be repeated, and is then the union of its
//! lists, as in the API working group's guideline for tags. `requirement` can be repeated too. Any other parameter that
//! is repeated is an error. Contradicting filters give an empty list. The predicate is also checked for objects that an
//! index found: the index makes a list fast, but does not decide what is in it.

use stemma_core::fleet::NodeSet;
use stemma_core::object::Object;
use stemma_core::selector::Selector;
use stemma_wire::error::{ApiError, ErrorType};

use crate::api::Api;
use crate::api::http::query::{BadQuery, QueryString};
use crate::api::http::request::HttpRequest;
use crate::cache::Model;
use crate::cache::model::Resource;

/// The context in which a filter is read.
pub(super) struct FilterContext<'a> {
    /// The state that all handlers share.
    pub api: &'a Api,
    /// The fleet as the caller sees it.
    pub model: &'a Model,
    /// The request.
    pub request: &'a HttpRequest,
}

impl<'a> FilterContext<'a> {
    /// Returns the query of the request.
    pub(super) fn query(&self) -> &'a QueryString {
        &self.request.query
    }
}

/// The predicate of a filter: a function that returns whether an object matches.
type ObjectPredicate<S> = Box<dyn Fn(&Api, &Model, &Object<S>) -> bool>;

/// A filter with the value that a request gives it. It decides whether an object matches.
pub(super) struct FilterMatch<S: Resource> {
    /// For nodes: a set that contains at least all matching nodes, so that a list need not visit the other nodes.
    candidates: NodeSet,
    predicate: ObjectPredicate<S>,
}

impl<S: Resource> FilterMatch<S> {
    /// Creates a filter from a predicate.
    pub(super) fn new(predicate: impl Fn(&Api, &Model, &Object<S>) -> bool + 'static) -> Self {
        Self { candidates: NodeSet::All, predicate: Box::new(predicate) }
    }

    /// Returns the filter with these candidates: a set that contains at least all matching nodes.
    #[must_use]
    pub(super) fn with_candidates(self, candidates: NodeSet) -> Self {
        Self { candidates, ..self }
    }
}

/// A function that reads a filter from a request. The text is the name of the query parameter. The function returns
/// `None` if the request does not have the filter.
type ReadFilter<S> = fn(&FilterContext<'_>, &'static str) -> Result<Option<FilterMatch<S>>, ApiError>;

/// The definition of a filter.
pub(super) struct FilterDef<S: Resource> {
    /// The parameter's name.
    pub name: &'static str,
    /// The function that reads the parameter's values.
    pub read: ReadFilter<S>,
}

/// The filters of one request.
pub(super) struct RequestFilters<S: Resource>(Vec<FilterMatch<S>>);

impl<S: Resource> RequestFilters<S> {
    /// Reads all filters of a request.
    ///
    /// # Errors
    /// Fails for the first invalid filter.
    pub(super) fn read(table: &[FilterDef<S>], context: &FilterContext<'_>) -> Result<Self, ApiError> {
        let read = table.iter().map(|filter| (filter.read)(context, filter.name));
        read.filter_map(Result::transpose).collect::<Result<_, _>>().map(Self)
    }

    /// Returns a set that contains at least all nodes that match.
    pub(super) fn candidates(&self) -> NodeSet {
        NodeSet::AllOf(self.0.iter().map(|filter| filter.candidates.clone()).collect())
    }

    /// Returns whether an object matches all filters.
    pub(super) fn is_match(&self, api: &Api, model: &Model, object: &Object<S>) -> bool {
        self.0.iter().all(|filter| (filter.predicate)(api, model, object))
    }
}

/// Reads the parameter `selector`.
///
/// # Errors
/// [`ErrorType::SelectorInvalid`].
pub(super) fn read_selector(parameters: &QueryString) -> Result<Option<Selector>, ApiError> {
    let invalid =
        |e: stemma_core::selector::InvalidSelector| ApiError::new(ErrorType::SelectorInvalid, e.to_string()).field("selector");
    parameters.text("selector")?.map(|text| Selector::parse(text).map_err(invalid)).transpose()
}

/// Creates a filter that compares the query parameter `name`, if it is present, with each object by `is_match`.
pub(super) fn text_filter<S: Resource + 'static>(
    context: &FilterContext<'_>,
    name: &'static str,
    is_match: fn(&Object<S>, &str) -> bool,
) -> Result<Option<FilterMatch<S>>, ApiError> {
    let value = context.query().text(name)?.map(str::to_owned);
    Ok(value.map(|value| FilterMatch::new(move |_, _, object| is_match(object, &value))))
}

/// Returns the error for an invalid value of a filter.
pub(super) fn bad_value(name: &'static str, value: &str, reason: &dyn std::fmt::Display) -> ApiError {
    BadQuery::bad_value(name, value, reason.to_string()).into()
}
