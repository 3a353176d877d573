//! The key pair of this host to which the fleet seals secrets. The root half of the agent creates it, and the private
//! key never leaves the root half.

use x25519_dalek::{PublicKey, StaticSecret};

use super::ledger::{Ledger, SEAL_KEY};
use crate::host::{Host, HostError};

/// Returns the public X25519 key of this host, with which others encrypt secrets for it. If the ledger has no private
/// key, creates a random one and stores it.
///
/// # Errors
/// [`HostError`] if the private key cannot be read or stored.
pub fn seal_key(host: &dyn Host, ledger: &Ledger) -> Result<[u8; 32], HostError> {
    let private_key = if let Some(private_key) = ledger.get(&SEAL_KEY)? {
        private_key
    } else {
        let mut private_key = [0; 32];
        private_key.chunks_exact_mut(8).for_each(|key_part| key_part.copy_from_slice(&host.random().to_ne_bytes()));
        ledger.put(&SEAL_KEY, &private_key)?;
        private_key
    };
    Ok(PublicKey::from(&StaticSecret::from(private_key)).to_bytes())
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::host::memory::MemoryHost;

    #[test]
    fn seal_key_returns_same_key_when_called_again() {
        let host = MemoryHost::new();
        let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
        let first_key = seal_key(&host, &ledger).unwrap();
        assert_eq!(seal_key(&host, &ledger).unwrap(), first_key);
    }
}
