//! `/etc/stemma/agent.toml`: settings that the owner of a host chooses and no controller can change.

use serde::Deserialize;
use stemma_core::field::{FieldDef, FieldType, Help};
use stemma_core::json;
use stemma_core::name::{closest_match, did_you_mean, truncated};
use stemma_core::task::{TASK_TYPES, check_replaceable, task_type};
use stemma_core::time::MAX_DURATION_SECONDS;

use crate::host::{Host, HostError, HostPath, PathRefused};
use crate::paths;

/// Maximum size of the configuration file, in bytes.
const MAX_CONFIG_BYTES: u64 = 64 * 1024;

/// The fields of the configuration file, for its manual page. The name of a field in a table begins with the name of
/// the table and a dot.
pub const FIELDS: &[FieldDef] = &[
    FieldDef::new(
        "host_label_map.path",
        FieldType::Text,
        Help::new(
            "/etc/stemma/node-labels",
            "The file to which the agent writes labels for other programs.",
            "\"/etc/stemma/node-labels\"",
        ),
    ),
    FieldDef::new(
        "host_label_map.format",
        FieldType::OneOf(&["env", "json", "node_feature_discovery"]),
        Help::new(
            "env",
            "Format of that file: lines KEY=VALUE, one flat JSON object, or the feature file of Node Feature Discovery.",
            "\"json\"",
        ),
    ),
    FieldDef::new(
        "ceiling.task_types",
        FieldType::Names,
        Help::new(
            "all that the agent has",
            "The task types that this host runs. Others are reported as unsupported. Without shell no command runs at all.",
            "[\"file\"]",
        ),
    ),
    FieldDef::new(
        "schedule.drift_seconds",
        FieldType::Seconds(1, MAX_DURATION_SECONDS),
        Help::new("1800", "Time between two checks for drift. A changed file of a task is checked within seconds.", "600"),
    ),
    FieldDef::new(
        "schedule.retry_seconds",
        FieldType::Seconds(1, MAX_DURATION_SECONDS),
        Help::new("60", "Time before failed tasks are retried. Doubled each time, up to schedule.drift_seconds.", "30"),
    ),
    FieldDef::new(
        "schedule.hook_seconds",
        FieldType::Seconds(1, MAX_DURATION_SECONDS),
        Help::new("30", "Maximum run time of one hook.", "10"),
    ),
];

/// The settings in the configuration file of the agent. Every field has a default. An unknown field is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Path and format of the host label map (the file of labels for other programs).
    pub host_label_map: HostLabelMapConfig,
    /// The limits that the owner of the host sets for what controllers can run here.
    pub ceiling: Ceiling,
    /// The intervals of checks and retries.
    pub schedule: Schedule,
}

/// The table `[host_label_map]`: the file to which the agent writes labels for other programs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostLabelMapConfig {
    /// Path of the file.
    pub path: String,
    /// Format of the file.
    pub format: LabelMapFormat,
}

/// The format of the host label map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelMapFormat {
    /// Lines `KEY=VALUE`. The key is unchanged.
    #[default]
    Env,
    /// One JSON object without nesting.
    Json,
    /// The feature file of Node Feature Discovery: lines `KEY=VALUE`, or `KEY` alone for `true`.
    NodeFeatureDiscovery,
}

/// The table `[ceiling]`: which types of tasks controllers can run on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceiling {
    /// The names of the task types that this host runs. A Fuel name allows only tasks that are written with this name.
    /// `None` for all types that the agent has.
    pub task_types: Option<Vec<String>>,
}

impl Ceiling {
    /// Returns whether `task_types` contains exactly this name (perhaps a Fuel name), or is `None`.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        self.task_types.as_ref().is_none_or(|types| types.iter().any(|allowed| allowed == name))
    }

    /// Fails if `task_types` contains a name that is neither the name nor an alias of a task type.
    fn check(&self) -> Result<(), ConfigError> {
        let mut names = self.task_types.iter().flatten();
        let Some(unknown_name) = names.find(|name| task_type(name).is_none()) else { return Ok(()) };
        let known_names: Vec<&str> = TASK_TYPES.iter().filter(|kind| !kind.is_marker).map(|kind| kind.name).collect();
        let suggestion = did_you_mean(closest_match(unknown_name, known_names.iter().copied()));
        Err(ConfigError::TaskType { name: truncated(unknown_name), near: suggestion, known: known_names.join(", ") })
    }
}

/// The table `[schedule]`: the intervals of checks and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Seconds between two checks for drift. The agent adds a random time of up to a tenth of this interval.
    pub drift_seconds: u64,
    /// Seconds before the agent retries failed tasks. The time doubles with each failure, up to `drift_seconds`.
    pub retry_seconds: u64,
    /// Maximum run time of one hook, in seconds. A hook is a program of the host's owner that runs after a change.
    pub hook_seconds: u64,
}

impl Default for HostLabelMapConfig {
    fn default() -> Self {
        Self { path: paths::DEFAULT_HOST_LABEL_MAP.into(), format: LabelMapFormat::Env }
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self { drift_seconds: 30 * 60, retry_seconds: 60, hook_seconds: 30 }
    }
}

/// The reason why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration cannot be read")]
    Read(#[from] HostError),
    /// Other users can write the file. They could then change the settings of a program that runs as root.
    #[error("{path} can be written by others (mode {mode:04o}): run `chmod go-w {path}`")]
    WritableByOthers {
        /// Path of the file on this system.
        path: String,
        /// File mode.
        mode: u32,
    },
    /// The file is not UTF-8 or not TOML, or it has an unknown field or a value of the wrong type.
    #[error("{path}: {message}")]
    Syntax {
        /// Path of the file.
        path: String,
        /// The error. An error in the TOML text contains its line and column in the file.
        message: String,
    },
    /// The path of the host label map is not valid, or is a path at which the agent must not replace a file.
    #[error("host_label_map.path in {CONFIG}", CONFIG = paths::CONFIG)]
    Path(#[from] PathRefused),
    /// An interval of the schedule is zero or too long.
    #[error(
        "schedule.{field} in {CONFIG} is {seconds}: write whole seconds, 1 to {MAX_DURATION_SECONDS}",
        CONFIG = paths::CONFIG
    )]
    Pause {
        /// Name of the field in `[schedule]`.
        field: &'static str,
        /// Value of the field, in seconds.
        seconds: u64,
    },
    /// The list of task types contains an unknown name. This is an error, because a host with a misspelled type would
    /// run no tasks of that type.
    #[error(
        "ceiling.task_types in {CONFIG}: {name:?} is not a type of task{near}: correct its spelling, or remove it; there are {known}",
        CONFIG = paths::CONFIG
    )]
    TaskType {
        /// The unknown name.
        name: String,
        /// The most similar known name as a phrase for the message, or empty.
        near: String,
        /// The names of all task types except markers, separated by commas.
        known: String,
    },
}

impl AgentConfig {
    /// Reads the configuration file. Returns the defaults if the file does not exist.
    ///
    /// # Errors
    /// [`ConfigError`], also if other users can write the file. The agent then does not start (S71).
    pub fn load(host: &dyn Host) -> Result<Self, ConfigError> {
        let path = HostPath::from_static(paths::CONFIG);
        let Some(dir) = host.parent_dir(&path)? else { return Ok(Self::default()) };
        let Some(stat) = dir.stat(path.name())? else { return Ok(Self::default()) };
        if stat.mode & 0o022 != 0 {
            return Err(ConfigError::WritableByOthers { path: display_path(host, &path), mode: stat.mode });
        }
        let bytes = dir.read(path.name(), MAX_CONFIG_BYTES)?.unwrap_or_default();
        let syntax_error = |message: String| ConfigError::Syntax { path: display_path(host, &path), message };
        let text = json::decode_utf8(bytes).map_err(|reason| syntax_error(reason.to_string()))?;
        Self::parse(&text).map_err(|error| match error {
            ConfigError::Syntax { message, .. } => syntax_error(message),
            other => other,
        })
    }

    /// Parses the text of the configuration file. Also checks the path of the host label map, the intervals and the
    /// task types.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`], [`ConfigError::Path`], [`ConfigError::Pause`], [`ConfigError::TaskType`].
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)
            .map_err(|error| ConfigError::Syntax { path: paths::CONFIG.into(), message: error.to_string() })?;
        let label_map = HostPath::parse(&config.host_label_map.path)?;
        check_replaceable(label_map.as_str())?;
        for (field, seconds) in [
            ("drift_seconds", config.schedule.drift_seconds),
            ("retry_seconds", config.schedule.retry_seconds),
            ("hook_seconds", config.schedule.hook_seconds),
        ] {
            if !(1..=MAX_DURATION_SECONDS).contains(&seconds) {
                return Err(ConfigError::Pause { field, seconds });
            }
        }
        config.ceiling.check()?;
        Ok(config)
    }
}

/// Returns the full path on this system, which begins with the directory of `--root`, as text for a message.
fn display_path(host: &dyn Host, path: &HostPath) -> String {
    host.system_path(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::host::memory::MemoryHost;
    use crate::host::real::RealHost;

    #[test]
    fn s71_w15_11_load_fails_when_others_can_write_file() {
        for (mode, is_accepted) in [(0o600, true), (0o644, true), (0o664, false), (0o646, false), (0o666, false), (0o622, false)]
        {
            let host = MemoryHost::new();
            host.put(paths::CONFIG, "[schedule]\ndrift_seconds = 7\n");
            host.chmod(paths::CONFIG, mode);
            match AgentConfig::load(&host) {
                Ok(config) => assert!(is_accepted && config.schedule.drift_seconds == 7, "{mode:04o}"),
                Err(error) => {
                    let message = error.to_string();
                    assert!(
                        !is_accepted && message.ends_with(&format!("(mode {mode:04o}): run `chmod go-w {}`", paths::CONFIG)),
                        "{message}"
                    );
                }
            }
        }
    }

    #[test]
    fn y09_load_names_encoding_when_file_is_utf_16() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(paths::CONFIG.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let text = "\u{feff}[schedule]\ndrift_seconds = 7\n";
        let utf16_bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, why) in [
            (&utf16_bytes[..], "it is a text in UTF-16: save it in UTF-8"),
            // The text without the byte order mark.
            (&utf16_bytes[2..], "it is a text in UTF-16: save it in UTF-8"),
            (b"[schedule]\n# f\xfcr uns\n", "it is no text in UTF-8"),
        ] {
            std::fs::write(&file, bytes).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            let message = AgentConfig::load(&RealHost::new(root.path()).unwrap()).unwrap_err().to_string();
            assert!(message.ends_with(&format!("{}: {why}", paths::CONFIG)), "{message}");
        }
    }

    #[test]
    fn manual_page_lists_all_fields() {
        let known_fields = |text: &str| {
            let message = AgentConfig::parse(text).unwrap_err().to_string();
            // The rest of the message is: `nosuch`, expected one of `name`, `name`, and so on.
            let words = message.split_once("unknown field").unwrap().1;
            words.split('`').skip(3).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        };
        let mut field_names = Vec::new();
        for table in known_fields("nosuch = 1\n") {
            let fields = known_fields(&format!("[{table}]\nnosuch = 1\n"));
            field_names.extend(fields.into_iter().map(|field| format!("{table}.{field}")));
        }
        assert_eq!(field_names, FIELDS.iter().map(|field| field.name).collect::<Vec<_>>());
    }

    #[test]
    fn y05_parse_explains_error() {
        for (text, expected) in [
            ("[host_label_map]\npath = \"etc/x\"", "host_label_map.path in /etc/stemma/agent.toml"),
            ("[host_label_map]\npath = \"/proc/x\"", "host_label_map.path in /etc/stemma/agent.toml"),
            ("[schedule]\ndrift_seconds = 0", "schedule.drift_seconds in /etc/stemma/agent.toml is 0"),
            ("[schedule]\nhook_seconds = 0", "schedule.hook_seconds in /etc/stemma/agent.toml is 0"),
            ("[schedule]\nhook_seconds = 31622401", "schedule.hook_seconds in /etc/stemma/agent.toml is 31622401"),
            ("[schedule]\nhook_seconds = 9000000000000000000", "schedule.hook_seconds in /etc/stemma/agent.toml is 9"),
            ("[schedule]\nretry_seconds = 9000000000000000000", "retry_seconds in /etc/stemma/agent.toml is 9000000000000000000"),
            ("[celing]\n", "unknown field `celing`"),
            (
                "[ceiling]\ntask_types = [\"shell\", \"flie\"]",
                "ceiling.task_types in /etc/stemma/agent.toml: \"flie\" is not a type of task (did you mean \"file\"?): correct",
            ),
            (
                "[ceiling]\ntask_types = [\"\"]",
                "\"\" is not a type of task: correct its spelling, or remove it; there are file, ",
            ),
            ("[ceiling]\ntask_types = [\"Shell\"]", "\"Shell\" is not a type of task (did you mean \"shell\"?): correct"),
            ("[host_label_map]\nformat = \"yaml\"", "unknown variant `yaml`"),
        ] {
            let error = AgentConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        // No type, a name, a name of Fuel with another type, and a marker.
        for task_types in ["", "\"file\"", "\"upload_file\", \"package\"", "\"stage\""] {
            assert!(AgentConfig::parse(&format!("[ceiling]\ntask_types = [{task_types}]")).is_ok(), "{task_types}");
        }
        let config = AgentConfig::parse("[host_label_map]\nformat = \"node_feature_discovery\"\n").unwrap();
        assert_eq!(config.host_label_map.format, LabelMapFormat::NodeFeatureDiscovery);
        assert_eq!(config.host_label_map.path, "/etc/stemma/node-labels");
    }
}
