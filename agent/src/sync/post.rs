//! One request in a version that its controller reads: a controller may be older than this agent.

use hyper::Response;
use hyper::body::Bytes;
use stemma_wire::client::{Client, ClientError};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ErrorBody, ErrorType};
use stemma_wire::message::{Message, WireVersion, encode_as};

/// Sends a message in the newest version that the controller reads, from this one down; gives that version and the answer.
pub(super) async fn post<M: Message>(
    client: &mut Client,
    endpoint: Endpoint,
    newest: WireVersion,
    message: &M,
) -> Result<(WireVersion, Response<Bytes>), ClientError> {
    let mut version = newest;
    loop {
        let answer = client.send(endpoint.request(&[], encode_as(version, message))).await?;
        match version.before() {
            Some(before) if is_of_the_version(&answer) => version = before,
            _ => return Ok((version, answer)),
        }
    }
}

/// Whether an answer says that the version of the request is not read there.
pub(super) fn is_of_the_version(answer: &Response<Bytes>) -> bool {
    !answer.status().is_success() && kind(answer.body()) == ErrorType::MessageVersion.name()
}

/// The name of an error in a body; empty where there is none.
pub(super) fn kind(body: &[u8]) -> String {
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
    use stemma_wire::message::enroll::{RenewAnswer, RenewRequest};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A controller that reads the first version alone. Gives the versions in which it was asked.
    async fn older_controller() -> (Target, Rc<RefCell<Vec<u8>>>) {
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
                    ("200 OK", encode_as(WireVersion::FIRST, &RenewAnswer { chain: vec![vec![7]] }))
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
    async fn a_controller_that_does_not_read_the_newest_version_is_asked_in_the_one_before() {
        let turn = async {
            let (target, asked) = older_controller().await;
            let mut client = Client::new(target, None, ClientLimits::default());
            let request = RenewRequest { csr: vec![1] };
            let newest = WireVersion::THROW_AWAY;
            let (version, answer) = post(&mut client, Endpoint::Renew, newest, &request).await.unwrap();
            assert_eq!((version, answer.status()), (WireVersion::FIRST, StatusCode::OK));
            assert_eq!(*asked.borrow(), [2, 1]);
            let read = decode_up_to::<RenewAnswer>(version, answer.body());
            assert_eq!(read, Ok((version, RenewAnswer { chain: vec![vec![7]] })));
        };
        tokio::task::LocalSet::new().run_until(turn).await;
    }
}
