//! Authenticates the caller from the request's headers and checks the endpoint's role, before a handler runs.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::{HeaderMap, header};
use stemma_core::access::{AccessScope, AccessVerb, Rights, Verdict};
use stemma_core::name::is_blank;
use stemma_core::object::PrincipalRole;
use stemma_wire::endpoint::{CallerClass, Endpoint, Method};
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use crate::registry::Requester;

/// The header in which `OpenStack`'s clients send a token.
const AUTH_TOKEN: &str = "x-auth-token";

/// The name of a caller without valid credentials.
pub(crate) const ANONYMOUS: &str = "nobody";

/// The error for a caller whose credentials are invalid, or if there are too many connections.
#[derive(Clone, Debug)]
pub(crate) struct AuthFailure {
    /// The error response.
    pub refusal: Box<ApiError>,
    /// The caller's name in the audit.
    pub name: String,
    /// The principal whose credentials these are. `None` if it is not known.
    pub uuid: Option<Uuid>,
}

/// Returns the caller for a request without valid credentials. Such a caller may use only endpoints that are open to
/// everyone.
fn anonymous() -> Requester {
    Requester { rights: Rights { role: PrincipalRole::Viewer, cluster: None }, ..Requester::from_listener(ANONYMOUS) }
}

/// Returns the token of a request, from `Authorization: Bearer TOKEN` or else from `X-Auth-Token`. Returns `None` if
/// neither header has a token.
pub(crate) fn request_token(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let x_auth_token = || headers.get(AUTH_TOKEN)?.to_str().ok().map(str::trim);
    bearer.or_else(x_auth_token).filter(|token| !token.is_empty())
}

/// Number of hexadecimal digits in the id of a principal's token.
const TOKEN_ID_DIGITS: usize = 16;

/// The error for a header that looks like a principal's token and does not have the form of one, such as an empty
/// header. It is also the error for two different tokens in one request. A token in the correct form that does not
/// exist is another error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AmbiguousToken;

/// Returns the principal's token of a request. Returns `None` if no header looks like a token. `OpenStack`'s clients
/// always send some text as a token, and such text is ignored. But a malformed token is never ignored: the caller would
/// be treated as someone else who may have more rights, such as the admin of the listener or the holder of a
/// certificate. A header looks like a token if it has the scheme `Bearer`, contains text in the form of a token, or is
/// blank (from an unset variable).
///
/// # Errors
/// [`AmbiguousToken`], if a header looks like a token and is not one, or if there are two different tokens.
pub(crate) fn optional_token(headers: &HeaderMap) -> Result<Option<&str>, AmbiguousToken> {
    // For each header: whether it looks like a token, and the text that may be the token.
    let bearer_tokens = headers.get_all(header::AUTHORIZATION).iter().map(|value| {
        let scheme = value.as_bytes().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        let token = value.to_str().ok().and_then(|text| text.split_once(' ')).map(|(_, token)| token);
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer");
        (is_bearer || may_be_token(value.as_bytes()), token.filter(|_| is_bearer))
    });
    let x_auth_tokens = headers.get_all(AUTH_TOKEN).iter();
    let x_auth_tokens = x_auth_tokens.map(|value| (may_be_token(value.as_bytes()), value.to_str().ok()));
    let mut unique_token = None;
    for (_, token) in bearer_tokens.chain(x_auth_tokens).filter(|(is_candidate, _)| *is_candidate) {
        let token = token.map(str::trim).filter(|token| is_principal_token(token)).ok_or(AmbiguousToken)?;
        if unique_token.replace(token).is_some_and(|previous| previous != token) {
            return Err(AmbiguousToken);
        }
    }
    Ok(unique_token)
}

/// Returns whether a text has the form of a principal's token, `ID.SECRET`, where the id is 16 lowercase hexadecimal
/// digits. The token need not exist.
fn is_principal_token(token: &str) -> bool {
    token.split_once('.').is_some_and(|(id, _)| id.len() == TOKEN_ID_DIGITS && id.bytes().all(is_id_digit))
}

/// Returns whether a header may contain a principal's token. This is so if some text in the header has the form of a
/// token, also within the base64 text of `Basic`, or if the header is blank.
fn may_be_token(value: &[u8]) -> bool {
    let words = || value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is_base64 = |word: &[u8]| BASE64_STANDARD.decode(word).is_ok_and(|text| has_token_form(&text));
    has_token_form(value) || words().any(is_base64) || is_blank(&String::from_utf8_lossy(value))
}

/// Returns whether a text contains the first part of a principal's token: 16 lowercase hexadecimal digits and a dot.
fn has_token_form(text: &[u8]) -> bool {
    let has_form = |part: &[u8]| part.split_last().is_some_and(|(last, id)| *last == b'.' && id.iter().copied().all(is_id_digit));
    text.windows(TOKEN_ID_DIGITS + 1).any(has_form)
}

const fn is_id_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'a'..=b'f')
}

/// Returns the caller if it may use this endpoint. A caller with invalid credentials is treated as anonymous if the
/// endpoint is open to everyone.
///
/// # Errors
/// [`ErrorType::AuthRequired`], [`ErrorType::AuthForbidden`], or the error of the invalid credentials.
pub(crate) fn authorize(endpoint: Endpoint, requester: Result<Option<Requester>, AuthFailure>) -> Result<Requester, ApiError> {
    let requester = match requester {
        Err(_) if endpoint.allows(CallerClass::Nobody) => None,
        caller => caller.map_err(|failure| *failure.refusal)?,
    };
    let class = requester.as_ref().map_or(CallerClass::Nobody, |caller| caller.rights.role.into());
    let route = endpoint.route();
    if !endpoint.allows(class) {
        let Some(requester) = requester else { return Err(ErrorType::AuthRequired.into()) };
        let action = format!("do this: \"{}\" ({} {})", route.summary, route.method.as_str(), route.path);
        return Err(requester.denied(action, Some(endpoint)));
    }
    let verb = if route.method == Method::Get { AccessVerb::Read } else { AccessVerb::Write };
    let requester = requester.unwrap_or_else(anonymous);
    // An endpoint of another scope needs no check here: its handler sees only the objects of the caller's cluster.
    if route.scope.is_fleet_wide() && requester.rights.verdict(verb, AccessScope::Shared) != Verdict::Allowed {
        let message = format!(
            "Permission denied: {} is bound to one cluster and can change only what is in it; nothing was changed",
            requester.name
        );
        return Err(ApiError::new(ErrorType::AuthForbidden, message));
    }
    Ok(requester)
}

#[cfg(test)]
mod tests {
    use stemma_core::object::ClusterId;

    use super::*;

    #[test]
    fn y09_authorize_gives_reason_when_caller_is_denied() {
        let caller = |role, cluster_id: Option<u128>| Requester {
            rights: Rights { role, cluster: cluster_id.map(|id| ClusterId(Uuid::from_u128(id))) },
            ..Requester::from_listener("vera")
        };
        let denied = |endpoint, caller| authorize(endpoint, Ok(Some(caller))).unwrap_err().message;
        for (endpoint, caller, expected) in [
            (
                Endpoint::PatchNodeMap,
                caller(PrincipalRole::Viewer, None),
                "Permission denied: vera (viewer) cannot do this: \"Changes single keys of a map.\" (PATCH /v1/nodes/{node}/{map}); this needs role operator; nothing was changed",
            ),
            (
                Endpoint::CreateRelease,
                caller(PrincipalRole::Operator, None),
                "Permission denied: vera (operator) cannot do this: \"Stores a release.\" (POST /v1/releases); this needs role admin; nothing was changed",
            ),
            (
                Endpoint::CreateRelease,
                caller(PrincipalRole::Admin, Some(1)),
                "Permission denied: vera is bound to one cluster and can change only what is in it; nothing was changed",
            ),
        ] {
            assert_eq!(denied(endpoint, caller), expected);
        }
        let nobody = authorize(Endpoint::CreateRelease, Ok(None)).unwrap_err();
        assert_eq!((nobody.kind, &*nobody.message), (ErrorType::AuthRequired, ErrorType::AuthRequired.title()));
    }

    #[test]
    fn is_principal_token_checks_form_of_token() {
        for (token, is_token) in [
            ("0123456789abcdef.c2VjcmV0", true),
            ("0123456789abcdef.", true),
            ("0123456789abcdef", false),
            ("0123456789ABCDEF.c2VjcmV0", false),
            ("0123456789abcde.c2VjcmV0", false),
            // What clients of OpenStack send if no token is required, a token of Keystone, and a signed one.
            ("tok", false),
            ("notused", false),
            ("gAAAAABlx.y", false),
            ("eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln", false),
        ] {
            assert_eq!(is_principal_token(token), is_token, "{token}");
        }
    }

    /// An earlier version ignored the headers that are "unclear" here, which made the caller an admin.
    #[test]
    fn x04_optional_token_fails_when_token_is_ambiguous() {
        const TOKEN: &str = "0123456789abcdef.c2VjcmV0";
        let (auth, x_auth) = ("authorization", "x-auth-token");
        let read = |sent_headers: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in sent_headers {
                let name: header::HeaderName = name.parse().unwrap();
                headers.append(name, value.replace("TOKEN", TOKEN).parse().unwrap());
            }
            match optional_token(&headers) {
                Ok(None) => "nothing",
                Ok(Some(token)) if token == TOKEN => "the token",
                Ok(Some(_)) => "another",
                Err(AmbiguousToken) => "unclear",
            }
        };
        for (sent_headers, expected) in [
            (&[(auth, "Bearer TOKEN")][..], "the token"),
            (&[(auth, "bearer  TOKEN ")], "the token"),
            (&[(x_auth, "TOKEN")], "the token"),
            (&[(auth, "Bearer TOKEN"), (x_auth, "TOKEN")], "the token"),
            (&[(auth, "Bearer TOKEN"), (x_auth, "tok")], "the token"),
            (&[(auth, "Basic YTpi"), (x_auth, "TOKEN")], "the token"),
            (&[(auth, "Bearer\tTOKEN")], "unclear"),
            // x:TOKEN and TOKEN:x, in base64.
            (&[(auth, "Basic eDowMTIzNDU2Nzg5YWJjZGVmLmMyVmpjbVYw")], "unclear"),
            (&[(auth, "Basic MDEyMzQ1Njc4OWFiY2RlZi5jMlZqY21WMDp4")], "unclear"),
            (&[(auth, "Bearer \"TOKEN\"")], "unclear"),
            (&[(auth, "Bearer x"), (x_auth, "TOKEN")], "unclear"),
            (&[(auth, "Bearer x")], "unclear"),
            (&[(auth, "Bearer")], "unclear"),
            (&[(auth, "Token TOKEN")], "unclear"),
            (&[(auth, "TOKEN")], "unclear"),
            (&[(x_auth, "Bearer TOKEN")], "unclear"),
            (&[(x_auth, "\"TOKEN\"")], "unclear"),
            (&[(x_auth, "TOKEN"), (x_auth, "fedcba9876543210.x")], "unclear"),
            (&[(auth, "Bearer TOKEN"), (x_auth, "fedcba9876543210.x")], "unclear"),
            (&[(auth, "Basic YTpi")], "nothing"),
            (&[(x_auth, "tok")], "nothing"),
            (&[(x_auth, "notused")], "nothing"),
            (&[(x_auth, "secret")], "nothing"),
            (&[(x_auth, "")], "unclear"),
            (&[(x_auth, " ")], "unclear"),
            (&[(x_auth, "\u{a0}")], "unclear"),
            (&[(auth, "")], "unclear"),
            (&[(auth, " ")], "unclear"),
            (&[(x_auth, ""), (x_auth, "TOKEN")], "unclear"),
            (&[(auth, ""), (x_auth, "TOKEN")], "unclear"),
            (&[(auth, "Bearer TOKEN"), (x_auth, "")], "unclear"),
            (&[], "nothing"),
        ] {
            assert_eq!(read(sent_headers), expected, "{sent_headers:?}");
        }
    }

    #[test]
    fn request_token_reads_both_headers() {
        for (name, value, expected) in [
            ("authorization", "Bearer a.b", Some("a.b")),
            ("authorization", "bearer a.b ", Some("a.b")),
            ("authorization", "Basic YTpi", None),
            ("authorization", "Bearer", None),
            ("x-auth-token", "a.b", Some("a.b")),
            ("x-auth-token", "", None),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            assert_eq!(request_token(&headers), expected, "{name}: {value}");
        }
    }
}
