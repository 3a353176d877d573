//! Sends a request in a wire version that the controller supports, because a controller may be older than this agent.

use hyper::Response;
use hyper::body::Bytes;
use stemma_wire::client::{Client, ClientError};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ErrorBody, ErrorType};
use stemma_wire::message::{Message, WireVersion, encode_as};

/// Sends a message, first in the newest wire version, then in older versions until the controller supports the version.
/// Returns the last version that was sent, and the response, which may be a refusal.
pub(super) async fn post<M: Message>(
    client: &mut Client,
    endpoint: Endpoint,
    newest: WireVersion,
    message: &M,
) -> Result<(WireVersion, Response<Bytes>), ClientError> {
    let mut version = newest;
    loop {
        let response = client.send(endpoint.request(&[], encode_as(version, message))).await?;
        match version.previous() {
            Some(older) if is_version_refused(&response) => version = older,
            _ => return Ok((version, response)),
        }
    }
}

/// Returns whether the response is a refusal because the controller does not support the wire version of the request.
pub(super) fn is_version_refused(response: &Response<Bytes>) -> bool {
    !response.status().is_success() && error_type(response.body()) == ErrorType::MessageVersion.name()
}

/// Returns the error type in the body of an error response, or an empty string if the body contains no error type.
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

    /// Starts a controller that supports only the first wire version. Returns its address, and a list to which it adds
    /// the version of each request.
    async fn old_controller() -> (Target, Rc<RefCell<Vec<u8>>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let received_versions = Rc::new(RefCell::new(Vec::new()));
        let version_log = received_versions.clone();
        tokio::task::spawn_local(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while let Ok(1..) = stream.read_buf(&mut request).await {
                let Some(head_end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
                // The first byte of the body is the wire version.
                let Some(version) = request.get(head_end + 4).copied() else { continue };
                version_log.borrow_mut().push(version);
                request.clear();
                let (status, body) = if version == 1 {
                    ("200 OK", encode_as(WireVersion::FIRST, &RenewResponse { chain: vec![vec![7]] }))
                } else {
                    ("400 Bad Request", br#"{"error": {"code": 400, "type": "message.version"}}"#.to_vec())
                };
                let response_head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all(&[response_head.as_bytes(), &body].concat()).await.unwrap();
            }
        });
        (target, received_versions)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn post_retries_in_older_version_when_controller_is_old() {
        let test = async {
            let (target, received_versions) = old_controller().await;
            let mut client = Client::new(target, None, ClientLimits::default());
            let request = RenewRequest { csr: vec![1] };
            let newest = WireVersion::NEXT;
            let (version, response) = post(&mut client, Endpoint::Renew, newest, &request).await.unwrap();
            assert_eq!((version, response.status()), (WireVersion::FIRST, StatusCode::OK));
            assert_eq!(*received_versions.borrow(), [2, 1]);
            let decoded = decode_up_to::<RenewResponse>(version, response.body());
            assert_eq!(decoded, Ok((version, RenewResponse { chain: vec![vec![7]] })));
        };
        tokio::task::LocalSet::new().run_until(test).await;
    }
}
