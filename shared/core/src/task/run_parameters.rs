//! The parameters of the task types that run alone on their host: a reboot, and Puppet.

use std::collections::BTreeMap;

use super::parameter_type::ParameterType;
use super::parameters::{Parameter, ParameterPresence, ParameterTable, TypedParameters, parameters};

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
