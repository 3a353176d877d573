//! Sends a request in a version that the controller supports, because a controller may be older than this agent.

use hyper::Response;
use hyper::body::Bytes;
use stemma_wire::client::{Client, ClientError};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ErrorBody, ErrorType};
use stemma_wire::message::{Message, WireVersion, encode_as};

/// Sends a message, first in the newest version, then in older ones until the controller supports it. Returns the
/// version and the response.
pub(super) async fn post<M: Message>(
    client: &mut Client,
    endpoint: Endpoint,
    newest: WireVersion,
    message: &M,
) -> Result<(WireVersion, Response<Bytes>), ClientError> {
    let mut version = newest;
    loop {
        let answer = client.send(endpoint.request(&[], encode_as(version, message))).await?;
        match version.previous() {
            Some(older) if is_version_refused(&answer) => version = older,
            _ => return Ok((version, answer)),
        }
    }
}

/// Returns whether the controller refused a request because it does not support the request's version.
pub(super) fn is_version_refused(answer: &Response<Bytes>) -> bool {
    !answer.status().is_success() && error_type(answer.body()) == ErrorType::MessageVersion.name()
}

/// Returns the error type in a body, or an empty string.
pub(super) fn error_type(body: &[u8]) -> String {
    ErrorBody::parse(body).map(|body| body.kind).unwrap_or_default()
}

#[cfg(all(test, debug_assertions))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use hyper::StatusCode;
    use stemma_wire::client::{ClientLimits, Target};
    use stemma_wire::message::decode_up_to;
    use stemma_wire::message::enroll::{RenewRequest, RenewResponse};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Starts a controller that supports only the first version. Returns its address and the versions of the requests
    /// that it received.
    async fn old_controller() -> (Target, Rc<RefCell<Vec<u8>>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let asked = Rc::new(RefCell::new(Vec::new()));
        let versions = asked.clone();
        tokio::task::spawn_local(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while let Ok(1..) = stream.read_buf(&mut request).await {
                let Some(head) = request.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
                let Some(version) = request.get(head + 4).copied() else { continue };
                versions.borrow_mut().push(version);
                request.clear();
                let (status, body) = if version == 1 {
                    ("200 OK", encode_as(WireVersion::FIRST, &RenewResponse { chain: vec![vec![7]] }))
                } else {
                    ("400 Bad Request", br#"{"error": {"code": 400, "type": "message.version"}}"#.to_vec())
                };
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all(&[answer.as_bytes(), &body].concat()).await.unwrap();
            }
        });
        (target, asked)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn post_retries_in_older_version_when_controller_is_old() {
        let turn = async {
            let (target, asked) = old_controller().await;
            let mut client = Client::new(target, None, ClientLimits::default());
            let request = RenewRequest { csr: vec![1] };
            let newest = WireVersion::NEXT;
            let (version, answer) = post(&mut client, Endpoint::Renew, newest, &request).await.unwrap();
            assert_eq!((version, answer.status()), (WireVersion::FIRST, StatusCode::OK));
            assert_eq!(*asked.borrow(), [2, 1]);
            let read = decode_up_to::<RenewResponse>(version, answer.body());
            assert_eq!(read, Ok((version, RenewResponse { chain: vec![vec![7]] })));
        };
        tokio::task::LocalSet::new().run_until(turn).await;
    }
}
