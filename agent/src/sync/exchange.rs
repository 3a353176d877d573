//! One request and its answer, with what each failure means.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use sha2::{Digest as _, Sha256};
use stemma_wire::client::{Client, ClientError};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::ErrorType;
use stemma_wire::message::channel::FromSync;
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer};
use stemma_wire::message::desired::Profile;
use stemma_wire::message::{DecodeError, Hash, Message as _, WireVersion, decode_up_to, encode_as};

use super::join::sentence;
use super::post::{is_of_the_version, kind};
use crate::channel::Sender;

/// The largest blob.
const LARGEST_BLOB: usize = 64 * 1024 * 1024;

/// A body crosses to apply in pieces of at most this size.
const PIECE: usize = 64 * 1024;

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
    /// The controller does not read the version in which it was asked: it is an older one.
    #[error("the controller refused ({status}): {message}")]
    Version {
        /// The version in which it was asked.
        asked: WireVersion,
        /// The HTTP status.
        status: StatusCode,
        /// Its sentence.
        message: String,
    },
    /// The controller no longer knows this host: its node was deleted, or its certificate was revoked.
    #[error("the controller refused ({status}): {message}")]
    Unknown {
        /// The HTTP status.
        status: StatusCode,
        /// Its sentence.
        message: String,
    },
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

/// Checks in with a message in this version, and waits as long as it says.
pub(super) async fn check_in(mut client: Client, version: WireVersion, request: CheckIn) -> Returned<CheckInAnswer> {
    let within = Duration::from_millis(request.wait_ms.into()) + MARGIN;
    let post = Endpoint::CheckIn.request(&[], encode_as(version, &request));
    let answer = client.send_within(post, within).await.map_err(ExchangeError::from).and_then(|answer| {
        if is_of_the_version(&answer) {
            let (status, message) = (answer.status(), sentence(answer.body()));
            return Err(ExchangeError::Version { asked: version, status, message });
        }
        Ok(decode_up_to::<CheckInAnswer>(version, &answered(answer)?)?.1)
    });
    (client, answer)
}

/// Where what a hash names is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    /// It is the profile of the desired state.
    Profile,
    /// The profile names it.
    Blob,
    /// No desired state was offered since this process began: which of the two it is is not known here.
    Either,
}

impl BodyKind {
    fn kinds(self) -> &'static [(Endpoint, usize)] {
        const PROFILES: (Endpoint, usize) = (Endpoint::AgentProfile, Profile::MAX_BYTES);
        const BLOBS: (Endpoint, usize) = (Endpoint::AgentBlob, LARGEST_BLOB);
        match self {
            Self::Profile => &[PROFILES],
            Self::Blob => &[BLOBS],
            Self::Either => &[PROFILES, BLOBS],
        }
    }
}

/// Fetches what a hash names and hands it to apply piece by piece, hashed while it passes: it never stands in memory whole.
/// `false`: this controller does not give it to us now.
pub(super) async fn fetch(
    mut client: Client,
    hash: Hash,
    place: BodyKind,
    to_apply: Sender<FromSync>,
) -> Returned<bool> {
    for &(kind, limit) in place.kinds() {
        let get = kind.request(&[&hash.to_string()], Vec::new());
        match pass_on(&mut client, get, hash, limit, &to_apply).await {
            Ok(()) => return (client, Ok(true)),
            Err(ExchangeError::Refused { status: StatusCode::NOT_FOUND, .. }) => {}
            Err(error) => return (client, Err(error)),
        }
    }
    (client, Ok(false))
}

async fn pass_on(
    client: &mut Client,
    get: Request<Bytes>,
    hash: Hash,
    limit: usize,
    to_apply: &Sender<FromSync>,
) -> Result<(), ExchangeError> {
    let (mut digest, mut length) = (Sha256::new(), 0);
    let begin = &[];
    let answer = client
        .stream(get, async |bytes| {
            if length == 0 {
                say(to_apply, hash, begin).await?;
            }
            digest.update(&bytes);
            length += bytes.len();
            if length > limit {
                return Err(std::io::Error::other(format!("it is larger than {limit} bytes")));
            }
            for piece in bytes.chunks(PIECE) {
                say(to_apply, hash, piece).await?;
            }
            Ok(())
        })
        .await?;
    answered(answer)?;
    if length == 0 {
        say(to_apply, hash, begin).await.map_err(|source| ClientError::NotTaken { source })?;
    }
    if Hash(digest.finalize().into()) == hash { Ok(()) } else { Err(ExchangeError::OtherBytes(hash)) }
}

async fn say(to_apply: &Sender<FromSync>, hash: Hash, piece: &[u8]) -> std::io::Result<()> {
    to_apply.send(&FromSync::Body { hash, bytes: piece.to_vec() }).await.map_err(std::io::Error::other)
}

fn answered(answer: Response<Bytes>) -> Result<Bytes, ExchangeError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer.into_body());
    }
    let kind = kind(answer.body());
    let message = sentence(answer.body());
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
    fn an_expired_certificate_is_told_by_the_errors_type_and_by_nothing_in_its_text() {
        let answer = |body: &str| answered(Response::builder().status(403).body(Bytes::from(body.to_owned())).unwrap());
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
    fn what_is_known_to_be_a_profile_or_a_blob_is_asked_for_in_one_place() {
        let kinds = |place: BodyKind| place.kinds().iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
        assert_eq!(kinds(BodyKind::Profile), [Endpoint::AgentProfile]);
        assert_eq!(kinds(BodyKind::Blob), [Endpoint::AgentBlob]);
        assert_eq!(kinds(BodyKind::Either), [Endpoint::AgentProfile, Endpoint::AgentBlob]);
    }

    /// Answers each request with the same bytes, and says what was asked for.
    async fn server(body: Vec<u8>) -> (Target, Rc<RefCell<Vec<String>>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let asked = Rc::new(RefCell::new(Vec::new()));
        let lines = asked.clone();
        tokio::task::spawn_local(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut head).await {
                let text = String::from_utf8_lossy(&head[..length]).into_owned();
                lines.borrow_mut().push(text.lines().next().unwrap_or_default().to_owned());
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.write_all(&body).await;
            }
        });
        (target, asked)
    }

    /// Fetches what has this hash from its place, and gives what apply hears meanwhile.
    async fn fetched(
        place: BodyKind,
        body: Vec<u8>,
        hash: Hash,
    ) -> (Result<bool, ExchangeError>, Vec<Vec<u8>>, Vec<String>) {
        let (target, asked) = server(body).await;
        let (sync, mut apply) = pair();
        let client = Client::new(target, None, ClientLimits::default());
        let fetching = async {
            let (_, given) = fetch(client, hash, place, sync.sender()).await;
            drop(sync);
            given
        };
        let hearing = async {
            let mut pieces = Vec::new();
            while let Ok(FromSync::Body { hash: named, bytes }) = apply.receive().await {
                assert_eq!(named, hash);
                pieces.push(bytes);
            }
            pieces
        };
        let (given, pieces) = tokio::join!(fetching, hearing);
        (given, pieces, asked.take())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_blob_crosses_in_pieces_and_is_asked_for_once() {
        let turn = async {
            for length in [0, 1, 5_000_000] {
                let body: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[0]).collect();
                let hash = hash_content(&body);
                let (given, pieces, asked) = fetched(BodyKind::Blob, body.clone(), hash).await;
                assert!(given.unwrap());
                assert_eq!(asked, [format!("GET /agent/v1/blobs/{hash} HTTP/1.1")]);
                assert_eq!(pieces[0], b"", "it is begun");
                assert!(pieces.iter().all(|piece| piece.len() <= PIECE));
                assert!(pieces.concat() == body, "{length}");
            }
            let (given, ..) = fetched(BodyKind::Blob, b"other".to_vec(), Hash([1; 32])).await;
            assert!(matches!(given, Err(ExchangeError::OtherBytes(_))));
        };
        tokio::task::LocalSet::new().run_until(turn).await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_profile_that_is_larger_than_any_is_not_taken_to_its_end() {
        let turn = async {
            let body = vec![0; Profile::MAX_BYTES + PIECE];
            let hash = hash_content(&body);
            let (given, pieces, _) = fetched(BodyKind::Profile, body, hash).await;
            let error = format!("{:?}", given.unwrap_err());
            assert!(error.contains(&format!("it is larger than {} bytes", Profile::MAX_BYTES)), "{error}");
            assert!(pieces.concat().len() <= Profile::MAX_BYTES);
        };
        tokio::task::LocalSet::new().run_until(turn).await;
    }
}
