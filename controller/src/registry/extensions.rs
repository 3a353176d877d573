//! How a write asks the extensions that decide tags, whoever carries the question there.

use std::collections::HashMap;
use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use stemma_core::extension::Question;
use stemma_wire::error::{ApiError, ErrorType};
use tokio::time::{Instant, timeout_at};

use crate::store::BoxFuture;

/// How many questions of one write are asked at once.
const AT_ONCE: usize = 8;

/// Who carries a question to an extension.
pub trait Ask: Send + Sync {
    /// Whether there is an extension of this name.
    fn declares(&self, name: &str) -> bool;

    /// Asks, and waits no longer than the extension may take.
    fn ask<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Bytes, ApiError>>;
}

/// No extension is declared.
pub struct NoExtensions;

impl Ask for NoExtensions {
    fn declares(&self, _name: &str) -> bool {
        false
    }

    fn ask<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Bytes, ApiError>> {
        Box::pin(async { Err(undeclared(&question.extension)) })
    }
}

/// The answers that one write has got, by the hash of the question.
#[derive(Default)]
pub(super) struct Answered(HashMap<[u8; 32], Bytes>);

impl Answered {
    /// Asks all that is open, some beside each other. Nobody waits for the answers any longer at `until`.
    pub(super) async fn asking(extensions: &dyn Ask, questions: &[Question], until: Instant) -> Result<Self, ApiError> {
        let asked = async {
            let mut answers = HashMap::new();
            for some in questions.chunks(AT_ONCE) {
                let asked = all(some.iter().map(|question| extensions.ask(question)).collect()).await;
                for (question, answer) in some.iter().zip(asked) {
                    answers.insert(question.hash, answer?);
                }
            }
            Ok(Self(answers))
        };
        timeout_at(until, asked).await.unwrap_or_else(|_| {
            let count = questions.len();
            let message = format!("{count} questions to extensions were not answered in time; nothing was changed");
            Err(ApiError::new(ErrorType::ExtensionFailed, message))
        })
    }

    pub(super) fn get(&self, question: &Question) -> Option<&[u8]> {
        self.0.get(&question.hash).map(AsRef::as_ref)
    }
}

/// What some futures give, in their order.
async fn all<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut given: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(move |context| {
        for (future, given) in futures.iter_mut().zip(&mut given).filter(|(_, given)| given.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *given = Some(value);
            }
        }
        if given.iter().all(Option::is_some) { Poll::Ready(given.drain(..).flatten().collect()) } else { Poll::Pending }
    })
    .await
}

/// The refusal of a write that wants an extension which the configuration does not declare.
pub(crate) fn undeclared(name: &str) -> ApiError {
    let message = format!(
        "extension {name} is to decide tags, and the controller's configuration does not declare it; nothing was changed"
    );
    let advice = "declare it with [[extension]] in the controller's configuration and restart the controller";
    ApiError::new(ErrorType::ReferenceDangling, message).field("extensions").detail(advice)
}

/// The refusal of a write whose question was not answered as it may be.
pub(crate) fn failed(question: &Question, why: &str) -> ApiError {
    let message = format!(
        "extension {} decides the tags of {}, and {why}; nothing was changed",
        question.extension,
        question.subject()
    );
    let advice = "see to the extension (docs/extensions.md) and try again";
    ApiError::new(ErrorType::ExtensionFailed, message).detail(advice)
}
