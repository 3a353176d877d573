//! The command line. Each flag is described once, here. Help and man page are generated from it.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use stemma_core::name::is_blank;
use stemma_wire::log::LogFormat;

/// Stores the desired state of a fleet and sends it to its agents.
#[derive(Debug, Parser)]
#[command(name = "stemma-controller", version, arg_required_else_help = true)]
pub struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a new fleet: its store, its certificate authority, and an admin's certificate.
    Init(InitArgs),
    /// Serve agents and operators until a signal ends it.
    Run(RunArgs),
    /// Back up a fleet to one file, with the controller running or stopped.
    Backup(BackupArgs),
    /// Restore a fleet from a backup, to a data directory without a fleet.
    Restore(RestoreArgs),
    /// Begin a new epoch after a restore, so that hosts with a later revision than the store follow it again.
    ResumeFleet(ResumeFleetArgs),
}

/// The arguments of `stemma-controller init`.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// The data directory. It is created if it does not exist, and refused if it already has a fleet.
    #[arg(long, value_name = "DIR", value_parser = path_parser())]
    pub data_dir: PathBuf,
    /// A DNS name or IP address at which agents and operators reach this controller. Can be repeated.
    #[arg(long = "name", value_name = "DNS_OR_IP")]
    pub names: Vec<String>,
}

/// The arguments of `stemma-controller run`.
#[derive(Debug, Default, clap::Args)]
pub struct RunArgs {
    /// A TOML configuration file. Flags override its values.
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    pub config: Option<PathBuf>,
    /// The data directory that `init` created.
    #[arg(long, value_name = "DIR", value_parser = path_parser())]
    pub data_dir: Option<PathBuf>,
    /// The address for operators: HOST:PORT, or http://127.0.0.1:PORT without TLS for development.
    #[arg(long, value_name = "HOST:PORT")]
    pub admin_listen: Option<String>,
    /// The address for agents. Port 0 selects a free port.
    #[arg(long, value_name = "HOST:PORT")]
    pub agent_listen: Option<String>,
    /// Log to standard error in this format, also under systemd. Without it, logs go to the journal under systemd.
    #[arg(long, value_name = "FORMAT", value_parser = log_format_parser())]
    pub log_format: Option<LogFormat>,
}

/// The arguments of `stemma-controller resume-fleet`, which root runs while the controller of this machine is running.
#[derive(Debug, Default, clap::Args)]
pub struct ResumeFleetArgs {
    /// The data directory.
    #[command(flatten)]
    pub place: DataDirArgs,
    /// The reason, for the audit and for each host's journal.
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
    /// The data directory, existing or to be created.
    #[arg(long, value_name = "DIR", value_parser = path_parser())]
    pub data_dir: Option<PathBuf>,
}

/// Parses a path. A blank path is refused, because it comes from an unset variable of a script and would create a
/// directory with a blank name.
fn path_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let is_empty = path.to_str().is_some_and(is_blank);
        if is_empty { Err("it is empty: name a path; nothing was changed") } else { Ok(path) }
    })
}

fn log_format_parser() -> impl TypedValueParser<Value = LogFormat> {
    PossibleValuesParser::new(LogFormat::NAMES).try_map(|word| word.parse::<LogFormat>())
}

impl DataDirArgs {
    /// Returns the flags with their values, each preceded by a space, to be part of a command that a message suggests.
    pub(crate) fn to_flags(&self) -> String {
        let flags = [("--config", &self.config), ("--data-dir", &self.data_dir)];
        let set_flags = flags.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
        set_flags.map(|(flag, path)| format!(" {flag} {}", path.display())).collect()
    }
}

/// The arguments of `stemma-controller backup`. The backup is one file, which is verified after it is written.
#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// The file to create. It must not exist.
    #[arg(value_name = "FILE", value_parser = path_parser())]
    pub file: PathBuf,
    /// The data directory.
    #[command(flatten)]
    pub place: DataDirArgs,
    /// Do not encrypt the file to `backup_recipients` of the configuration. It contains the keys of the fleet.
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
    /// A file from age-keygen with the secret key of one of the backup's recipients.
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
    fn y09_log_format_accepts_two_values() {
        let read = |word: &str| Args::try_parse_from(["stemma-controller", "run", "--log-format", word]);
        for (word, format) in [("text", LogFormat::Text), ("json", LogFormat::Json)] {
            let Command::Run(run) = read(word).unwrap().command else { panic!("{word}: another command") };
            assert_eq!(run.log_format, Some(format));
        }
        for wrong in ["", "JSON", "logfmt", "yaml"] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(said.contains("[possible values: text, json]"), "{wrong:?}: {said}");
        }
    }
}
