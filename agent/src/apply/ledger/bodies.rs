//! Profiles and blobs by hash: what the desired state names.
//!
//! A body arrives in pieces and may be 64 MiB: it goes to disk as it comes, hashed on the way, under a name that
//! nobody waits for, and has its own name only when it is what that says.

use std::collections::BTreeSet;

use log::warn;
use sha2::{Digest as _, Sha256};
use stemma_core::digest::sha256;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::Profile;

use super::{Desired, Ledger, part};
use crate::host::HostError;
use crate::host::atomic::{Attributes, Staging};

/// The largest body: a blob.
const LARGEST: u64 = 64 * 1024 * 1024;

/// Only the agent reads it.
const MODE: u32 = 0o600;

/// A body on its way to the ledger.
pub struct Arriving {
    hash: Hash,
    digest: Sha256,
    length: u64,
    staging: Staging,
}

/// What a piece made of a body.
pub enum Piece {
    /// More is to come.
    More(Box<Arriving>),
    /// It is whole, and kept.
    Whole,
    /// It is larger than any body; nothing of it was kept.
    TooLarge,
}

impl Arriving {
    /// The name of the whole.
    #[must_use]
    pub const fn hash(&self) -> Hash {
        self.hash
    }
}

impl Ledger {
    /// A profile or blob; one whose bytes no longer have its hash is taken away (S68, at rest).
    ///
    /// # Errors
    /// [`HostError`].
    pub fn body(&self, hash: Hash) -> Result<Option<Vec<u8>>, HostError> {
        let name = hash.to_string();
        let Some(bytes) = self.bodies.read(&name, LARGEST)? else { return Ok(None) };
        if sha256(&bytes) == hash.0 {
            return Ok(Some(bytes));
        }
        warn!(hash = name.as_str(); "a body in the ledger has changed at rest; it is fetched again");
        self.bodies.remove(&name)?;
        Ok(None)
    }

    /// The profile of a desired state; one that names none has no tasks. `None`: it is not here, or not readable.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn profile(&self, desired: &Desired) -> Result<Option<Profile>, HostError> {
        let Some(hash) = desired.task_set.profile else { return Ok(Some(Profile::default())) };
        let bytes = self.body(hash)?;
        Ok(bytes.as_deref().and_then(|bytes| part(desired.version, bytes)))
    }

    /// Whether a body is there, without reading it.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn has_body(&self, hash: Hash) -> Result<bool, HostError> {
        Ok(self.bodies.stat(&hash.to_string())?.is_some())
    }

    /// How large a body is; `None` where it is not here.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn body_size(&self, hash: Hash) -> Result<Option<u64>, HostError> {
        Ok(self.bodies.stat(&hash.to_string())?.map(|stat| stat.size))
    }

    /// Writes a body into a file in the making, hashed on the way; `false` where it is not here, or no longer what its name
    /// says (S68), and is taken away.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn copy_body(&self, hash: Hash, to: &mut Staging) -> Result<bool, HostError> {
        let name = hash.to_string();
        let mut digest = Sha256::new();
        let there = self.bodies.pieces(&name, LARGEST, &mut |piece| {
            digest.update(piece);
            to.write(piece)
        })?;
        let is_whole = <[u8; 32]>::from(digest.finalize()) == hash.0;
        if there && !is_whole {
            warn!(hash:% = hash; "a body in the ledger has changed at rest; it is fetched again");
            self.bodies.remove(&name)?;
        }
        Ok(there && is_whole)
    }

    /// The beginning of a body: nothing of it is there yet.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn arriving(&self, hash: Hash) -> Result<Box<Arriving>, HostError> {
        let staging = Staging::begin(&*self.host, &*self.bodies, &hash.to_string(), &Attributes::mode(MODE))?;
        Ok(Box::new(Arriving { hash, digest: Sha256::new(), length: 0, staging }))
    }

    /// Takes the next piece of a body, and keeps the whole when that is what its name says (S68, on the way).
    ///
    /// # Errors
    /// [`HostError`]; nothing of the body was kept then.
    pub fn take_piece(&self, mut arriving: Box<Arriving>, bytes: &[u8]) -> Result<Piece, HostError> {
        arriving.length += bytes.len() as u64;
        if arriving.length > LARGEST {
            self.give_up(*arriving);
            return Ok(Piece::TooLarge);
        }
        if let Err(error) = arriving.staging.write(bytes) {
            self.give_up(*arriving);
            return Err(error);
        }
        arriving.digest.update(bytes);
        let so_far: [u8; 32] = arriving.digest.clone().finalize().into();
        if so_far != arriving.hash.0 {
            return Ok(Piece::More(arriving));
        }
        let staged = arriving.staging.finish(&*self.bodies)?;
        staged.commit(&*self.bodies, &arriving.hash.to_string())?;
        Ok(Piece::Whole)
    }

    /// Drops what has come of a body.
    pub fn give_up(&self, arriving: Arriving) {
        arriving.staging.discard(&*self.bodies);
    }

    /// Drops the bodies that nothing names any more.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn keep_bodies(&self, wanted: &BTreeSet<Hash>) -> Result<(), HostError> {
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
    /// Keeps a body at once.
    pub(crate) fn store_body(&self, hash: Hash, bytes: &[u8]) -> Result<(), HostError> {
        match self.take_piece(self.arriving(hash)?, bytes)? {
            Piece::Whole => Ok(()),
            Piece::More(_) | Piece::TooLarge => panic!("a test gave other bytes"),
        }
    }
}
