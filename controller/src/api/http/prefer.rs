//! The preferences of a client (RFC 7240). One preference is supported, `return=representation`: with it, a write whose
//! response normally has no body returns the changed object.

use hyper::HeaderMap;
use hyper::header::HeaderName;

/// The response header that names the applied preference.
pub(super) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The supported preference: the response of a write contains the changed object.
pub(super) const RETURN_REPRESENTATION: &str = "return=representation";

/// Returns whether the client prefers a response with the changed object (`return=representation`). If `return` occurs
/// several times, the first value applies.
pub(super) fn is_representation_preferred(headers: &HeaderMap) -> bool {
    let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let return_preference = values.flat_map(preferences).find(|(name, _)| name.eq_ignore_ascii_case("return"));
    return_preference.is_some_and(|(_, value)| value.eq_ignore_ascii_case("representation"))
}

/// Returns the preferences in a header, each as name and value. The parameters of a preference, after a `;`, are
/// dropped. A comma within quotes does not end a preference.
fn preferences(header: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut is_quoted = false;
    let is_separator = move |character| {
        is_quoted ^= character == '"';
        character == ',' && !is_quoted
    };
    header.split(is_separator).map(|preference| {
        let without_parameters = preference.split(';').next().unwrap_or_default();
        let (name, value) = without_parameters.split_once('=').unwrap_or((without_parameters, ""));
        (name.trim(), value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn is_representation_preferred_parses_header_as_rfc_7240() {
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
            assert_eq!(is_representation_preferred(&headers), expected, "{header}");
        }
        assert!(!is_representation_preferred(&HeaderMap::new()));
    }
}
