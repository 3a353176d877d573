//! `stemma-controller backup FILE`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use hyper::Request;
use stemma_wire::client::{Client, ClientLimits, RequestOutcome, Target};
use stemma_wire::clock::{Clock as _, SystemClock};
use stemma_wire::endpoint::Endpoint;

use super::{Head, Part, Reader, pieces};
use crate::args::Backup;
use crate::init::Layout;
use crate::store::{OpenError, RedbOptions, RedbStore, Store as _};

/// The largest backup that is taken from a running controller.
const MOST_BYTES: u64 = 1 << 40;

/// What a backup holds, for the program to say.
struct Counted {
    head: Head,
    entries: u64,
    files: u64,
}

/// Writes a backup of a fleet into a new file, checks it from its beginning to its end, and says what it holds.
///
/// # Errors
/// Nothing stands at the file's place then.
pub fn backup(args: &Backup) -> Result<()> {
    if !args.unencrypted {
        bail!(
            "a backup holds the keys of the fleet, and this program does not encrypt it: say --unencrypted to write it as it is, and keep it \
             where nobody else reads; nothing was written"
        );
    }
    if args.file.exists() {
        bail!("{}: there is a file already; nothing was written", args.file.display());
    }
    let layout = Layout::new(&args.place.data_dir()?);
    let beside = args.file.with_added_extension("new");
    let written = write(&layout, &beside);
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    let Counted { head, entries, files } = written?;
    std::fs::rename(&beside, &args.file).with_context(|| args.file.display().to_string())?;
    sync_directory(&args.file)?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: fleet {} at revision {}, {entries} entries and {files} files, checked",
        args.file.display(),
        head.fleet.fleet,
        head.revision
    )?;
    writeln!(out, "IT IS NOT ENCRYPTED, and whoever reads it is the fleet: its keys are in it")?;
    Ok(())
}

fn write(layout: &Layout, path: &Path) -> Result<Counted> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut to = create(path)?;
    if !runtime.block_on(from_service(layout, &mut to))? {
        from_store(&runtime, layout, &mut to)?;
    }
    let file = to.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.sync_all().with_context(|| path.display().to_string())?;
    counted(path)
}

/// Takes the backup that a running controller gives; `false`: none runs.
async fn from_service(layout: &Layout, to: &mut BufWriter<File>) -> Result<bool> {
    let socket = std::path::absolute(layout.socket())?;
    let target: Target = format!("unix:{}", socket.display()).parse()?;
    let limits = ClientLimits { body_bytes: MOST_BYTES, ..ClientLimits::default() };
    let mut client = Client::new(target, None, limits);
    let request = Request::get(Endpoint::GetBackup.path(&[])).body(Bytes::new())?;
    let answer = match client.stream(request, async |piece: Bytes| to.write_all(&piece)).await {
        Err(error) if error.outcome() == RequestOutcome::NotSent => return Ok(false),
        answer => answer.context("the running controller gave no backup")?,
    };
    if !answer.status().is_success() {
        let said: serde_json::Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        let message = said["error"]["message"].as_str().unwrap_or("it says no more");
        bail!("the running controller gives no backup ({}): {message}", answer.status());
    }
    Ok(true)
}

/// Makes the backup of a store that no controller has open.
fn from_store(runtime: &tokio::runtime::Runtime, layout: &Layout, to: &mut BufWriter<File>) -> Result<()> {
    let store = match RedbStore::open(&layout.store(), RedbOptions::default()) {
        Err(error @ OpenError::Locked { .. }) => {
            return Err(error).context("a controller runs, and its socket does not answer: are you root?");
        }
        opened => opened?,
    };
    let snapshot = runtime.block_on(store.snapshot())?;
    let pieces = pieces(store.identity(), snapshot, layout.clone(), SystemClock.unix_seconds());
    let _entered = runtime.enter();
    for piece in pieces.map_err(anyhow::Error::from_boxed)? {
        to.write_all(&piece.map_err(anyhow::Error::from_boxed)?)?;
    }
    Ok(())
}

/// Reads what was written, from its beginning to its checksum.
fn counted(path: &Path) -> Result<Counted> {
    let file = File::open(path)?;
    let (mut reader, head) = Reader::begin(BufReader::new(file)).context("what was written cannot be read back")?;
    let mut counted = Counted { head, entries: 0, files: 0 };
    while let Some(part) = reader.next().context("what was written cannot be read back")? {
        match part {
            Part::Entry(_) => counted.entries += 1,
            Part::File { .. } => counted.files += 1,
        }
    }
    Ok(counted)
}

fn create(path: &Path) -> Result<BufWriter<File>> {
    // What a crash left there is nobody's.
    let _ = std::fs::remove_file(path);
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let file = file.with_context(|| path.display().to_string())?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    Ok(BufWriter::new(file))
}

fn sync_directory(path: &Path) -> Result<()> {
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(PathBuf::from("."), Path::to_owned);
    Ok(File::open(directory)?.sync_all()?)
}
