//! The command line of the controller. Help and man page are generated from the flags and doc comments here.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use stemma_core::name::is_blank;
use stemma_wire::log::LogFormat;

/// Stores the desired state of a fleet and sends it to its agents.
#[derive(Debug, Parser)]
#[command(name = "stemma-controller", version, arg_required_else_help = true)]
pub struct Args {
    /// The subcommand to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `stemma-controller`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a new fleet: its store, its certificate authority, and an admin's certificate.
    Init(InitArgs),
    /// Serve agents and operators until SIGINT or SIGTERM stops the controller.
    Run(RunArgs),
    /// Back up a fleet to one file. The controller may be running or stopped.
    Backup(BackupArgs),
    /// Restore a fleet from a backup to a data directory that contains no fleet.
    Restore(RestoreArgs),
    /// Let the hosts follow this controller after a restore. This begins a new epoch, which also hosts with a later
    /// revision than the store follow.
    ResumeFleet(ResumeFleetArgs),
}

/// The arguments of `stemma-controller init`.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// The data directory. It is created if it does not exist. If it already contains a fleet, the command fails.
    #[arg(long, value_name = "DIR", value_parser = path_parser(), required_unless_present = "config")]
    pub data_dir: Option<PathBuf>,
    /// The configuration file of `run`. Its data directory is used if --data-dir is not set, and its names are names of
    /// the controller too.
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    pub config: Option<PathBuf>,
    /// A DNS name or IP address at which agents and operators reach this controller. Can be repeated.
    #[arg(long = "name", value_name = "DNS_OR_IP")]
    pub names: Vec<String>,
    /// A name like --name, which is used only if neither --name nor the configuration file sets one. Can be repeated.
    #[arg(long = "fallback-name", value_name = "DNS_OR_IP")]
    pub fallback_names: Vec<String>,
    /// If the data directory already contains a fleet, succeed and change nothing.
    #[arg(long)]
    pub if_missing: bool,
}

/// The arguments of `stemma-controller run`.
#[derive(Debug, Default, clap::Args)]
pub struct RunArgs {
    /// A configuration file in TOML. Flags override its values.
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    pub config: Option<PathBuf>,
    /// The data directory that `init` created.
    #[arg(long, value_name = "DIR", value_parser = path_parser())]
    pub data_dir: Option<PathBuf>,
    /// The address for operators: HOST:PORT with TLS, or http://127.0.0.1:PORT without TLS for development.
    #[arg(long, value_name = "HOST:PORT")]
    pub admin_listen: Option<String>,
    /// The address for agents. With port 0, the system selects a free port.
    #[arg(long, value_name = "HOST:PORT")]
    pub agent_listen: Option<String>,
    /// Log to standard error in this format, also under systemd. Without this flag, the logs under systemd go to the
    /// journal.
    #[arg(long, value_name = "FORMAT", value_parser = log_format_parser())]
    pub log_format: Option<LogFormat>,
}

/// The arguments of `stemma-controller resume-fleet`. Root runs this command on the machine where the controller is
/// running.
#[derive(Debug, Default, clap::Args)]
pub struct ResumeFleetArgs {
    /// The data directory.
    #[command(flatten)]
    pub place: DataDirArgs,
    /// The reason for the resume. It is stored in the audit log, and appears in the journal of each host.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
}

/// The arguments that select the data directory.
#[derive(Debug, Default, clap::Args)]
pub struct DataDirArgs {
    /// The configuration file of `run`, which names the data directory.
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    pub config: Option<PathBuf>,
    /// The data directory. `restore` creates it if it does not exist.
    #[arg(long, value_name = "DIR", value_parser = path_parser())]
    pub data_dir: Option<PathBuf>,
}

/// Returns a parser of paths that refuses a blank path. A script with an unset variable passes such a path, which would
/// create a directory with a blank name.
fn path_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let is_blank_path = path.to_str().is_some_and(is_blank);
        if is_blank_path { Err("it is empty: name a path; nothing was changed") } else { Ok(path) }
    })
}

/// Returns a parser of log formats, which lists the possible values in its error.
fn log_format_parser() -> impl TypedValueParser<Value = LogFormat> {
    PossibleValuesParser::new(LogFormat::NAMES).try_map(|word| word.parse::<LogFormat>())
}

impl DataDirArgs {
    /// Returns the flags that are set, with their values. Each flag has a space before it, so a message can append them
    /// to a command that it suggests.
    pub(crate) fn to_flags(&self) -> String {
        let flags = [("--config", &self.config), ("--data-dir", &self.data_dir)];
        let set_flags = flags.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
        set_flags.map(|(flag, path)| format!(" {flag} {}", path.display())).collect()
    }
}

/// The arguments of `stemma-controller backup`. This command writes one file and then reads it back to verify it.
#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// The file to create. If it exists, the command fails.
    #[arg(value_name = "FILE", value_parser = path_parser())]
    pub file: PathBuf,
    /// The data directory.
    #[command(flatten)]
    pub place: DataDirArgs,
    /// Write the file without encryption. Without this flag, it is encrypted to `backup_recipients` of the
    /// configuration. The file contains the keys of the fleet.
    #[arg(long)]
    pub unencrypted: bool,
}

/// The arguments of `stemma-controller restore`.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// A file that `backup` wrote.
    #[arg(value_name = "FILE", value_parser = path_parser())]
    pub file: PathBuf,
    /// The data directory to create the fleet in.
    #[command(flatten)]
    pub place: DataDirArgs,
    /// A file with the secret key of one of the backup's recipients, as age-keygen writes it.
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    pub identity: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x06_path_arguments_reject_blanks_in_each_command() {
        for line in [
            &["init", "--data-dir", " "][..],
            &["init", "--data-dir", ""],
            &["init", "--config", " "],
            &["run", "--data-dir", "\t"],
            &["run", "--config", " "],
            &["backup", " "],
            &["backup", "x", "--data-dir", "\u{200b}"],
            &["restore", " "],
            &["restore", "x", "--config", " "],
            &["restore", "x", "--identity", " "],
            &["resume-fleet", "--data-dir", " "],
        ] {
            assert!(Args::try_parse_from([&["stemma-controller"], line].concat()).is_err(), "{line:?}");
        }
        assert!(Args::try_parse_from(["stemma-controller", "init", "--data-dir", "a b"]).is_ok());
    }

    #[test]
    fn init_requires_data_directory_or_configuration() {
        let is_accepted = |arguments: &[&str]| Args::try_parse_from([&["stemma-controller", "init"], arguments].concat()).is_ok();
        assert!(!is_accepted(&["--name", "a.example"]));
        assert!(is_accepted(&["--data-dir", "x"]) && is_accepted(&["--config", "x"]));
    }

    #[test]
    fn y09_log_format_accepts_two_values() {
        let parse_args = |word: &str| Args::try_parse_from(["stemma-controller", "run", "--log-format", word]);
        for (word, format) in [("text", LogFormat::Text), ("json", LogFormat::Json)] {
            let Command::Run(run) = parse_args(word).unwrap().command else { panic!("{word}: another command") };
            assert_eq!(run.log_format, Some(format));
        }
        for invalid in ["", "JSON", "logfmt", "yaml"] {
            let message = parse_args(invalid).unwrap_err().to_string();
            assert!(message.contains("[possible values: text, json]"), "{invalid:?}: {message}");
        }
    }
}
