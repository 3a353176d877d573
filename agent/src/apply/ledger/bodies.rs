//! Bodies, stored by their hash. A body is a profile (the list of tasks) or a blob (the content of a file). The desired
//! state refers to bodies by their hash.
//!
//! A body arrives in pieces and may have 64 MiB. It is written to disk under a temporary name and hashed as it arrives.
//! The file is named after the hash only when its content has this hash.

use std::collections::BTreeSet;

use log::warn;
use sha2::{Digest as _, Sha256};
use stemma_core::digest::sha256;
use stemma_wire::message::desired::Profile;
use stemma_wire::message::{Hash, MAX_BLOB_BYTES};

use super::{Desired, Ledger, read_part};
use crate::host::HostError;
use crate::host::atomic::{Attributes, UnfinishedFile};

/// Maximum size of a body, in bytes. It is the maximum size of a blob.
const MAX_BODY_BYTES: u64 = MAX_BLOB_BYTES as u64;

/// File mode of a stored body. Only the user of the agent can read and write the file.
const BODY_MODE: u32 = 0o600;

/// A body (profile or blob) of which further pieces are still to arrive.
pub struct IncomingBody {
    hash: Hash,
    digest: Sha256,
    length: u64,
    staging: UnfinishedFile,
}

/// The state of a body after one of its pieces was appended.
pub enum BodyProgress {
    /// More pieces are needed.
    More(Box<IncomingBody>),
    /// The body is complete and stored.
    Complete,
    /// The body is larger than allowed. Nothing of it was stored.
    TooLarge,
}

impl IncomingBody {
    /// Returns the hash that the complete body must have.
    #[must_use]
    pub const fn hash(&self) -> Hash {
        self.hash
    }
}

impl Ledger {
    /// Returns a body (profile or blob), or `None` if it is missing. If the content no longer has the hash, removes the
    /// file and returns `None`, so that the body is requested again (S68, at rest).
    ///
    /// # Errors
    /// [`HostError`].
    pub fn body(&self, hash: Hash) -> Result<Option<Vec<u8>>, HostError> {
        let name = hash.to_string();
        let Some(bytes) = self.bodies.read(&name, MAX_BODY_BYTES)? else { return Ok(None) };
        if sha256(&bytes) == hash.0 {
            return Ok(Some(bytes));
        }
        warn!(hash = name.as_str(); "a body in the ledger has changed at rest; it is fetched again");
        self.bodies.remove(&name)?;
        Ok(None)
    }

    /// Returns the profile (the list of tasks) of a desired state, or `None` if the profile is missing or unreadable.
    /// For a desired state that refers to no profile, returns an empty profile.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn profile(&self, desired: &Desired) -> Result<Option<Profile>, HostError> {
        let Some(hash) = desired.task_set.profile else { return Ok(Some(Profile::default())) };
        let bytes = self.body(hash)?;
        Ok(bytes.as_deref().and_then(|bytes| read_part(desired.version, bytes)))
    }

    /// Returns whether a body exists, without reading it.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn has_body(&self, hash: Hash) -> Result<bool, HostError> {
        Ok(self.bodies.stat(&hash.to_string())?.is_some())
    }

    /// Returns the size of a body, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn body_size(&self, hash: Hash) -> Result<Option<u64>, HostError> {
        Ok(self.bodies.stat(&hash.to_string())?.map(|stat| stat.size))
    }

    /// Copies a body into a staged file, and checks its hash. Returns `false` if the body does not exist, or no longer
    /// has the hash. A body without the right hash is also removed, so that it is requested again (S68).
    ///
    /// # Errors
    /// [`HostError`].
    pub fn copy_body(&self, hash: Hash, to: &mut UnfinishedFile) -> Result<bool, HostError> {
        let name = hash.to_string();
        let mut digest = Sha256::new();
        let exists = self.bodies.read_chunks(&name, MAX_BODY_BYTES, &mut |piece| {
            digest.update(piece);
            to.write(piece)
        })?;
        let has_hash = <[u8; 32]>::from(digest.finalize()) == hash.0;
        if exists && !has_hash {
            warn!(hash:% = hash; "a body in the ledger has changed at rest; it is fetched again");
            self.bodies.remove(&name)?;
        }
        Ok(exists && has_hash)
    }

    /// Begins to receive a body: creates a file with a temporary name, without any content yet.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn begin_body(&self, hash: Hash) -> Result<Box<IncomingBody>, HostError> {
        let staging = UnfinishedFile::begin(&*self.host, &*self.bodies, &hash.to_string(), &Attributes::with_mode(BODY_MODE))?;
        Ok(Box::new(IncomingBody { hash, digest: Sha256::new(), length: 0, staging }))
    }

    /// Appends the next piece of a body. When the content up to this piece has the hash, the body is complete, and is
    /// stored under its hash (S68, in transit).
    ///
    /// # Errors
    /// [`HostError`]. The pieces of the body that arrived before are then discarded.
    pub fn append_piece(&self, mut incoming: Box<IncomingBody>, bytes: &[u8]) -> Result<BodyProgress, HostError> {
        incoming.length += bytes.len() as u64;
        if incoming.length > MAX_BODY_BYTES {
            self.discard_body(*incoming);
            return Ok(BodyProgress::TooLarge);
        }
        if let Err(error) = incoming.staging.write(bytes) {
            self.discard_body(*incoming);
            return Err(error);
        }
        incoming.digest.update(bytes);
        let digest: [u8; 32] = incoming.digest.clone().finalize().into();
        if digest != incoming.hash.0 {
            return Ok(BodyProgress::More(incoming));
        }
        let staged = incoming.staging.finish(&*self.bodies)?;
        staged.commit(&*self.bodies, &incoming.hash.to_string())?;
        Ok(BodyProgress::Complete)
    }

    /// Discards an incomplete body, and removes its temporary file.
    pub fn discard_body(&self, incoming: IncomingBody) {
        incoming.staging.discard(&*self.bodies);
    }

    /// Removes all stored bodies that are not in `needed_hashes`. Files whose names begin with a dot remain, because
    /// they belong to bodies that still arrive.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn retain_bodies(&self, needed_hashes: &BTreeSet<Hash>) -> Result<(), HostError> {
        let needed_hashes: BTreeSet<_> = needed_hashes.iter().map(ToString::to_string).collect();
        for name in self.bodies.names()? {
            if !needed_hashes.contains(&name) && !name.starts_with('.') {
                self.bodies.remove(&name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl Ledger {
    /// Stores a complete body.
    pub(crate) fn store_body(&self, hash: Hash, bytes: &[u8]) -> Result<(), HostError> {
        match self.append_piece(self.begin_body(hash)?, bytes)? {
            BodyProgress::Complete => Ok(()),
            BodyProgress::More(_) | BodyProgress::TooLarge => panic!("the bytes of the test do not have the hash"),
        }
    }
}
