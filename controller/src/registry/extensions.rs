//! Sends the questions of a write to the extensions, external programs that decide tags. The transport is behind a
//! trait.

use std::collections::HashMap;
use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use stemma_core::extension::ExtensionQuestion;
use stemma_wire::error::{ApiError, ErrorType};
use tokio::time::{Instant, timeout_at};

use crate::store::BoxFuture;

/// Maximum number of questions that one write sends to extensions (programs that decide tags) at the same time.
const MAX_CONCURRENT_QUESTIONS: usize = 8;

/// The client that sends questions to extensions. An extension is an external program that decides tags of nodes.
pub trait ExtensionClient: Send + Sync {
    /// Returns whether an extension of this name is declared.
    fn is_declared(&self, name: &str) -> bool;

    /// Sends a question to an extension and returns its answer. Fails if the extension is not declared, if too many
    /// questions wait for it, or if it cannot be reached, fails, or does not answer within its timeout.
    fn ask<'a>(&'a self, question: &'a ExtensionQuestion) -> BoxFuture<'a, Result<Bytes, ApiError>>;
}

/// A client for a configuration without extensions. Every question fails.
pub struct NoExtensions;

impl ExtensionClient for NoExtensions {
    fn is_declared(&self, _name: &str) -> bool {
        false
    }

    fn ask<'a>(&'a self, question: &'a ExtensionQuestion) -> BoxFuture<'a, Result<Bytes, ApiError>> {
        Box::pin(async { Err(undeclared_extension(&question.extension)) })
    }
}

/// The answers of extensions to the questions of one write, by the hash of the question.
#[derive(Default)]
pub(super) struct ExtensionAnswers(HashMap<[u8; 32], Bytes>);

impl ExtensionAnswers {
    /// Sends all questions in batches, and returns the answers. Fails if an extension fails, or if an answer is missing
    /// at `deadline`.
    pub(super) async fn ask_all(
        extensions: &dyn ExtensionClient,
        questions: &[ExtensionQuestion],
        deadline: Instant,
    ) -> Result<Self, ApiError> {
        let all_answers = async {
            let mut answers = HashMap::new();
            for batch in questions.chunks(MAX_CONCURRENT_QUESTIONS) {
                let results = join_all(batch.iter().map(|question| extensions.ask(question)).collect()).await;
                for (question, answer) in batch.iter().zip(results) {
                    answers.insert(question.hash, answer?);
                }
            }
            Ok(Self(answers))
        };
        timeout_at(deadline, all_answers).await.unwrap_or_else(|_| {
            let count = questions.len();
            let message = format!("{count} questions to extensions were not answered in time; nothing was changed");
            Err(ApiError::new(ErrorType::ExtensionFailed, message))
        })
    }

    pub(super) fn get(&self, question: &ExtensionQuestion) -> Option<&[u8]> {
        self.0.get(&question.hash).map(AsRef::as_ref)
    }
}

/// Awaits futures at the same time, and returns their results in the same order.
async fn join_all<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(move |context| {
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(results.drain(..).flatten().collect()) } else { Poll::Pending }
    })
    .await
}

/// Returns the error for a write that needs an extension which is not declared in the controller's configuration.
pub(crate) fn undeclared_extension(name: &str) -> ApiError {
    let message = format!(
        "extension {name} should decide tags, but the controller's configuration does not declare it; nothing was changed"
    );
    let advice = "declare it with [[extension]] in the controller's configuration and restart the controller";
    ApiError::new(ErrorType::ReferenceDangling, message).field("extensions").detail(advice)
}

/// Returns the error for a write whose question got no valid answer. `reason` completes the sentence "the extension
/// decides the tags, and ...".
pub(crate) fn extension_failure(question: &ExtensionQuestion, reason: &str) -> ApiError {
    let message =
        format!("extension {} decides the tags of {}, and {reason}; nothing was changed", question.extension, question.subject());
    let advice = "check the extension (docs/extensions.md) and try again";
    ApiError::new(ErrorType::ExtensionFailed, message).detail(advice)
}
