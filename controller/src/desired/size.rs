//! How large a node's desired state is: what is larger than an agent takes is never published, and a write that would make it
//! so is refused.

use stemma_core::digest::DigestVersion;
use stemma_core::resolve::Answer;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::{Known, MAX_DESIRED, MAX_ENTRIES, MAX_LISTED, TaskSet};

use super::encode;

/// More bytes than an entry of a list or map takes beside its own texts: the longest says where a label comes from.
const ENTRY: usize = 640;
/// What a byte of JSON may become when it is escaped.
const ESCAPED: usize = 6;
/// More bytes than all that is no list and no map.
const SLACK: usize = 4 * 1024;

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

/// The bytes of a node's desired state, were its next task set sent now.
///
/// # Errors
/// [`TooLarge`].
pub(crate) fn of_answer(answer: &Answer) -> Result<usize, TooLarge> {
    let profile = answer.task_set().map(|_| Hash([0; 32]));
    let (known, task_set) =
        (encode::known(answer), encode::task_set(answer, profile, DigestVersion::NEWEST, |_, _| None));
    check(&known, &task_set, (size(&known), size(&task_set)))
}

/// Whether a node's desired state is surely no larger than it may be, with its next task set and with one of so many bytes that it keeps. It folds
/// the node's labels once, and encodes nothing.
pub(crate) fn fits(answer: &Answer, kept: usize) -> bool {
    let tasks = tasks_at_most(answer).max(kept);
    at_most(answer, tasks).is_some_and(|bytes| bytes < MAX_DESIRED)
}

/// The bytes of a node's desired state, with a task set that it keeps.
///
/// # Errors
/// [`TooLarge`].
pub(crate) fn of_kept(answer: &Answer, kept: &TaskSet) -> Result<usize, TooLarge> {
    let known = encode::known(answer);
    check(&known, kept, (size(&known), size(kept)))
}

fn size(part: &impl serde::Serialize) -> usize {
    postcard::experimental::serialized_size(part).expect("the messages hold no type that postcard refuses")
}

fn texts(texts: &mut dyn Iterator<Item = usize>) -> usize {
    texts.map(|bytes| bytes + ENTRY).sum()
}

/// A bound from above of a desired state's bytes and entries, in a fraction of the time that encoding takes, by one of its task set.
/// It is far from exact. `None` for a state with ready probes, whose size it does not know.
fn at_most(answer: &Answer, tasks: usize) -> Option<usize> {
    let labels = texts(&mut answer.labels().iter().map(|(key, said)| key.len() + said.value.len()));
    let annotations = texts(&mut answer.annotations().iter().map(|(key, said)| key.len() + said.value.len()));
    let traits = texts(&mut answer.traits().names().map(|name| name.len()));
    let hold = answer.hold().map_or(0, |hold| hold.reason.len());
    answer.ready().is_empty().then_some(SLACK + hold + labels + annotations + traits + tasks)
}

/// The same bound of the next task set alone.
fn tasks_at_most(answer: &Answer) -> usize {
    answer.task_set().map_or(0, |set| {
        let left_out = texts(&mut set.left_out_ids().map(|(id, why)| id.len() + why.to_string().len()));
        let tags = texts(&mut set.tags().iter().chain(set.primary_tags()).map(|tag| tag.len()));
        let (count, bytes) = set.input_sizes();
        left_out + tags + ENTRY * count + ESCAPED * bytes
    })
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::{Value, json};
    use stemma_author::Reader;
    use stemma_core::fleet::{Change, Fleet};
    use stemma_core::key::{AnnotationKey, AnnotationValue, LabelKey, LabelValue};
    use stemma_core::labels::{AnnotationLayer, LabelLayer, ParameterLayer, ParameterValue};
    use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef};
    use stemma_core::object::{
        ClusterId, ClusterSpec, GroupId, Hold, Inherited, Meta, NodeGroupSpec, NodeId, NodeSpec, Object, Timestamp,
    };
    use stemma_core::ownership::{Intent, Manager, OwnedMap, Said};
    use stemma_core::release::compile;
    use stemma_core::resolve::{ResolveCache, resolve_node};
    use uuid::Uuid;

    use super::*;

    fn meta<N>(id: u128, name: N) -> Meta<N> {
        Meta::new(Uuid::from_u128(id), name, Timestamp(0))
    }

    fn object_name(text: &str) -> ObjectName {
        ObjectName::new(text).unwrap()
    }

    fn owned<V: Clone + PartialEq>(values: impl Iterator<Item = (String, V)>) -> OwnedMap<LabelKey, V> {
        let intent: Intent<LabelKey, V> =
            values.map(|(key, value)| (LabelKey::new(&key).unwrap(), Said::Value(value))).collect();
        OwnedMap::default().update(&Manager::new("test").unwrap(), &intent)
    }

    fn annotated(texts: &[String]) -> AnnotationLayer {
        let key = |at| AnnotationKey::new(&format!("a{at}")).unwrap();
        let value = |text: &String| Said::Value(AnnotationValue::new(text).unwrap());
        let intent: Intent<AnnotationKey, AnnotationValue> =
            texts.iter().enumerate().map(|(at, text)| (key(at), value(text))).collect();
        AnnotationLayer {
            provided: Some(OwnedMap::default().update(&Manager::new("test").unwrap(), &intent)),
            merge: Some(true),
        }
    }

    /// A node in places with the longest names, held, with such labels, parameters and annotations, and a task for each of the first two: one
    /// that is left out, or one that reads it.
    fn answer(labels: &[String], parameters: &[Value], annotations: &[String], reason: &str) -> Arc<Answer> {
        let release: ReleaseRef = "site@1".parse().unwrap();
        let read = (0..parameters.len()).map(|at| {
            let template = format!("{{{{ params.p{at} }}}}");
            json!({"id": format!("t{at}"), "type": "file", "roles": ["web"], "parameters": {"path": "/etc/x", "template": template}})
        });
        let left_out = (0..labels.len()).map(|at| {
            let parameters = json!({"script": "true"});
            json!({"id": format!("c{at}"), "type": "shell", "roles": ["web"], "condition": format!("labels.l{at} == 'never'"), "parameters": parameters})
        });
        let tasks: Vec<Value> = read.chain(left_out).collect();
        let spec = serde_json::from_value(json!({"roles": {"web": {}}, "tasks": tasks})).unwrap();
        let mut fleet = Fleet::new();
        fleet.apply(Change::Release(compile(&release, &spec, &|_| None, &Reader).unwrap()));
        let (cluster, group, node) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
        let longest = "c".repeat(255);
        let spec = ClusterSpec { release: Some(release), ..ClusterSpec::default() };
        fleet.apply(Change::Cluster(Arc::new(Object { meta: meta(1, object_name(&longest)), spec })));
        let texts = labels.iter().enumerate().map(|(at, text)| (format!("l{at}"), LabelValue::new(text).unwrap()));
        let values = parameters
            .iter()
            .enumerate()
            .map(|(at, one)| (format!("p{at}"), ParameterValue::new(one.clone()).unwrap()));
        let inherited = Inherited {
            labels: LabelLayer { provided: Some(owned(texts)), merge: Some(true) },
            parameters: ParameterLayer { provided: Some(owned(values)), merge: Some(true) },
            annotations: annotated(annotations),
            ..Inherited::default()
        };
        let roles = vec![Name::new("web").unwrap()];
        let spec = NodeGroupSpec { inherited, roles, ..NodeGroupSpec::new(ClusterId(cluster)) };
        fleet.apply(Change::NodeGroup(Arc::new(Object { meta: meta(2, object_name(&longest)), spec })));
        let hold = Some(Box::new(Hold { reason: reason.to_owned(), ..Hold::default() }));
        let spec = NodeSpec { nodegroup: Some(GroupId(group)), hold, ..NodeSpec::default() };
        fleet.apply(Change::Node(Arc::new(Object { meta: meta(3, NodeName::new("n").ok()), spec })));
        fleet.set_loaded();
        let resolution = resolve_node(&fleet, &ResolveCache::new(), NodeId(node));
        Arc::clone(resolution.answer().expect("it resolves"))
    }

    fn value() -> impl Strategy<Value = Value> {
        let numbers = prop_oneof![any::<i64>().prop_map(Value::from), any::<f64>().prop_map(Value::from)];
        prop_oneof![numbers, "[\\x00-\\x1f\"é]{0,2000}".prop_map(Value::from), Just(json!([false, null, {"a": {}}]))]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 10, ..ProptestConfig::default() })]
        #[test]
        fn the_bound_is_never_below_what_is_sent(
            labels in proptest::collection::vec("[a-z\"é]{0,100}", 0..20),
            parameters in proptest::collection::vec(value(), 0..20),
            // Of some cases more than may be sent.
            annotations in proptest::collection::vec((0..40_000_usize).prop_map(|n| "é\"".repeat(n)), 0..8),
            reason in "[a-z\"é]{0,500}",
        ) {
            let answer = answer(&labels, &parameters, &annotations, &reason);
            prop_assert_eq!(answer.task_set().unwrap().left_out_ids().count(), labels.len());
            let (sent, most) = (of_answer(&answer), at_most(&answer, tasks_at_most(&answer)).unwrap());
            prop_assert!(sent.is_ok() || !fits(&answer, 0), "what is too large is told");
            match sent {
                Ok(bytes) => prop_assert!(bytes <= most, "{} bytes are sent, and the bound is {}", bytes, most),
                Err(error) => prop_assert!(most >= MAX_DESIRED, "{}: the bound is {}", error, most),
            }
        }
    }
}
