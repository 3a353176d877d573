//! The parameters of the task types that run alone on their host: a reboot, and Puppet.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::parameter_type::ParameterType;
use super::parameter_values::error_at;
use super::parameters::{Parameter, ParameterPresence, ParameterTable, TypedParameters, parameters};
use crate::name::{is_blank, truncated};

/// The value of `when` of a `reboot` task that asks for a reboot only if the system requires one.
pub const WHEN_REQUIRED: &str = "required";

/// The values of `when` of a `reboot` task.
pub const REBOOT_CONDITIONS: &[&str] = &["always", WHEN_REQUIRED];

parameters! {
    /// The parameters of `reboot`.
    RebootParameters:
    when, Choice(REBOOT_CONDITIONS) Optional: "`always`, the default, asks for a reboot once for each content of the task. `required` asks only while the system requires a reboot.";
    timeout, Seconds Optional: "The time within which the host must go down after the reboot has begun, in seconds: 300 by default.";
}

/// The parameter `modules_dir`, which only manifests have. The CLI reads the files of the directory and sends them as the
/// parameter `modules`.
pub const MODULES_DIR: Parameter = Parameter {
    name: "modules_dir",
    alias: None,
    parameter_type: ParameterType::Text,
    presence: ParameterPresence::Optional,
    meaning: "The directory with the modules, at or below the manifest's directory.",
};

parameters! {
    /// The parameters of `puppet`. Exactly one of manifest, source and `puppet_manifest` is required.
    PuppetParameters:
    manifest, Text OneOf: "The Puppet code. It is no template: values reach it as facts and through Hiera.";
    source, Source OneOf: "The blob with the Puppet code: `sha256:…`, or in a manifest a file's name.";
    puppet_manifest, Path OneOf: "A parameter of Fuel: a file with Puppet code that is on the host already.";
    modules, Files Optional: "The modules: a map from a path such as `nginx/manifests/init.pp` to the blob with the content, `sha256:…`, or in a manifest to the name of a file. They precede `puppet_modules`.";
    puppet_modules, PathList Optional: "A parameter of Fuel: directories on the host with modules, separated by `:`. Without it, Puppet's own setting.";
    hiera, Data Optional: "The data for Hiera's lookups, which take precedence over the data of modules.";
    facts, Facts Optional: "Additional facts, as texts.";
    cwd, Directory Optional: "The directory in which Puppet runs.";
    timeout, Seconds Optional: "The maximum duration of one run of Puppet, in seconds: 3600 by default.";
}

/// Returns the errors of a `puppet` task: code that is an empty text, and modules that Puppet cannot find.
pub(super) fn puppet_contradictions(parameters: &Map<String, Value>) -> Vec<(String, String)> {
    let mut errors = Vec::new();
    if parameters.get("manifest").and_then(Value::as_str).is_some_and(is_blank) {
        errors
            .push(error_at("manifest", "is an empty text, for which Puppet does nothing: write Puppet code, or remove the task"));
    }
    if let Some(path) = parameters.get("modules").and_then(Value::as_object).and_then(path_outside_modules) {
        let message = format!(
            "{:?} is in no module that Puppet can find: write MODULE/manifests/NAME.pp, such as nginx/manifests/init.pp, and small letters, digits and `_` in the name of a module",
            truncated(path)
        );
        errors.push(error_at("modules", message));
    }
    errors
}

/// The subdirectories of a module from which Puppet reads.
const MODULE_DIRS: &[&str] = &[
    "data",
    "examples",
    "facts.d",
    "files",
    "functions",
    "lib",
    "locales",
    "manifests",
    "plans",
    "scripts",
    "spec",
    "tasks",
    "templates",
    "types",
];

/// Returns whether Puppet finds a module with this name (Puppet's documentation, "Module fundamentals").
fn is_module_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Returns the first path from which Puppet reads nothing, because its directory has no subdirectory such as `manifests`
/// and so is no module. A file next to modules, such as a `README.md`, is no error.
fn path_outside_modules(files: &Map<String, Value>) -> Option<&str> {
    let parts = |path: &String| path.split('/').count();
    let module = |path: &String| path.split('/').next().unwrap_or_default().to_owned();
    let has_code = |path: &&String| {
        let mut names = path.split('/');
        names.next().is_some_and(is_module_name)
            && names.next().is_some_and(|dir| MODULE_DIRS.contains(&dir))
            && names.next().is_some()
    };
    let modules: BTreeSet<String> = files.keys().filter(has_code).map(module).collect();
    let is_outside = |path: &&String| modules.is_empty() || parts(path) > 1 && !modules.contains(&module(path));
    files.keys().find(is_outside).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn puppet_contradictions_refuse_empty_code_and_unreachable_modules() {
        for (parameters, expected) in [
            (json!({"manifest": "notice('x')"}), None),
            (json!({"manifest": ""}), Some("parameters.manifest: is an empty text")),
            (json!({"manifest": " \n\t"}), Some("parameters.manifest: is an empty text")),
            (json!({"modules": {"nginx/manifests/init.pp": "f"}}), None),
            (json!({"modules": {"README.md": "f", "nginx/metadata.json": "f", "nginx/lib/facter/a.rb": "f"}}), None),
            (
                json!({"modules": {"a_b/manifest/init.pp": "f"}}),
                Some("parameters.modules: \"a_b/manifest/init.pp\" is in no module"),
            ),
            (
                json!({"modules": {"Good/manifests/init.pp": "f"}}),
                Some("parameters.modules: \"Good/manifests/init.pp\" is in no"),
            ),
            (
                json!({"modules": {"a-b/manifests/init.pp": "f"}}),
                Some("parameters.modules: \"a-b/manifests/init.pp\" is in no module"),
            ),
            (json!({"modules": {"a": "f"}}), Some("parameters.modules: \"a\" is in no module")),
            (json!({"modules": {"manifests/init.pp": "f"}}), Some("parameters.modules: \"manifests/init.pp\" is in no module")),
            (
                json!({"modules": {"nginx/manifests/init.pp": "f", "ntp/init.pp": "f"}}),
                Some("parameters.modules: \"ntp/init.pp\" is in no module"),
            ),
        ] {
            let errors = puppet_contradictions(parameters.as_object().unwrap());
            let text = errors.iter().map(|(field, message)| format!("{field}: {message}")).collect::<Vec<_>>().join("; ");
            match expected {
                Some(expected) => assert!(errors.len() == 1 && text.starts_with(expected), "{parameters}: {text}"),
                None => assert_eq!(text, "", "{parameters}"),
            }
        }
    }
}
