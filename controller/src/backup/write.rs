//! `stemma-controller backup FILE`.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use stemma_core::object::Timestamp;
use stemma_wire::clock::{Clock as _, SystemClock};
use stemma_wire::endpoint::Endpoint;

use super::{Head, MissingKeys, Part, Reader, left, pieces};
use crate::age::{Decrypted, Encrypted, FileKey, Recipient};
use crate::args::Backup;
use crate::asked::Asked;
use crate::init::Layout;
use crate::records::fleet::BackupRecord;
use crate::records::{codec, key};
use crate::store::{OpenError, RedbOptions, RedbStore, Store as _, Transaction};

/// What a backup holds, for the program to say.
struct Counted {
    head: Head,
    entries: u64,
    files: u64,
    missing: MissingKeys,
}

/// What a backup is read from, and told that it was made.
enum Source {
    /// A running controller.
    Running(Asked),
    /// The store of one that is stopped.
    Stopped(Asked, RedbStore),
}

/// The file as it is written.
enum Writing<W> {
    Plain(W),
    Encrypted(Box<Encrypted<W>>, FileKey),
}

/// Writes a backup of a fleet into a new file, checks it from its beginning to its end, and says what it holds.
///
/// # Errors
/// Nothing stands at the file's place then, unless the error says that it does.
pub fn backup(args: &Backup) -> Result<()> {
    let config = args.place.config()?;
    let recipients = if args.unencrypted { &[][..] } else { &config.backup_recipients[..] };
    if recipients.is_empty() && !args.unencrypted {
        bail!(nobody_to_encrypt_to(args));
    }
    let shown = args.file.display();
    if args.file.as_os_str() == "-" {
        bail!(
            "-: a backup is a file, since it is read again when it is written; nothing was written: give its name, or ./- where it is that"
        );
    }
    if args.file.as_os_str().as_encoded_bytes().ends_with(b"/") {
        bail!(
            "{shown}: a backup is a file, and this is the name of a directory; nothing was written: give the file's name"
        );
    }
    if args.file.symlink_metadata().is_ok() {
        bail!(something_is_there(args));
    }
    let parent = args.file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    left::say(&left::sweep_backups(parent));
    let made = left::begin_backup(parent)
        .with_context(|| format!("{shown}: no file can be made there; nothing was written"))?;
    let layout = Layout::new(&config.data_dir);
    let no_room =
        || format!("{shown}: nothing was written: where the disk is full, make room, or give a name elsewhere");
    let mut writing = Writing::begin(BufWriter::new(made.as_file()), recipients).with_context(no_room)?;
    let source = copy(&layout, &mut writing).context("nothing was written")?;
    let key = writing.finish().with_context(no_room)?;
    made.as_file().sync_all().with_context(no_room)?;
    let counted = counted(made.reopen()?, key.as_ref()).context("what was written cannot be read back");
    let counted = counted?;
    let bytes = made.as_file().metadata()?.len();
    made.persist_noclobber(&args.file).map_err(|refused| not_placed(args, refused.error))?;
    File::open(parent)?.sync_all()?;
    // The file is whole, whether anybody reads that or not.
    let _nobody_reads = say_written(args, &counted, bytes, recipients.len());
    let recorded = source.record(counted.head.revision, bytes, key.is_some());
    recorded.with_context(|| format!("{shown} is whole and stays, and that it was made could not be recorded"))
}

fn something_is_there(args: &Backup) -> String {
    format!("{}: something is there already; nothing was written: give another name", args.file.display())
}

/// Why a file could not get its name. Another may have got it meanwhile.
fn not_placed(args: &Backup, error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::AlreadyExists {
        return anyhow::anyhow!(something_is_there(args));
    }
    anyhow::Error::new(error).context(format!("{}: nothing was written", args.file.display()))
}

/// Says what a backup holds, and who reads it.
fn say_written(args: &Backup, counted: &Counted, bytes: u64, recipients: usize) -> io::Result<()> {
    let Counted { head, entries, files, missing } = counted;
    let (mut out, shown) = (io::stdout().lock(), args.file.display());
    writeln!(
        out,
        "{shown}: fleet {} at revision {}, {entries} entries and {files} files, {bytes} bytes, checked",
        head.fleet.fleet, head.revision
    )?;
    match recipients {
        0 => writeln!(out, "IT IS NOT ENCRYPTED, and whoever reads it is the fleet: its keys are in it")?,
        count => writeln!(out, "encrypted to backup_recipients ({count}): the secret key of any of them reads it")?,
    }
    if let Some(said) = missing.said() {
        writeln!(out, "{said}")?;
    }
    Ok(())
}

/// What to do where a backup would be encrypted to nobody.
fn nobody_to_encrypt_to(args: &Backup) -> String {
    let (file, place) = (args.file.display(), args.place.shown());
    let config = args.place.config.as_deref().unwrap_or(Path::new("/etc/stemma/controller.toml")).display();
    format!(
        "a backup holds the keys of the fleet, and {} no recipient to encrypt it to; nothing was written. Either make a key on the machine \
         that is to restore it (age-keygen -o backup.key), name its public half in {config}, as backup_recipients = [\"age1...\"], and run: \
         stemma-controller backup {file} --config {config}; or write it as it is, and keep it where nobody else reads: stemma-controller \
         backup {file}{place} --unencrypted",
        if args.place.config.is_some() { "the configuration names" } else { "there is" }
    )
}

/// Copies the backup that a running controller gives, or makes one of the store of a stopped one.
fn copy(layout: &Layout, to: &mut impl Write) -> Result<Source> {
    let mut asked = Asked::new(layout)?;
    if asked.stream(Endpoint::GetBackup, |piece| to.write_all(piece))? {
        return Ok(Source::Running(asked));
    }
    let store = match RedbStore::open(&layout.store(), RedbOptions::default()) {
        Err(error @ OpenError::Locked { .. }) => {
            return Err(error).context("a controller runs, and its socket does not answer: are you root?");
        }
        opened => opened?,
    };
    let snapshot = asked.runtime().block_on(store.snapshot())?;
    let pieces = pieces(store.identity(), snapshot, layout.clone(), SystemClock.unix_seconds());
    let entered = asked.runtime().enter();
    for piece in pieces.map_err(anyhow::Error::from_boxed)? {
        to.write_all(&piece.map_err(anyhow::Error::from_boxed)?)?;
    }
    drop(entered);
    Ok(Source::Stopped(asked, store))
}

impl Source {
    /// Has it kept when the last backup was made.
    fn record(self, revision: u64, bytes: u64, encrypted: bool) -> Result<()> {
        match self {
            Self::Running(mut asked) => {
                let made = json!({"revision": revision, "bytes": bytes, "encrypted": encrypted});
                asked.send(Endpoint::RecordBackup, &made).map(|_: Value| ())
            }
            Self::Stopped(asked, store) => {
                let at = Timestamp(SystemClock.unix_seconds().saturating_mul(1000));
                let record = BackupRecord { at, revision, bytes, is_encrypted: encrypted };
                let transaction = Transaction::new().put(key::LAST_BACKUP, codec::encode(&record));
                asked.runtime().block_on(store.commit(transaction))?;
                Ok(())
            }
        }
    }
}

impl<W: Write> Writing<W> {
    fn begin(to: W, recipients: &[Recipient]) -> io::Result<Self> {
        if recipients.is_empty() {
            return Ok(Self::Plain(to));
        }
        Encrypted::begin(to, recipients).map(|(to, key)| Self::Encrypted(Box::new(to), key))
    }

    /// Writes its end. The key is that of a file that is encrypted.
    fn finish(self) -> io::Result<Option<FileKey>> {
        let (mut to, key) = match self {
            Self::Plain(to) => (to, None),
            Self::Encrypted(to, key) => (to.finish()?, Some(key)),
        };
        to.flush()?;
        Ok(key)
    }
}

impl<W: Write> Write for Writing<W> {
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

/// Reads what was written, from its beginning to its checksum.
fn counted(file: File, key: Option<&FileKey>) -> Result<Counted> {
    let file = BufReader::new(file);
    let text: Box<dyn Read> = match key {
        None => Box::new(file),
        Some(key) => Box::new(Decrypted::begin_with(file, key)?),
    };
    let (mut reader, head) = Reader::begin(text)?;
    let mut counted = Counted { head, entries: 0, files: 0, missing: MissingKeys::new() };
    while let Some(part) = reader.next_part()? {
        match part {
            Part::Entry(_) => counted.entries += 1,
            Part::File { name, .. } => {
                counted.files += 1;
                counted.missing.saw(&name);
            }
        }
    }
    Ok(counted)
}
