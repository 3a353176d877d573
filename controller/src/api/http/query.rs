//! The query string: parsed once, limited in size, without ignored parameters, and repeated in a `next` link.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

use hyper::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use stemma_core::field::{parse_boolean, parse_integer};
use stemma_core::name::is_blank;
use stemma_wire::endpoint::{PAGING_PARAMETERS, QueryRule};
use stemma_wire::error::{ApiError, ErrorType};

/// Maximum number of rows in a page, and the number without `limit`, as in Ironic and Magnum.
pub(crate) const MAX_PAGE_ROWS: usize = 1_000;

/// Maximum number of parameters in a query string.
const MAX_PARAMETERS: usize = 64;

/// The parameters that Ironic accepts with an empty value. An empty `fields` selects no field. Each other parameter
/// finds the nodes in which the value is empty.
const EMPTY_ALLOWED_BY_IRONIC: [&str; 8] =
    ["fields", "resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];

/// The reason of the error for a parameter whose value is empty or blank.
const MISSING_VALUE: &str = "it has no value: give it one, or leave it out";

/// The parameters of a query string, each as name and value, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueryString(Vec<(String, String)>);

/// The reason why a query string is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadQuery {
    /// The query string has more than [`MAX_PARAMETERS`] parameters, or the URI is invalid without `dry_run`. An
    /// invalid percent-encoding is not an error.
    #[error("the query string can't be read: it must be NAME=VALUE pairs of percent-encoded UTF-8, at most {MAX_PARAMETERS}")]
    Undecodable,
    /// A parameter that this path does not have.
    #[error("the query parameter {name:?} is unknown; this path has {known}")]
    Unknown {
        /// The name, truncated.
        name: String,
        /// The parameters that this path has.
        known: String,
    },
    /// A parameter that occurs several times and may occur only once.
    #[error("the query parameter {name:?} is given {count} times, but may be given only once")]
    Repeated {
        /// The name of the parameter.
        name: &'static str,
        /// Number of times that the parameter occurs.
        count: usize,
    },
    /// An invalid value.
    #[error("{name}={value:?} is invalid: {rule}")]
    BadValue {
        /// The name of the parameter.
        name: &'static str,
        /// The value, truncated.
        value: String,
        /// The rule for valid values.
        rule: String,
    },
}

impl BadQuery {
    /// Returns the name of the parameter, for `field` in the error body, or `None` if the whole query is invalid.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Undecodable => None,
            Self::Unknown { name, .. } => Some(name),
            Self::Repeated { name, .. } | Self::BadValue { name, .. } => Some(name),
        }
    }

    /// Returns the error for an invalid value.
    pub(crate) fn bad_value(name: &'static str, value: &str, rule: impl Into<String>) -> Self {
        Self::BadValue { name, value: value.chars().take(64).collect(), rule: rule.into() }
    }
}

impl From<BadQuery> for ApiError {
    /// Returns the response for the error, with the name of the parameter as its field.
    fn from(bad: BadQuery) -> Self {
        let error = Self::new(ErrorType::RequestQuery, bad.to_string());
        match bad.name() {
            Some(name) => error.field(name),
            None => error,
        }
    }
}

/// Returns the URI of a write without the parameter `dry_run`, and whether the write is a dry run. Each write except
/// the upload of a file can be a dry run, so the parameter is read here, and not by the handlers.
///
/// # Errors
/// [`BadQuery`] if `dry_run` occurs twice or is not a boolean, or if the query has too many parameters.
pub(crate) fn split_dry_run(uri: &Uri) -> Result<(Uri, bool), BadQuery> {
    let query = uri.query().unwrap_or_default();
    let is_dry_run = |pair: &&str| *pair == "dry_run" || pair.starts_with("dry_run=");
    if !query.split('&').any(|pair| is_dry_run(&pair)) {
        return Ok((uri.clone(), false));
    }
    let dry_run = QueryString::read_unchecked(uri)?.flag("dry_run")?.unwrap_or(false);
    let other_pairs: Vec<&str> = query.split('&').filter(|pair| !is_dry_run(pair)).collect();
    let path = if other_pairs.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), other_pairs.join("&")) };
    Ok((path.parse().map_err(|_| BadQuery::Undecodable)?, dry_run))
}

impl QueryString {
    /// Parses the query of a request.
    ///
    /// # Errors
    /// [`BadQuery::Undecodable`], and [`BadQuery::Unknown`] for a parameter that the route does not allow.
    pub(crate) fn read(uri: &Uri, query: QueryRule) -> Result<Self, BadQuery> {
        let Self(pairs) = Self::read_unchecked(uri)?;
        if let Some((name, _)) = pairs.iter().find(|(name, _)| !query.allows(name)) {
            let known = query.parameter_names().collect::<Vec<_>>().join(", ");
            return Err(BadQuery::Unknown { name: name.chars().take(64).collect(), known });
        }
        Ok(Self(pairs))
    }

    /// Fails if a parameter has an empty or blank value, because such a value could mean either nothing or everything.
    /// A client of Ironic may send the parameters that Ironic accepts with an empty value.
    ///
    /// # Errors
    /// [`BadQuery::BadValue`].
    pub(crate) fn check_not_blank(&self, query: QueryRule, is_ironic_client: bool) -> Result<(), BadQuery> {
        let mut names = query.parameter_names().filter(|name| !(is_ironic_client && EMPTY_ALLOWED_BY_IRONIC.contains(name)));
        names.try_for_each(|name| match self.get_all(name).find(|value| is_blank(value)) {
            Some(value) => Err(BadQuery::bad_value(name, value, MISSING_VALUE)),
            None => Ok(()),
        })
    }

    /// Parses the query of a request without a check of the parameters' names.
    fn read_unchecked(uri: &Uri) -> Result<Self, BadQuery> {
        let query = uri.query().unwrap_or_default().as_bytes();
        // One pair more than the maximum is enough to show that there are too many.
        let pairs: Vec<_> = form_urlencoded::parse(query).into_owned().take(MAX_PARAMETERS + 1).collect();
        if pairs.len() > MAX_PARAMETERS { Err(BadQuery::Undecodable) } else { Ok(Self(pairs)) }
    }

    /// Returns the value of a parameter that may occur once, or `None` if it is absent.
    ///
    /// # Errors
    /// [`BadQuery::Repeated`].
    pub(crate) fn get(&self, name: &'static str) -> Result<Option<&str>, BadQuery> {
        let mut values = self.get_all(name);
        match (values.next(), values.count()) {
            (value, 0) => Ok(value),
            (_, others) => Err(BadQuery::Repeated { name, count: others + 1 }),
        }
    }

    /// Returns all values of a parameter, in order.
    pub(crate) fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(parameter, _)| parameter == name).map(|(_, value)| value.as_str())
    }

    /// Returns each name with its value, in order.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the members of all comma-separated lists of a parameter, in order and each once. Returns `None` if the
    /// parameter is absent.
    ///
    /// # Errors
    /// [`BadQuery::BadValue`] for an empty list or an empty member.
    pub(crate) fn list(&self, name: &'static str) -> Result<Option<Vec<&str>>, BadQuery> {
        let mut members = Vec::new();
        let mut is_present = false;
        for value in self.get_all(name) {
            is_present = true;
            for member in value.split(',') {
                if is_blank(member) {
                    return Err(BadQuery::bad_value(
                        name,
                        value,
                        "it must be a comma-separated list of names, none of them empty",
                    ));
                }
                if !members.contains(&member) {
                    members.push(member);
                }
            }
        }
        Ok(is_present.then_some(members))
    }

    /// Returns the value of a parameter that may occur once and must not be blank. Returns `None` if it is absent.
    ///
    /// # Errors
    /// [`BadQuery`] for several values, and for a blank one, because a blank selector would select everything.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, BadQuery> {
        match self.get(name)? {
            Some(value) if is_blank(value) => Err(BadQuery::bad_value(name, value, MISSING_VALUE)),
            value => Ok(value),
        }
    }

    /// Returns the fields that the parameter `fields` selects, each once, or `None` if the parameter is absent. Each
    /// must be one of `known`. White space around a name and upper case are ignored, as is an empty name from a client
    /// of Ironic.
    ///
    /// # Errors
    /// [`BadQuery::BadValue`] for an unknown field, and for an empty name from any other client.
    pub(crate) fn fields(
        &self,
        known: &'static BTreeSet<String>,
        is_ironic_client: bool,
    ) -> Result<Option<BTreeSet<&'static str>>, BadQuery> {
        if !is_ironic_client {
            // Refuses an empty name.
            self.list("fields")?;
        }
        let mut values = self.get_all("fields").peekable();
        if values.peek().is_none() {
            return Ok(None);
        }
        let known_names = || known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let names = values.flat_map(|text| text.split(',')).map(str::trim).filter(|name| !name.is_empty());
        let find_field = |name: &str| {
            let field = known.get(&name.to_ascii_lowercase()).map(String::as_str);
            field.ok_or_else(|| BadQuery::bad_value("fields", name, format!("the fields here are {}", known_names())))
        };
        names.map(find_field).collect::<Result<_, _>>().map(Some)
    }

    /// Returns the value of a parameter as an integer, or `None` if the parameter is absent. Blanks, `+` and leading
    /// zeros are refused. `rule` describes the valid values in an error.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(crate) fn integer<N: FromStr + Display>(&self, name: &'static str, rule: &str) -> Result<Option<N>, BadQuery> {
        let Some(text) = self.get(name)? else { return Ok(None) };
        parse_integer(text).map(Some).ok_or_else(|| BadQuery::bad_value(name, text, rule))
    }

    /// Returns a boolean in any spelling that Ironic accepts, or `None` if the parameter is absent.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(crate) fn flag(&self, name: &'static str) -> Result<Option<bool>, BadQuery> {
        let Some(value) = self.get(name)? else { return Ok(None) };
        parse_boolean(value).map(Some).ok_or_else(|| BadQuery::bad_value(name, value, "it is true or false"))
    }
}

/// The part of a list that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageQuery {
    /// Maximum number of rows.
    pub limit: usize,
    /// The id of the row after which the page begins, such as the uuid of an object. `None` for the first page.
    pub marker: Option<String>,
    /// The field to sort by, as the client sent it. `None` sorts by id.
    pub sort_key: Option<String>,
    /// True for descending order.
    pub is_descending: bool,
}

impl PageQuery {
    /// The rule for valid values of `limit`, for an error.
    const LIMIT_RULE: &str = "it must be a whole number of at least 1, such as 50";

    /// Reads the parameters of a page.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(crate) fn read(parameters: &QueryString) -> Result<Self, BadQuery> {
        let limit: usize = parameters.integer("limit", Self::LIMIT_RULE)?.unwrap_or(MAX_PAGE_ROWS);
        if limit == 0 {
            return Err(BadQuery::bad_value("limit", "0", Self::LIMIT_RULE));
        }
        let is_descending = match parameters.get("sort_dir")? {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(value) => return Err(BadQuery::bad_value("sort_dir", value, "it is asc or desc")),
        };
        let text = |name| parameters.text(name).map(|value| value.map(str::to_owned));
        Ok(Self { limit: limit.min(MAX_PAGE_ROWS), marker: text("marker")?, sort_key: text("sort_key")?, is_descending })
    }

    /// Returns the URL of the next page, or `None` if this page is not full or `last_row` is `None`. `rows` is the
    /// number of rows of this page, and `last_row` the id of its last row, which is the marker of the next page. The
    /// URL repeats the other parameters of the request.
    pub(crate) fn next_link(&self, url: &str, parameters: &QueryString, rows: usize, last_row: Option<String>) -> Option<String> {
        let last_row = last_row.filter(|_| rows == self.limit)?;
        // The order without `sort_key` is that of the id.
        let key = self.sort_key.as_deref().unwrap_or("id");
        let direction = if self.is_descending { "desc" } else { "asc" };
        let mut link = format!("{url}?sort_key={}&sort_dir={direction}&", percent_encode(key));
        for (name, value) in parameters.0.iter().filter(|(name, _)| !PAGING_PARAMETERS.contains(&name.as_str())) {
            link.push_str(&format!("{}={}&", percent_encode(name), percent_encode(value)));
        }
        Some(format!("{link}limit={}&marker={}", self.limit, percent_encode(&last_row)))
    }
}

/// Percent-encodes a text for a query. Commas are not encoded, as in Ironic's links.
fn percent_encode(text: &str) -> PercentEncode<'_> {
    const ENCODE_SET: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b',').remove(b':').remove(b'/').remove(b'@');
    utf8_percent_encode(text, ENCODE_SET)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses this query string for a list of nodes that has the parameters of a page, `traits` and `detail`.
    fn read(query: &str) -> Result<QueryString, BadQuery> {
        QueryString::read(
            &format!("/v1/nodes?{query}").parse().unwrap(),
            QueryRule::Only(&[PAGING_PARAMETERS, &["traits", "detail"]]),
        )
    }

    #[test]
    fn list_joins_values_and_rejects_empty() {
        for (query, expected) in [("traits=A,B&traits=B,C", Some(vec!["A", "B", "C"])), ("limit=1", None)] {
            assert_eq!(read(query).unwrap().list("traits").unwrap(), expected, "{query}");
        }
        for query in ["traits=", "traits=A,", "traits=A,,B"] {
            assert!(read(query).unwrap().list("traits").is_err(), "{query}");
        }
    }

    #[test]
    fn x06_query_accepts_some_empty_values_only_from_ironic_client() {
        let query = QueryRule::Only(&[PAGING_PARAMETERS, &["fields", "owner", "selector"]]);
        let names: BTreeSet<String> = ["name", "uuid"].map(str::to_owned).into();
        // `fields` requires a static set.
        let known: &'static BTreeSet<String> = Box::leak(Box::new(names));
        let read = |text: &str, is_ironic_client: bool| {
            let parameters = QueryString::read(&format!("/v1/nodes?{text}").parse().unwrap(), query)?;
            parameters.check_not_blank(query, is_ironic_client)?;
            parameters.fields(known, is_ironic_client)
        };
        for text in ["fields=", "fields=name,", "fields=,", "fields=name,,uuid", "fields=name&fields=", "owner=", "owner=+"] {
            assert!(read(text, false).is_err(), "{text}");
            assert!(read(text, true).is_ok(), "{text}");
        }
        for text in ["selector=", "marker=", "sort_key=%20", "limit="] {
            assert!(read(text, false).is_err() && read(text, true).is_err(), "{text}");
        }
        assert_eq!(
            read("owner=", false).unwrap_err().to_string(),
            "owner=\"\" is invalid: it has no value: give it one, or leave it out"
        );
        assert_eq!(read("fields=", true), Ok(Some(BTreeSet::new())));
        assert_eq!(read("fields=name,uuid", false), Ok(Some(BTreeSet::from(["name", "uuid"]))));
    }

    #[test]
    fn read_rejects_unknown_parameter_and_invalid_value() {
        let error = read("bogus=1").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the query parameter \"bogus\" is unknown; this path has limit, marker, sort_key, sort_dir, traits, detail"
        );
        for query in ["limit=0", "limit=-1", "limit=x", "sort_dir=bad", "limit=1&limit=2"] {
            assert!(PageQuery::read(&read(query).unwrap()).is_err(), "{query}");
        }
    }

    #[test]
    fn y04_page_query_reads_limit_as_whole_number() {
        for (query, limit) in [
            ("limit=5", Some(5)),
            ("limit=1000", Some(1_000)),
            ("limit=1001", Some(1_000)),
            ("limit=%2B5", None),
            ("limit=+5", None),
            ("limit=05", None),
            ("limit=5%20", None),
            ("limit=5.0", None),
            ("limit=5e0", None),
            ("limit=99999999999999999999", None),
        ] {
            assert_eq!(PageQuery::read(&read(query).unwrap()).ok().map(|page| page.limit), limit, "{query}");
        }
    }

    /// In this test, the page is full, and its last row is `z`. So there is a next page, which begins after `z`.
    #[test]
    fn next_link_keeps_filters_and_replaces_marker() {
        let parameters = read("traits=A,B&limit=2&marker=x&detail=true").unwrap();
        let page = PageQuery::read(&parameters).unwrap();
        let next = page.next_link("http://h/v1/nodes", &parameters, 2, Some("z".into())).unwrap();
        assert_eq!(next, "http://h/v1/nodes?sort_key=id&sort_dir=asc&traits=A,B&detail=true&limit=2&marker=z");
    }
}
