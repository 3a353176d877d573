//! Who asks, as the listener found it before a handler runs.

use hyper::{HeaderMap, header};
use stemma_core::access::{Act, Place, Rights, Verdict};
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

/// Whether a token has the form of a principal's, `ID.SECRET`, whoever's it may be: an id is so many digits of a hexadecimal number, in small letters.
pub(crate) fn is_of_stemma(token: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    token.split_once('.').is_some_and(|(id, _)| id.len() == TOKEN_ID_DIGITS && id.bytes().all(is_digit))
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
    if !endpoint.allows(class) {
        return Err(if who.is_none() { ErrorType::AuthRequired } else { ErrorType::AuthForbidden }.into());
    }
    let route = endpoint.route();
    let act = if route.method == Method::Get { Act::Read } else { Act::Write };
    let who = who.unwrap_or_else(nobody);
    // What stands elsewhere is not on the shelves that the handler is given.
    if route.scope.is_shared() && who.rights.judge(act, Place::Shared) != Verdict::Allowed {
        let message = "who is bound to a cluster writes what stands in it alone; nothing was changed";
        return Err(ApiError::new(ErrorType::AuthForbidden, message));
    }
    Ok(who)
}

#[cfg(test)]
mod tests {
    use super::*;

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
