//! The backup format: one file that contains a whole fleet. A restore needs nothing else.
//!
//! ```text
//!   magic │ head │ entry … │ file … │ end
//! ```
//!
//! Each part after the magic is a frame: one byte for its kind, four bytes for its length (big-endian), then its
//! content. The head is JSON. An entry is a key of the store with its value and revisions. A file is a file of the data
//! directory: a key, a certificate or a file body. The end is the SHA-256 of all bytes before it. A reader must read to
//! the end and compare this checksum before it uses anything from the file. So it detects a truncated file or a changed
//! bit.

use std::io::{self, Read};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::records::fleet::FleetRecord;
use crate::store::{Entry, Revision, SCHEMA_VERSION};

/// The first bytes of every backup, before its encryption. The number is the version of the format.
const MAGIC: &[u8] = b"stemma-backup 1\n";
/// The part of [`MAGIC`] that is the same in all versions of the format.
const MAGIC_PREFIX: &[u8] = b"stemma-backup ";
/// Maximum length of the content of a frame, in bytes. A frame contains the head, one entry, one file or the checksum
/// of a backup. The largest file is a file body of 64 MiB, with its name.
const MAX_FRAME_BYTES: usize = 65 * 1024 * 1024;
/// Maximum length of the name of a file (its path below the data directory), in bytes.
const MAX_NAME_BYTES: usize = 255;

const HEAD: u8 = 1;
const ENTRY: u8 = 2;
const FILE: u8 = 3;
const END: u8 = 4;

/// The head of a backup. It identifies the fleet, and the revision of the store that the backup contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHeader {
    /// The identity of the fleet, which `init` wrote: its name, the uuid of its controller, and the controller's names.
    pub fleet: FleetRecord,
    /// The first epoch of the fleet, also in a restored store. Later epochs are in an entry of the store.
    pub epoch: Uuid,
    /// The revision after which the revisions of the fleet's first store started. A restored store has the same value.
    pub base: u64,
    /// The revision of the store in this backup.
    pub revision: u64,
    /// The version of the schema with which the store's entries are encoded.
    pub schema: u32,
    /// The name and version of the program that wrote the backup.
    pub program: String,
    /// The time at which the backup was read from the store, in seconds since 1970.
    pub at_s: u64,
}

/// An entry or a file in a backup.
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

/// The reason why a file cannot be used as a backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file could not be read or decrypted.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// The file does not begin with [`MAGIC_PREFIX`], or is shorter than [`MAGIC`], so it is not a backup.
    #[error("it is not a backup of a fleet: it does not begin like one")]
    NotABackup,
    /// A newer program wrote the file. The text names the version of the program or of the format.
    #[error("a newer stemma-controller wrote it ({0}): restore it with that version")]
    Newer(String),
    /// The file ends before its checksum is complete.
    #[error("it was truncated: it ends before its checksum; use another copy of it")]
    Truncated,
    /// The file does not match its checksum, or is malformed. The text describes the damage.
    #[error("it is damaged: {0}; use another copy of it")]
    Damaged(&'static str),
}

/// An encoder of the frames of a backup. It computes the checksum of all bytes that it has returned.
pub(super) struct Encoder {
    digest: Sha256,
}

impl Encoder {
    /// Starts a backup. Returns the encoder and the first bytes of the backup: the magic and the head.
    pub(super) fn begin(head: &BackupHeader) -> (Self, Bytes) {
        let mut encoder = Self { digest: Sha256::new() };
        encoder.digest.update(MAGIC);
        let head = serde_json::to_vec(head).expect("a head is texts and numbers");
        let frame = encoder.encode_frame(HEAD, &[&head]);
        (encoder, [MAGIC, &frame].concat().into())
    }

    /// Encodes an entry or a file as one frame.
    pub(super) fn encode_part(&mut self, part: &BackupPart) -> Bytes {
        match part {
            BackupPart::Entry(entry) => {
                let numbers = [entry.create_revision.get(), entry.mod_revision.get(), entry.version];
                let numbers: Vec<u8> = numbers.into_iter().flat_map(u64::to_be_bytes).collect();
                self.encode_frame(ENTRY, &[&numbers, &encode_length(&entry.key), &entry.key, &entry.value])
            }
            BackupPart::File { name, bytes } => {
                self.encode_frame(FILE, &[&encode_length(name.as_bytes()), name.as_bytes(), bytes])
            }
        }
    }

    /// Encodes the last frame of the backup, which contains the checksum.
    pub(super) fn encode_end(mut self) -> Bytes {
        let digest = self.digest.clone().finalize();
        self.encode_frame(END, &[&digest])
    }

    /// Encodes one frame with the joined `parts` as its content, and adds it to the checksum. A frame has the byte
    /// `kind`, the length of the content, and the content.
    fn encode_frame(&mut self, kind: u8, parts: &[&[u8]]) -> Bytes {
        let bytes = parts.concat();
        let frame = [&[kind][..], &encode_length(&bytes), &bytes].concat();
        self.digest.update(&frame);
        frame.into()
    }
}

/// Encodes the length of these bytes as four bytes, big-endian.
fn encode_length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).expect("entries and bodies have limits far below 4 GiB").to_be_bytes()
}

/// A reader of a backup. The backup is only known to be complete and unchanged after [`BackupReader::next_part`] has
/// returned `None`.
pub struct BackupReader<R> {
    from: R,
    digest: Sha256,
}

impl<R: Read> BackupReader<R> {
    /// Reads the magic and the head of a backup. Returns the reader for the following parts, and the head.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is not a backup, is incomplete or damaged, or is of a newer program.
    pub fn begin(mut source: R) -> Result<(Self, BackupHeader), BackupError> {
        let mut magic = vec![0; MAGIC.len()];
        source.read_exact(&mut magic).map_err(|error| match error.kind() {
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
        let mut reader = Self { from: source, digest: Sha256::new() };
        reader.digest.update(MAGIC);
        let (kind, bytes) = reader.read_frame()?;
        if kind != HEAD {
            return Err(BackupError::Damaged("its head is missing"));
        }
        let head: BackupHeader = serde_json::from_slice(&bytes).map_err(|_| BackupError::Damaged("its head cannot be read"))?;
        if head.schema > SCHEMA_VERSION {
            return Err(BackupError::Newer(head.program));
        }
        Ok((reader, head))
    }

    /// Returns the next entry or file, or `None` at the end of the backup if its checksum matches.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is damaged or truncated ([`BackupError`]).
    pub fn next_part(&mut self) -> Result<Option<BackupPart>, BackupError> {
        // The last frame contains the checksum of all bytes before that frame.
        let expected: [u8; 32] = self.digest.clone().finalize().into();
        let (kind, bytes) = self.read_frame()?;
        match kind {
            ENTRY => parse_entry(&bytes).map(|entry| Some(BackupPart::Entry(entry))),
            FILE => parse_file(&bytes).map(Some),
            END if bytes[..] != expected => Err(BackupError::Damaged("its checksum does not match")),
            END if self.from.read(&mut [0])? > 0 => Err(BackupError::Damaged("there are bytes after its end")),
            END => Ok(None),
            _ => Err(BackupError::Damaged("it has a part of an unknown kind")),
        }
    }

    /// Reads one frame and adds its bytes to the checksum. Returns the frame's kind and content.
    fn read_frame(&mut self) -> Result<(u8, Bytes), BackupError> {
        // One byte for the kind, and four for the length of the content.
        let mut header = [0; 5];
        self.read_exact(&mut header)?;
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(BackupError::Damaged("a part of it is longer than the limit"));
        }
        // A damaged file may state a length that is much too large. So memory is allocated only as bytes are read.
        let mut bytes = Vec::new();
        let read_length = (&mut self.from).take(length as u64).read_to_end(&mut bytes)?;
        if read_length < length {
            return Err(BackupError::Truncated);
        }
        self.digest.update(header);
        self.digest.update(&bytes);
        Ok((header[0], bytes.into()))
    }

    /// Fills `bytes` from the file. Fails with [`BackupError::Truncated`] if the file ends too early.
    fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), BackupError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackupError::Truncated,
            _ => error.into(),
        })
    }
}

/// Splits bytes that begin with a length (four bytes) and a text of this length. Returns the text, and the bytes after
/// it. Returns `None` if there are too few bytes.
fn split_prefixed(bytes: &Bytes) -> Option<(Bytes, Bytes)> {
    let (length, _) = bytes.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let end = length.checked_add(4).filter(|end| *end <= bytes.len())?;
    Some((bytes.slice(4..end), bytes.slice(end..)))
}

/// Parses the content of an entry frame: create revision, mod revision, version, key and value.
fn parse_entry(bytes: &Bytes) -> Result<Entry, BackupError> {
    let damaged = BackupError::Damaged("an entry in it ends too early");
    let read_number = |index: usize| Some(u64::from_be_bytes(*bytes.get(index * 8..)?.first_chunk()?));
    let numbers = (read_number(0), read_number(1), read_number(2));
    let (Some(create), Some(last_write), Some(version)) = numbers else { return Err(damaged) };
    let Some((key, value)) = split_prefixed(&bytes.slice(24..)) else { return Err(damaged) };
    let (create_revision, mod_revision) = (Revision::new(create), Revision::new(last_write));
    Ok(Entry { key, value, create_revision, mod_revision, version })
}

/// Parses the content of a file frame: its name and its bytes.
fn parse_file(bytes: &Bytes) -> Result<BackupPart, BackupError> {
    let (name, bytes) = split_prefixed(bytes).ok_or(BackupError::Damaged("a file in it ends too early"))?;
    let name = String::from_utf8(name.to_vec()).ok().filter(|name| is_file_name(name));
    let name = name.ok_or(BackupError::Damaged("a file in it has an invalid name"))?;
    Ok(BackupPart::File { name, bytes })
}

/// Returns whether a name is a relative path without empty segments, `.` and `..`. Other names could make a restore
/// write outside of the data directory. The checksum does not prevent this, because anyone can compute it.
fn is_file_name(name: &str) -> bool {
    let is_valid_segment = |segment: &str| !matches!(segment, "" | "." | "..") && !segment.contains(['\\', '\0']);
    name.len() <= MAX_NAME_BYTES && name.split('/').all(is_valid_segment)
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

    fn encode_backup() -> Vec<u8> {
        let (mut encoder, mut bytes) = {
            let (encoder, first_bytes) = Encoder::begin(&head());
            (encoder, first_bytes.to_vec())
        };
        for part in parts() {
            bytes.extend(encoder.encode_part(&part));
        }
        bytes.extend(encoder.encode_end());
        bytes
    }

    fn read_backup(bytes: &[u8]) -> Result<(BackupHeader, Vec<BackupPart>), BackupError> {
        let (mut reader, head) = BackupReader::begin(bytes)?;
        let mut parts = Vec::new();
        while let Some(part) = reader.next_part()? {
            parts.push(part);
        }
        Ok((head, parts))
    }

    #[test]
    fn x02_backup_reader_returns_written_parts() {
        assert_eq!(read_backup(&encode_backup()).unwrap(), (head(), parts()));
    }

    #[test]
    fn x02_backup_reader_fails_when_file_is_truncated_or_changed() {
        let backup = encode_backup();
        for length in 0..backup.len() {
            assert!(read_backup(&backup[..length]).is_err(), "cut at {length}");
        }
        for index in 0..backup.len() {
            for bit in 0..8 {
                let mut changed = backup.clone();
                changed[index] ^= 1 << bit;
                assert!(read_backup(&changed).is_err(), "bit {bit} of byte {index}");
            }
        }
        assert!(read_backup(&[&backup[..], b"x"].concat()).is_err(), "a byte after the end");
    }

    #[test]
    fn x02_backup_reader_rejects_newer_versions_and_other_formats() {
        let newer = [b"stemma-backup 2\n", &encode_backup()[MAGIC.len()..]].concat();
        assert_eq!(
            read_backup(&newer).unwrap_err().to_string(),
            "a newer stemma-controller wrote it (version 2 of the file): restore it with that version"
        );
        let (_, bytes) = Encoder::begin(&BackupHeader { schema: SCHEMA_VERSION + 1, ..head() });
        assert!(matches!(read_backup(&bytes), Err(BackupError::Newer(program)) if program == "p 1"));
        for other in [&b""[..], b"age-encryption.org/v1\n...................", b"PK"] {
            assert!(matches!(read_backup(other), Err(BackupError::NotABackup)));
        }
    }

    #[test]
    fn x02_is_file_name_accepts_only_clean_relative_paths() {
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
