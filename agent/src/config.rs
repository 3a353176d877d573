//! `/etc/stemma/agent.toml`: what a host's owner decides for the host, and no controller can change.

use serde::Deserialize;
use stemma_core::field::{Form, Help, Part};
use stemma_core::json;
use stemma_core::name::{cut, near, suggest};
use stemma_core::task::{TASK_TYPES, check_replaceable, task_type};
use stemma_core::time::MAX_SECONDS;

use crate::host::{Host, HostError, HostPath, PathRefused};
use crate::paths;

/// The largest configuration that is read.
const LARGEST: u64 = 64 * 1024;

/// The fields of the file, for its manual page; a table's stand behind its name and a dot.
pub const FIELDS: &[Part] = &[
    Part::new(
        "host_label_map.path",
        Form::Text,
        Help::new(
            "/etc/stemma/node-labels",
            "The file to which labels flow that other programs read.",
            "\"/etc/stemma/node-labels\"",
        ),
    ),
    Part::new(
        "host_label_map.format",
        Form::OneOf(&["env", "json", "node_feature_discovery"]),
        Help::new(
            "env",
            "How that file is written: lines KEY=VALUE, one flat object, or the feature file of Node Feature Discovery.",
            "\"json\"",
        ),
    ),
    Part::new(
        "ceiling.task_types",
        Form::Names,
        Help::new(
            "all that the agent has",
            "The task types that this host takes; others are reported unsupported. Without shell no command runs at all.",
            "[\"file\"]",
        ),
    ),
    Part::new(
        "schedule.drift_seconds",
        Form::Seconds(1, MAX_SECONDS),
        Help::new("1800", "Between two looks for drift. A changed file of a task is looked at within seconds.", "600"),
    ),
    Part::new(
        "schedule.retry_seconds",
        Form::Seconds(1, MAX_SECONDS),
        Help::new("60", "Before failed tasks are tried again; doubled each time, up to schedule.drift_seconds.", "30"),
    ),
    Part::new("schedule.hook_seconds", Form::Seconds(1, MAX_SECONDS), Help::new("30", "What one hook may take.", "10")),
];

/// The whole file. Every field has a default; an unknown one is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The host label map: where it is, in which format.
    pub host_label_map: HostLabelMap,
    /// The host's own ceiling.
    pub ceiling: Ceiling,
    /// When things are looked at again.
    pub schedule: Schedule,
}

/// `[host_label_map]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostLabelMap {
    /// The file.
    pub path: String,
    /// How it is written.
    pub format: Format,
}

/// How the host label map is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Lines `KEY=VALUE`, the key as it is.
    #[default]
    Env,
    /// One flat object.
    Json,
    /// Node Feature Discovery's feature file: `KEY=VALUE`, and `KEY` alone for `true`.
    NodeFeatureDiscovery,
}

/// `[ceiling]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceiling {
    /// The task types that this host takes; absent: all that the agent has.
    pub task_types: Option<Vec<String>>,
}

impl Ceiling {
    /// Whether this host takes tasks of a type.
    #[must_use]
    pub fn takes(&self, name: &str) -> bool {
        self.task_types.as_ref().is_none_or(|types| types.iter().any(|taken| taken == name))
    }

    /// Refuses a name that no task type has, as its own or as an alias.
    fn check(&self) -> Result<(), ConfigError> {
        let mut said = self.task_types.iter().flatten();
        let Some(wrong) = said.find(|name| task_type(name).is_none()) else { return Ok(()) };
        let known: Vec<&str> = TASK_TYPES.iter().filter(|one| !one.marker).map(|one| one.name).collect();
        let near = suggest(near(wrong, known.iter().copied()));
        Err(ConfigError::TaskType { said: cut(wrong), near, known: known.join(", ") })
    }
}

/// `[schedule]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Seconds between two looks for drift.
    pub drift_seconds: u64,
    /// Seconds before failed tasks are tried again; doubled each time, up to `drift_seconds`.
    pub retry_seconds: u64,
    /// Seconds that one hook may take.
    pub hook_seconds: u64,
}

impl Default for HostLabelMap {
    fn default() -> Self {
        Self { path: paths::HOST_LABEL_MAP.into(), format: Format::Env }
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self { drift_seconds: 30 * 60, retry_seconds: 60, hook_seconds: 30 }
    }
}

/// Why the configuration is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("the configuration cannot be read")]
    Read(#[from] HostError),
    /// Others may write it: they would decide what root does here.
    #[error("{path} can be written by others (mode {mode:04o}): run `chmod go-w {path}`")]
    WritableByOthers {
        /// The file, as this system sees it.
        path: String,
        /// Its mode.
        mode: u32,
    },
    /// It is no TOML, or has a field that is none.
    #[error("{path}: {message}")]
    Syntax {
        /// The file.
        path: String,
        /// What and where.
        message: String,
    },
    /// A path in it is none.
    #[error("host_label_map.path in {CONFIG}", CONFIG = paths::CONFIG)]
    Path(#[from] PathRefused),
    /// A schedule without a pause, or without a next time.
    #[error(
        "schedule.{field} in {CONFIG} is {seconds}: write whole seconds, 1 to {MAX_SECONDS}",
        CONFIG = paths::CONFIG
    )]
    Pause {
        /// Which one.
        field: &'static str,
        /// What it says.
        seconds: u64,
    },
    /// A task type that is none: a host whose owner misspells one would take no tasks of it.
    #[error(
        "ceiling.task_types in {CONFIG}: {said:?} is no type of task{near}: mend its spelling, or take it out; there are {known}",
        CONFIG = paths::CONFIG
    )]
    TaskType {
        /// What it says.
        said: String,
        /// The one that may have been meant, as a part of the sentence.
        near: String,
        /// The types that there are.
        known: String,
    },
}

impl Config {
    /// Reads the file; without one, the defaults.
    ///
    /// # Errors
    /// [`ConfigError`]; the agent does not start then (S71).
    pub fn load(host: &dyn Host) -> Result<Self, ConfigError> {
        let path = HostPath::own(paths::CONFIG);
        let Some(dir) = host.parent_of(&path)? else { return Ok(Self::default()) };
        let Some(stat) = dir.stat(path.name())? else { return Ok(Self::default()) };
        if stat.mode & 0o022 != 0 {
            return Err(ConfigError::WritableByOthers { path: shown(host, &path), mode: stat.mode });
        }
        let bytes = dir.read(path.name(), LARGEST)?.unwrap_or_default();
        let syntax = |message: String| ConfigError::Syntax { path: shown(host, &path), message };
        let text = json::utf_8(bytes).map_err(|why| syntax(why.to_string()))?;
        Self::parse(&text).map_err(|error| match error {
            ConfigError::Syntax { message, .. } => syntax(message),
            other => other,
        })
    }

    /// Reads the text of the file.
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
            if !(1..=MAX_SECONDS).contains(&seconds) {
                return Err(ConfigError::Pause { field, seconds });
            }
        }
        config.ceiling.check()?;
        Ok(config)
    }
}

fn shown(host: &dyn Host, path: &HostPath) -> String {
    host.outside(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::host::memory::MemoryHost;
    use crate::host::real::RealHost;

    #[test]
    fn s71_w15_11_a_configuration_that_others_may_write_is_not_taken() {
        for (mode, is_taken) in
            [(0o600, true), (0o644, true), (0o664, false), (0o646, false), (0o666, false), (0o622, false)]
        {
            let host = MemoryHost::new();
            host.put(paths::CONFIG, "[schedule]\ndrift_seconds = 7\n");
            host.chmod(paths::CONFIG, mode);
            match Config::load(&host) {
                Ok(config) => assert!(is_taken && config.schedule.drift_seconds == 7, "{mode:04o}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(
                        !is_taken && said.ends_with(&format!("(mode {mode:04o}): run `chmod go-w {}`", paths::CONFIG)),
                        "{said}"
                    );
                }
            }
        }
    }

    #[test]
    fn y09_a_configuration_in_utf_16_is_said_to_be_in_that() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(paths::CONFIG.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let text = "\u{feff}[schedule]\ndrift_seconds = 7\n";
        let marked: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, why) in [
            (&marked[..], "it is a text in UTF-16: save it in UTF-8"),
            (&marked[2..], "it is a text in UTF-16: save it in UTF-8"),
            (b"[schedule]\n# f\xfcr uns\n", "it is no text in UTF-8"),
        ] {
            std::fs::write(&file, bytes).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            let said = Config::load(&RealHost::new(root.path()).unwrap()).unwrap_err().to_string();
            assert!(said.ends_with(&format!("{}: {why}", paths::CONFIG)), "{said}");
        }
    }

    #[test]
    fn the_manual_page_has_the_fields_that_are_read() {
        let known = |text: &str| {
            let said = Config::parse(text).unwrap_err().to_string();
            let words = said.split_once("unknown field").unwrap().1;
            words.split('`').skip(3).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        };
        let mut read = Vec::new();
        for table in known("nosuch = 1\n") {
            let fields = known(&format!("[{table}]\nnosuch = 1\n"));
            read.extend(fields.into_iter().map(|field| format!("{table}.{field}")));
        }
        assert_eq!(read, FIELDS.iter().map(|field| field.name).collect::<Vec<_>>());
    }

    #[test]
    fn y05_a_configuration_says_what_is_wrong_with_it() {
        for (text, said) in [
            ("[host_label_map]\npath = \"etc/x\"", "host_label_map.path in /etc/stemma/agent.toml"),
            ("[host_label_map]\npath = \"/proc/x\"", "host_label_map.path in /etc/stemma/agent.toml"),
            ("[schedule]\ndrift_seconds = 0", "schedule.drift_seconds in /etc/stemma/agent.toml is 0"),
            ("[schedule]\nhook_seconds = 0", "schedule.hook_seconds in /etc/stemma/agent.toml is 0"),
            ("[schedule]\nhook_seconds = 31622401", "schedule.hook_seconds in /etc/stemma/agent.toml is 31622401"),
            ("[schedule]\nhook_seconds = 9000000000000000000", "schedule.hook_seconds in /etc/stemma/agent.toml is 9"),
            (
                "[schedule]\nretry_seconds = 9000000000000000000",
                "retry_seconds in /etc/stemma/agent.toml is 9000000000000000000",
            ),
            ("[celing]\n", "unknown field `celing`"),
            (
                "[ceiling]\ntask_types = [\"shell\", \"flie\"]",
                "ceiling.task_types in /etc/stemma/agent.toml: \"flie\" is no type of task (did you mean \"file\"?): mend",
            ),
            (
                "[ceiling]\ntask_types = [\"\"]",
                "\"\" is no type of task: mend its spelling, or take it out; there are file, ",
            ),
            ("[ceiling]\ntask_types = [\"Shell\"]", "\"Shell\" is no type of task (did you mean \"shell\"?): mend"),
            ("[host_label_map]\nformat = \"yaml\"", "unknown variant `yaml`"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        for taken in ["", "\"file\"", "\"upload_file\", \"package\"", "\"stage\""] {
            assert!(Config::parse(&format!("[ceiling]\ntask_types = [{taken}]")).is_ok(), "{taken}");
        }
        let config = Config::parse("[host_label_map]\nformat = \"node_feature_discovery\"\n").unwrap();
        assert_eq!(config.host_label_map.format, Format::NodeFeatureDiscovery);
        assert_eq!(config.host_label_map.path, "/etc/stemma/node-labels");
    }
}
