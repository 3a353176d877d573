//! Sites and tasks for the tests of appliers.

use std::rc::Rc;

use serde_json::{Value, json};
use stemma_wire::message::desired::{InputValue, ProfileTask};

use crate::apply::ledger::Ledger;
use crate::apply::task::{HostTask, Site};
use crate::host::Host;
use crate::host::memory::MemoryHost;

/// Returns the site of a new process on an in-memory host.
pub(in crate::apply) fn site(host: &MemoryHost) -> Site {
    site_of(Rc::new(host.clone()))
}

/// Returns the site of a new process on a host.
pub(in crate::apply) fn site_of(host: Rc<dyn Host>) -> Site {
    let ledger = Ledger::open(host.clone()).unwrap();
    Site::new(host, Rc::new(ledger))
}

/// Runs a future on a clock that jumps to the next timer.
pub(in crate::apply) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(future)
}

/// Returns a task with this id, type and parameters that reads these labels, each with its value.
pub(super) fn task_of(id_and_kind: (&str, &str), parameters: &Value, labels: &[(&str, &str)]) -> HostTask {
    task_with_fields(id_and_kind, &json!({"parameters": parameters}), labels)
}

/// As [`task_of`], with other fields of the definition than the parameters.
pub(super) fn task_with_fields((id, kind): (&str, &str), fields: &Value, labels: &[(&str, &str)]) -> HostTask {
    let mut definition = json!({"id": id, "type": kind});
    definition.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let inputs = labels.iter().map(|(name, value)| (format!("labels.{name}"), InputValue::Json(json!(value).to_string().into())));
    let profile = ProfileTask {
        id: id.into(),
        definition: definition.to_string(),
        references: labels.iter().map(|(name, _)| format!("labels.{name}")).collect(),
        after: vec![],
        barriers: vec![],
    };
    HostTask::new(&profile, &inputs.collect()).unwrap()
}
