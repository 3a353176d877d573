//! `stemma-controller restore FILE`.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, Write};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use stemma_core::epoch::EpochLine;
use stemma_wire::message::{Hash, hash_content};

use super::{Head, MissingKeys, Part, Reader};
use crate::age::{Decrypted, Identity, MAGIC};
use crate::args::Restore;
use crate::ca::files;
use crate::init::Layout;
use crate::records::{codec, key};
use crate::store::{CreateOptions, Entry, Epoch, RedbStore, Revision};

/// The restored store goes on so far behind the revision of the backup: what clients have read of the lost store, they have read at none of
/// the revisions to come, and a precondition of theirs fails.
const SKIPPED: u64 = 1_000_000;

/// Entries that are not restored: join tokens, of which used ones would be good again, and what became of requests, which may be others
/// than those of the lost store.
const LEFT_OUT: [&str; 2] = [key::TOKENS, key::REQUESTS];

/// Makes a fleet of a backup, in a data directory that holds none. Where another user owns that directory, it goes on as that user once it
/// has opened the file and read the keys.
///
/// # Errors
/// Nothing is left in the directory that was not there, but where it could not be taken away again.
pub fn restore(args: &Restore) -> Result<()> {
    let directory = args.place.data_dir()?;
    let layout = Layout::new(&directory);
    check_empty(&layout)?;
    let from = Sealed::of(args)?;
    if directory.exists() {
        become_owner(&directory).with_context(|| format!("{}: nothing was changed", directory.display()))?;
    }
    let Checked { head, line, missing } = from.check()?;
    files::make_directory(layout.directory())?;
    let making = tempfile::Builder::new().prefix(".restoring-").tempdir_in(layout.directory())?;
    std::fs::set_permissions(making.path(), std::fs::Permissions::from_mode(0o700))?;
    let made = Layout::new(making.path());
    let damaged = fill(&from, &made, &head, &line)?;
    // The store comes last: without it there is no fleet to start.
    for path in [made.blobs(), made.root(), made.admin(), made.trust(), made.store()] {
        let name = path.file_name().context("a path of the layout has a name")?;
        if path.exists() {
            std::fs::rename(&path, layout.directory().join(name)).with_context(|| path.display().to_string())?;
        }
    }
    File::open(layout.directory())?.sync_all()?;
    let (mut out, shown) = (io::stdout().lock(), directory.display());
    let (fleet, revision, at) = (&head.fleet.fleet, head.revision, time(head.at_s));
    writeln!(out, "fleet {fleet} restored in {shown}, as of revision {revision}, which was read at {at}")?;
    writeln!(
        out,
        "what was written after that is lost; what was revoked after that is good again; join tokens are ended"
    )?;
    if damaged > 0 {
        writeln!(out, "{damaged} file bodies were damaged before they were backed up: apply their manifests again")?;
    }
    if let Some(said) = missing.said() {
        writeln!(out, "{said}")?;
    }
    let place = args.place.shown();
    writeln!(out, "start it, look at it, then lead its hosts here: stemma-controller resume-fleet{place}")?;
    Ok(())
}

/// Goes on as the user who owns a directory, where root runs this. A service of that user is to run what is made in it, and root follows
/// nothing that stands in a directory of somebody else.
fn become_owner(directory: &Path) -> io::Result<()> {
    let owner = std::fs::metadata(directory)?;
    if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    // There is no other thread yet, and those to come are of the same user.
    set_thread_groups(&[])?;
    set_thread_gid(Gid::from_raw(owner.gid()))?;
    Ok(set_thread_uid(Uid::from_raw(owner.uid()))?)
}

/// Refuses a directory that holds a fleet, or a part of one.
fn check_empty(layout: &Layout) -> Result<()> {
    let found = if layout.store().exists() { Some(layout.store()) } else { layout.authority()? };
    if let Some(found) = found {
        bail!(
            "{}: there is a fleet here, or what is left of one ({} is there); nothing was changed: give another --data-dir, or move it away",
            layout.directory().display(),
            found.display()
        );
    }
    Ok(())
}

/// What a file is of that was read to its end.
struct Checked {
    head: Head,
    line: EpochLine,
    missing: MissingKeys,
}

/// How the text form of age begins.
const ARMOR: &[u8] = b"-----BEGIN AGE ENCRYPTED FILE-----";

/// The file of a backup, and who can decrypt it.
struct Sealed<'a> {
    path: &'a Path,
    file: File,
    /// None of a file that is not encrypted.
    identities: Vec<Identity>,
}

impl<'a> Sealed<'a> {
    /// Opens it, looks whether it is encrypted, and reads the keys.
    fn of(args: &'a Restore) -> Result<Self> {
        let (path, shown) = (&*args.file, args.file.display());
        let file = File::open(path).with_context(|| refused(path))?;
        let mut begin = [0; MAGIC.len()];
        // One that is shorter is no backup, which is said where it is read.
        let is_encrypted = file.read_exact_at(&mut begin, 0).is_ok() && begin == *MAGIC;
        let mut armor = [0; ARMOR.len()];
        if file.read_exact_at(&mut armor, 0).is_ok() && armor == *ARMOR {
            bail!(
                "{shown} is in the text form of age (armored), which is not read; nothing was changed: run age -d -i KEYFILE -o PLAIN {shown}, \
                 and restore PLAIN"
            );
        }
        let identities = match (&args.identity, is_encrypted) {
            (None, false) => Vec::new(),
            (Some(_), false) => bail!("{shown} is not encrypted: leave --identity out; nothing was changed"),
            (None, true) => bail!(
                "{shown} is encrypted; nothing was changed: run stemma-controller restore {shown}{} --identity KEYFILE, with the file of \
                 age-keygen that has the secret key of one of those to whom it was encrypted (backup_recipients)",
                args.place.shown()
            ),
            (Some(keys), true) => {
                let text = files::read(keys, files::Holds::Secret).context("nothing was changed")?;
                let read = Identity::read_all(&text);
                read.with_context(|| format!("--identity {}: nothing was changed", keys.display()))?
            }
        };
        Ok(Self { path, file, identities })
    }

    /// Begins to read it.
    fn open(&self) -> Result<(Reader<Box<dyn Read + '_>>, Head)> {
        let mut file = &self.file;
        file.rewind().with_context(|| refused(self.path))?;
        let file = BufReader::new(file);
        let text: Box<dyn Read + '_> = if self.identities.is_empty() {
            Box::new(file)
        } else {
            Box::new(Decrypted::begin(file, &self.identities).with_context(|| refused(self.path))?)
        };
        Reader::begin(text).with_context(|| refused(self.path))
    }

    /// Reads the whole file.
    fn check(&self) -> Result<Checked> {
        let (mut reader, head) = self.open()?;
        let mut line = EpochLine::first(head.epoch);
        let mut missing = MissingKeys::new();
        while let Some(part) = reader.next_part().with_context(|| refused(self.path))? {
            match part {
                Part::Entry(entry) if entry.key == key::EPOCH_LINE.as_bytes() => {
                    line = codec::decode(&entry.value).with_context(|| refused(self.path))?;
                }
                Part::Entry(_) => {}
                Part::File { name, .. } => missing.saw(&name),
            }
        }
        Ok(Checked { head, line, missing })
    }
}

/// A time for a person to read.
fn time(at_s: u64) -> String {
    let at = i64::try_from(at_s).ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
    at.map_or_else(|| format!("{at_s} seconds after 1970"), |at| at.to_string())
}

fn refused(path: &Path) -> String {
    format!("{}: it is not restored, and nothing was changed", path.display())
}

/// Writes the files of a backup, and a store of its entries, in another epoch that waits. Returns how many bodies are damaged, and left out.
fn fill(from: &Sealed<'_>, made: &Layout, head: &Head, line: &EpochLine) -> Result<usize> {
    let revision = head.revision.saturating_add(SKIPPED);
    let random: [u8; 10] = crate::ca::random().map_err(|_| anyhow::anyhow!("the system gave no random bytes"))?;
    // It begins after the backup was made, whatever the clock of this machine says.
    let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let epoch = line.id_after(now_ms.max(head.at_s.saturating_mul(1000)), &random, []);
    let line = line.restored(epoch, revision, &format!("restored from a backup of revision {}", head.revision));
    for directory in [made.trust(), made.admin(), made.blobs()] {
        files::make_directory(&directory)?;
    }
    let (mut reader, _) = from.open()?;
    let mut damaged = 0;
    let entries = std::iter::from_fn(|| {
        loop {
            match reader.next_part() {
                Ok(Some(Part::Entry(entry))) if is_restored(&entry) => return Some(Ok(entry)),
                Ok(Some(Part::Entry(_))) => {}
                Ok(Some(Part::File { name, bytes })) => match write_file(made, &name, &bytes) {
                    Ok(is_sound) => damaged += usize::from(!is_sound),
                    Err(error) => return Some(Err(error)),
                },
                Ok(None) => return None,
                Err(error) => return Some(Err(io::Error::other(error))),
            }
        }
    });
    let create = CreateOptions {
        epoch: Epoch::new(*head.epoch.as_bytes()),
        base: Revision::new(head.base),
        fleet: serde_json::to_vec(&head.fleet)?.into(),
    };
    let own = Entry {
        key: key::EPOCH_LINE.into(),
        value: codec::encode(&line),
        create_revision: Revision::new(revision),
        mod_revision: Revision::new(revision),
        version: 1,
    };
    let mut all = entries.chain(std::iter::once(Ok(own)));
    RedbStore::import(&made.store(), &create, Revision::new(revision), &mut all)?;
    drop(all);
    Ok(damaged)
}

fn is_restored(entry: &Entry) -> bool {
    entry.key != key::EPOCH_LINE.as_bytes() && !LEFT_OUT.iter().any(|prefix| entry.key.starts_with(prefix.as_bytes()))
}

/// Writes a file of a backup, where it is one of those that belong to a fleet. Returns whether it is what its name says.
fn write_file(made: &Layout, name: &str, bytes: &Bytes) -> io::Result<bool> {
    let unknown = || io::Error::other(format!("{name}: no file of a fleet is called so"));
    let path = made.directory().join(name);
    let is_in = |home: &Path| path.parent() == Some(home);
    let is_body = is_in(&made.blobs());
    if is_body {
        let hash: Hash = path.file_name().and_then(|name| name.to_str()?.parse().ok()).ok_or_else(unknown)?;
        if hash_content(bytes) != hash {
            return Ok(false);
        }
    } else if path != made.root() && !is_in(&made.trust()) && !is_in(&made.admin()) {
        return Err(unknown());
    }
    let is_key = path.extension().is_some_and(|extension| extension == "key");
    let is_open = path == made.root() || is_in(&made.trust()) && !is_key;
    let holds = if is_open { files::Holds::Settings } else { files::Holds::Secret };
    files::write(&path, holds, bytes).map_err(io::Error::other)?;
    Ok(true)
}
