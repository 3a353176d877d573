//! The controller's own certificates: as a server and as a signer, made at the start, renewed while it runs.
//!
//! Their keys are made with them and never written: what is not on a disk cannot be copied from it, and the issuers' keys, which
//! are, make new ones at any time. So nothing has to be renewed in time for the next start.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use stemma_wire::clock::Clock;
use stemma_wire::serve::TlsSource;
use stemma_wire::sign::Signer;
use stemma_wire::tls::{Accepts, Listener, RENEW_GRACE_SECONDS, ServerKey, server_config};
use uuid::Uuid;

use super::StartError;
use crate::ca::{Authority, CaError, IssueError, ServerName};

/// What the certificates of this controller are made of.
pub(super) struct Keys {
    pub(super) authority: Arc<Authority>,
    pub(super) controller: Uuid,
    pub(super) names: Vec<ServerName>,
    /// By which one others reach it, where somebody said so.
    pub(super) own_name: Option<ServerName>,
    pub(super) clock: Arc<dyn Clock>,
}

/// The TLS sides of both listeners, replaced together.
pub(super) struct Sides {
    agents: ArcSwap<ServerConfig>,
    admin: ArcSwap<ServerConfig>,
}

impl Keys {
    /// A new signer.
    pub(super) fn signer(&self) -> Result<Signer, CaError> {
        let issued = self.authority.issue_signer(self.controller, self.clock.unix_seconds())?;
        let key = issued.key.expect("a signer's key is made with its certificate");
        let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
        Ok(Signer::new(key.secret_der(), chain).expect("the key was made as Ed25519 in PKCS#8"))
    }

    /// The TLS sides under a new server certificate.
    pub(super) fn sides(&self) -> Result<Sides, StartError> {
        let (agents, admin) = self.configs()?;
        Ok(Sides { agents: ArcSwap::new(agents), admin: ArcSwap::new(admin) })
    }

    /// Replaces the server certificate: connections that come from now on see the new one.
    pub(super) fn renew(&self, sides: &Sides) -> Result<(), StartError> {
        let (agents, admin) = self.configs()?;
        sides.agents.store(agents);
        sides.admin.store(admin);
        Ok(())
    }

    fn configs(&self) -> Result<(Arc<ServerConfig>, Arc<ServerConfig>), StartError> {
        let issued = self
            .authority
            .issue_server(self.controller, &self.names, self.clock.unix_seconds())
            .map_err(|error: IssueError| CaError::from(error))?;
        let key = issued.key.expect("a server's key is made with its certificate");
        let side = |accepts, issuer: &rustls_pki_types::CertificateDer<'static>| {
            let listener = Listener { accepts, fleet: self.authority.fleet().clone(), issuers: vec![issuer.clone()] };
            let own = ServerKey { chain: issued.chain.clone(), key: key.clone_key() };
            server_config(&listener, own, Arc::clone(&self.clock)).map(Arc::new)
        };
        let agents = Accepts::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS };
        Ok((side(agents, self.authority.agents_issuer())?, side(Accepts::Admins, self.authority.admin_issuer())?))
    }
}

impl Sides {
    /// What the agents' listener asks for each connection.
    pub(super) fn agents(self: &Arc<Self>) -> TlsSource {
        let sides = Arc::clone(self);
        Arc::new(move || sides.agents.load_full())
    }

    /// What the admin listener asks for each connection.
    pub(super) fn admin(self: &Arc<Self>) -> TlsSource {
        let sides = Arc::clone(self);
        Arc::new(move || sides.admin.load_full())
    }
}
