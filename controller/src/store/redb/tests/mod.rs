//! Tests of redb's own behavior. `conformance` tests what every engine must do.

mod batches;
mod faults;
mod files;

use std::sync::Arc;

use super::testing::{FileEngine, Memory};
use crate::store::conformance::{TestBounds, TestEngine, assert_matches_model, conformance_tests};
use crate::store::delayed::{ANSWER_DELAY, DelayedStore};
use crate::store::{CreateOptions, Store};

/// An engine whose stores are files. The answers to reads and commits are delayed by [`ANSWER_DELAY`].
struct DelayedFileEngine(FileEngine);

impl TestEngine for DelayedFileEngine {
    fn create(&self, create: &CreateOptions, bounds: &TestBounds) -> Arc<dyn Store> {
        Arc::new(DelayedStore::new(self.0.create(create, bounds), ANSWER_DELAY))
    }

    fn reopen(&self, bounds: &TestBounds) -> Arc<dyn Store> {
        Arc::new(DelayedStore::new(self.0.reopen(bounds), ANSWER_DELAY))
    }
}

mod on_file {
    use super::*;
    conformance_tests!(FileEngine::new());
}

mod delayed {
    use super::*;
    conformance_tests!(DelayedFileEngine(FileEngine::new()));
}

mod in_memory {
    use super::*;
    conformance_tests!(Memory::default());

    #[test]
    fn store_matches_model_for_random_transactions() {
        assert_matches_model(Memory::default);
    }
}
