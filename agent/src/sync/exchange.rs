//! One request and its answer, with what each failure means.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use stemma_wire::client::{Client, ClientError};
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer};
use stemma_wire::message::{DecodeError, Hash, decode, encode, hash_content};

use super::join::sentence;

/// Past a check-in's own wait, so long is waited for its answer.
const MARGIN: Duration = Duration::from_secs(30);

/// Why an exchange came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// No answer.
    #[error("the controller could not be asked")]
    Asked(#[from] ClientError),
    /// An answer that is none.
    #[error("the controller's answer cannot be read")]
    Answer(#[from] DecodeError),
    /// The certificate is too old for anything but renewing.
    #[error("the certificate has expired")]
    Expired,
    /// The controller said no.
    #[error("the controller refused ({status}): {message}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// Its sentence.
        message: String,
    },
    /// Other bytes than were asked for.
    #[error("the controller gave other bytes than those of hash {0}")]
    OtherBytes(Hash),
}

/// A client that comes back with what it brought.
pub(super) type Returned<T> = (Client, Result<T, ExchangeError>);

/// Checks in, and waits as long as the request says.
pub(super) async fn check_in(mut client: Client, request: CheckIn) -> Returned<CheckInAnswer> {
    let within = Duration::from_millis(request.wait_ms.into()) + MARGIN;
    let post = Request::post("/agent/v1/checkin").body(Bytes::from(encode(&request))).expect("the path is a path");
    let answer = client.send_within(post, within).await.map_err(ExchangeError::from).and_then(answered);
    let answer = answer.and_then(|body| Ok(decode::<CheckInAnswer>(&body)?));
    (client, answer)
}

/// Fetches what a hash names: a profile, else a blob. `None`: this controller gives neither to us now.
pub(super) async fn fetch(mut client: Client, hash: Hash) -> Returned<Option<Vec<u8>>> {
    for kind in ["profiles", "blobs"] {
        let path = format!("/agent/v1/{kind}/{hash}");
        let get = Request::get(path).body(Bytes::new()).expect("the path is a path");
        match client.send(get).await.map_err(ExchangeError::from).and_then(answered) {
            Ok(body) if hash_content(&body) == hash => return (client, Ok(Some(body.into()))),
            Ok(_) => return (client, Err(ExchangeError::OtherBytes(hash))),
            Err(ExchangeError::Refused { status: StatusCode::NOT_FOUND, .. }) => {}
            Err(error) => return (client, Err(error)),
        }
    }
    (client, Ok(None))
}

fn answered(answer: Response<Bytes>) -> Result<Bytes, ExchangeError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer.into_body());
    }
    let is_expired =
        status == StatusCode::FORBIDDEN && answer.body().windows(EXPIRED.len()).any(|window| window == EXPIRED);
    if is_expired {
        Err(ExchangeError::Expired)
    } else {
        Err(ExchangeError::Refused { status, message: sentence(answer.body()) })
    }
}

/// The error type that a controller gives to an expired certificate in its grace.
const EXPIRED: &[u8] = b"certificate_expired";
