//! The task types and parameters that an agent knows, as the agent declares them to the controller.
//!
//! An agent reports its declaration as a fact of its observation. The declaration follows from the registry of task types
//! alone, so it changes only with the version of the agent. A host gets no task set with a task that its agent does not
//! know. The ceiling of a host (`ceiling.task_types` in `agent.toml`) is not part of the declaration: it is a decision of
//! the host's owner, and no upgrade changes it.

use std::sync::LazyLock;

use serde_json::Value;

use super::Task;
use super::parameters::Parameter;
use super::types::{TASK_TYPES, TaskType, task_type};
use crate::digest::canonical_json;

/// The name of the fact with the task types that an agent knows. Its value is a list of texts, one for each type: the
/// names of the type with commas between them, and then the names of its parameters with spaces between them.
pub const TASK_TYPES_FACT: &str = "agent.task_types";

/// The name of the fact with the version of an agent that declares its task types. The value is a text.
pub const AGENT_VERSION_FACT: &str = "agent.version";

/// The declaration of an agent that declares nothing. This is what agents of commit 994b5d7 knew, and all agents until the
/// first one that has the fact.
const UNDECLARED_TYPES: &[&str] = &[
    "file,upload_file,upload_files absent content data dir_mode dir_permissions group group_owner mode overwrite owner \
     parents path permissions source template timeout user_owner validate",
    "shell cmd command creates cwd env interval only_if retries script timeout unless user",
    "stage",
    "group",
    "skipped",
];

/// The declaration of this version, as the JSON text of the fact.
static DECLARATION: LazyLock<String> =
    LazyLock::new(|| canonical_json(&TASK_TYPES.iter().map(declaration_line).collect::<Value>()));

/// The task types and parameters that an agent knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownTypes<'a>(Vec<&'a str>);

/// A task type, or a parameter of one, that an agent does not know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub enum UnknownFeature {
    /// The type.
    #[display("type {_0:?}")]
    Type(String),
    /// A parameter of a type that the agent knows.
    #[display("parameter {parameter:?} of type {task_type:?}")]
    Parameter {
        /// The name of the type, as the task has it.
        task_type: String,
        /// The name of the parameter, as the task has it.
        parameter: String,
    },
}

/// Returns the declaration of an agent of this version: the value of [`TASK_TYPES_FACT`] as JSON text.
pub fn declared_task_types() -> &'static str {
    &DECLARATION
}

/// Returns the line of a declaration about one type.
fn declaration_line(entry: &TaskType) -> String {
    let names = [entry.name].into_iter().chain(entry.aliases.iter().copied()).collect::<Vec<_>>().join(",");
    let table = entry.parameters.map(|table| table.0).unwrap_or_default();
    let parameter_names = |parameter: &Parameter| [Some(parameter.name), parameter.alias];
    let mut parameters: Vec<&str> = table.iter().flat_map(parameter_names).flatten().collect();
    parameters.sort_unstable();
    [names.as_str()].into_iter().chain(parameters).collect::<Vec<_>>().join(" ")
}

impl<'a> KnownTypes<'a> {
    /// Returns what an agent knows that declares nothing.
    pub fn undeclared() -> Self {
        Self(UNDECLARED_TYPES.to_vec())
    }

    /// Reads the declaration of an agent, the JSON text of [`TASK_TYPES_FACT`]. A text of another form counts as no
    /// declaration.
    pub fn from_fact(text: &'a str) -> Self {
        serde_json::from_str(text).map_or_else(|_| Self::undeclared(), Self)
    }

    /// Returns the first type or parameter of a task that the agent does not know. Returns `None` if the agent knows the
    /// task, or if no host starts the task. A type or parameter that no agent of this version knows either is not returned:
    /// an upgrade of the agent would not help, and other findings report it.
    pub fn unknown_feature(&self, task: &Task) -> Option<UnknownFeature> {
        let table = task_type(&task.kind)?.parameters?;
        if task.is_untranslated() || task.is_observed() {
            return None;
        }
        let Some(parameters) = self.parameters(&task.kind) else { return Some(UnknownFeature::Type(task.kind.clone())) };
        let is_known = |name: &&String| parameters.split(' ').any(|known| known == name.as_str());
        let parameter = task.parameters.keys().find(|name| table.get(name).is_some() && !is_known(name))?;
        Some(UnknownFeature::Parameter { task_type: task.kind.clone(), parameter: parameter.clone() })
    }

    /// Returns the names of the parameters of a type, with spaces between them. Returns `None` if the agent does not know
    /// the type.
    fn parameters(&self, kind: &str) -> Option<&str> {
        let split_line = |line: &&'a str| line.split_once(' ').unwrap_or((*line, ""));
        let mut types = self.0.iter().map(split_line);
        types.find(|(names, _)| names.split(',').any(|name| name == kind)).map(|(_, parameters)| parameters)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a task of a type with these parameters.
    fn task(kind: &str, parameters: &Value) -> Task {
        Task { parameters: parameters.as_object().cloned().unwrap(), ..Task::new("t", kind) }
    }

    #[test]
    fn known_types_name_first_unknown_type_or_parameter() {
        let fact = r#"["shell,run command script","stage"]"#;
        let (known_types, undeclared) = (KnownTypes::from_fact(fact), KnownTypes::undeclared());
        for (kind, parameters, unknown) in [
            ("shell", json!({"command": ["true"]}), None),
            ("shell", json!({"script": "true", "creates": "/a"}), Some(r#"parameter "creates" of type "shell""#)),
            ("file", json!({"path": "/a"}), Some(r#"type "file""#)),
            ("upload_file", json!({"path": "/a", "data": ""}), Some(r#"type "upload_file""#)),
            // A marker runs nothing, and no agent knows a type or parameter that the registry lacks.
            ("group", json!({}), None),
            ("teapot", json!({"a": 1}), None),
            ("shell", json!({"command": ["true"], "colour": 1}), None),
        ] {
            let task = task(kind, &parameters);
            let text = |known: &KnownTypes<'_>| known.unknown_feature(&task).map(|feature| feature.to_string());
            assert_eq!(text(&known_types).as_deref(), unknown, "{kind} {parameters}");
            assert_eq!(text(&undeclared), None, "{kind} {parameters}");
        }
        // No host starts these tasks.
        let observed = Task { mode: Some(crate::task::Mode::Observe), ..task("file", &json!({})) };
        let mut untranslated = task("file", &json!({}));
        untranslated.foreign.insert(crate::task::UNTRANSLATED.to_owned(), json!(["parameters.path"]));
        assert_eq!([observed, untranslated].map(|task| known_types.unknown_feature(&task)), [None, None]);
    }

    /// A declaration of another form, for example of a much newer agent, counts as no declaration.
    #[test]
    fn known_types_are_undeclared_when_fact_has_other_form() {
        for fact in ["", "{}", "[1]", r#"{"file":[]}"#, r#"["fi\u006ce path"]"#] {
            assert_eq!(KnownTypes::from_fact(fact), KnownTypes::undeclared(), "{fact}");
        }
        assert_eq!(KnownTypes::from_fact("[]"), KnownTypes(Vec::new()));
    }

    /// An agent that declares nothing knew every type and parameter in its list. This version knows them too, because no
    /// type or parameter is ever removed. A type of this version that is not in the list needs a declaration.
    #[test]
    fn declared_task_types_include_everything_known_before() {
        let declared = KnownTypes::from_fact(declared_task_types());
        assert!(declared.0.len() >= UNDECLARED_TYPES.len(), "the declaration of this version can be read");
        for line in UNDECLARED_TYPES {
            let (names, parameters) = line.split_once(' ').unwrap_or((line, ""));
            for name in names.split(',') {
                let known_parameters: Vec<&str> = declared.parameters(name).expect(name).split(' ').collect();
                assert!(parameters.split(' ').all(|parameter| known_parameters.contains(&parameter)), "{name}");
            }
        }
        for entry in TASK_TYPES.iter().filter(|entry| entry.parameters.is_some()) {
            for name in [entry.name].iter().chain(entry.aliases) {
                assert_eq!(declared.unknown_feature(&task(name, &json!({}))), None, "{name}");
            }
        }
    }
}
