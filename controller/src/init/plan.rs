//! The data directory and the names of a new fleet, as the flags of `init` and the configuration file define them.

use std::path::PathBuf;

use crate::args::{DataDirArgs, InitArgs};
use crate::ca::{BadServerName, ServerName};
use crate::config::ConfigError;
use crate::init::{InitError, InitResult, init};

/// The reason why the flags and the configuration file define no fleet.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The configuration file cannot be used, or no data directory is set.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A fallback name is needed, and it is not valid in a certificate.
    #[error("--fallback-name: {0}; set names in the configuration file, or --name")]
    FallbackName(#[from] BadServerName),
}

/// The data directory and the names of the fleet that `init` creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetPlan {
    /// The data directory.
    pub directory: PathBuf,
    /// The names of the controller for its certificate: those of the configuration file, then those of the flags. Each
    /// name occurs once.
    pub names: Vec<String>,
}

impl FleetPlan {
    /// Reads the configuration file that the flags name, if any. The data directory in the flags overrides that of the
    /// file. The fallback names are used only if neither the file nor the flags have a name.
    ///
    /// # Errors
    /// [`PlanError`], also if another part of the configuration is invalid.
    pub fn from_args(args: &InitArgs) -> Result<Self, PlanError> {
        let place = DataDirArgs { config: args.config.clone(), data_dir: args.data_dir.clone() };
        let config = place.config()?;
        let configured = config.names.iter().map(ToString::to_string).chain(args.names.iter().cloned());
        let mut names = without_repetition(configured);
        if names.is_empty() {
            // A machine may have one name that a certificate cannot contain, and another that it can.
            let is_valid = |name: &&String| name.parse::<ServerName>().is_ok();
            names = without_repetition(args.fallback_names.iter().filter(is_valid).cloned());
            if names.is_empty() {
                args.fallback_names.iter().try_for_each(|name| name.parse::<ServerName>().map(drop))?;
            }
        }
        Ok(Self { directory: config.data_dir, names })
    }

    /// Creates the fleet. Returns `None`, and changes nothing, if the data directory already contains a fleet and
    /// `if_missing` is set. `now_s` is the time in seconds since 1970.
    ///
    /// # Errors
    /// [`InitError`], also if the data directory already contains a fleet and `if_missing` is not set.
    pub fn create(&self, if_missing: bool, now_s: u64) -> Result<Option<InitResult>, InitError> {
        match init(&self.directory, &self.names, now_s) {
            Err(InitError::Exists { .. }) if if_missing => Ok(None),
            result => result.map(Some),
        }
    }
}

/// Returns the names in their order, each only at its first place.
fn without_repetition(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Command};

    const NOW_S: u64 = 1_800_000_000;

    /// Returns the plan for these arguments of `init`. If `file` is set, a configuration file with this content is
    /// passed too.
    fn plan(file: Option<&str>, arguments: &[&str]) -> Result<FleetPlan, PlanError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("controller.toml");
        let mut line = vec!["stemma-controller", "init"];
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
            line.extend(["--config", path.to_str().unwrap()]);
        }
        line.extend(arguments);
        let Command::Init(args) = Args::try_parse_from(line).unwrap().command else { panic!("another command") };
        FleetPlan::from_args(&args)
    }

    #[test]
    fn plan_takes_names_of_file_and_flags_before_fallback() {
        let (with_names, without_names) =
            ("data_dir = '/srv/data'\nnames = ['a.example', '10.0.0.1']\n", "data_dir = '/srv/data'\n");
        let fallback = ["--fallback-name", "host.example", "--fallback-name", "host", "--fallback-name", "host"];
        for (file, flags, expected) in [
            (Some(with_names), &fallback[..], &["a.example", "10.0.0.1"][..]),
            (Some(with_names), &["--name", "b.example", "--name", "a.example"], &["a.example", "10.0.0.1", "b.example"]),
            (Some(without_names), &fallback, &["host.example", "host"]),
            (Some(without_names), &["--fallback-name", "my_host!", "--fallback-name", "host"], &["host"]),
            (Some(without_names), &["--name", "b.example", "--fallback-name", "host"], &["b.example"]),
            (Some(without_names), &[], &[]),
            (None, &["--data-dir", "/srv/data", "--name", "b.example"], &["b.example"]),
        ] {
            let plan = plan(file, flags).unwrap();
            assert_eq!((plan.directory, plan.names), ("/srv/data".into(), expected.iter().map(ToString::to_string).collect()));
        }
    }

    #[test]
    fn plan_takes_data_directory_of_flag_before_file() {
        assert_eq!(plan(Some("data_dir = '/srv/data'\n"), &["--data-dir", "x"]).unwrap().directory, PathBuf::from("x"));
        assert_eq!(plan(Some(""), &["--data-dir", "x"]).unwrap().directory, PathBuf::from("x"));
    }

    #[test]
    fn plan_fails_when_file_or_needed_name_is_invalid() {
        for (file, expected) in [
            ("", "no data directory: give --data-dir DIR, or data_dir in the file that --config names"),
            ("data_dir = 'x'\nnames = ['a b']\n", "names: \"a b\" is neither a DNS name"),
            ("data_dir = 'x'\n", "--fallback-name: \"a_b!\" is neither a DNS name"),
        ] {
            let error = plan(Some(file), &["--fallback-name", "a_b!"]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        plan(Some("data_dir = 'x'\nnames = ['a']\n"), &["--fallback-name", "a_b!"]).unwrap();
    }

    /// Keys without a store are no fleet, and not a reason to create one.
    #[test]
    fn create_changes_nothing_when_fleet_exists() {
        let directory = tempfile::tempdir().unwrap();
        let plan = FleetPlan { directory: directory.path().join("data"), names: vec!["a.example".to_owned()] };
        let root = || std::fs::read(plan.directory.join("ca.pem")).unwrap();
        assert!(plan.create(true, NOW_S).unwrap().is_some());
        let created_root = root();
        assert_eq!(plan.create(true, NOW_S).unwrap(), None);
        assert!(matches!(plan.create(false, NOW_S), Err(InitError::Exists { .. })));
        std::fs::remove_file(plan.directory.join("store.redb")).unwrap();
        assert!(matches!(plan.create(true, NOW_S), Err(InitError::Authority { .. })));
        assert_eq!(root(), created_root);
    }
}
