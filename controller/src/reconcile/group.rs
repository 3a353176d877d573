//! The inputs that a group provides for the tasks of its nodes, encoded once for all of these nodes. Most nodes have no
//! other inputs.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use stemma_core::input::{Input, Reference};
use stemma_core::resolve::GroupInputs;
use stemma_core::shared_text::SharedTexts;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::InputValue;

use crate::desired::encode::{short_reason, tag_texts};
use crate::records::common_values::{CommonValues, NamedValues, ValuePart};

/// The encoded inputs of the groups of one pass. A value that several groups provide is in memory once.
pub(super) struct GroupInputCache<'a> {
    by_address: HashMap<*const GroupInputs, EncodedGroup>,
    texts: &'a SharedTexts,
    parts: HashMap<Hash, (Bytes, Arc<ValuePart>)>,
}

/// The inputs of one group for the tasks of one profile, as they are sent and stored, with the common reasons and tags.
#[derive(Clone)]
pub(super) struct EncodedGroup {
    group: Arc<GroupInputs>,
    /// The inputs, reasons and tags as common values, to which the records of nodes refer by their hash.
    pub(super) common: Arc<NamedValues>,
}

impl<'a> GroupInputCache<'a> {
    /// Creates an empty cache. Equal texts of all groups share one allocation through `texts`.
    pub(super) fn new(texts: &'a SharedTexts) -> Self {
        Self { by_address: HashMap::new(), texts, parts: HashMap::new() }
    }

    /// Returns the encoded inputs of a group. They are encoded at the first call with this `Arc`.
    pub(super) fn get_or_encode(&mut self, group: &Arc<GroupInputs>) -> EncodedGroup {
        // The cached value holds a reference to the group. So no other group can be allocated at the same address.
        let address = Arc::as_ptr(group);
        if let Some(encoded) = self.by_address.get(&address) {
            return encoded.clone();
        }
        let encoded = EncodedGroup { group: Arc::clone(group), common: Arc::new(self.common_values(group)) };
        self.by_address.insert(address, encoded.clone());
        encoded
    }

    /// Encodes the values that the nodes of a group have in common, within the limits of [`CommonValues`]: inputs,
    /// left-out tasks and tags. A text or part that another group has too is in memory once.
    fn common_values(&mut self, group: &GroupInputs) -> NamedValues {
        let (mut values, mut total_bytes) = (CommonValues::default(), 0);
        for (reference, input) in group.inputs() {
            let mut value = InputValue::from(input);
            self.texts.intern_all(value.chunks_mut().iter_mut());
            values.add_input(&mut total_bytes, reference.to_string(), value);
        }
        for (task, reason) in group.skipped_tasks() {
            let mut reason: Arc<str> = short_reason(&reason.to_string()).into();
            self.texts.intern_all([&mut reason].into_iter());
            values.add_left_out(&mut total_bytes, task, reason);
        }
        values.add_tags(&mut total_bytes, tag_texts(group.tags()), tag_texts(group.primary_tags()));
        let mut common = values.into_named();
        // The encoded records and the parts in memory are in the same order.
        let mut records = common.parts.iter_mut();
        Arc::make_mut(&mut common.values).intern_parts(|name, part| {
            let Some(record) = records.next() else { return };
            let shared = self.parts.entry(*name).or_insert_with(|| (record.clone(), Arc::clone(part)));
            (*record, *part) = shared.clone();
        });
        common
    }
}

impl EncodedGroup {
    /// Returns the encoded form of a node's input if the group provides the same input. Returns `None` if the node has
    /// another input, or if the input is not among the common values because they would be too large.
    pub(super) fn encoded_input(&self, reference: &Reference, input: &Input) -> Option<InputValue> {
        let is_of_group = self.group.input(reference)?.is_identical(input);
        is_of_group.then(|| self.common.values.input(reference.as_str()).cloned()).flatten()
    }
}
