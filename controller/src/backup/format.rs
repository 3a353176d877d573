//! The backup format: one file with a whole fleet, which can be restored without anything else.
//!
//! ```text
//!   magic │ head │ entry … │ file … │ end
//! ```
//!
//! Each part is a frame: one byte for its kind, four bytes for its length (big-endian), then its content. The head is
//! JSON. An entry is one entry of the store, with its revisions. A file is one of the data directory: a key, a
//! certificate or a body. The end is the SHA-256 of all bytes before it. A reader compares it before it uses anything
//! from the file, and so detects a truncated file or a changed bit.

use std::io::{self, Read};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::records::fleet::FleetRecord;
use crate::store::{Entry, Revision, SCHEMA_VERSION};

/// The first bytes of every backup. The number is the version of the format.
const MAGIC: &[u8] = b"stemma-backup 1\n";
/// The part of [`MAGIC`] that all versions share.
const MAGIC_PREFIX: &[u8] = b"stemma-backup ";
/// Maximum length of a frame, in bytes: a body of 64 MiB with its name.
const MAX_FRAME_BYTES: usize = 65 * 1024 * 1024;
/// Maximum length of a file name, in bytes.
const MAX_NAME_BYTES: usize = 255;

const HEAD: u8 = 1;
const ENTRY: u8 = 2;
const FILE: u8 = 3;
const END: u8 = 4;

/// The fleet and the revision that a backup contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHeader {
    /// The fleet, as `init` recorded it.
    pub fleet: FleetRecord,
    /// The epoch with which the store was created.
    pub epoch: Uuid,
    /// The revision above which the revisions of the store start.
    pub base: u64,
    /// The revision at which the store was read.
    pub revision: u64,
    /// The schema version of the store.
    pub schema: u32,
    /// Name and version of the program that wrote the backup.
    pub program: String,
    /// The time at which the store was read, in seconds since 1970.
    pub at_s: u64,
}

/// One part of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupPart {
    /// An entry of the store.
    Entry(Entry),
    /// A file of the data directory.
    File {
        /// The path of the file below the data directory, with `/` as the separator.
        name: String,
        /// The bytes of the file.
        bytes: Bytes,
    },
}

/// The reason why a file cannot be used as a backup. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The system could not read the file.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// The file does not begin with the bytes that every backup begins with.
    #[error("it is not a backup of a fleet: it does not begin like one")]
    NotABackup,
    /// A newer program wrote the file.
    #[error("a newer stemma-controller wrote it ({0}): restore it with that version")]
    Newer(String),
    /// The file ends before its checksum.
    #[error("it was truncated: it ends before its checksum; use another copy of it")]
    Truncated,
    /// The file does not match its checksum, or is malformed.
    #[error("it is damaged: {0}; use another copy of it")]
    Damaged(&'static str),
}

/// Encodes the frames of a backup.
pub(super) struct Encoder {
    digest: Sha256,
}

impl Encoder {
    /// Starts a backup. Returns its first bytes.
    pub(super) fn begin(head: &BackupHeader) -> (Self, Bytes) {
        let mut this = Self { digest: Sha256::new() };
        this.digest.update(MAGIC);
        let head = serde_json::to_vec(head).expect("a head is texts and numbers");
        let frame = this.frame(HEAD, &[&head]);
        (this, [MAGIC, &frame].concat().into())
    }

    /// Encodes one part.
    pub(super) fn part(&mut self, part: &BackupPart) -> Bytes {
        match part {
            BackupPart::Entry(entry) => {
                let numbers = [entry.create_revision.get(), entry.mod_revision.get(), entry.version];
                let numbers: Vec<u8> = numbers.into_iter().flat_map(u64::to_be_bytes).collect();
                self.frame(ENTRY, &[&numbers, &length(&entry.key), &entry.key, &entry.value])
            }
            BackupPart::File { name, bytes } => self.frame(FILE, &[&length(name.as_bytes()), name.as_bytes(), bytes]),
        }
    }

    /// Encodes the last frame of the backup: its checksum.
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

/// Reads a backup from its beginning. The backup is known to be complete only when [`BackupReader::next_part`] has
/// returned `None`.
pub struct BackupReader<R> {
    from: R,
    digest: Sha256,
}

impl<R: Read> BackupReader<R> {
    /// Reads the beginning of a backup.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn begin(mut from: R) -> Result<(Self, BackupHeader), BackupError> {
        let mut magic = vec![0; MAGIC.len()];
        from.read_exact(&mut magic).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackupError::NotABackup,
            _ => error.into(),
        })?;
        if !magic.starts_with(MAGIC_PREFIX) {
            return Err(BackupError::NotABackup);
        }
        if magic != MAGIC {
            let version = String::from_utf8_lossy(&magic[MAGIC_PREFIX.len()..]).trim_end().escape_debug().to_string();
            return Err(BackupError::Newer(format!("version {version} of the file")));
        }
        let mut this = Self { from, digest: Sha256::new() };
        this.digest.update(MAGIC);
        let (kind, bytes) = this.frame()?;
        if kind != HEAD {
            return Err(BackupError::Damaged("its head is missing"));
        }
        let head: BackupHeader = serde_json::from_slice(&bytes).map_err(|_| BackupError::Damaged("its head cannot be read"))?;
        if head.schema > SCHEMA_VERSION {
            return Err(BackupError::Newer(head.program));
        }
        Ok((this, head))
    }

    /// Returns the next part, or `None` at the end if the checksum matches.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn next_part(&mut self) -> Result<Option<BackupPart>, BackupError> {
        let expected: [u8; 32] = self.digest.clone().finalize().into();
        let (kind, bytes) = self.frame()?;
        match kind {
            ENTRY => parse_entry(&bytes).map(|entry| Some(BackupPart::Entry(entry))),
            FILE => parse_file(&bytes).map(Some),
            END if bytes[..] != expected => Err(BackupError::Damaged("its checksum does not match")),
            END if self.from.read(&mut [0])? > 0 => Err(BackupError::Damaged("there are bytes after its end")),
            END => Ok(None),
            _ => Err(BackupError::Damaged("it has a part of an unknown kind")),
        }
    }

    /// Reads one frame and adds it to the checksum. Returns its kind and its content.
    fn frame(&mut self) -> Result<(u8, Bytes), BackupError> {
        let mut head = [0; 5];
        self.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(BackupError::Damaged("a part of it is longer than the limit"));
        }
        // Memory is allocated only as bytes arrive, because a damaged file may state a much too large length.
        let mut bytes = Vec::new();
        let read = (&mut self.from).take(length as u64).read_to_end(&mut bytes)?;
        if read < length {
            return Err(BackupError::Truncated);
        }
        self.digest.update(head);
        self.digest.update(&bytes);
        Ok((head[0], bytes.into()))
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), BackupError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackupError::Truncated,
            _ => error.into(),
        })
    }
}

/// Splits bytes that begin with a text and the length of that text. Returns the text and the bytes after it.
fn split_prefixed(bytes: &Bytes) -> Option<(Bytes, Bytes)> {
    let (length, _) = bytes.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let end = length.checked_add(4).filter(|end| *end <= bytes.len())?;
    Some((bytes.slice(4..end), bytes.slice(end..)))
}

/// Parses the content of an entry frame: create revision, mod revision, version, key and value.
fn parse_entry(bytes: &Bytes) -> Result<Entry, BackupError> {
    let damaged = BackupError::Damaged("an entry of it ends too early");
    let number = |at: usize| Some(u64::from_be_bytes(*bytes.get(at * 8..)?.first_chunk()?));
    let numbers = (number(0), number(1), number(2));
    let (Some(create), Some(modified), Some(version)) = numbers else { return Err(damaged) };
    let Some((key, value)) = split_prefixed(&bytes.slice(24..)) else { return Err(damaged) };
    let (create_revision, mod_revision) = (Revision::new(create), Revision::new(modified));
    Ok(Entry { key, value, create_revision, mod_revision, version })
}

/// Parses the content of a file frame: its name and its bytes.
fn parse_file(bytes: &Bytes) -> Result<BackupPart, BackupError> {
    let (name, bytes) = split_prefixed(bytes).ok_or(BackupError::Damaged("a file in it ends too early"))?;
    let name = String::from_utf8(name.to_vec()).ok().filter(|name| is_file_name(name));
    let name = name.ok_or(BackupError::Damaged("a file in it has an invalid name"))?;
    Ok(BackupPart::File { name, bytes })
}

/// Returns whether a name is a relative path without `.` and `..`. The check prevents a restore from writing outside of
/// the data directory: the checksum shows that a backup is unchanged, not who wrote it.
fn is_file_name(name: &str) -> bool {
    let is_good = |segment: &str| !matches!(segment, "" | "." | "..") && !segment.contains(['\\', '\0']);
    name.len() <= MAX_NAME_BYTES && name.split('/').all(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> BackupHeader {
        let fleet = FleetRecord { fleet: "f".to_owned(), controller: Uuid::from_u128(1), names: vec![] };
        let (epoch, program) = (Uuid::from_u128(2), "p 1".to_owned());
        BackupHeader { fleet, epoch, base: 0, revision: 9, schema: SCHEMA_VERSION, program, at_s: 7 }
    }

    fn parts() -> Vec<BackupPart> {
        let entry = |key: &'static str, value: &'static str| Entry {
            key: key.into(),
            value: value.into(),
            create_revision: Revision::new(1),
            mod_revision: Revision::new(258),
            version: 3,
        };
        let file = BackupPart::File { name: "trust/root.key".to_owned(), bytes: "k".into() };
        vec![BackupPart::Entry(entry("a", "")), BackupPart::Entry(entry("b/\u{0}", "v")), file]
    }

    fn encoded() -> Vec<u8> {
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

    fn read(bytes: &[u8]) -> Result<(BackupHeader, Vec<BackupPart>), BackupError> {
        let (mut reader, head) = BackupReader::begin(bytes)?;
        let mut parts = Vec::new();
        while let Some(part) = reader.next_part()? {
            parts.push(part);
        }
        Ok((head, parts))
    }

    #[test]
    fn x02_backup_reader_returns_written_parts() {
        assert_eq!(read(&encoded()).unwrap(), (head(), parts()));
    }

    #[test]
    fn x02_backup_reader_fails_when_file_is_truncated_or_changed() {
        let whole = encoded();
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
        assert!(read(&[&whole[..], b"x"].concat()).is_err(), "there is something after it");
    }

    #[test]
    fn x02_backup_reader_names_newer_version_and_other_formats() {
        let newer = [b"stemma-backup 2\n", &encoded()[MAGIC.len()..]].concat();
        assert_eq!(
            read(&newer).unwrap_err().to_string(),
            "a newer stemma-controller wrote it (version 2 of the file): restore it with that version"
        );
        let (_, bytes) = Encoder::begin(&BackupHeader { schema: SCHEMA_VERSION + 1, ..head() });
        assert!(matches!(read(&bytes), Err(BackupError::Newer(program)) if program == "p 1"));
        for other in [&b""[..], b"age-encryption.org/v1\n...................", b"PK"] {
            assert!(matches!(read(other), Err(BackupError::NotABackup)));
        }
    }

    #[test]
    fn x02_backup_reader_rejects_file_name_outside_directory() {
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
            assert_eq!(is_file_name(name), is_good, "{name:?}");
        }
    }
}
