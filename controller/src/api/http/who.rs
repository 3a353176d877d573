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
