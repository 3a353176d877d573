//! What a client prefers of an answer (RFC 7240). One preference is followed: a write that answers with nothing says what it changed.

use hyper::HeaderMap;
use hyper::header::HeaderName;

/// The answer's header to a preference that was followed.
pub(super) const APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The preference that is followed.
pub(super) const REPRESENTATION: &str = "return=representation";

/// Whether a body is preferred. Of a preference that stands twice the first counts.
pub(super) fn prefers_representation(headers: &HeaderMap) -> bool {
    let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let first = values.flat_map(preferences).find(|(name, _)| name.eq_ignore_ascii_case("return"));
    first.is_some_and(|(_, value)| value.eq_ignore_ascii_case("representation"))
}

/// The preferences of a header, each with its value, without parameters.
fn preferences(header: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut is_quoted = false;
    let ends = move |c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    };
    header.split(ends).map(|one| {
        let bare = one.split(';').next().unwrap_or_default();
        let (name, value) = bare.split_once('=').unwrap_or((bare, ""));
        (name.trim(), value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn a_preference_is_read_as_rfc_7240_writes_it() {
        for (header, expected) in [
            ("return=representation", true),
            ("respond-async, Return = \"Representation\"", true),
            ("return=\"representation\"; foo=bar, wait=10", true),
            ("return=minimal, return=representation", false),
            ("note=\"a, return=representation\"", false),
            ("return", false),
            ("return=representations", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(HeaderName::from_static("prefer"), HeaderValue::from_static(header))]);
            assert_eq!(prefers_representation(&headers), expected, "{header}");
        }
        assert!(!prefers_representation(&HeaderMap::new()));
    }
}
