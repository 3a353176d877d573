//! The key that a fleet's secrets are sealed to: made by the root half, and its private half never leaves it.

use x25519_dalek::{PublicKey, StaticSecret};

use super::ledger::{Ledger, SEAL_KEY};
use crate::host::{Host, HostError};

/// The public half, X25519; the key is made and kept where there is none.
///
/// # Errors
/// [`HostError`] when it cannot be read or kept.
pub fn seal_key(host: &dyn Host, ledger: &Ledger) -> Result<[u8; 32], HostError> {
    let private = if let Some(private) = ledger.get(&SEAL_KEY)? {
        private
    } else {
        let mut private = [0; 32];
        private.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&host.random().to_ne_bytes()));
        ledger.put(&SEAL_KEY, &private)?;
        private
    };
    Ok(PublicKey::from(&StaticSecret::from(private)).to_bytes())
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::host::memory::MemoryHost;

    #[test]
    fn a_host_keeps_its_key() {
        let host = MemoryHost::new();
        let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
        let made = seal_key(&host, &ledger).unwrap();
        assert_eq!(seal_key(&host, &ledger).unwrap(), made);
    }
}
