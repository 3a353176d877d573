//! Profiles and blobs, here called bodies, by their hash, as the desired state names them.
//!
//! A body arrives in pieces and may have 64 MiB. It is written to disk under a temporary name and hashed as it arrives.
//! The file is named after the hash only when its content has this hash.

use std::collections::BTreeSet;

use log::warn;
use sha2::{Digest as _, Sha256};
use stemma_core::digest::sha256;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::Profile;

use super::{Desired, Ledger, read_part};
use crate::host::HostError;
use crate::host::atomic::{Attributes, Staging};

/// Maximum size of a body, in bytes: the size of a blob.
const MAX_BODY_BYTES: u64 = 64 * 1024 * 1024;

/// File mode of a body: only the agent reads it.
const BODY_MODE: u32 = 0o600;

/// A body that has not arrived completely.
pub struct IncomingBody {
    hash: Hash,
    digest: Sha256,
    length: u64,
    staging: Staging,
}

/// The state of a body after a piece.
pub enum BodyProgress {
    /// More pieces are needed.
    More(Box<IncomingBody>),
    /// The body is complete and stored.
    Complete,
    /// The body is larger than allowed. Nothing of it was stored.
    TooLarge,
}

impl IncomingBody {
    /// The hash of the complete body.
    #[must_use]
    pub const fn hash(&self) -> Hash {
        self.hash
    }
}

impl Ledger {
    /// Returns a profile or blob, or `None` if it is missing. Removes the file if its content no longer has the hash,
    /// so that the body is requested again (S68, at rest).
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

    /// Returns the profile of a desired state, or `None` if it is missing or unreadable. A desired state that names no
    /// profile has no tasks.
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

    /// Copies a body into a staged file and checks its hash. Returns `false` if the body does not exist, or if it no
    /// longer has the hash. In the latter case it is also removed, so that it is requested again (S68).
    ///
    /// # Errors
    /// [`HostError`].
    pub fn copy_body(&self, hash: Hash, to: &mut Staging) -> Result<bool, HostError> {
        let name = hash.to_string();
        let mut digest = Sha256::new();
        let exists = self.bodies.read_chunks(&name, MAX_BODY_BYTES, &mut |piece| {
            digest.update(piece);
            to.write(piece)
        })?;
        let is_whole = <[u8; 32]>::from(digest.finalize()) == hash.0;
        if exists && !is_whole {
            warn!(hash:% = hash; "a body in the ledger has changed at rest; it is fetched again");
            self.bodies.remove(&name)?;
        }
        Ok(exists && is_whole)
    }

    /// Begins to receive a body: creates a file with a temporary name, without any content yet.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn begin_body(&self, hash: Hash) -> Result<Box<IncomingBody>, HostError> {
        let staging = Staging::begin(&*self.host, &*self.bodies, &hash.to_string(), &Attributes::with_mode(BODY_MODE))?;
        Ok(Box::new(IncomingBody { hash, digest: Sha256::new(), length: 0, staging }))
    }

    /// Appends the next piece of a body. When the content so far has the hash, the body is complete, and is stored
    /// under its hash (S68, in transit).
    ///
    /// # Errors
    /// [`HostError`]. Nothing of the body was stored then.
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
        let so_far: [u8; 32] = incoming.digest.clone().finalize().into();
        if so_far != incoming.hash.0 {
            return Ok(BodyProgress::More(incoming));
        }
        let staged = incoming.staging.finish(&*self.bodies)?;
        staged.commit(&*self.bodies, &incoming.hash.to_string())?;
        Ok(BodyProgress::Complete)
    }

    /// Discards an incomplete body.
    pub fn discard_body(&self, incoming: IncomingBody) {
        incoming.staging.discard(&*self.bodies);
    }

    /// Removes the bodies that are not wanted any more.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn retain_bodies(&self, wanted: &BTreeSet<Hash>) -> Result<(), HostError> {
        let wanted: BTreeSet<_> = wanted.iter().map(ToString::to_string).collect();
        for name in self.bodies.names()? {
            if !wanted.contains(&name) && !name.starts_with('.') {
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
            BodyProgress::More(_) | BodyProgress::TooLarge => panic!("a test gave other bytes"),
        }
    }
}
