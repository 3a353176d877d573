//! One file with all of a fleet, and nothing outside of it that it needs.
//!
//! ```text
//!   magic │ head │ entry … │ file … │ end
//! ```
//!
//! Each part is a frame: one byte that says what it is, four bytes of length (big-endian), and so many bytes. The head is JSON. An entry is
//! one of the store, with the revisions that it carries. A file is one of the data directory: keys, certificates, bodies. The end is the
//! SHA-256 of all bytes before it, so a file that was cut, or of which a bit is another, is told from a whole one before anything of it is
//! used.

use std::io::{self, Read};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::records::fleet::FleetRecord;
use crate::store::{Entry, Revision, SCHEMA};

/// How each such file begins. The number is the version of its form.
const MAGIC: &[u8] = b"stemma-backup 1\n";
/// The same of any version.
const MAGIC_OF_ANY: &[u8] = b"stemma-backup ";
/// The largest frame: a body of 64 MiB with its name.
const MAX_FRAME: usize = 65 * 1024 * 1024;
/// The longest name of a file in it.
const MAX_NAME: usize = 255;

const HEAD: u8 = 1;
const ENTRY: u8 = 2;
const FILE: u8 = 3;
const END: u8 = 4;

/// What the file is a backup of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The fleet, as `init` recorded it.
    pub fleet: FleetRecord,
    /// The epoch with which the store was made.
    pub epoch: Uuid,
    /// What its revisions start above.
    pub base: u64,
    /// The revision that was read.
    pub revision: u64,
    /// The version of what stands in the store.
    pub schema: u32,
    /// The program that wrote it.
    pub program: String,
    /// When it was read, in seconds since 1970.
    pub at_s: u64,
}

/// One part of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// An entry of the store.
    Entry(Entry),
    /// A file of the data directory: its name there, with `/`, and its bytes.
    File {
        /// The name.
        name: String,
        /// What it holds.
        bytes: Bytes,
    },
}

/// Why a file is not used as a backup. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The system said no.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// It begins otherwise.
    #[error("it is no backup of a fleet: it does not begin as one")]
    NotABackup,
    /// A later program wrote it.
    #[error("a newer stemma-controller wrote it ({0}): restore it with that one")]
    Newer(String),
    /// It ends before its end.
    #[error("it was cut: it ends before its checksum; take another copy of it")]
    Cut,
    /// Its checksum is another.
    #[error("it is damaged: {0}; take another copy of it")]
    Damaged(&'static str),
}

/// Makes the frames of a backup.
pub(super) struct Encoder {
    digest: Sha256,
}

impl Encoder {
    /// The beginning of a backup.
    pub(super) fn begin(head: &Head) -> (Self, Bytes) {
        let mut this = Self { digest: Sha256::new() };
        this.digest.update(MAGIC);
        let head = serde_json::to_vec(head).expect("a head is texts and numbers");
        let frame = this.frame(HEAD, &[&head]);
        (this, [MAGIC, &frame].concat().into())
    }

    /// A part of it.
    pub(super) fn part(&mut self, part: &Part) -> Bytes {
        match part {
            Part::Entry(entry) => {
                let numbers = [entry.create_revision.get(), entry.mod_revision.get(), entry.version];
                let numbers: Vec<u8> = numbers.into_iter().flat_map(u64::to_be_bytes).collect();
                self.frame(ENTRY, &[&numbers, &length(&entry.key), &entry.key, &entry.value])
            }
            Part::File { name, bytes } => self.frame(FILE, &[&length(name.as_bytes()), name.as_bytes(), bytes]),
        }
    }

    /// Its end.
    pub(super) fn end(mut self) -> Bytes {
        let digest = self.digest.clone().finalize();
        self.frame(END, &[&digest])
    }

    fn frame(&mut self, kind: u8, parts: &[&[u8]]) -> Bytes {
        let bytes = parts.concat();
        let frame = [&[kind][..], &length(&bytes), &bytes].concat();
        self.digest.update(&frame);
        frame.into()
    }
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).expect("entries and bodies have limits far below 4 GiB").to_be_bytes()
}

/// Reads a backup from its beginning. That it is whole is known when [`Reader::next_part`] has given the last part, and not before.
pub struct Reader<R> {
    from: R,
    digest: Sha256,
}

impl<R: Read> Reader<R> {
    /// Reads the beginning.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn begin(mut from: R) -> Result<(Self, Head), BackupError> {
        let mut magic = vec![0; MAGIC.len()];
        from.read_exact(&mut magic).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackupError::NotABackup,
            _ => error.into(),
        })?;
        if !magic.starts_with(MAGIC_OF_ANY) {
            return Err(BackupError::NotABackup);
        }
        if magic != MAGIC {
            let version = String::from_utf8_lossy(&magic[MAGIC_OF_ANY.len()..]).trim_end().escape_debug().to_string();
            return Err(BackupError::Newer(format!("version {version} of the file")));
        }
        let mut this = Self { from, digest: Sha256::new() };
        this.digest.update(MAGIC);
        let (kind, bytes) = this.frame()?;
        if kind != HEAD {
            return Err(BackupError::Damaged("its head is missing"));
        }
        let head: Head = serde_json::from_slice(&bytes).map_err(|_| BackupError::Damaged("its head cannot be read"))?;
        if head.schema > SCHEMA {
            return Err(BackupError::Newer(head.program));
        }
        Ok((this, head))
    }

    /// The next part; `None` behind the last, where all of it is as it was written.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn next_part(&mut self) -> Result<Option<Part>, BackupError> {
        let expected: [u8; 32] = self.digest.clone().finalize().into();
        let (kind, bytes) = self.frame()?;
        match kind {
            ENTRY => entry(&bytes).map(|entry| Some(Part::Entry(entry))),
            FILE => file(&bytes).map(Some),
            END if bytes[..] != expected => Err(BackupError::Damaged("its checksum is another")),
            END if self.from.read(&mut [0])? > 0 => Err(BackupError::Damaged("something stands behind its end")),
            END => Ok(None),
            _ => Err(BackupError::Damaged("it has a part of an unknown kind")),
        }
    }

    fn frame(&mut self) -> Result<(u8, Bytes), BackupError> {
        let mut head = [0; 5];
        self.exactly(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > MAX_FRAME {
            return Err(BackupError::Damaged("a part of it is longer than any may be"));
        }
        // Taken as it comes: what says that it is long need not be.
        let mut bytes = Vec::new();
        let read = (&mut self.from).take(length as u64).read_to_end(&mut bytes)?;
        if read < length {
            return Err(BackupError::Cut);
        }
        self.digest.update(head);
        self.digest.update(&bytes);
        Ok((head[0], bytes.into()))
    }

    fn exactly(&mut self, bytes: &mut [u8]) -> Result<(), BackupError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackupError::Cut,
            _ => error.into(),
        })
    }
}

/// A text with its length before it, and what stands behind.
fn with_length(bytes: &Bytes) -> Option<(Bytes, Bytes)> {
    let (length, _) = bytes.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let end = length.checked_add(4).filter(|end| *end <= bytes.len())?;
    Some((bytes.slice(4..end), bytes.slice(end..)))
}

fn entry(bytes: &Bytes) -> Result<Entry, BackupError> {
    let damaged = BackupError::Damaged("an entry of it ends too early");
    let number = |at: usize| Some(u64::from_be_bytes(*bytes.get(at * 8..)?.first_chunk()?));
    let numbers = (number(0), number(1), number(2));
    let (Some(create), Some(modified), Some(version)) = numbers else { return Err(damaged) };
    let Some((key, value)) = with_length(&bytes.slice(24..)) else { return Err(damaged) };
    let (create_revision, mod_revision) = (Revision::new(create), Revision::new(modified));
    Ok(Entry { key, value, create_revision, mod_revision, version })
}

fn file(bytes: &Bytes) -> Result<Part, BackupError> {
    let (name, bytes) = with_length(bytes).ok_or(BackupError::Damaged("a file in it ends too early"))?;
    let name = String::from_utf8(name.to_vec()).ok().filter(|name| is_name(name));
    let name = name.ok_or(BackupError::Damaged("a file in it has a name that is none"))?;
    Ok(Part::File { name, bytes })
}

/// Whether this names a file below a directory: the checksum says that it is as it was written, and not by whom.
fn is_name(name: &str) -> bool {
    let is_good = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', '\0']);
    name.len() <= MAX_NAME && name.split('/').all(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let fleet = FleetRecord { fleet: "f".to_owned(), controller: Uuid::from_u128(1), names: vec![] };
        let (epoch, program) = (Uuid::from_u128(2), "p 1".to_owned());
        Head { fleet, epoch, base: 0, revision: 9, schema: SCHEMA, program, at_s: 7 }
    }

    fn parts() -> Vec<Part> {
        let entry = |key: &'static str, value: &'static str| Entry {
            key: key.into(),
            value: value.into(),
            create_revision: Revision::new(1),
            mod_revision: Revision::new(258),
            version: 3,
        };
        let file = Part::File { name: "trust/root.key".to_owned(), bytes: "k".into() };
        vec![Part::Entry(entry("a", "")), Part::Entry(entry("b/\u{0}", "v")), file]
    }

    fn written() -> Vec<u8> {
        let (mut encoder, mut bytes) = {
            let (encoder, begun) = Encoder::begin(&head());
            (encoder, begun.to_vec())
        };
        for part in parts() {
            bytes.extend(encoder.part(&part));
        }
        bytes.extend(encoder.end());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<(Head, Vec<Part>), BackupError> {
        let (mut reader, head) = Reader::begin(bytes)?;
        let mut parts = Vec::new();
        while let Some(part) = reader.next_part()? {
            parts.push(part);
        }
        Ok((head, parts))
    }

    #[test]
    fn x02_a_backup_is_read_as_it_was_written() {
        assert_eq!(read(&written()).unwrap(), (head(), parts()));
    }

    #[test]
    fn x02_a_backup_that_was_cut_or_changed_anywhere_is_refused() {
        let whole = written();
        for cut in 0..whole.len() {
            assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                assert!(read(&changed).is_err(), "bit {bit} of byte {at}");
            }
        }
        assert!(read(&[&whole[..], b"x"].concat()).is_err(), "something stands behind it");
    }

    #[test]
    fn x02_a_backup_of_a_newer_program_and_other_files_say_what_they_are() {
        let newer = [b"stemma-backup 2\n", &written()[MAGIC.len()..]].concat();
        assert_eq!(
            read(&newer).unwrap_err().to_string(),
            "a newer stemma-controller wrote it (version 2 of the file): restore it with that one"
        );
        let (_, bytes) = Encoder::begin(&Head { schema: SCHEMA + 1, ..head() });
        assert!(matches!(read(&bytes), Err(BackupError::Newer(program)) if program == "p 1"));
        for other in [&b""[..], b"age-encryption.org/v1\n...................", b"PK"] {
            assert!(matches!(read(other), Err(BackupError::NotABackup)));
        }
    }

    #[test]
    fn x02_no_file_of_a_backup_leaves_its_directory() {
        for (name, is_good) in [
            ("ca.pem", true),
            ("trust/root.key", true),
            ("../x", false),
            ("/etc/passwd", false),
            ("a//b", false),
            ("a/./b", false),
            ("", false),
            ("a\u{0}", false),
        ] {
            assert_eq!(is_name(name), is_good, "{name:?}");
        }
    }
}
