//! The controller's own certificates, as a server and as a signer. They are issued at the start of the controller and
//! renewed while it runs.
//!
//! Their keys are created together with the certificates and never written to a disk. A key that is not on a disk
//! cannot be copied from it, and the keys of the issuers, which are on the disk, can issue new certificates at any
//! time. So no certificate has to be valid at the next start.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use stemma_wire::clock::Clock;
use stemma_wire::serve::TlsSource;
use stemma_wire::sign::Signer;
use stemma_wire::tls::{ListenerRole, RENEW_GRACE_SECONDS, ServerKey, TlsListener, server_config};
use uuid::Uuid;

use super::StartError;
use crate::ca::{Authority, CaError, IssueError, ServerName};

/// What is needed to issue the controller's own certificates.
pub(super) struct ControllerKeys {
    pub(super) authority: Arc<Authority>,
    pub(super) controller: Uuid,
    pub(super) names: Vec<ServerName>,
    /// The name by which hosts and people reach this controller, if one was configured.
    pub(super) own_name: Option<ServerName>,
    pub(super) clock: Arc<dyn Clock>,
}

/// The TLS configurations of both listeners, which are replaced together.
pub(super) struct TlsConfigs {
    agents: ArcSwap<ServerConfig>,
    admin: ArcSwap<ServerConfig>,
}

impl ControllerKeys {
    /// Issues a new signer.
    pub(super) fn new_signer(&self) -> Result<Signer, CaError> {
        let issued = self.authority.issue_signer(self.controller, self.clock.unix_seconds())?;
        let key = issued.key.expect("a signer's key is made with its certificate");
        let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
        Ok(Signer::new(key.secret_der(), chain).expect("the key was made as Ed25519 in PKCS#8"))
    }

    /// Builds the TLS configurations with a new server certificate.
    pub(super) fn tls_configs(&self) -> Result<TlsConfigs, StartError> {
        let (agents, admin) = self.new_configs()?;
        Ok(TlsConfigs { agents: ArcSwap::new(agents), admin: ArcSwap::new(admin) })
    }

    /// Replaces the server certificate. Connections that are opened afterwards get the new one.
    pub(super) fn renew(&self, tls: &TlsConfigs) -> Result<(), StartError> {
        let (agents, admin) = self.new_configs()?;
        tls.agents.store(agents);
        tls.admin.store(admin);
        Ok(())
    }

    /// Issues a server certificate, and builds the TLS configurations of the agents' and the admin listener with it.
    fn new_configs(&self) -> Result<(Arc<ServerConfig>, Arc<ServerConfig>), StartError> {
        let issued = self
            .authority
            .issue_server(self.controller, &self.names, self.clock.unix_seconds())
            .map_err(|error: IssueError| CaError::from(error))?;
        let key = issued.key.expect("a server's key is made with its certificate");
        let build = |accepts, issuer: &rustls_pki_types::CertificateDer<'static>| {
            let listener = TlsListener { role: accepts, fleet: self.authority.fleet().clone(), issuers: vec![issuer.clone()] };
            let server_key = ServerKey { chain: issued.chain.clone(), key: key.clone_key() };
            server_config(&listener, server_key, Arc::clone(&self.clock)).map(Arc::new)
        };
        let agents = ListenerRole::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS };
        Ok((build(agents, self.authority.agents_issuer())?, build(ListenerRole::Admins, self.authority.admin_issuer())?))
    }
}

impl TlsConfigs {
    /// Returns the source of the TLS configuration for each connection to the agents' listener.
    pub(super) fn agent_tls_source(self: &Arc<Self>) -> TlsSource {
        let configs = Arc::clone(self);
        Arc::new(move || configs.agents.load_full())
    }

    /// Returns the source of the TLS configuration for each connection to the admin listener.
    pub(super) fn admin_tls_source(self: &Arc<Self>) -> TlsSource {
        let configs = Arc::clone(self);
        Arc::new(move || configs.admin.load_full())
    }
}
