//! What a group says to its nodes' tasks, encoded once for all of them: most nodes are told just that.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use stemma_core::input::{Input, Reference};
use stemma_core::resolve::GroupInputs;
use stemma_core::shared_text::SharedTexts;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::InputValue;

use crate::desired::encode::{in_short, texts_of};
use crate::records::common::{CommonValues, NamedValues, ValuePart};

/// What groups say to the nodes of one pass. What several of them say is held once.
pub(super) struct Groups<'a> {
    sent: HashMap<*const GroupInputs, SentGroup>,
    texts: &'a SharedTexts,
    parts: HashMap<Hash, (Bytes, Arc<ValuePart>)>,
}

/// What one group says to the tasks of a profile, in the form in which it is sent and stored.
#[derive(Clone)]
pub(super) struct SentGroup {
    group: Arc<GroupInputs>,
    /// The values, for records to name.
    pub(super) common: Arc<NamedValues>,
}

impl<'a> Groups<'a> {
    /// None yet. Their texts are held as others hold them.
    pub(super) fn new(texts: &'a SharedTexts) -> Self {
        Self { sent: HashMap::new(), texts, parts: HashMap::new() }
    }

    /// What a group says, encoded when it is first asked for.
    pub(super) fn of(&mut self, group: &Arc<GroupInputs>) -> SentGroup {
        // The entry holds the group, so no other one comes to have its address.
        let at = Arc::as_ptr(group);
        if let Some(sent) = self.sent.get(&at) {
            return sent.clone();
        }
        let sent = SentGroup { group: Arc::clone(group), common: Arc::new(self.common(group)) };
        self.sent.insert(at, sent.clone());
        sent
    }

    fn common(&mut self, group: &GroupInputs) -> NamedValues {
        let (mut values, mut bytes) = (CommonValues::default(), 0);
        for (reference, input) in group.inputs() {
            let mut value = InputValue::from(input);
            self.texts.share(value.chunks_mut().iter_mut());
            values.add_input(&mut bytes, reference.to_string(), value);
        }
        for (task, why) in group.left_out() {
            let mut why: Arc<str> = in_short(&why.to_string()).into();
            self.texts.share([&mut why].into_iter());
            values.add_left_out(&mut bytes, task, why);
        }
        values.add_tags(&mut bytes, texts_of(group.tags()), texts_of(group.primary_tags()));
        let mut common = values.named();
        let mut records = common.parts.iter_mut();
        Arc::make_mut(&mut common.values).share(|name, part| {
            let Some(record) = records.next() else { return };
            let known = self.parts.entry(*name).or_insert_with(|| (record.clone(), Arc::clone(part)));
            (*record, *part) = known.clone();
        });
        common
    }
}

impl SentGroup {
    /// The encoded form of a node's input where it is the group's own.
    pub(super) fn encoded(&self, reference: &Reference, input: &Input) -> Option<InputValue> {
        let is_of_group = self.group.input(reference)?.is_same(input);
        is_of_group.then(|| self.common.values.input(reference.as_str()).cloned()).flatten()
    }
}
