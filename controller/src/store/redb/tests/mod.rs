//! What is redb's alone; what every engine must do is in `conformance`.

mod batches;
mod faults;
mod files;

use super::testing::{Files, Memory};
use crate::store::conformance::{conform, is_like_a_map};

mod on_file {
    use super::*;
    conform!(Files::new());
}

mod in_memory {
    use super::*;
    conform!(Memory::default());

    #[test]
    fn random_transactions_do_what_they_do_to_a_map() {
        is_like_a_map(Memory::default);
    }
}
