//! Sends a check-in or fetches a profile or blob, and classifies the response or failure.

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
use stemma_wire::message::{DecodeError, Hash, Message as _, WireVersion, decode_up_to, encode_as};

use super::join::error_message;
use super::post::{error_type, is_version_refused};
use crate::channel::Sender;

/// Maximum size of a blob, in bytes.
const MAX_BLOB_BYTES: usize = 64 * 1024 * 1024;

/// Maximum size of the pieces in which a body is sent to apply, in bytes.
const MAX_PIECE_BYTES: usize = 64 * 1024;

/// How long to wait for the response to a check-in after the end of the wait that the check-in requested.
const RESPONSE_MARGIN: Duration = Duration::from_secs(30);

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// There was no response.
    #[error("the request to the controller failed")]
    Client(#[from] ClientError),
    /// The response cannot be decoded.
    #[error("the controller's answer cannot be read")]
    Answer(#[from] DecodeError),
    /// The certificate of this host has expired, and can only be used for its own renewal.
    #[error("the certificate has expired")]
    Expired,
    /// The controller is older and does not support the version of the request.
    #[error("the controller refused ({status}): {message}")]
    Version {
        /// The version of the request.
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
    /// The controller refused the request for another reason.
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

/// The result of an exchange, with the client that sent it, so that its connection can be used again.
pub(super) type ExchangeResult<T> = (Client, Result<T, ExchangeError>);

/// Sends a check-in in this wire version. Waits for the response as long as the check-in requests, and a margin.
pub(super) async fn check_in(mut client: Client, version: WireVersion, request: CheckIn) -> ExchangeResult<CheckInResponse> {
    let timeout = Duration::from_millis(request.wait_ms.into()) + RESPONSE_MARGIN;
    let post = Endpoint::CheckIn.request(&[], encode_as(version, &request));
    let answer = client.send_with_timeout(post, timeout).await.map_err(ExchangeError::from).and_then(|answer| {
        if is_version_refused(&answer) {
            let (status, message) = (answer.status(), error_message(answer.body()));
            return Err(ExchangeError::Version { version, status, message });
        }
        Ok(decode_up_to::<CheckInResponse>(version, &check_response(answer)?)?.1)
    });
    (client, answer)
}

/// The kind of content that a hash names. The kind determines the endpoint that serves the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    /// The profile of the desired state.
    Profile,
    /// A blob that the profile names.
    Blob,
    /// A profile or a blob. It is not known which, because no desired state was offered since this process started. So
    /// both endpoints are tried.
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

/// Fetches the content of a hash and forwards it to apply in pieces. The content is hashed piece by piece and
/// never held in memory as a whole. Returns whether the controller has this content for this host.
pub(super) async fn fetch(
    mut client: Client,
    hash: Hash,
    body_kind: BodyKind,
    to_apply: Sender<SyncMessage>,
) -> ExchangeResult<bool> {
    for &(endpoint, limit) in body_kind.endpoints() {
        let get = endpoint.request(&[&hash.to_string()], Vec::new());
        match forward_body(&mut client, get, hash, limit, &to_apply).await {
            Ok(()) => return (client, Ok(true)),
            Err(ExchangeError::Refused { status: StatusCode::NOT_FOUND, .. }) => {}
            Err(error) => return (client, Err(error)),
        }
    }
    (client, Ok(false))
}

/// Requests content, sends it to apply in pieces, and checks its size and hash. The first piece is empty, so that apply
/// starts again after a transfer that was cut off.
async fn forward_body(
    client: &mut Client,
    get: Request<Bytes>,
    hash: Hash,
    limit: usize,
    to_apply: &Sender<SyncMessage>,
) -> Result<(), ExchangeError> {
    let (mut digest, mut length) = (Sha256::new(), 0);
    let no_bytes = &[];
    let answer = client
        .stream(get, async |bytes| {
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
    check_response(answer)?;
    if length == 0 {
        send_piece(to_apply, hash, no_bytes).await.map_err(|source| ClientError::NotTaken { source })?;
    }
    if Hash(digest.finalize().into()) == hash { Ok(()) } else { Err(ExchangeError::HashMismatch(hash)) }
}

async fn send_piece(to_apply: &Sender<SyncMessage>, hash: Hash, piece: &[u8]) -> std::io::Result<()> {
    to_apply.send(&SyncMessage::Body { hash, bytes: piece.to_vec() }).await.map_err(std::io::Error::other)
}

/// Returns the body of a successful response, or the error of any other response.
fn check_response(answer: Response<Bytes>) -> Result<Bytes, ExchangeError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer.into_body());
    }
    let kind = error_type(answer.body());
    let message = error_message(answer.body());
    Err(if kind == ErrorType::CertificateExpired.name() {
        ExchangeError::Expired
    } else if kind == ErrorType::AuthRevoked.name() {
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
    fn fetch_asks_one_endpoint_when_body_kind_is_known() {
        let endpoints = |body_kind: BodyKind| body_kind.endpoints().iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
        assert_eq!(endpoints(BodyKind::Profile), [Endpoint::AgentProfile]);
        assert_eq!(endpoints(BodyKind::Blob), [Endpoint::AgentBlob]);
        assert_eq!(endpoints(BodyKind::Either), [Endpoint::AgentProfile, Endpoint::AgentBlob]);
    }

    /// Starts a server that sends the same bytes for each request. Returns its address and the requests that it
    /// received.
    async fn test_server(body: Vec<u8>) -> (Target, Rc<RefCell<Vec<String>>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let requests = Rc::new(RefCell::new(Vec::new()));
        let log = requests.clone();
        tokio::task::spawn_local(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut head).await {
                let text = String::from_utf8_lossy(&head[..length]).into_owned();
                log.borrow_mut().push(text.lines().next().unwrap_or_default().to_owned());
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.write_all(&body).await;
            }
        });
        (target, requests)
    }

    /// Fetches content by its hash. Returns the result, the pieces that apply received, and the requests.
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

    #[tokio::test(flavor = "current_thread")]
    async fn fetch_sends_blob_in_pieces_with_one_request() {
        let test = async {
            for length in [0, 1, 5_000_000] {
                let body: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[0]).collect();
                let hash = hash_content(&body);
                let (result, pieces, requests) = fetch_and_collect(BodyKind::Blob, body.clone(), hash).await;
                assert!(result.unwrap());
                assert_eq!(requests, [format!("GET /agent/v1/blobs/{hash} HTTP/1.1")]);
                assert_eq!(pieces[0], b"", "it is begun");
                assert!(pieces.iter().all(|piece| piece.len() <= MAX_PIECE_BYTES));
                assert!(pieces.concat() == body, "{length}");
            }
            let (result, ..) = fetch_and_collect(BodyKind::Blob, b"other".to_vec(), Hash([1; 32])).await;
            assert!(matches!(result, Err(ExchangeError::HashMismatch(_))));
        };
        tokio::task::LocalSet::new().run_until(test).await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn fetch_stops_reading_when_profile_is_too_large() {
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
