//! Sends a check-in, or fetches a profile (the list of tasks of a host) or a blob (the content of a file). Classifies
//! the response or failure.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use sha2::{Digest as _, Sha256};
use stemma_wire::client::{Client, ClientError};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::ErrorType;
use stemma_wire::message::channel::SyncMessage;
use stemma_wire::message::checkin::{CheckIn, CheckInResponse};
use stemma_wire::message::desired::Profile;
use stemma_wire::message::{DecodeError, Hash, MAX_BLOB_BYTES, Message as _, WireVersion, decode_up_to, encode_as};

use super::join::error_message;
use super::post::{error_type, is_version_refused};
use crate::channel::Sender;

/// Maximum size of the pieces in which a body is sent to the root half (apply), in bytes.
const MAX_PIECE_BYTES: usize = 64 * 1024;

/// Additional time to wait for the response to a check-in, after the end of the wait that the check-in requested.
const RESPONSE_MARGIN: Duration = Duration::from_secs(30);

/// The reason why a request to a controller failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// There was no complete response, or it was too large or could not be passed to the root half (`apply`).
    #[error("the request to the controller failed")]
    Client(#[from] ClientError),
    /// The response cannot be decoded.
    #[error("the controller's answer cannot be read")]
    Answer(#[from] DecodeError),
    /// The certificate of this host has expired. The controller accepts it only for its renewal.
    #[error("the certificate has expired")]
    Expired,
    /// The controller is older than this agent and does not support the wire version of the request.
    #[error("the controller refused ({status}): {message}")]
    Version {
        /// The wire version of the request.
        version: WireVersion,
        /// The HTTP status.
        status: StatusCode,
        /// Message of the controller.
        message: String,
    },
    /// The controller no longer knows this host: its node was deleted, or its certificate was revoked.
    #[error("the controller refused ({status}): {message}")]
    Unknown {
        /// The HTTP status.
        status: StatusCode,
        /// Message of the controller.
        message: String,
    },
    /// The controller refused the request for another reason, for example because it lacks the content (404).
    #[error("the controller refused ({status}): {message}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// Message of the controller.
        message: String,
    },
    /// The content does not match the requested hash.
    #[error("the controller sent content that does not match hash {0}")]
    HashMismatch(Hash),
}

/// The client that sent a request, and the result. The client is returned so that its connection can be used again.
pub(super) type ExchangeResult<T> = (Client, Result<T, ExchangeError>);

/// Sends a check-in in this wire version. Waits for the response as long as the check-in requests, plus
/// [`RESPONSE_MARGIN`].
pub(super) async fn check_in(mut client: Client, version: WireVersion, request: CheckIn) -> ExchangeResult<CheckInResponse> {
    let timeout = Duration::from_millis(request.wait_ms.into()) + RESPONSE_MARGIN;
    let http_request = Endpoint::CheckIn.request(&[], encode_as(version, &request));
    let response = client.send_with_timeout(http_request, timeout).await.map_err(ExchangeError::from).and_then(|response| {
        if is_version_refused(&response) {
            let (status, message) = (response.status(), error_message(response.body()));
            return Err(ExchangeError::Version { version, status, message });
        }
        // `decode_up_to` returns the version and the message.
        Ok(decode_up_to::<CheckInResponse>(version, &check_response(response)?)?.1)
    });
    (client, response)
}

/// The kind of content that a hash names. The kind determines the endpoint that serves the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    /// The profile of the desired state.
    Profile,
    /// A blob that the profile names.
    Blob,
    /// A profile or a blob. The kind is not known, because no controller has offered a task set since this process
    /// started, or the last offered task set has no profile or cannot be decoded. So both endpoints are tried.
    Either,
}

impl BodyKind {
    /// Returns the endpoints that may have the content, each with the maximum size of the content in bytes.
    fn endpoints(self) -> &'static [(Endpoint, usize)] {
        const PROFILES: (Endpoint, usize) = (Endpoint::AgentProfile, Profile::MAX_BYTES);
        const BLOBS: (Endpoint, usize) = (Endpoint::AgentBlob, MAX_BLOB_BYTES);
        match self {
            Self::Profile => &[PROFILES],
            Self::Blob => &[BLOBS],
            Self::Either => &[PROFILES, BLOBS],
        }
    }
}

/// Fetches the content with this hash and forwards it to the root half (apply) in pieces. The content is hashed piece
/// by piece and is never in memory as a whole. Returns whether the controller has this content for this host.
pub(super) async fn fetch(
    mut client: Client,
    hash: Hash,
    body_kind: BodyKind,
    to_apply: Sender<SyncMessage>,
) -> ExchangeResult<bool> {
    for &(endpoint, limit) in body_kind.endpoints() {
        let request = endpoint.request(&[&hash.to_string()], Vec::new());
        match forward_body(&mut client, request, hash, limit, &to_apply).await {
            Ok(()) => return (client, Ok(true)),
            Err(ExchangeError::Refused { status: StatusCode::NOT_FOUND, .. }) => {}
            Err(error) => return (client, Err(error)),
        }
    }
    (client, Ok(false))
}

/// Requests content, sends it to the root half (apply) in pieces, and checks its size and hash. The first piece is
/// empty. It makes apply discard the pieces of an earlier transfer that was interrupted.
async fn forward_body(
    client: &mut Client,
    request: Request<Bytes>,
    hash: Hash,
    limit: usize,
    to_apply: &Sender<SyncMessage>,
) -> Result<(), ExchangeError> {
    let (mut digest, mut length) = (Sha256::new(), 0);
    let no_bytes = &[];
    let response = client
        .stream(request, async |bytes| {
            if length == 0 {
                send_piece(to_apply, hash, no_bytes).await?;
            }
            digest.update(&bytes);
            length += bytes.len();
            if length > limit {
                return Err(std::io::Error::other(format!("it is larger than {limit} bytes")));
            }
            for piece in bytes.chunks(MAX_PIECE_BYTES) {
                send_piece(to_apply, hash, piece).await?;
            }
            Ok(())
        })
        .await?;
    check_response(response)?;
    if length == 0 {
        // Without a body, the function above was not called, so the first piece was not sent.
        send_piece(to_apply, hash, no_bytes).await.map_err(|source| ClientError::NotTaken { source })?;
    }
    if Hash(digest.finalize().into()) == hash { Ok(()) } else { Err(ExchangeError::HashMismatch(hash)) }
}

/// Sends one piece of the content with this hash to apply.
async fn send_piece(to_apply: &Sender<SyncMessage>, hash: Hash, piece: &[u8]) -> std::io::Result<()> {
    to_apply.send(&SyncMessage::Body { hash, bytes: piece.to_vec() }).await.map_err(std::io::Error::other)
}

/// Returns the body of a successful response. Converts any other response to an error, by the error type in its body.
fn check_response(response: Response<Bytes>) -> Result<Bytes, ExchangeError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    let error_type_name = error_type(response.body());
    let message = error_message(response.body());
    Err(if error_type_name == ErrorType::CertificateExpired.name() {
        ExchangeError::Expired
    } else if error_type_name == ErrorType::AuthRevoked.name() {
        ExchangeError::Unknown { status, message }
    } else {
        ExchangeError::Refused { status, message }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use stemma_wire::client::{ClientLimits, Target};
    use stemma_wire::message::hash_content;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::channel::pair;

    #[test]
    fn check_response_distinguishes_refusals_by_error_type() {
        let answer = |body: &str| check_response(Response::builder().status(403).body(Bytes::from(body.to_owned())).unwrap());
        let expired = r#"{"error": {"code": 403, "type": "certificate_expired"}}"#;
        assert!(matches!(answer(expired), Err(ExchangeError::Expired)));
        let revoked = r#"{"error": {"code": 403, "type": "auth.revoked", "message": "the node was deleted"}}"#;
        assert!(matches!(answer(revoked), Err(ExchangeError::Unknown { .. })));
        for other in [
            r#"{"error": {"code": 403, "type": "forbidden", "message": "certificate_expired"}}"#,
            r#"{"certificate_expired": 1}"#,
            "certificate_expired",
            "",
        ] {
            assert!(matches!(answer(other), Err(ExchangeError::Refused { .. })), "{other}");
        }
    }

    #[test]
    fn body_kind_has_one_endpoint_when_known() {
        let endpoints = |body_kind: BodyKind| body_kind.endpoints().iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
        assert_eq!(endpoints(BodyKind::Profile), [Endpoint::AgentProfile]);
        assert_eq!(endpoints(BodyKind::Blob), [Endpoint::AgentBlob]);
        assert_eq!(endpoints(BodyKind::Either), [Endpoint::AgentProfile, Endpoint::AgentBlob]);
    }

    /// Starts a server that sends the same body for each request. Returns the server's address, and a list to which the
    /// server adds the first line of each request.
    async fn test_server(body: Vec<u8>) -> (Target, Rc<RefCell<Vec<String>>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let requests = Rc::new(RefCell::new(Vec::new()));
        let log = requests.clone();
        tokio::task::spawn_local(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                log.borrow_mut().push(text.lines().next().unwrap_or_default().to_owned());
                let response_head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(response_head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
            }
        });
        (target, requests)
    }

    /// Fetches content by its hash from a test server with this body. Returns the result of the fetch, the pieces that
    /// apply received, and the requests that the server received.
    async fn fetch_and_collect(
        body_kind: BodyKind,
        body: Vec<u8>,
        hash: Hash,
    ) -> (Result<bool, ExchangeError>, Vec<Vec<u8>>, Vec<String>) {
        let (target, requests) = test_server(body).await;
        let (sync, mut apply) = pair();
        let client = Client::new(target, None, ClientLimits::default());
        let fetching = async {
            let (_, result) = fetch(client, hash, body_kind, sync.sender()).await;
            drop(sync);
            result
        };
        let receiving = async {
            let mut pieces = Vec::new();
            while let Ok(SyncMessage::Body { hash: piece_hash, bytes }) = apply.receive().await {
                assert_eq!(piece_hash, hash);
                pieces.push(bytes);
            }
            pieces
        };
        let (result, pieces) = tokio::join!(fetching, receiving);
        (result, pieces, requests.take())
    }

    /// Fetches content of several sizes, and content whose hash is wrong.
    #[tokio::test(flavor = "current_thread")]
    async fn fetch_sends_blob_in_pieces_with_one_request() {
        let test = async {
            for length in [0, 1, 5_000_000] {
                let body: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[0]).collect();
                let hash = hash_content(&body);
                let (result, pieces, requests) = fetch_and_collect(BodyKind::Blob, body.clone(), hash).await;
                assert!(result.unwrap());
                assert_eq!(requests, [format!("GET /agent/v1/blobs/{hash} HTTP/1.1")]);
                assert_eq!(pieces[0], b"", "the first piece is empty");
                assert!(pieces.iter().all(|piece| piece.len() <= MAX_PIECE_BYTES));
                assert!(pieces.concat() == body, "{length}");
            }
            let (result, ..) = fetch_and_collect(BodyKind::Blob, b"other".to_vec(), Hash([1; 32])).await;
            assert!(matches!(result, Err(ExchangeError::HashMismatch(_))));
        };
        tokio::task::LocalSet::new().run_until(test).await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn fetch_fails_when_profile_is_too_large() {
        let test = async {
            let body = vec![0; Profile::MAX_BYTES + MAX_PIECE_BYTES];
            let hash = hash_content(&body);
            let (result, pieces, _) = fetch_and_collect(BodyKind::Profile, body, hash).await;
            let error = format!("{:?}", result.unwrap_err());
            assert!(error.contains(&format!("it is larger than {} bytes", Profile::MAX_BYTES)), "{error}");
            assert!(pieces.concat().len() <= Profile::MAX_BYTES);
        };
        tokio::task::LocalSet::new().run_until(test).await;
    }
}
