//! What stands behind the question mark: read once, bounded, nothing ignored, and carried on in a `next` link.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

use hyper::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use stemma_core::field::{truth, whole};
use stemma_core::name::is_blank;
use stemma_wire::endpoint::{PAGE, Query};
use stemma_wire::error::{ApiError, ErrorType};

/// The most that one page holds, and what it holds where no `limit` is given (as Ironic and Magnum).
pub(crate) const MOST_A_PAGE: usize = 1_000;

const MOST_PARAMETERS: usize = 64;

/// The parameters that Ironic takes without a value: it chooses no field then, and finds the nodes whose text is empty.
const EMPTY_TO_IRONIC: [&str; 8] =
    ["fields", "resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];

/// Of a parameter without a value, or with blanks alone.
const WITHOUT_VALUE: &str = "it has no value: give it one, or leave it out";

/// A query string, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters(Vec<(String, String)>);

/// Why a query is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadQuery {
    /// It cannot be decoded.
    #[error(
        "the query string can't be read: it must be NAME=VALUE pairs of percent-encoded UTF-8, at most {MOST_PARAMETERS}"
    )]
    Undecodable,
    /// A name that this path does not know.
    #[error("the query parameter {name:?} is not known here; known are {known}")]
    Unknown {
        /// The name, cut.
        name: String,
        /// Those that are.
        known: String,
    },
    /// Given twice where once is meant.
    #[error("the query parameter {name:?} is given {count} times, once is meant")]
    Repeated {
        /// Which.
        name: &'static str,
        /// How often.
        count: usize,
    },
    /// A value that is none.
    #[error("{name}={value:?} is not taken: {rule}")]
    BadValue {
        /// Which.
        name: &'static str,
        /// The value, cut.
        value: String,
        /// What would be.
        rule: String,
    },
}

impl BadQuery {
    /// The name of the parameter, for the error body's `field`.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Undecodable => None,
            Self::Unknown { name, .. } => Some(name),
            Self::Repeated { name, .. } | Self::BadValue { name, .. } => Some(name),
        }
    }

    /// A value that is not taken, and the rule.
    pub(crate) fn value(name: &'static str, value: &str, rule: impl Into<String>) -> Self {
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

/// A write's address without `dry_run`, and whether it says true: every write can be tried out, so no handler asks for it.
///
/// # Errors
/// [`BadQuery`] when it is given twice, or is no truth value.
pub(crate) fn without_dry_run(uri: &Uri) -> Result<(Uri, bool), BadQuery> {
    let query = uri.query().unwrap_or_default();
    let is_it = |pair: &&str| *pair == "dry_run" || pair.starts_with("dry_run=");
    if !query.split('&').any(|pair| is_it(&pair)) {
        return Ok((uri.clone(), false));
    }
    let dry_run = Parameters::read_any(uri)?.flag("dry_run")?.unwrap_or(false);
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_it(pair)).collect();
    let path = if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), rest.join("&")) };
    Ok((path.parse().map_err(|_| BadQuery::Undecodable)?, dry_run))
}

impl Parameters {
    /// Reads a request's query; a name that its route does not know is refused.
    ///
    /// # Errors
    /// [`BadQuery::Undecodable`] and [`BadQuery::Unknown`].
    pub(crate) fn read(uri: &Uri, query: Query) -> Result<Self, BadQuery> {
        let Self(pairs) = Self::read_any(uri)?;
        if let Some((name, _)) = pairs.iter().find(|(name, _)| !query.allows(name)) {
            let known = query.names().collect::<Vec<_>>().join(", ");
            return Err(BadQuery::Unknown { name: name.chars().take(64).collect(), known });
        }
        Ok(Self(pairs))
    }

    /// Refuses a parameter without a value, which would stand for nothing or for everything. What Ironic takes is left to a client of it.
    ///
    /// # Errors
    /// [`BadQuery::BadValue`].
    pub(crate) fn check_not_empty(&self, query: Query, is_of_ironic: bool) -> Result<(), BadQuery> {
        let mut asked = query.names().filter(|name| !(is_of_ironic && EMPTY_TO_IRONIC.contains(name)));
        asked.try_for_each(|name| match self.all(name).find(|value| is_blank(value)) {
            Some(value) => Err(BadQuery::value(name, value, WITHOUT_VALUE)),
            None => Ok(()),
        })
    }

    /// Reads a request's query, whatever its names.
    fn read_any(uri: &Uri) -> Result<Self, BadQuery> {
        let query = uri.query().unwrap_or_default().as_bytes();
        let pairs: Vec<_> = form_urlencoded::parse(query).into_owned().take(MOST_PARAMETERS + 1).collect();
        if pairs.len() > MOST_PARAMETERS { Err(BadQuery::Undecodable) } else { Ok(Self(pairs)) }
    }

    /// The one value of a parameter, if it is given.
    ///
    /// # Errors
    /// [`BadQuery::Repeated`].
    pub(crate) fn one(&self, name: &'static str) -> Result<Option<&str>, BadQuery> {
        let mut values = self.all(name);
        match (values.next(), values.count()) {
            (value, 0) => Ok(value),
            (_, more) => Err(BadQuery::Repeated { name, count: more + 1 }),
        }
    }

    /// All values of a parameter.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Each name with its value, as they were sent.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The union of a parameter's comma lists, in order, or `None` when it is not given at all.
    ///
    /// # Errors
    /// [`BadQuery::BadValue`] for an empty list or an empty member.
    pub(crate) fn list(&self, name: &'static str) -> Result<Option<Vec<&str>>, BadQuery> {
        let mut members = Vec::new();
        let mut given = false;
        for value in self.all(name) {
            given = true;
            for member in value.split(',') {
                if is_blank(member) {
                    return Err(BadQuery::value(name, value, "it is a list of names with commas, none of them empty"));
                }
                if !members.contains(&member) {
                    members.push(member);
                }
            }
        }
        Ok(given.then_some(members))
    }

    /// The one value of a parameter as text, if it is given.
    ///
    /// # Errors
    /// [`BadQuery`] for several values, and an empty or blank one: a blank selector would mean everything.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, BadQuery> {
        match self.one(name)? {
            Some(value) if is_blank(value) => Err(BadQuery::value(name, value, WITHOUT_VALUE)),
            value => Ok(value),
        }
    }

    /// The fields that are chosen of those that there are: trimmed, in any case, each once. To a client of Ironic an empty name is none, as
    /// there.
    ///
    /// # Errors
    /// [`BadQuery::BadValue`] for one that there is not, and for an empty one.
    pub(crate) fn fields(
        &self,
        known: &'static BTreeSet<String>,
        is_of_ironic: bool,
    ) -> Result<Option<BTreeSet<&'static str>>, BadQuery> {
        if !is_of_ironic {
            self.list("fields")?;
        }
        let mut given = self.all("fields").peekable();
        if given.peek().is_none() {
            return Ok(None);
        }
        let all = || known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let names = given.flat_map(|text| text.split(',')).map(str::trim).filter(|name| !name.is_empty());
        let read = |name: &str| {
            let found = known.get(&name.to_ascii_lowercase()).map(String::as_str);
            found.ok_or_else(|| BadQuery::value("fields", name, format!("the fields here are {}", all())))
        };
        names.map(read).collect::<Result<_, _>>().map(Some)
    }

    /// A whole number, if it is given, in the grammar of those of fields; `rule` says which are taken.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(crate) fn whole<N: FromStr + Display>(&self, name: &'static str, rule: &str) -> Result<Option<N>, BadQuery> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        whole(text).map(Some).ok_or_else(|| BadQuery::value(name, text, rule))
    }

    /// A truth value, in all the spellings that Ironic takes.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(crate) fn flag(&self, name: &'static str) -> Result<Option<bool>, BadQuery> {
        let Some(value) = self.one(name)? else { return Ok(None) };
        truth(value).map(Some).ok_or_else(|| BadQuery::value(name, value, "it is true or false"))
    }
}

/// Which part of a list is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// At most so many rows.
    pub limit: usize,
    /// Begin behind the row of this uuid.
    pub marker: Option<String>,
    /// The field to sort by, as it was sent.
    pub sort_key: Option<String>,
    /// The last first.
    pub descending: bool,
}

impl Page {
    /// What is taken of a limit.
    const LIMIT: &str = "it is a whole number from 1 on, as 50";

    /// Reads the parameters of a page.
    ///
    /// # Errors
    /// [`BadQuery`].
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, BadQuery> {
        let limit: usize = parameters.whole("limit", Self::LIMIT)?.unwrap_or(MOST_A_PAGE);
        if limit == 0 {
            return Err(BadQuery::value("limit", "0", Self::LIMIT));
        }
        let descending = match parameters.one("sort_dir")? {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(other) => return Err(BadQuery::value("sort_dir", other, "it is asc or desc")),
        };
        let text = |name| parameters.text(name).map(|value| value.map(str::to_owned));
        Ok(Self { limit: limit.min(MOST_A_PAGE), marker: text("marker")?, sort_key: text("sort_key")?, descending })
    }

    /// The address of the next page, when this one is full: every parameter of the request, and its last row
    /// as marker.
    pub(crate) fn next(&self, url: &str, parameters: &Parameters, rows: usize, last: Option<String>) -> Option<String> {
        let last = last.filter(|_| rows == self.limit)?;
        let key = self.sort_key.as_deref().unwrap_or("id");
        let direction = if self.descending { "desc" } else { "asc" };
        let mut link = format!("{url}?sort_key={}&sort_dir={direction}&", encoded(key));
        for (name, value) in parameters.0.iter().filter(|(name, _)| !PAGE.contains(&name.as_str())) {
            link.push_str(&format!("{}={}&", encoded(name), encoded(value)));
        }
        Some(format!("{link}limit={}&marker={}", self.limit, encoded(&last)))
    }
}

/// Percent-encodes what would be read as something else; commas stay, as Ironic writes them.
fn encoded(text: &str) -> PercentEncode<'_> {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~')
        .remove(b',')
        .remove(b':')
        .remove(b'/')
        .remove(b'@');
    utf8_percent_encode(text, ENCODED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Parameters, BadQuery> {
        Parameters::read(&format!("/v1/nodes?{query}").parse().unwrap(), Query::Of(&[PAGE, &["traits", "detail"]]))
    }

    #[test]
    fn lists_are_unions_and_never_empty() {
        for (query, expected) in [("traits=A,B&traits=B,C", Some(vec!["A", "B", "C"])), ("limit=1", None)] {
            assert_eq!(read(query).unwrap().list("traits").unwrap(), expected, "{query}");
        }
        for query in ["traits=", "traits=A,", "traits=A,,B"] {
            assert!(read(query).unwrap().list("traits").is_err(), "{query}");
        }
    }

    #[test]
    fn x06_a_parameter_without_a_value_is_refused_but_where_ironic_takes_it() {
        let query = Query::Of(&[PAGE, &["fields", "owner", "selector"]]);
        let names: BTreeSet<String> = ["name", "uuid"].map(str::to_owned).into();
        let known: &'static BTreeSet<String> = Box::leak(Box::new(names));
        let read = |text: &str, is_of_ironic: bool| {
            let parameters = Parameters::read(&format!("/v1/nodes?{text}").parse().unwrap(), query)?;
            parameters.check_not_empty(query, is_of_ironic)?;
            parameters.fields(known, is_of_ironic)
        };
        for text in
            ["fields=", "fields=name,", "fields=,", "fields=name,,uuid", "fields=name&fields=", "owner=", "owner=+"]
        {
            assert!(read(text, false).is_err(), "{text}");
            assert!(read(text, true).is_ok(), "{text}");
        }
        for text in ["selector=", "marker=", "sort_key=%20", "limit="] {
            assert!(read(text, false).is_err() && read(text, true).is_err(), "{text}");
        }
        assert_eq!(
            read("owner=", false).unwrap_err().to_string(),
            "owner=\"\" is not taken: it has no value: give it one, or leave it out"
        );
        assert_eq!(read("fields=", true), Ok(Some(BTreeSet::new())));
        assert_eq!(read("fields=name,uuid", false), Ok(Some(BTreeSet::from(["name", "uuid"]))));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let refused = read("bogus=1").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the query parameter \"bogus\" is not known here; known are limit, marker, sort_key, sort_dir, traits, detail"
        );
        for query in ["limit=0", "limit=-1", "limit=x", "sort_dir=bad", "limit=1&limit=2"] {
            assert!(Page::read(&read(query).unwrap()).is_err(), "{query}");
        }
    }

    #[test]
    fn y04_a_limit_is_a_whole_number_as_fields_have_it() {
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
            assert_eq!(Page::read(&read(query).unwrap()).ok().map(|page| page.limit), limit, "{query}");
        }
    }

    #[test]
    fn a_next_link_carries_every_filter() {
        let parameters = read("traits=A,B&limit=2&marker=x&detail=true").unwrap();
        let page = Page::read(&parameters).unwrap();
        let next = page.next("http://h/v1/nodes", &parameters, 2, Some("z".into())).unwrap();
        assert_eq!(next, "http://h/v1/nodes?sort_key=id&sort_dir=asc&traits=A,B&detail=true&limit=2&marker=z");
    }
}
