//! Extensions as the configuration declares them: each a program at a socket of this machine, or an HTTP hook, that is asked over HTTP/1.1.
//!
//! A question is asked where a write waits without a turn, and each extension has places of its own: a slow one keeps those waiting
//! who ask it, and nobody else.

mod config;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use stemma_core::extension::Question;
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::log::chain;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::registry::Ask;
use crate::store::BoxFuture;

pub use config::{BadExtension, Declared, Via, WrittenExtension};

/// How many questions an extension is asked at once.
const MOST_ASKED: usize = 8;
/// How many more wait for that.
const MOST_WAITING: usize = 24;
/// How much of a refusal is shown, in characters.
const SHOWN: usize = 200;

/// The extensions of a controller.
#[derive(Default)]
pub struct Extensions(BTreeMap<String, Extension>);

struct Extension {
    declared: Declared,
    asked: Semaphore,
    admitted: Semaphore,
}

/// Why an extension gave no answer.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("it did not answer within {0:?}")]
    Slow(Duration),
    #[error("{0}")]
    Client(String),
    #[error("it answered with status {status}: {text}")]
    Status { status: u16, text: String },
}

impl Extensions {
    /// Those that are declared.
    pub fn new(declared: Vec<Declared>) -> Self {
        let of = |declared: Declared| {
            let extension = Extension {
                asked: Semaphore::new(MOST_ASKED),
                admitted: Semaphore::new(MOST_ASKED + MOST_WAITING),
                declared,
            };
            (extension.declared.name.clone(), extension)
        };
        Self(declared.into_iter().map(of).collect())
    }
}

impl Ask for Extensions {
    fn declares(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn ask<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Bytes, ApiError>> {
        Box::pin(async move {
            let Some(extension) = self.0.get(&question.extension) else {
                return Err(crate::registry::undeclared(&question.extension));
            };
            let Ok(_admitted) = extension.admitted.try_acquire() else {
                let message = format!(
                    "too many writes wait for extension {}; nothing was written, try again",
                    extension.declared.name
                );
                return Err(ApiError::new(ErrorType::ServerBusy, message));
            };
            let within = extension.declared.timeout;
            let answered = timeout(within, extension.call(question)).await;
            answered.unwrap_or(Err(Unanswered::Slow(within))).map_err(|why| {
                let via = &extension.declared.via;
                crate::registry::failed(question, &format!("{why} ({via})"))
            })
        })
    }
}

impl Extension {
    async fn call(&self, question: &Question) -> Result<Bytes, Unanswered> {
        let _place = self.asked.acquire().await.expect("the semaphore is never closed");
        // Whoever waits for all of it gives up first.
        let each = self.declared.timeout * 2;
        let limits = ClientLimits { connect: each, answer: each, body: each, body_bytes: question.largest_answer() };
        let request = |path: &str| {
            Request::post(path)
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, "application/json")
                .body(Bytes::copy_from_slice(&question.body))
                .expect("a path that was checked, and headers of our own")
        };
        // One connection for each question: a program that systemd starts for a connection ends with it.
        let answer = match &self.declared.via {
            Via::Socket(path) => {
                let target = Target { tls: false, host: "localhost".to_owned(), port: 0, socket: Some(path.clone()) };
                Client::new(target, None, limits).send(request("/")).await
            }
            Via::Hook { target, path, tls: None } => {
                Client::new(target.clone(), None, limits).send(request(path)).await
            }
            Via::Hook { target, path, tls: Some(tls) } => {
                let plain = Target { tls: false, ..target.clone() };
                Client::over(config::Tls(Arc::clone(tls)), plain, None, limits).send(request(path)).await
            }
        };
        let answer = answer.map_err(|error| Unanswered::Client(chain(&error)))?;
        if answer.status() != 200 {
            let text =
                String::from_utf8_lossy(answer.body()).chars().take(SHOWN).flat_map(char::escape_debug).collect();
            return Err(Unanswered::Status { status: answer.status().as_u16(), text });
        }
        Ok(answer.into_body())
    }
}
