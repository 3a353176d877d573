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

/// A caller whose credentials are invalid.
#[derive(Clone, Debug)]
pub(crate) struct AuthFailure {
    /// The error response.
    pub refusal: Box<ApiError>,
    /// The caller's name in the audit.
    pub name: String,
    /// The principal that the credentials belonged to.
    pub uuid: Option<Uuid>,
}

/// Returns the caller of a request without valid credentials. It can use only endpoints that are open to all.
fn anonymous() -> Requester {
    Requester { rights: Rights { role: PrincipalRole::Viewer, cluster: None }, ..Requester::from_listener(ANONYMOUS) }
}

/// Returns the token of a request: `Authorization: Bearer TOKEN`, or `X-Auth-Token`.
pub(crate) fn request_token(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let x_auth_token = || headers.get(AUTH_TOKEN)?.to_str().ok().map(str::trim);
    bearer.or_else(x_auth_token).filter(|token| !token.is_empty())
}

/// Number of digits in the id of a principal's token.
const TOKEN_ID_DIGITS: usize = 16;

/// The request has something that may be a principal's token but is not exactly one, such as an empty header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AmbiguousToken;

/// Returns the principal's token of a request whose caller is already known by the listener, or `None` if no header
/// looks like a token. `OpenStack`'s clients must always send some text as a token, and such text is ignored. But a
/// caller that tries to use a token is never taken for another principal because the token is malformed. Such a caller
/// is recognized by the `Bearer` scheme, and by the form of a token anywhere in a header. An empty header counts too:
/// it results from an unset variable.
///
/// # Errors
/// [`AmbiguousToken`], if a header looks like a token and is not one, or if there are two different tokens.
pub(crate) fn optional_token(headers: &HeaderMap) -> Result<Option<&str>, AmbiguousToken> {
    let in_scheme = headers.get_all(header::AUTHORIZATION).iter().map(|value| {
        let scheme = value.as_bytes().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        let token = value.to_str().ok().and_then(|text| text.split_once(' ')).map(|(_, token)| token);
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer");
        (is_bearer || may_be_token(value.as_bytes()), token.filter(|_| is_bearer))
    });
    let x_auth_tokens = headers.get_all(AUTH_TOKEN).iter();
    let x_auth_tokens = x_auth_tokens.map(|value| (may_be_token(value.as_bytes()), value.to_str().ok()));
    let mut unique_token = None;
    for (_, token) in in_scheme.chain(x_auth_tokens).filter(|(is_candidate, _)| *is_candidate) {
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

/// Returns whether a header may contain a principal's token: a part of the header begins as a token does, also within
/// the base64 text of `Basic`, or the header is blank.
fn may_be_token(value: &[u8]) -> bool {
    let words = || value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is_base64 = |word: &[u8]| BASE64_STANDARD.decode(word).is_ok_and(|text| has_token_form(&text));
    has_token_form(value) || words().any(is_base64) || is_blank(&String::from_utf8_lossy(value))
}

/// Returns whether the start of a principal's token, 16 hexadecimal digits and a dot, occurs anywhere in a text.
fn has_token_form(text: &[u8]) -> bool {
    let has_form = |part: &[u8]| part.split_last().is_some_and(|(last, id)| *last == b'.' && id.iter().copied().all(is_id_digit));
    text.windows(TOKEN_ID_DIGITS + 1).any(has_form)
}

const fn is_id_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'a'..=b'f')
}

/// Returns the caller if it may use this endpoint. A caller with invalid credentials may use an endpoint that is open
/// to everyone, anonymously.
///
/// # Errors
/// [`ErrorType::AuthRequired`], [`ErrorType::AuthForbidden`], or the error of the invalid credentials.
pub(crate) fn authorize(endpoint: Endpoint, requester: Result<Option<Requester>, AuthFailure>) -> Result<Requester, ApiError> {
    let requester = match requester {
        Err(_) if endpoint.allows(CallerClass::Nobody) => None,
        who => who.map_err(|failure| *failure.refusal)?,
    };
    let class = requester.as_ref().map_or(CallerClass::Nobody, |who| who.rights.role.into());
    let route = endpoint.route();
    if !endpoint.allows(class) {
        let Some(requester) = requester else { return Err(ErrorType::AuthRequired.into()) };
        let action = format!("do this: \"{}\" ({} {})", route.summary, route.method.as_str(), route.path);
        return Err(requester.denied(action, Some(endpoint)));
    }
    let act = if route.method == Method::Get { AccessVerb::Read } else { AccessVerb::Write };
    let requester = requester.unwrap_or_else(anonymous);
    // An endpoint of another scope needs no check here: its handler sees only the objects of the caller's cluster.
    if route.scope.is_fleet_wide() && requester.rights.verdict(act, AccessScope::Shared) != Verdict::Allowed {
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
    fn y09_authorize_names_role_of_caller_and_required_role_when_denied() {
        let who = |role, within: Option<u128>| Requester {
            rights: Rights { role, cluster: within.map(|id| ClusterId(Uuid::from_u128(id))) },
            ..Requester::from_listener("vera")
        };
        let denied = |endpoint, who| authorize(endpoint, Ok(Some(who))).unwrap_err().message;
        for (endpoint, who, expected) in [
            (
                Endpoint::PatchNodeMap,
                who(PrincipalRole::Viewer, None),
                "Permission denied: vera (viewer) cannot do this: \"Changes single keys of a map.\" (PATCH /v1/nodes/{node}/{map}); this needs role operator; nothing was changed",
            ),
            (
                Endpoint::CreateRelease,
                who(PrincipalRole::Operator, None),
                "Permission denied: vera (operator) cannot do this: \"Stores a release.\" (POST /v1/releases); this needs role admin; nothing was changed",
            ),
            (
                Endpoint::CreateRelease,
                who(PrincipalRole::Admin, Some(1)),
                "Permission denied: vera is bound to one cluster and can change only what is in it; nothing was changed",
            ),
        ] {
            assert_eq!(denied(endpoint, who), expected);
        }
        let nobody = authorize(Endpoint::CreateRelease, Ok(None)).unwrap_err();
        assert_eq!((nobody.kind, &*nobody.message), (ErrorType::AuthRequired, ErrorType::AuthRequired.title()));
    }

    #[test]
    fn is_principal_token_checks_form_of_token() {
        for (token, is_its) in [
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
            assert_eq!(is_principal_token(token), is_its, "{token}");
        }
    }

    /// Each of these counted as no token, which made the caller an admin.
    #[test]
    fn x04_optional_token_fails_when_token_is_ambiguous() {
        const TOKEN: &str = "0123456789abcdef.c2VjcmV0";
        let (auth, named) = ("authorization", "x-auth-token");
        let read = |shown: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in shown {
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
        for (shown, found) in [
            (&[(auth, "Bearer TOKEN")][..], "the token"),
            (&[(auth, "bearer  TOKEN ")], "the token"),
            (&[(named, "TOKEN")], "the token"),
            (&[(auth, "Bearer TOKEN"), (named, "TOKEN")], "the token"),
            (&[(auth, "Bearer TOKEN"), (named, "tok")], "the token"),
            (&[(auth, "Basic YTpi"), (named, "TOKEN")], "the token"),
            (&[(auth, "Bearer\tTOKEN")], "unclear"),
            // x:TOKEN and TOKEN:x, in base64.
            (&[(auth, "Basic eDowMTIzNDU2Nzg5YWJjZGVmLmMyVmpjbVYw")], "unclear"),
            (&[(auth, "Basic MDEyMzQ1Njc4OWFiY2RlZi5jMlZqY21WMDp4")], "unclear"),
            (&[(auth, "Bearer \"TOKEN\"")], "unclear"),
            (&[(auth, "Bearer x"), (named, "TOKEN")], "unclear"),
            (&[(auth, "Bearer x")], "unclear"),
            (&[(auth, "Bearer")], "unclear"),
            (&[(auth, "Token TOKEN")], "unclear"),
            (&[(auth, "TOKEN")], "unclear"),
            (&[(named, "Bearer TOKEN")], "unclear"),
            (&[(named, "\"TOKEN\"")], "unclear"),
            (&[(named, "TOKEN"), (named, "fedcba9876543210.x")], "unclear"),
            (&[(auth, "Bearer TOKEN"), (named, "fedcba9876543210.x")], "unclear"),
            (&[(auth, "Basic YTpi")], "nothing"),
            (&[(named, "tok")], "nothing"),
            (&[(named, "notused")], "nothing"),
            (&[(named, "secret")], "nothing"),
            (&[(named, "")], "unclear"),
            (&[(named, " ")], "unclear"),
            (&[(named, "\u{a0}")], "unclear"),
            (&[(auth, "")], "unclear"),
            (&[(auth, " ")], "unclear"),
            (&[(named, ""), (named, "TOKEN")], "unclear"),
            (&[(auth, ""), (named, "TOKEN")], "unclear"),
            (&[(auth, "Bearer TOKEN"), (named, "")], "unclear"),
            (&[], "nothing"),
        ] {
            assert_eq!(read(shown), found, "{shown:?}");
        }
    }

    #[test]
    fn request_token_reads_both_headers() {
        for (name, value, found) in [
            ("authorization", "Bearer a.b", Some("a.b")),
            ("authorization", "bearer a.b ", Some("a.b")),
            ("authorization", "Basic YTpi", None),
            ("authorization", "Bearer", None),
            ("x-auth-token", "a.b", Some("a.b")),
            ("x-auth-token", "", None),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            assert_eq!(request_token(&headers), found, "{name}: {value}");
        }
    }
}
