//! The query string: parsed once, limited in size, without ignored parameters, and repeated in a `next` link.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

use hyper::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use stemma_core::field::{parse_boolean, parse_integer};
use stemma_core::name::is_blank;
use stemma_wire::endpoint::{PAGE, QueryRule};
use stemma_wire::error::{ApiError, ErrorType};

/// Maximum number of rows in a page, and the default without `limit` (as Ironic and Magnum).
pub(crate) const MAX_PAGE_ROWS: usize = 1_000;

const MAX_PARAMETERS: usize = 64;

/// The parameters that Ironic accepts without a value. An empty `fields` selects no field, and the others find the
/// nodes whose value is empty.
const EMPTY_ALLOWED_BY_IRONIC: [&str; 8] =
    ["fields", "resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];

/// The rule for a parameter whose value is empty or blank.
const MISSING_VALUE: &str = "it has no value: give it one, or leave it out";

/// The parameters of a query string, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueryString(Vec<(String, String)>);

/// The reason why a query is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadQuery {
    /// The query string cannot be decoded, or has too many parameters.
    #[error("the query string can't be read: it must be NAME=VALUE pairs of percent-encoded UTF-8, at most {MAX_PARAMETERS}")]
    Undecodable,
    /// A parameter that this path does not have.
    #[error("the query parameter {name:?} is unknown; this path has {known}")]
    Unknown {
        /// The name, truncated.
        name: String,
        /// The parameters of this path.
        known: String,
    },
    /// A parameter that may occur once and occurs several times.
    #[error("the query parameter {name:?} is given {count} times, but may be given only once")]
    Repeated {
        /// The name of the parameter.
        name: &'static str,
        /// How often it occurs.
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
    /// Returns the name of the parameter, for the error body's `field`.
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
    fn from(bad: BadQuery) -> Self {
        let error = Self::new(ErrorType::RequestQuery, bad.to_string());
        match bad.name() {
            Some(name) => error.field(name),
            None => error,
        }
    }
}

/// Returns a write's URI without the parameter `dry_run`, and whether the write is a dry run. Every write has a dry
/// run, so no handler reads the parameter.
///
/// # Errors
/// [`BadQuery`] if `dry_run` occurs twice or is not a boolean.
pub(crate) fn split_dry_run(uri: &Uri) -> Result<(Uri, bool), BadQuery> {
    let query = uri.query().unwrap_or_default();
    let is_dry_run = |pair: &&str| *pair == "dry_run" || pair.starts_with("dry_run=");
    if !query.split('&').any(|pair| is_dry_run(&pair)) {
        return Ok((uri.clone(), false));
    }
    let dry_run = QueryString::read_unchecked(uri)?.flag("dry_run")?.unwrap_or(false);
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_dry_run(pair)).collect();
    let path = if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), rest.join("&")) };
    Ok((path.parse().map_err(|_| BadQuery::Undecodable)?, dry_run))
}

impl QueryString {
    /// Parses a request's query. A parameter that its route does not have is refused.
    ///
    /// # Errors
    /// [`BadQuery::Undecodable`] and [`BadQuery::Unknown`].
    pub(crate) fn read(uri: &Uri, query: QueryRule) -> Result<Self, BadQuery> {
        let Self(pairs) = Self::read_unchecked(uri)?;
        if let Some((name, _)) = pairs.iter().find(|(name, _)| !query.allows(name)) {
            let known = query.parameter_names().collect::<Vec<_>>().join(", ");
            return Err(BadQuery::Unknown { name: name.chars().take(64).collect(), known });
        }
        Ok(Self(pairs))
    }

    /// Refuses a parameter without a value, which could mean nothing or everything. Ironic's clients may send the
    /// parameters that Ironic accepts without a value.
    ///
    /// # Errors
    /// [`BadQuery::BadValue`].
    pub(crate) fn check_not_empty(&self, query: QueryRule, is_ironic_client: bool) -> Result<(), BadQuery> {
        let mut checked = query.parameter_names().filter(|name| !(is_ironic_client && EMPTY_ALLOWED_BY_IRONIC.contains(name)));
        checked.try_for_each(|name| match self.get_all(name).find(|value| is_blank(value)) {
            Some(value) => Err(BadQuery::bad_value(name, value, MISSING_VALUE)),
            None => Ok(()),
        })
    }

    /// Parses a request's query without checking the names.
    fn read_unchecked(uri: &Uri) -> Result<Self, BadQuery> {
        let query = uri.query().unwrap_or_default().as_bytes();
        let pairs: Vec<_> = form_urlencoded::parse(query).into_owned().take(MAX_PARAMETERS + 1).collect();
        if pairs.len() > MAX_PARAMETERS { Err(BadQuery::Undecodable) } else { Ok(Self(pairs)) }
    }

    /// Returns the only value of a parameter, if it is present.
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

    /// Returns all values of a parameter.
    pub(crate) fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Returns each name with its value, in order.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the union of a parameter's comma-separated lists, in order, or `None` if the parameter is absent.
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

    /// Returns the only value of a parameter as text, if it is present.
    ///
    /// # Errors
    /// [`BadQuery`] for several values, and for a blank one: a blank selector would select everything.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, BadQuery> {
        match self.get(name)? {
            Some(value) if is_blank(value) => Err(BadQuery::bad_value(name, value, MISSING_VALUE)),
            value => Ok(value),
        }
    }

    /// Returns the selected fields among the known ones: trimmed, case-insensitive, each once. For a client of Ironic
    /// an empty name is ignored, as Ironic does.
    ///
    /// # Errors
    /// [`BadQuery::BadValue`] for an unknown field, and for an empty name.
    pub(crate) fn fields(
        &self,
        known: &'static BTreeSet<String>,
        is_ironic_client: bool,
    ) -> Result<Option<BTreeSet<&'static str>>, BadQuery> {
        if !is_ironic_client {
            self.list("fields")?;
        }
        let mut values = self.get_all("fields").peekable();
        if values.peek().is_none() {
            return Ok(None);
        }
        let known_names = || known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let names = values.flat_map(|text| text.split(',')).map(str::trim).filter(|name| !name.is_empty());
        let read = |name: &str| {
            let field = known.get(&name.to_ascii_lowercase()).map(String::as_str);
            field.ok_or_else(|| BadQuery::bad_value("fields", name, format!("the fields here are {}", known_names())))
        };
        names.map(read).collect::<Result<_, _>>().map(Some)
    }

    /// Returns an integer, if the parameter is present, in the syntax of integers in fields. `rule` describes the valid
    /// values.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(crate) fn integer<N: FromStr + Display>(&self, name: &'static str, rule: &str) -> Result<Option<N>, BadQuery> {
        let Some(text) = self.get(name)? else { return Ok(None) };
        parse_integer(text).map(Some).ok_or_else(|| BadQuery::bad_value(name, text, rule))
    }

    /// Returns a boolean, if the parameter is present, in all the spellings that Ironic accepts.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(crate) fn flag(&self, name: &'static str) -> Result<Option<bool>, BadQuery> {
        let Some(value) = self.get(name)? else { return Ok(None) };
        parse_boolean(value).map(Some).ok_or_else(|| BadQuery::bad_value(name, value, "it is true or false"))
    }
}

/// The requested part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageQuery {
    /// Maximum number of rows.
    pub limit: usize,
    /// The uuid of the row after which the page begins.
    pub marker: Option<String>,
    /// The field to sort by, as the client sent it.
    pub sort_key: Option<String>,
    /// True for descending order.
    pub is_descending: bool,
}

impl PageQuery {
    /// The rule for valid limits.
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

    /// Returns the URL of the next page if this page is full: `rows` is the number of its rows. The URL has every
    /// parameter of the request, and `last`, the last row of this page, as marker.
    pub(crate) fn next_link(&self, url: &str, parameters: &QueryString, rows: usize, last: Option<String>) -> Option<String> {
        let last = last.filter(|_| rows == self.limit)?;
        let key = self.sort_key.as_deref().unwrap_or("id");
        let direction = if self.is_descending { "desc" } else { "asc" };
        let mut link = format!("{url}?sort_key={}&sort_dir={direction}&", percent_encode(key));
        for (name, value) in parameters.0.iter().filter(|(name, _)| !PAGE.contains(&name.as_str())) {
            link.push_str(&format!("{}={}&", percent_encode(name), percent_encode(value)));
        }
        Some(format!("{link}limit={}&marker={}", self.limit, percent_encode(&last)))
    }
}

/// Percent-encodes all characters that would have a special meaning in a query. Commas are not encoded, as in Ironic's
/// links.
fn percent_encode(text: &str) -> PercentEncode<'_> {
    const ENCODE_SET: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b',').remove(b':').remove(b'/').remove(b'@');
    utf8_percent_encode(text, ENCODE_SET)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<QueryString, BadQuery> {
        QueryString::read(&format!("/v1/nodes?{query}").parse().unwrap(), QueryRule::Only(&[PAGE, &["traits", "detail"]]))
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
    fn x06_check_not_empty_allows_empty_value_only_for_ironic() {
        let query = QueryRule::Only(&[PAGE, &["fields", "owner", "selector"]]);
        let names: BTreeSet<String> = ["name", "uuid"].map(str::to_owned).into();
        let known: &'static BTreeSet<String> = Box::leak(Box::new(names));
        let read = |text: &str, is_of_ironic: bool| {
            let parameters = QueryString::read(&format!("/v1/nodes?{text}").parse().unwrap(), query)?;
            parameters.check_not_empty(query, is_of_ironic)?;
            parameters.fields(known, is_of_ironic)
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
    fn read_rejects_unknown_parameter() {
        let refused = read("bogus=1").unwrap_err();
        assert_eq!(
            refused.to_string(),
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

    #[test]
    fn next_link_keeps_all_parameters() {
        let parameters = read("traits=A,B&limit=2&marker=x&detail=true").unwrap();
        let page = PageQuery::read(&parameters).unwrap();
        let next = page.next_link("http://h/v1/nodes", &parameters, 2, Some("z".into())).unwrap();
        assert_eq!(next, "http://h/v1/nodes?sort_key=id&sort_dir=asc&traits=A,B&detail=true&limit=2&marker=z");
    }
}
