//! `stemma-controller backup FILE`: writes a backup of a fleet and verifies it.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use stemma_core::object::Timestamp;
use stemma_wire::clock::{Clock as _, SystemClock};
use stemma_wire::endpoint::Endpoint;

use super::{BackupHeader, BackupPart, BackupReader, MissingKeys, leftovers, stream};
use crate::age::{DecryptReader, EncryptWriter, FileKey, Recipient};
use crate::args::BackupArgs;
use crate::init::Layout;
use crate::records::fleet::BackupRecord;
use crate::records::{codec, key};
use crate::running::RunningController;
use crate::store::{OpenError, RedbOptions, RedbStore, Store as _, Transaction};

/// The content of a backup, as printed for the user.
struct BackupSummary {
    head: BackupHeader,
    entries: u64,
    files: u64,
    missing: MissingKeys,
}

/// The controller or store that a backup was read from, in which the backup is then recorded.
enum BackupSource {
    /// A running controller.
    Running(RunningController),
    /// The store of a stopped controller.
    Stopped(RunningController, RedbStore),
}

/// A writer of the backup file, which encrypts it if there are recipients.
enum BackupWriter<W> {
    Plain(W),
    Encrypted(Box<EncryptWriter<W>>, FileKey),
}

/// Writes a backup of a fleet to a new file, reads it back to verify it, and prints what it contains.
///
/// # Errors
/// After an error, the file does not exist, unless the error says otherwise.
pub fn backup(args: &BackupArgs) -> Result<()> {
    let config = args.place.config()?;
    let recipients = if args.unencrypted { &[][..] } else { &config.backup_recipients[..] };
    if recipients.is_empty() && !args.unencrypted {
        bail!(no_recipients_message(args));
    }
    let shown = args.file.display();
    if args.file.as_os_str() == "-" {
        bail!(
            "-: a backup cannot go to standard output, because it is read back to check it; nothing was written: give a file name, or ./- if that is the name"
        );
    }
    if args.file.as_os_str().as_encoded_bytes().ends_with(b"/") {
        bail!("{shown}: this is the name of a directory; nothing was written: give the name of a file");
    }
    if args.file.symlink_metadata().is_ok() {
        bail!(exists_message(args));
    }
    let parent = args.file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    leftovers::print_all(&leftovers::sweep_backups(parent));
    let file = leftovers::create_backup_file(parent)
        .with_context(|| format!("{shown}: the file could not be created; nothing was written"))?;
    let layout = Layout::new(&config.data_dir);
    let no_room = || format!("{shown}: nothing was written: if the disk is full, free space, or give a path on another disk");
    let mut writing = BackupWriter::begin(BufWriter::new(file.as_file()), recipients).with_context(no_room)?;
    let source = copy_backup(&layout, &mut writing).context("nothing was written")?;
    let key = writing.finish().with_context(no_room)?;
    file.as_file().sync_all().with_context(no_room)?;
    let summary = read_summary(file.reopen()?, key.as_ref()).context("the backup could not be read back");
    let summary = summary?;
    let bytes = file.as_file().metadata()?.len();
    file.persist_noclobber(&args.file).map_err(|refused| placement_error(args, refused.error))?;
    File::open(parent)?.sync_all()?;
    // The file is complete even if nobody reads this output.
    let _ignored = print_written(args, &summary, bytes, recipients.len());
    let recorded = source.record_backup(summary.head.revision, bytes, key.is_some());
    recorded.with_context(|| format!("{shown} is complete, but the time of this backup could not be recorded"))
}

fn exists_message(args: &BackupArgs) -> String {
    format!("{} already exists; nothing was written: give another name", args.file.display())
}

/// Returns the error if the complete file could not get its name, for example because another program has used that
/// name in the meantime.
fn placement_error(args: &BackupArgs, error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::AlreadyExists {
        return anyhow::anyhow!(exists_message(args));
    }
    anyhow::Error::new(error).context(format!("{}: nothing was written", args.file.display()))
}

/// Prints what a backup contains and who can read it.
fn print_written(args: &BackupArgs, summary: &BackupSummary, bytes: u64, recipients: usize) -> io::Result<()> {
    let BackupSummary { head, entries, files, missing } = summary;
    let (mut out, shown) = (io::stdout().lock(), args.file.display());
    writeln!(
        out,
        "{shown}: fleet {} at revision {}, {entries} entries and {files} files, {bytes} bytes, checked",
        head.fleet.fleet, head.revision
    )?;
    match recipients {
        0 => writeln!(out, "IT IS NOT ENCRYPTED: it contains the keys of the fleet, so anyone who reads it controls the fleet")?,
        count => {
            writeln!(out, "encrypted to backup_recipients ({count}): the secret key of any one of them decrypts it")?;
        }
    }
    if let Some(warning) = missing.message() {
        writeln!(out, "{warning}")?;
    }
    Ok(())
}

/// Returns the error that no recipients are configured, with the two ways to go on.
fn no_recipients_message(args: &BackupArgs) -> String {
    let (file, place) = (args.file.display(), args.place.to_flags());
    let config = args.place.config.as_deref().unwrap_or(Path::new("/etc/stemma/controller.toml")).display();
    format!(
        "a backup contains the keys of the fleet, and {} no recipient to encrypt it to; nothing was written. Either create a key on the machine \
         that will restore it (age-keygen -o backup.key), set its public key in {config} as backup_recipients = [\"age1...\"], and run: \
         stemma-controller backup {file} --config {config}; or write it unencrypted, and keep it where nobody else can read it: stemma-controller \
         backup {file}{place} --unencrypted",
        if args.place.config.is_some() { "the configuration names" } else { "there is" }
    )
}

/// Writes the bytes of a backup to `to`: those that the running controller sends or, if no controller runs, those made
/// from its store. Returns the source of the backup.
fn copy_backup(layout: &Layout, to: &mut impl Write) -> Result<BackupSource> {
    let mut client = RunningController::new(layout)?;
    if client.stream(Endpoint::GetBackup, |piece| to.write_all(piece))? {
        return Ok(BackupSource::Running(client));
    }
    let store = match RedbStore::open(&layout.store(), RedbOptions::default()) {
        Err(error @ OpenError::Locked { .. }) => {
            return Err(error).context("a controller is running, but its socket does not answer: run this as root");
        }
        opened => opened?,
    };
    let snapshot = client.runtime().block_on(store.snapshot())?;
    let pieces = stream(store.identity(), snapshot, layout.clone(), SystemClock.unix_seconds());
    let entered = client.runtime().enter();
    for piece in pieces.map_err(anyhow::Error::from_boxed)? {
        to.write_all(&piece.map_err(anyhow::Error::from_boxed)?)?;
    }
    drop(entered);
    Ok(BackupSource::Stopped(client, store))
}

impl BackupSource {
    /// Records in the store that a backup was made now.
    fn record_backup(self, revision: u64, bytes: u64, encrypted: bool) -> Result<()> {
        match self {
            Self::Running(mut client) => {
                let body = json!({"revision": revision, "bytes": bytes, "encrypted": encrypted});
                client.send(Endpoint::RecordBackup, &body).map(|_: Value| ())
            }
            Self::Stopped(client, store) => {
                let at = Timestamp(SystemClock.unix_seconds().saturating_mul(1000));
                let record = BackupRecord { at, revision, bytes, is_encrypted: encrypted };
                let transaction = Transaction::new().put(key::LAST_BACKUP, codec::encode(&record));
                client.runtime().block_on(store.commit(transaction))?;
                Ok(())
            }
        }
    }
}

impl<W: Write> BackupWriter<W> {
    fn begin(to: W, recipients: &[Recipient]) -> io::Result<Self> {
        if recipients.is_empty() {
            return Ok(Self::Plain(to));
        }
        EncryptWriter::begin(to, recipients).map(|(to, key)| Self::Encrypted(Box::new(to), key))
    }

    /// Writes what is still buffered and the end of the file. Returns the file key if the file is encrypted.
    fn finish(self) -> io::Result<Option<FileKey>> {
        let (mut to, key) = match self {
            Self::Plain(to) => (to, None),
            Self::Encrypted(to, key) => (to.finish()?, Some(key)),
        };
        to.flush()?;
        Ok(key)
    }
}

impl<W: Write> Write for BackupWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(to) => to.write(bytes),
            Self::Encrypted(to, _) => to.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(to) => to.flush(),
            Self::Encrypted(to, _) => to.flush(),
        }
    }
}

/// Verifies a written backup by reading it to its checksum. Returns what it contains.
fn read_summary(file: File, key: Option<&FileKey>) -> Result<BackupSummary> {
    let file = BufReader::new(file);
    let text: Box<dyn Read> = match key {
        None => Box::new(file),
        Some(key) => Box::new(DecryptReader::begin_with(file, key)?),
    };
    let (mut reader, head) = BackupReader::begin(text)?;
    let mut summary = BackupSummary { head, entries: 0, files: 0, missing: MissingKeys::new() };
    while let Some(part) = reader.next_part()? {
        match part {
            BackupPart::Entry(_) => summary.entries += 1,
            BackupPart::File { name, .. } => {
                summary.files += 1;
                summary.missing.record(&name);
            }
        }
    }
    Ok(summary)
}
