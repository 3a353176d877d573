//! Who asks, as the listener found it before a handler runs.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::{HeaderMap, header};
use stemma_core::access::{Act, Place, Rights, Verdict};
use stemma_core::name::is_blank;
use stemma_core::object::PrincipalRole;
use stemma_wire::endpoint::{Caller, Endpoint, Method};
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use crate::registry::Who;

/// The header of `OpenStack`'s clients that holds a token.
const AUTH_TOKEN: &str = "x-auth-token";

/// What somebody is called who showed nothing that is known.
pub(crate) const NOBODY: &str = "nobody";

/// Who showed something that is no good.
#[derive(Clone, Debug)]
pub(crate) struct Unknown {
    /// What it is answered.
    pub refusal: Box<ApiError>,
    /// What it is called in the audit.
    pub name: String,
    /// The principal whose it was.
    pub uuid: Option<Uuid>,
}

/// Nobody in particular, at a row that is open to all.
fn nobody() -> Who {
    Who { rights: Rights { role: PrincipalRole::Viewer, within: None }, ..Who::by_way(NOBODY) }
}

/// The token that a request shows: `Authorization: Bearer TOKEN`, or `X-Auth-Token`.
pub(crate) fn token(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let named = || headers.get(AUTH_TOKEN)?.to_str().ok().map(str::trim);
    bearer.or_else(named).filter(|token| !token.is_empty())
}

/// How many digits the id of a principal's token has.
const TOKEN_ID_DIGITS: usize = 16;

/// What may be meant as a principal's token and is not exactly one: also a header that is there and has nothing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unclear;

/// The principal's token that a request shows beside something else by which it may be known; `None`: nothing that is meant as one. Clients of
/// `OpenStack`'s are made to send some text all the same, which is nothing. But whoever means to be a principal is never taken for another because of
/// how the token is written: that is told by the scheme, and by the form of a token anywhere in a header. A header of nothing is what a variable
/// without a value leaves of a token.
///
/// # Errors
/// [`Unclear`], also where two tokens are shown.
pub(crate) fn optional_token(headers: &HeaderMap) -> Result<Option<&str>, Unclear> {
    let in_scheme = headers.get_all(header::AUTHORIZATION).iter().map(|value| {
        let scheme = value.as_bytes().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        let token = value.to_str().ok().and_then(|text| text.split_once(' ')).map(|(_, token)| token);
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer");
        (is_bearer || may_be_token(value.as_bytes()), token.filter(|_| is_bearer))
    });
    let named = headers.get_all(AUTH_TOKEN).iter();
    let named = named.map(|value| (may_be_token(value.as_bytes()), value.to_str().ok()));
    let mut found = None;
    for (_, token) in in_scheme.chain(named).filter(|(is_meant, _)| *is_meant) {
        let token = token.map(str::trim).filter(|token| is_of_stemma(token)).ok_or(Unclear)?;
        if found.replace(token).is_some_and(|before| before != token) {
            return Err(Unclear);
        }
    }
    Ok(found)
}

/// Whether a token has the form of a principal's, `ID.SECRET`, whoever's it may be: an id is so many digits of a hexadecimal number, in small letters.
fn is_of_stemma(token: &str) -> bool {
    token.split_once('.').is_some_and(|(id, _)| id.len() == TOKEN_ID_DIGITS && id.bytes().all(is_id_digit))
}

/// Whether a header may be meant as a token: it has the form of one in it, also as the name or password of `Basic`, or nothing at all.
fn may_be_token(value: &[u8]) -> bool {
    let words = || value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is_coded = |word: &[u8]| BASE64_STANDARD.decode(word).is_ok_and(|text| has_form_of_token(&text));
    has_form_of_token(value) || words().any(is_coded) || is_blank(&String::from_utf8_lossy(value))
}

/// Whether that form stands anywhere in a text.
fn has_form_of_token(text: &[u8]) -> bool {
    let is_form =
        |part: &[u8]| part.split_last().is_some_and(|(last, id)| *last == b'.' && id.iter().copied().all(is_id_digit));
    text.windows(TOKEN_ID_DIGITS + 1).any(is_form)
}

const fn is_id_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'a'..=b'f')
}

/// Who may go on to this row. A caller with bad credentials may still use a row that is open to everyone, as nobody.
///
/// # Errors
/// [`ErrorType::AuthRequired`], [`ErrorType::AuthForbidden`], or what is no good.
pub(crate) fn admitted(endpoint: Endpoint, who: Result<Option<Who>, Unknown>) -> Result<Who, ApiError> {
    let who = match who {
        Err(_) if endpoint.allows(Caller::Nobody) => None,
        who => who.map_err(|unknown| *unknown.refusal)?,
    };
    let class = who.as_ref().map_or(Caller::Nobody, |who| who.rights.role.into());
    let route = endpoint.route();
    if !endpoint.allows(class) {
        let Some(who) = who else { return Err(ErrorType::AuthRequired.into()) };
        let what = format!("do this: \"{}\" ({} {})", route.summary, route.method.as_str(), route.path);
        return Err(who.denied(what, Some(endpoint)));
    }
    let act = if route.method == Method::Get { Act::Read } else { Act::Write };
    let who = who.unwrap_or_else(nobody);
    // What stands elsewhere is not on the shelves that the handler is given.
    if route.scope.is_shared() && who.rights.judge(act, Place::Shared) != Verdict::Allowed {
        let message = format!(
            "Permission denied: {} is bound to one cluster, and can change what is in it alone; nothing was changed",
            who.name
        );
        return Err(ApiError::new(ErrorType::AuthForbidden, message));
    }
    Ok(who)
}

#[cfg(test)]
mod tests {
    use stemma_core::object::ClusterId;

    use super::*;

    #[test]
    fn y09_who_is_denied_is_told_what_they_are_and_which_role_it_takes() {
        let who = |role, within: Option<u128>| Who {
            rights: Rights { role, within: within.map(|id| ClusterId(Uuid::from_u128(id))) },
            ..Who::by_way("vera")
        };
        let denied = |endpoint, who| admitted(endpoint, Ok(Some(who))).unwrap_err().message;
        for (endpoint, who, expected) in [
            (
                Endpoint::PatchNodeMap,
                who(PrincipalRole::Viewer, None),
                "Permission denied: vera (viewer) cannot do this: \"Changes single keys of such a map.\" (PATCH /v1/nodes/{node}/{map}); this needs role operator; nothing was changed",
            ),
            (
                Endpoint::CreateRelease,
                who(PrincipalRole::Operator, None),
                "Permission denied: vera (operator) cannot do this: \"Stores a release.\" (POST /v1/releases); this needs role admin; nothing was changed",
            ),
            (
                Endpoint::CreateRelease,
                who(PrincipalRole::Admin, Some(1)),
                "Permission denied: vera is bound to one cluster, and can change what is in it alone; nothing was changed",
            ),
        ] {
            assert_eq!(denied(endpoint, who), expected);
        }
        let nobody = admitted(Endpoint::CreateRelease, Ok(None)).unwrap_err();
        assert_eq!((nobody.kind, &*nobody.message), (ErrorType::AuthRequired, ErrorType::AuthRequired.title()));
    }

    #[test]
    fn a_token_of_a_principal_is_told_by_its_form() {
        for (token, is_its) in [
            ("0123456789abcdef.c2VjcmV0", true),
            ("0123456789abcdef.", true),
            ("0123456789abcdef", false),
            ("0123456789ABCDEF.c2VjcmV0", false),
            ("0123456789abcde.c2VjcmV0", false),
            // What clients of OpenStack's send where none is asked for, a token of Keystone's and one that is signed.
            ("tok", false),
            ("notused", false),
            ("gAAAAABlx.y", false),
            ("eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln", false),
        ] {
            assert_eq!(is_of_stemma(token), is_its, "{token}");
        }
    }

    /// Each of these counted as no token, and who sent it was an admin.
    #[test]
    fn x04_what_is_meant_as_a_token_and_is_not_exactly_one_is_unclear() {
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
                Err(Unclear) => "unclear",
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
            // By base64: x:TOKEN, and TOKEN:x.
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
    fn a_token_stands_in_one_of_two_headers() {
        for (name, value, found) in [
            ("authorization", "Bearer a.b", Some("a.b")),
            ("authorization", "bearer a.b ", Some("a.b")),
            ("authorization", "Basic YTpi", None),
            ("authorization", "Bearer", None),
            ("x-auth-token", "a.b", Some("a.b")),
            ("x-auth-token", "", None),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            assert_eq!(token(&headers), found, "{name}: {value}");
        }
    }
}
