//! `stemma-controller restore FILE`.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, Write};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use stemma_core::epoch::EpochLine;
use stemma_wire::message::{Hash, hash_content};

use super::{Head, MissingKeys, Part, Reader, left};
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
    // Held to the end, so that of two at once one is refused, and what was looked at stays as it was.
    let held = directory.exists().then(|| files::hold(&directory)).transpose()?;
    check_empty(&layout)?;
    let from = Sealed::of(args)?;
    if held.is_some() {
        become_owner(&directory).with_context(|| format!("{}: nothing was changed", directory.display()))?;
    }
    let checked = from.check()?;
    files::make_directory(layout.directory()).context("nothing was restored")?;
    let held = held.map_or_else(|| files::hold(layout.directory()), Ok)?;
    check_empty(&layout)?;
    left::say(&left::sweep_restores(layout.directory(), &held));
    let damaged = make(&from, &layout, &checked)?;
    let synced = File::open(layout.directory()).and_then(|directory| directory.sync_all());
    synced.with_context(|| format!("{}: the fleet is there, and may not be on the disk yet", directory.display()))?;
    // The fleet is there, whether anybody reads that or not.
    let _nobody_reads = say_restored(args, &directory, &checked, damaged);
    Ok(())
}

/// Says what was restored, and what to do next.
fn say_restored(
    args: &Restore,
    directory: &Path,
    Checked { head, missing, .. }: &Checked,
    damaged: usize,
) -> io::Result<()> {
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
        check_kind(path)?;
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
                let advice = "give a file that holds the key and that nobody else may read, not a pipe";
                let text = files::read(keys, files::Holds::Secret)
                    .with_context(|| format!("--identity {}: nothing was changed: {advice}", keys.display()))?;
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

/// Refuses what is no file: a backup is read twice, the first time to its end before anything is made.
fn check_kind(path: &Path) -> Result<()> {
    let shown = path.display();
    if path.as_os_str() == "-" {
        bail!(
            "-: a backup is read from a file, twice from its beginning, and not from standard input; nothing was changed: write it to a file \
             first (cat > FILE), and restore FILE; or give ./- where it is called that"
        );
    }
    let kind = std::fs::metadata(path).with_context(|| refused(path))?.file_type();
    if kind.is_dir() {
        bail!("{shown} is a directory; nothing was changed: give the file in it that `stemma-controller backup` wrote");
    }
    if !kind.is_file() {
        bail!(
            "{shown} is a pipe or a device, and a backup is read twice from its beginning, which only a file allows; nothing was changed: \
             write it to a file first (cat {shown} > FILE), and restore FILE"
        );
    }
    Ok(())
}

/// A time for a person to read.
fn time(at_s: u64) -> String {
    let spelled = at_s.checked_mul(1000).and_then(stemma_core::time::spell);
    spelled.unwrap_or_else(|| format!("{at_s} seconds after 1970"))
}

fn refused(path: &Path) -> String {
    format!("{}: it is not restored, and nothing was changed", path.display())
}

/// Makes the fleet of a backup in a directory that is held. Returns how many bodies are damaged, and left out.
fn make(from: &Sealed<'_>, layout: &Layout, checked: &Checked) -> Result<usize> {
    let shown = layout.directory().display();
    let bytes = from.file.metadata().map_or(0, |file| file.len());
    let failed = |stays: &str| {
        format!(
            "{shown}: the fleet of {} could not be made there, and {stays}; the reason follows: where the disk is full, make room for the \
             fleet (its backup has {bytes} bytes, and it takes more), or give another --data-dir, and run restore again",
            from.path.display()
        )
    };
    let making = tempfile::Builder::new().prefix(left::RESTORING).tempdir_in(layout.directory());
    let making = making.with_context(|| failed("nothing was changed"))?;
    let made = Layout::new(making.path());
    let filled = fill(from, &made, checked).map_err(|error| NotPlaced { error, stays: Vec::new() });
    let placed = filled.and_then(|damaged| place(&made, layout).map(|()| damaged));
    placed.map_err(|NotPlaced { error, mut stays }| {
        if let Err(refused) = making.close() {
            stays.push(format!("{} could not be taken away ({refused})", made.directory().display()));
        }
        error.context(failed(&what_stays(&stays)))
    })
}

/// Why what was made does not stand where it is to stand.
#[derive(Debug)]
struct NotPlaced {
    error: anyhow::Error,
    /// What was put there and could not be taken back, each in a sentence.
    stays: Vec<String>,
}

/// What a restore that failed has changed.
fn what_stays(stays: &[String]) -> String {
    if stays.is_empty() {
        return "nothing was changed".to_owned();
    }
    format!(
        "no fleet is there, but {}: keys of the fleet may be in what stays there, so remove it",
        stays.join(", and ")
    )
}

/// Puts all that was made where it is to stand, or nothing of it that can be taken back. The store comes last: without it there is no fleet to
/// start.
fn place(made: &Layout, layout: &Layout) -> Result<(), NotPlaced> {
    let mut placed: Vec<(PathBuf, PathBuf)> = Vec::new();
    for path in [made.blobs(), made.admin(), made.trust(), made.root(), made.store()] {
        let Some(name) = path.file_name().filter(|_| path.exists()) else { continue };
        let place = layout.directory().join(name);
        if let Err(error) = std::fs::rename(&path, &place) {
            let error = anyhow::Error::new(error).context(format!("{}: move away what is there", place.display()));
            return Err(NotPlaced { error, stays: take_back(&placed) });
        }
        placed.push((path, place));
    }
    Ok(())
}

/// Moves what was placed back to where it was made, the last of it first. Returns what stays at its place, each in a sentence.
fn take_back(placed: &[(PathBuf, PathBuf)]) -> Vec<String> {
    let stays = |(path, place): &(PathBuf, PathBuf)| {
        let error = std::fs::rename(place, path).err()?;
        Some(format!("{} stays there, since it could not be moved back ({error})", place.display()))
    };
    placed.iter().rev().filter_map(stays).collect()
}

/// Writes the files of a backup, and a store of its entries, in another epoch that waits. Returns how many bodies are damaged, and left out.
fn fill(from: &Sealed<'_>, made: &Layout, Checked { head, line, .. }: &Checked) -> Result<usize> {
    let revision = head.revision.saturating_add(SKIPPED);
    let random: [u8; 10] = crate::ca::random().map_err(|_| anyhow::anyhow!("the system gave no random bytes"))?;
    // It begins after the backup was made, whatever the clock of this machine says.
    let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let epoch = line.id_after(now_ms.max(head.at_s.saturating_mul(1000)), &random, []);
    let line = line.restored(epoch, revision, &format!("restored from a backup of revision {}", head.revision));
    std::fs::set_permissions(made.directory(), std::fs::Permissions::from_mode(0o700))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x02_of_a_fleet_that_cannot_be_put_in_its_place_nothing_is_put_there() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (made, layout) = (Layout::new(&at("made")), Layout::new(&at("data")));
        for path in [made.blobs(), made.admin(), made.trust(), layout.trust()] {
            std::fs::create_dir_all(path).unwrap();
        }
        for path in [made.root(), made.store(), made.trust().join("root.key"), layout.root()] {
            std::fs::write(path, "made").unwrap();
        }
        std::fs::write(layout.trust().join("of-another"), "").unwrap();
        std::fs::write(layout.root(), "stood there").unwrap();
        let refused = place(&made, &layout).unwrap_err();
        assert_eq!(refused.error.to_string(), format!("{}: move away what is there", layout.trust().display()));
        assert_eq!(what_stays(&refused.stays), "nothing was changed");
        assert_eq!(files::listed(layout.directory()).unwrap(), [layout.root(), layout.trust()]);
        assert_eq!(std::fs::read_to_string(layout.root()).unwrap(), "stood there");
        std::fs::remove_file(layout.trust().join("of-another")).unwrap();
        place(&made, &layout).unwrap();
        assert_eq!(std::fs::read_to_string(layout.root()).unwrap(), "made");
        assert!(layout.store().exists() && files::listed(made.directory()).unwrap().is_empty());
    }

    #[test]
    fn x02_what_cannot_be_taken_back_is_named_and_the_rest_is_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // Something stands where `blobs` was made.
        for path in ["made/blobs/of-another", "data/blobs", "data/admin"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        let stays = take_back(&[(at("made/blobs"), at("data/blobs")), (at("made/admin"), at("data/admin"))]);
        assert!(at("made/admin").exists() && !at("data/admin").exists() && at("data/blobs").exists());
        let said = what_stays(&stays);
        let shown = at("data/blobs").display().to_string();
        assert!(said.starts_with(&format!("no fleet is there, but {shown} stays there, since")), "{said}");
        assert!(said.ends_with(": keys of the fleet may be in what stays there, so remove it"), "{said}");
    }
}
