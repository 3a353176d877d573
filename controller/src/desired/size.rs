//! Computes the size of a node's desired state. A state that is larger than an agent accepts is never published, and a
//! write that would cause one is refused.

use stemma_core::digest::DigestVersion;
use stemma_core::resolve::ResolvedNode;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::{Known, MAX_DESIRED_BYTES, MAX_ENTRIES, MAX_LISTED, TaskSet};

use super::encode;

/// An upper bound of the bytes of an entry of a list or map besides its own texts. The longest part is the origin of a
/// label.
const ENTRY_BYTES: usize = 640;
/// Maximum number of bytes that a byte of JSON has when it is escaped.
const MAX_ESCAPE_FACTOR: usize = 6;
/// An upper bound of the bytes of everything that is not in a list or map.
const FIXED_BYTES: usize = 4 * 1024;

/// A desired state that no agent accepts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooLarge {
    /// Too many bytes, as it is sent.
    #[error(
        "the desired state has {bytes} bytes ({known} for labels, annotations and other known values, {tasks} for tags and the values that tasks read), at most {MAX_DESIRED_BYTES} are allowed"
    )]
    Bytes {
        /// The total number of bytes.
        bytes: usize,
        /// The bytes of the part that is sent at once.
        known: usize,
        /// The bytes of the part that is released.
        tasks: usize,
    },
    /// Too many entries of a list or map.
    #[error("the desired state has {count} {what}, at most {most} are allowed")]
    Count {
        /// The name of the counted entries, for the message.
        what: &'static str,
        /// The number of entries.
        count: usize,
        /// The maximum number of entries.
        most: usize,
    },
}

impl TooLarge {
    /// Returns whether this error is worse than another: it exceeds the same limit by more, or exceeds another limit.
    pub(crate) fn is_worse_than(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes { bytes, .. }, Self::Bytes { bytes: other_bytes, .. }) => bytes > other_bytes,
            (Self::Count { what, count, .. }, Self::Count { what: other_what, count: other_count, .. }) => {
                what != other_what || count > other_count
            }
            (Self::Bytes { .. }, Self::Count { .. }) | (Self::Count { .. }, Self::Bytes { .. }) => true,
        }
    }
}

/// Returns the size in bytes of a node's desired state, if its next task set were sent now.
///
/// # Errors
/// [`TooLarge`].
pub(crate) fn next_size(resolved: &ResolvedNode) -> Result<usize, TooLarge> {
    let profile = resolved.task_set().map(|_| Hash([0; 32]));
    let (known, task_set) =
        (encode::known_part(resolved), encode::task_set(resolved, profile, DigestVersion::LATEST, |_, _| None));
    check_parts(&known, &task_set, (encoded_size(&known), encoded_size(&task_set)))
}

/// Returns whether a node's desired state is certainly within the limit, both with its next task set and with its
/// present one, which has `kept` bytes. Folds the node's labels only once, and encodes nothing.
pub(crate) fn is_within_limit(resolved: &ResolvedNode, kept: usize) -> bool {
    let tasks = tasks_upper_bound(resolved).max(kept);
    upper_bound(resolved, tasks).is_some_and(|bytes| bytes < MAX_DESIRED_BYTES)
}

/// Returns the size in bytes of a node's desired state with a task set that it keeps.
///
/// # Errors
/// [`TooLarge`].
pub(crate) fn kept_size(resolved: &ResolvedNode, kept: &TaskSet) -> Result<usize, TooLarge> {
    let known = encode::known_part(resolved);
    check_parts(&known, kept, (encoded_size(&known), encoded_size(kept)))
}

fn encoded_size(part: &impl serde::Serialize) -> usize {
    postcard::experimental::serialized_size(part).expect("the messages hold no type that postcard refuses")
}

/// Returns an upper bound of the bytes of entries, from the sizes of their texts.
fn sizes(texts: &mut dyn Iterator<Item = usize>) -> usize {
    texts.map(|bytes| bytes + ENTRY_BYTES).sum()
}

/// Returns an upper bound of a desired state's bytes and entries, from a bound of its task set. This takes a fraction
/// of the time of encoding, and is far from exact. Returns `None` for a state with ready probes, whose size is unknown
/// here.
fn upper_bound(resolved: &ResolvedNode, tasks: usize) -> Option<usize> {
    let labels = sizes(&mut resolved.labels().iter().map(|(key, effective)| key.len() + effective.value.len()));
    let annotations = sizes(&mut resolved.annotations().iter().map(|(key, effective)| key.len() + effective.value.len()));
    let traits = sizes(&mut resolved.traits().names().map(|name| name.len()));
    let hold = resolved.hold().map_or(0, |hold| hold.reason.len());
    resolved.ready_probes().is_empty().then_some(FIXED_BYTES + hold + labels + annotations + traits + tasks)
}

/// Returns an upper bound of the bytes of a node's next task set.
fn tasks_upper_bound(resolved: &ResolvedNode) -> usize {
    resolved.task_set().map_or(0, |set| {
        let left_out = sizes(&mut set.skipped_ids().map(|(id, why)| id.len() + why.to_string().len()));
        let tags = sizes(&mut set.tags().iter().chain(set.primary_tags()).map(|tag| tag.len()));
        let (count, bytes) = set.input_sizes();
        left_out + tags + ENTRY_BYTES * count + MAX_ESCAPE_FACTOR * bytes
    })
}

/// Checks the parts of a desired state and their sizes, in bytes as they are sent. Returns the total.
pub(crate) fn check_parts(known: &Known, task_set: &TaskSet, sizes: (usize, usize)) -> Result<usize, TooLarge> {
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
    if bytes > MAX_DESIRED_BYTES { Err(TooLarge::Bytes { bytes, known: sizes.0, tasks: sizes.1 }) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::{Value, json};
    use stemma_author::SyntaxReader;
    use stemma_core::fleet::{Fleet, FleetChange};
    use stemma_core::key::{AnnotationKey, AnnotationValue, LabelKey, LabelValue};
    use stemma_core::labels::{AnnotationLayer, LabelLayer, ParameterLayer, ParameterValue};
    use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef};
    use stemma_core::object::{
        ClusterId, ClusterSpec, GroupId, Hold, Inherited, Meta, NodeGroupSpec, NodeId, NodeSpec, Object, Timestamp,
    };
    use stemma_core::ownership::{Intent, Manager, OwnedMap, ProvidedValue};
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
            values.map(|(key, value)| (LabelKey::new(&key).unwrap(), ProvidedValue::Value(value))).collect();
        OwnedMap::default().update(&Manager::new("test").unwrap(), &intent)
    }

    fn annotated(texts: &[String]) -> AnnotationLayer {
        let key = |at| AnnotationKey::new(&format!("a{at}")).unwrap();
        let value = |text: &String| ProvidedValue::Value(AnnotationValue::new(text).unwrap());
        let intent: Intent<AnnotationKey, AnnotationValue> =
            texts.iter().enumerate().map(|(at, text)| (key(at), value(text))).collect();
        AnnotationLayer { provided: Some(OwnedMap::default().update(&Manager::new("test").unwrap(), &intent)), merge: Some(true) }
    }

    /// Returns a resolved node whose places have the longest names, with a hold and with these labels, parameters and
    /// annotations. For each label there is a task that is left out, and for each parameter a task that reads it.
    fn resolved_node(labels: &[String], parameters: &[Value], annotations: &[String], reason: &str) -> Arc<ResolvedNode> {
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
        fleet.apply(FleetChange::Release(compile(&release, &spec, &|_| None, &SyntaxReader).unwrap()));
        let (cluster, group, node) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
        let longest = "c".repeat(255);
        let spec = ClusterSpec { release: Some(release), ..ClusterSpec::default() };
        fleet.apply(FleetChange::Cluster(Arc::new(Object { meta: meta(1, object_name(&longest)), spec })));
        let texts = labels.iter().enumerate().map(|(at, text)| (format!("l{at}"), LabelValue::new(text).unwrap()));
        let values = parameters.iter().enumerate().map(|(at, one)| (format!("p{at}"), ParameterValue::new(one.clone()).unwrap()));
        let inherited = Inherited {
            labels: LabelLayer { provided: Some(owned(texts)), merge: Some(true) },
            parameters: ParameterLayer { provided: Some(owned(values)), merge: Some(true) },
            annotations: annotated(annotations),
            ..Inherited::default()
        };
        let roles = vec![Name::new("web").unwrap()];
        let spec = NodeGroupSpec { inherited, roles, ..NodeGroupSpec::new(ClusterId(cluster)) };
        fleet.apply(FleetChange::NodeGroup(Arc::new(Object { meta: meta(2, object_name(&longest)), spec })));
        let hold = Some(Box::new(Hold { reason: reason.to_owned(), ..Hold::default() }));
        let spec = NodeSpec { nodegroup: Some(GroupId(group)), hold, ..NodeSpec::default() };
        fleet.apply(FleetChange::Node(Arc::new(Object { meta: meta(3, NodeName::new("n").ok()), spec })));
        fleet.set_loaded();
        let resolution = resolve_node(&fleet, &ResolveCache::new(), NodeId(node));
        Arc::clone(resolution.resolved_node().expect("it resolves"))
    }

    fn value() -> impl Strategy<Value = Value> {
        let numbers = prop_oneof![any::<i64>().prop_map(Value::from), any::<f64>().prop_map(Value::from)];
        prop_oneof![numbers, "[\\x00-\\x1f\"é]{0,2000}".prop_map(Value::from), Just(json!([false, null, {"a": {}}]))]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 10, ..ProptestConfig::default() })]
        #[test]
        fn upper_bound_is_at_least_encoded_size(
            labels in proptest::collection::vec("[a-z\"é]{0,100}", 0..20),
            parameters in proptest::collection::vec(value(), 0..20),
            // Some cases have more than may be sent.
            annotations in proptest::collection::vec((0..40_000_usize).prop_map(|n| "é\"".repeat(n)), 0..8),
            reason in "[a-z\"é]{0,500}",
        ) {
            let answer = resolved_node(&labels, &parameters, &annotations, &reason);
            prop_assert_eq!(answer.task_set().unwrap().skipped_ids().count(), labels.len());
            let (sent, most) = (next_size(&answer), upper_bound(&answer, tasks_upper_bound(&answer)).unwrap());
            prop_assert!(sent.is_ok() || !is_within_limit(&answer, 0), "what is too large is told");
            match sent {
                Ok(bytes) => prop_assert!(bytes <= most, "{} bytes are sent, and the bound is {}", bytes, most),
                Err(error) => prop_assert!(most >= MAX_DESIRED_BYTES, "{}: the bound is {}", error, most),
            }
        }
    }
}
