//! The configured extensions. Each is a program at a local socket, or an HTTP hook. Both answer over HTTP/1.1.
//!
//! A write does not block other writes while it waits for an extension, and each extension has its own queue. So a slow
//! extension delays only the writes that need its answer.

mod config;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use stemma_core::extension::ExtensionQuestion;
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::log::error_chain;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::registry::ExtensionClient;
use crate::store::BoxFuture;

pub use config::{BadExtension, ExtensionAddress, ExtensionConfig, ExtensionTable};

/// Maximum number of questions that one extension answers at the same time.
const MAX_CONCURRENT: usize = 8;
/// Maximum number of questions that wait for their turn at one extension.
const MAX_WAITING: usize = 24;
/// Maximum length of the part of an error response that is shown, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// The extensions of a controller, by name.
#[derive(Default)]
pub struct Extensions(BTreeMap<String, Extension>);

struct Extension {
    config: ExtensionConfig,
    running: Semaphore,
    queue: Semaphore,
}

/// The reason why an extension gave no answer.
#[derive(Debug, thiserror::Error)]
enum ExtensionError {
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Client(String),
    #[error("it answered with status {status}: {text}")]
    Status { status: u16, text: String },
}

impl Extensions {
    /// Creates the extensions of a configuration.
    pub fn new(declared: Vec<ExtensionConfig>) -> Self {
        let build = |config: ExtensionConfig| {
            let extension = Extension {
                running: Semaphore::new(MAX_CONCURRENT),
                // A question is in the queue until its answer arrives, also while the extension works on it.
                queue: Semaphore::new(MAX_CONCURRENT + MAX_WAITING),
                config,
            };
            (extension.config.name.clone(), extension)
        };
        Self(declared.into_iter().map(build).collect())
    }
}

impl ExtensionClient for Extensions {
    fn is_declared(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Sends a question to its extension, and returns the body of the answer. Fails at once if no such extension is
    /// configured or too many questions wait for it, and after its timeout, which includes the wait for its turn.
    fn ask<'a>(&'a self, question: &'a ExtensionQuestion) -> BoxFuture<'a, Result<Bytes, ApiError>> {
        Box::pin(async move {
            let Some(extension) = self.0.get(&question.extension) else {
                return Err(crate::registry::undeclared_extension(&question.extension));
            };
            let Ok(_permit) = extension.queue.try_acquire() else {
                let message =
                    format!("too many writes wait for extension {}; nothing was written, try again", extension.config.name);
                return Err(ApiError::new(ErrorType::ServerBusy, message));
            };
            let limit = extension.config.timeout;
            let answer = timeout(limit, extension.call(question)).await;
            answer.unwrap_or(Err(ExtensionError::Timeout(limit))).map_err(|why| {
                let address = &extension.config.address;
                crate::registry::extension_failure(question, &format!("{why} ({address})"))
            })
        })
    }
}

impl Extension {
    /// Sends a question to the extension over a new connection, and returns the body of the answer. First waits while
    /// the extension answers [`MAX_CONCURRENT`] other questions. Fails if the status of the answer is not 200.
    async fn call(&self, question: &ExtensionQuestion) -> Result<Bytes, ExtensionError> {
        let _permit = self.running.acquire().await.expect("the semaphore is never closed");
        // The caller ends the whole call after `timeout`, so these limits of its steps never apply first.
        let limit = self.config.timeout * 2;
        let limits = ClientLimits {
            connect_timeout: limit,
            response_timeout: limit,
            body_timeout: limit,
            max_body_bytes: question.max_answer_bytes(),
        };
        let request = |path: &str| {
            Request::post(path)
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, "application/json")
                .body(Bytes::copy_from_slice(&question.body))
                .expect("the path was checked, and the headers are constants")
        };
        // Each question has its own connection: a program that systemd starts for a connection exits with it.
        let answer = match &self.config.address {
            ExtensionAddress::Socket(path) => {
                let target = Target { is_tls: false, host: "localhost".to_owned(), port: 0, socket: Some(path.clone()) };
                Client::new(target, None, limits).send(request("/")).await
            }
            ExtensionAddress::Hook { target, path, tls: None } => {
                Client::new(target.clone(), None, limits).send(request(path)).await
            }
            ExtensionAddress::Hook { target, path, tls: Some(tls) } => {
                // The connector uses TLS itself, so the client must not add it.
                let plain = Target { is_tls: false, ..target.clone() };
                Client::with_connector(config::PublicTls(Arc::clone(tls)), plain, None, limits).send(request(path)).await
            }
        };
        let answer = answer.map_err(|error| ExtensionError::Client(error_chain(&error)))?;
        if answer.status() != 200 {
            let text =
                String::from_utf8_lossy(answer.body()).chars().take(MAX_SHOWN_CHARS).flat_map(char::escape_debug).collect();
            return Err(ExtensionError::Status { status: answer.status().as_u16(), text });
        }
        Ok(answer.into_body())
    }
}
