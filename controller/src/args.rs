//! The command line. What a flag means is said once, here; help and man page come of it.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use stemma_core::name::is_blank;
use stemma_wire::log::Format;

/// Keeps what a fleet shall be, and tells its agents.
#[derive(Debug, Parser)]
#[command(name = "stemma-controller", version, arg_required_else_help = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can be told to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a new fleet: its store, its certificate authority, and an admin's certificate.
    Init(Init),
    /// Serve agents and operators until a signal ends it.
    Run(Run),
    /// Write all of a fleet into one file, of a running controller or of one that is stopped.
    Backup(Backup),
    /// Make a fleet of such a file, in a data directory that holds none.
    Restore(Restore),
    /// Lead hosts that hold a later revision than a restored store into another epoch, so that they follow it again.
    ResumeFleet(ResumeFleet),
}

/// `stemma-controller init`.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// Where everything is kept; made if it is not there, refused if it holds a fleet already.
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub data_dir: PathBuf,
    /// A DNS name or IP address that agents and operators reach this controller by; may be given several times.
    #[arg(long = "name", value_name = "DNS_OR_IP")]
    pub names: Vec<String>,
}

/// `stemma-controller run`.
#[derive(Debug, Default, clap::Args)]
pub struct Run {
    /// A TOML file; what is given here as well wins over it.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub config: Option<PathBuf>,
    /// What `init` made.
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub data_dir: Option<PathBuf>,
    /// Where operators are served: HOST:PORT, or for development http://127.0.0.1:PORT without TLS.
    #[arg(long, value_name = "HOST:PORT")]
    pub admin_listen: Option<String>,
    /// Where agents are served; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    pub agent_listen: Option<String>,
    /// Write the lines of the log to standard error in this form, under systemd too; unless given, they go to the journal there.
    #[arg(long, value_name = "FORMAT", value_parser = log_format())]
    pub log_format: Option<Format>,
}

/// `stemma-controller resume-fleet`. The controller of this machine must be running, and root asks it.
#[derive(Debug, Default, clap::Args)]
pub struct ResumeFleet {
    /// Where the data is.
    #[command(flatten)]
    pub place: Place,
    /// Why, for the audit and for each host's journal.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}

/// Where the data of a controller is.
#[derive(Debug, Default, clap::Args)]
pub struct Place {
    /// The TOML file of `run`, which says where the data is.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub config: Option<PathBuf>,
    /// What `init` made, or is to be made.
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub data_dir: Option<PathBuf>,
}

/// Reads a path. One of blanks comes of a variable that is not set, and a directory of that name would be made.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let is_empty = path.to_str().is_some_and(is_blank);
        if is_empty { Err("it is empty: name a path; nothing was changed") } else { Ok(path) }
    })
}

fn log_format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::WORDS).try_map(|word| word.parse::<Format>())
}

impl Place {
    /// The same as it was given, with a space before it: for a command that is proposed.
    pub(crate) fn shown(&self) -> String {
        let flags = [("--config", &self.config), ("--data-dir", &self.data_dir)];
        let given = flags.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
        given.map(|(flag, path)| format!(" {flag} {}", path.display())).collect()
    }
}

/// `stemma-controller backup`. It is one file that is checked when it is written.
#[derive(Debug, clap::Args)]
pub struct Backup {
    /// The file to be made; nothing may be there.
    #[arg(value_name = "FILE", value_parser = path())]
    pub file: PathBuf,
    /// Where the data is.
    #[command(flatten)]
    pub place: Place,
    /// Write it as it is, and not encrypted to `backup_recipients` of the configuration. The keys of the fleet are in it.
    #[arg(long)]
    pub unencrypted: bool,
}

/// `stemma-controller restore`.
#[derive(Debug, clap::Args)]
pub struct Restore {
    /// What `backup` wrote.
    #[arg(value_name = "FILE", value_parser = path())]
    pub file: PathBuf,
    /// Where the data is to be.
    #[command(flatten)]
    pub place: Place,
    /// A file with the secret key of one of those to whom it is encrypted, as age-keygen wrote it.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub identity: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x06_a_path_of_blanks_is_refused_in_each_command() {
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
    fn y09_the_form_of_the_log_is_one_of_two() {
        let read = |word: &str| Args::try_parse_from(["stemma-controller", "run", "--log-format", word]);
        for (word, format) in [("text", Format::Text), ("json", Format::Json)] {
            let Command::Run(run) = read(word).unwrap().command else { panic!("{word}: another command") };
            assert_eq!(run.log_format, Some(format));
        }
        for wrong in ["", "JSON", "logfmt", "yaml"] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(said.contains("[possible values: text, json]"), "{wrong:?}: {said}");
        }
    }
}
