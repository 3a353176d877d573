//! What a group says to its nodes' tasks, encoded once for all of them: most nodes are told just that.

use std::collections::HashMap;
use std::sync::Arc;

use stemma_core::input::{Input, Reference};
use stemma_core::resolve::GroupInputs;
use stemma_wire::message::desired::InputValue;

use crate::desired::encode::in_short;
use crate::records::common::{CommonValues, NamedValues};

/// What groups say to the nodes of one pass.
#[derive(Default)]
pub(super) struct Groups(HashMap<*const GroupInputs, SentGroup>);

/// What one group says to the tasks of a profile, in the form in which it is sent and stored.
#[derive(Clone)]
pub(super) struct SentGroup {
    group: Arc<GroupInputs>,
    /// The values, for records to name.
    pub(super) common: Arc<NamedValues>,
}

impl Groups {
    /// What a group says, encoded when it is first asked for.
    pub(super) fn sent(&mut self, group: &Arc<GroupInputs>) -> SentGroup {
        // The entry holds the group, so no other one comes to have its address.
        self.0.entry(Arc::as_ptr(group)).or_insert_with(|| SentGroup::new(group)).clone()
    }
}

impl SentGroup {
    fn new(group: &Arc<GroupInputs>) -> Self {
        let (mut values, mut bytes) = (CommonValues::default(), 0);
        for (reference, input) in group.inputs() {
            values.add_input(&mut bytes, reference.to_string(), input.into());
        }
        for (task, why) in group.left_out() {
            values.add_left_out(&mut bytes, task, in_short(&why.to_string()).into());
        }
        Self { group: Arc::clone(group), common: Arc::new(values.named()) }
    }

    /// The encoded form of a node's input where it is the group's own.
    pub(super) fn encoded(&self, reference: &Reference, input: &Input) -> Option<InputValue> {
        let is_of_group = self.group.input(reference)?.is_same(input);
        is_of_group.then(|| self.common.values.inputs.get(&reference.to_string()).cloned()).flatten()
    }
}
