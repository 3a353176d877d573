//! The command `stemma-controller backup FILE`: writes a backup of a fleet to a file and verifies the file.

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

/// The content of a written backup, for the output of the command.
struct BackupSummary {
    head: BackupHeader,
    entries: u64,
    files: u64,
    missing: MissingKeys,
}

/// The source from which a backup was read. The time of the backup is then recorded in it.
enum BackupSource {
    /// A running controller, which is called through its Unix socket.
    Running(RunningController),
    /// The opened store of a stopped controller. The client only provides the runtime in which the store is used.
    Stopped(RunningController, RedbStore),
}

/// A writer of the backup file. It encrypts the file with age, except with `--unencrypted`.
enum BackupWriter<W> {
    Plain(W),
    Encrypted(Box<EncryptWriter<W>>, FileKey),
}

/// Writes a backup of a fleet to a new file, reads the file back to verify it, and prints a summary of its content.
/// Records the time of the backup in the fleet. Also removes files that killed backups left in the same directory.
///
/// # Errors
/// Fails if no recipient is configured (without `--unencrypted`), if the file exists or cannot be written, or if the
/// fleet cannot be read. After an error the backup does not exist, unless the error states otherwise or the directory
/// could not be synced.
pub fn backup(args: &BackupArgs) -> Result<()> {
    let config = args.place.config()?;
    let recipients = if args.unencrypted { &[][..] } else { &config.backup_recipients[..] };
    if recipients.is_empty() && !args.unencrypted {
        bail!(no_recipients_message(args));
    }
    let file_name = args.file.display();
    if args.file.as_os_str() == "-" {
        bail!(
            "-: a backup cannot go to standard output, because it is read back to check it; nothing was written: give a file name, or ./- if that is the name"
        );
    }
    if args.file.as_os_str().as_encoded_bytes().ends_with(b"/") {
        bail!("{file_name}: this is the name of a directory; nothing was written: give the name of a file");
    }
    if args.file.symlink_metadata().is_ok() {
        bail!(exists_message(args));
    }
    let parent = args.file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    leftovers::print_all(&leftovers::sweep_backups(parent));
    let file = leftovers::create_backup_file(parent)
        .with_context(|| format!("{file_name}: the file could not be created; nothing was written"))?;
    let layout = Layout::new(&config.data_dir);
    let message = || format!("{file_name}: nothing was written: if the disk is full, free space, or give a path on another disk");
    let mut writer = BackupWriter::begin(BufWriter::new(file.as_file()), recipients).with_context(message)?;
    let source = copy_backup(&layout, &mut writer).context("nothing was written")?;
    let key = writer.finish().with_context(message)?;
    file.as_file().sync_all().with_context(message)?;
    let summary = read_summary(file.reopen()?, key.as_ref()).context("the backup could not be read back");
    let summary = summary?;
    let bytes = file.as_file().metadata()?.len();
    file.persist_noclobber(&args.file).map_err(|failure| placement_error(args, failure.error))?;
    File::open(parent)?.sync_all()?;
    // The backup is complete even if this output cannot be written, so the error is ignored.
    let _ignored = print_summary(args, &summary, bytes, recipients.len());
    let record_result = source.record_backup(summary.head.revision, bytes, key.is_some());
    record_result.with_context(|| format!("{file_name} is complete, but the time of this backup could not be recorded"))
}

/// Returns the error text for a file name that is already in use.
fn exists_message(args: &BackupArgs) -> String {
    format!("{} already exists; nothing was written: give another name", args.file.display())
}

/// Returns the error for a complete backup that could not be renamed to the requested name. For example, another
/// program may have created a file of that name during the backup.
fn placement_error(args: &BackupArgs, error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::AlreadyExists {
        return anyhow::anyhow!(exists_message(args));
    }
    anyhow::Error::new(error).context(format!("{}: nothing was written", args.file.display()))
}

/// Prints a summary of a backup, who can decrypt it, and a warning if it lacks keys of the fleet. `bytes` is the size
/// of the file. `recipients` is the number of keys to which it is encrypted, or 0 if it is not encrypted.
fn print_summary(args: &BackupArgs, summary: &BackupSummary, bytes: u64, recipients: usize) -> io::Result<()> {
    let BackupSummary { head, entries, files, missing: missing_keys } = summary;
    let (mut out, file_name) = (io::stdout().lock(), args.file.display());
    writeln!(
        out,
        "{file_name}: fleet {} at revision {}, {entries} entries and {files} files, {bytes} bytes, checked",
        head.fleet.fleet, head.revision
    )?;
    match recipients {
        0 => writeln!(out, "IT IS NOT ENCRYPTED: it contains the keys of the fleet, so anyone who reads it controls the fleet")?,
        count => {
            writeln!(out, "encrypted to backup_recipients ({count}): the secret key of any one of them decrypts it")?;
        }
    }
    if let Some(warning) = missing_keys.message() {
        writeln!(out, "{warning}")?;
    }
    Ok(())
}

/// Returns the error text for a configuration without recipients. The text describes the two solutions: set a
/// recipient, or write an unencrypted file.
fn no_recipients_message(args: &BackupArgs) -> String {
    let (file, flags) = (args.file.display(), args.place.to_flags());
    let config = args.place.config.as_deref().unwrap_or(Path::new("/etc/stemma/controller.toml")).display();
    format!(
        "a backup contains the keys of the fleet, and {} no recipient to encrypt it to; nothing was written. Either create a key on the machine \
         that will restore it (age-keygen -o backup.key), set its public key in {config} as backup_recipients = [\"age1...\"], and run: \
         stemma-controller backup {file} --config {config}; or write it unencrypted, and keep it where nobody else can read it: stemma-controller \
         backup {file}{flags} --unencrypted",
        if args.place.config.is_some() { "the configuration names" } else { "there is" }
    )
}

/// Writes the bytes of a backup to `output`. If a controller is running, it sends these bytes. Otherwise this function
/// opens the store and reads it. Returns the source of the backup.
fn copy_backup(layout: &Layout, output: &mut impl Write) -> Result<BackupSource> {
    let mut client = RunningController::new(layout)?;
    if client.stream(Endpoint::GetBackup, |piece| output.write_all(piece))? {
        return Ok(BackupSource::Running(client));
    }
    let store = match RedbStore::open(&layout.store(), RedbOptions::default()) {
        Err(error @ OpenError::Locked { .. }) => {
            return Err(error).context("a controller is running, but its socket does not answer: run this as root");
        }
        other_result => other_result?,
    };
    let snapshot = client.runtime().block_on(store.snapshot())?;
    let pieces = stream(store.identity(), snapshot, layout.clone(), SystemClock.unix_seconds());
    // The iterator reads the store by a Tokio runtime, which the guard provides.
    let runtime_guard = client.runtime().enter();
    for piece in pieces.map_err(anyhow::Error::from_boxed)? {
        output.write_all(&piece.map_err(anyhow::Error::from_boxed)?)?;
    }
    drop(runtime_guard);
    Ok(BackupSource::Stopped(client, store))
}

impl BackupSource {
    /// Records in the store that a backup of this revision and size was written now. `is_encrypted` is true if the file
    /// is encrypted.
    fn record_backup(self, revision: u64, bytes: u64, is_encrypted: bool) -> Result<()> {
        match self {
            Self::Running(mut client) => {
                let body = json!({"revision": revision, "bytes": bytes, "encrypted": is_encrypted});
                client.send(Endpoint::RecordBackup, &body).map(|_: Value| ())
            }
            Self::Stopped(client, store) => {
                let at = Timestamp(SystemClock.unix_seconds().saturating_mul(1000));
                let record = BackupRecord { at, revision, bytes, is_encrypted };
                let transaction = Transaction::new().put(key::LAST_BACKUP, codec::encode(&record));
                client.runtime().block_on(store.commit(transaction))?;
                Ok(())
            }
        }
    }
}

impl<W: Write> BackupWriter<W> {
    /// Starts the backup file. The writer encrypts it if there are recipients.
    fn begin(output: W, recipients: &[Recipient]) -> io::Result<Self> {
        if recipients.is_empty() {
            return Ok(Self::Plain(output));
        }
        EncryptWriter::begin(output, recipients).map(|(output, key)| Self::Encrypted(Box::new(output), key))
    }

    /// Writes all buffered bytes and the end of the file. Returns the key that decrypts the file, or `None` if it is
    /// not encrypted.
    fn finish(self) -> io::Result<Option<FileKey>> {
        let (mut output, key) = match self {
            Self::Plain(output) => (output, None),
            Self::Encrypted(output, key) => (output.finish()?, Some(key)),
        };
        output.flush()?;
        Ok(key)
    }
}

impl<W: Write> Write for BackupWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(output) => output.write(bytes),
            Self::Encrypted(output, _) => output.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(output) => output.flush(),
            Self::Encrypted(output, _) => output.flush(),
        }
    }
}

/// Reads a written backup to its end, which verifies its checksum. Returns a summary of its content. `key` decrypts the
/// file.
fn read_summary(file: File, key: Option<&FileKey>) -> Result<BackupSummary> {
    let file = BufReader::new(file);
    let plaintext: Box<dyn Read> = match key {
        None => Box::new(file),
        Some(key) => Box::new(DecryptReader::begin_with(file, key)?),
    };
    let (mut reader, head) = BackupReader::begin(plaintext)?;
    let mut summary = BackupSummary { head, entries: 0, files: 0, missing: MissingKeys::new() };
    while let Some(part) = reader.next_part()? {
        match part {
            BackupPart::Entry(_) => summary.entries += 1,
            BackupPart::File { name, .. } => {
                summary.files += 1;
                summary.missing.mark_present(&name);
            }
        }
    }
    Ok(summary)
}
