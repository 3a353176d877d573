//! How large a node's desired state is: what is larger than an agent takes is never published, and a write that would make it
//! so is refused.

use stemma_core::digest::DigestVersion;
use stemma_core::finding::{Finding, rule};
use stemma_core::resolve::Answer;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::{Known, MAX_DESIRED, MAX_ENTRIES, MAX_LISTED, TaskSet};

use super::encode;

/// A desired state that no agent takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooLarge {
    /// In bytes, as it is sent.
    #[error(
        "the desired state has {bytes} bytes ({known} of labels, annotations and the like, {tasks} of tags and of what tasks read), at most {MAX_DESIRED} are allowed"
    )]
    Bytes {
        /// Together.
        bytes: usize,
        /// The part that is replaced at once.
        known: usize,
        /// The part that is released.
        tasks: usize,
    },
    /// In number.
    #[error("the desired state has {count} {what}, at most {most} are allowed")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many there may be.
        most: usize,
    },
}

impl TooLarge {
    /// How far past its bound it is, to be compared with another of the same kind.
    pub(crate) fn is_worse_than(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes { bytes, .. }, Self::Bytes { bytes: before, .. }) => bytes > before,
            (Self::Count { what, count, .. }, Self::Count { what: of, count: before, .. }) => {
                what != of || count > before
            }
            (Self::Bytes { .. }, Self::Count { .. }) | (Self::Count { .. }, Self::Bytes { .. }) => true,
        }
    }
}

/// The bytes of a node's desired state, were it sent now.
///
/// # Errors
/// [`TooLarge`].
pub(crate) fn of_answer(answer: &Answer) -> Result<usize, TooLarge> {
    let profile = answer.task_set().map(|_| Hash([0; 32]));
    let (known, task_set) = (encode::known(answer), encode::task_set(answer, profile, DigestVersion::NEWEST));
    let size = |bytes: Result<usize, postcard::Error>| bytes.expect("the messages hold no type that postcard refuses");
    let sizes = (
        size(postcard::experimental::serialized_size(&known)),
        size(postcard::experimental::serialized_size(&task_set)),
    );
    check(&known, &task_set, sizes)
}

/// Checks the parts of a desired state, and their sizes in bytes as they are sent.
pub(crate) fn check(known: &Known, task_set: &TaskSet, sizes: (usize, usize)) -> Result<usize, TooLarge> {
    let counts = [
        ("tags", task_set.tags.len(), MAX_LISTED),
        ("tags held as primary", task_set.primaries.len(), MAX_LISTED),
        ("traits", known.traits.len(), MAX_LISTED),
        ("ready probes", known.ready.len(), MAX_LISTED),
        ("tasks that are left out", task_set.left_out.len(), MAX_ENTRIES),
        ("values that tasks read", task_set.inputs.len(), MAX_ENTRIES),
    ];
    if let Some((what, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
        return Err(TooLarge::Count { what, count, most });
    }
    let bytes = sizes.0 + sizes.1;
    if bytes > MAX_DESIRED { Err(TooLarge::Bytes { bytes, known: sizes.0, tasks: sizes.1 }) } else { Ok(bytes) }
}

/// That a node is told something too large to be sent.
pub(crate) fn too_large(answer: &Answer) -> Option<Finding> {
    let error = of_answer(answer).err()?;
    let object = format!("node/{}", answer.node().display_name());
    let message = format!("{error}: its host keeps what it has; make labels, annotations or parameters smaller");
    Some(Finding::of(rule::DESIRED_TOO_LARGE, object, message))
}

/// All findings about a node: those of its answer, and that it is too large to be sent.
pub(crate) fn findings(answer: &Answer) -> Vec<Finding> {
    too_large(answer).into_iter().chain(answer.findings()).collect()
}
