//! What is redb's alone; what every engine must do is in `conformance`.

mod batches;
mod faults;
mod files;

use std::sync::Arc;

use super::testing::{Files, Memory};
use crate::store::conformance::{Bounds, Engine, conform, is_like_a_map};
use crate::store::late::{LATE, LateStore};
use crate::store::{CreateOptions, Store};

/// The same stores behind answers that are late.
struct Late(Files);

impl Engine for Late {
    fn create(&self, create: &CreateOptions, bounds: &Bounds) -> Arc<dyn Store> {
        Arc::new(LateStore::new(self.0.create(create, bounds), LATE))
    }

    fn reopen(&self, bounds: &Bounds) -> Arc<dyn Store> {
        Arc::new(LateStore::new(self.0.reopen(bounds), LATE))
    }
}

mod on_file {
    use super::*;
    conform!(Files::new());
}

mod late {
    use super::*;
    conform!(Late(Files::new()));
}

mod in_memory {
    use super::*;
    conform!(Memory::default());

    #[test]
    fn random_transactions_do_what_they_do_to_a_map() {
        is_like_a_map(Memory::default);
    }
}
