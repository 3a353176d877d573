//! The controller's own certificates: one for its TLS listeners, and one for the signer of desired states. They are
//! issued when the controller starts, and renewed while it runs.
//!
//! Their keys are created together with the certificates and never written to a disk, so they cannot be copied from a
//! disk. No certificate has to be valid at the next start, because the keys of the issuers are on the disk and can
//! issue new certificates at any time.

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

/// The data from which the controller's own certificates are issued.
pub(super) struct ControllerKeys {
    pub(super) authority: Arc<Authority>,
    pub(super) controller: Uuid,
    pub(super) names: Vec<ServerName>,
    /// The name by which hosts and people reach this controller: the first one of the configuration or else of `init`.
    pub(super) own_name: Option<ServerName>,
    pub(super) clock: Arc<dyn Clock>,
}

/// The TLS configurations of the agents' listener and the admin listener. They are replaced together.
pub(super) struct TlsConfigs {
    agents: ArcSwap<ServerConfig>,
    admin: ArcSwap<ServerConfig>,
}

impl ControllerKeys {
    /// Issues a signer's certificate with a new key, and returns the signer of desired states that uses both.
    pub(super) fn new_signer(&self) -> Result<Signer, CaError> {
        let signer_certificate = self.authority.issue_signer(self.controller, self.clock.unix_seconds())?;
        let key = signer_certificate.key.expect("a signer's key is made with its certificate");
        let chain = signer_certificate.chain.iter().map(|certificate| certificate.to_vec()).collect();
        Ok(Signer::new(key.secret_der(), chain).expect("the key was made as Ed25519 in PKCS#8"))
    }

    /// Issues a server certificate, and returns the TLS configurations of both listeners with that certificate.
    pub(super) fn tls_configs(&self) -> Result<TlsConfigs, StartError> {
        let (agents, admin) = self.new_configs()?;
        Ok(TlsConfigs { agents: ArcSwap::new(agents), admin: ArcSwap::new(admin) })
    }

    /// Replaces the server certificate of both listeners. Only connections that are opened later get the new
    /// certificate.
    pub(super) fn renew(&self, tls: &TlsConfigs) -> Result<(), StartError> {
        let (agents, admin) = self.new_configs()?;
        tls.agents.store(agents);
        tls.admin.store(admin);
        Ok(())
    }

    /// Issues a server certificate. Returns the TLS configurations of the agents' listener and the admin listener with
    /// this certificate.
    fn new_configs(&self) -> Result<(Arc<ServerConfig>, Arc<ServerConfig>), StartError> {
        let server_certificate = self
            .authority
            .issue_server(self.controller, &self.names, self.clock.unix_seconds())
            .map_err(|error: IssueError| CaError::from(error))?;
        let key = server_certificate.key.expect("a server's key is made with its certificate");
        let build = |role, issuer: &rustls_pki_types::CertificateDer<'static>| {
            let listener = TlsListener { role, fleet: self.authority.fleet().clone(), issuers: vec![issuer.clone()] };
            let server_key = ServerKey { chain: server_certificate.chain.clone(), key: key.clone_key() };
            server_config(&listener, server_key, Arc::clone(&self.clock)).map(Arc::new)
        };
        let agents = ListenerRole::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS };
        Ok((build(agents, self.authority.agents_issuer())?, build(ListenerRole::Admins, self.authority.admin_issuer())?))
    }
}

impl TlsConfigs {
    /// Returns the function that provides the current TLS configuration for each new connection to the agents'
    /// listener.
    pub(super) fn agent_tls_source(self: &Arc<Self>) -> TlsSource {
        let configs = Arc::clone(self);
        Arc::new(move || configs.agents.load_full())
    }

    /// Returns the function that provides the current TLS configuration for each new connection to the admin listener.
    pub(super) fn admin_tls_source(self: &Arc<Self>) -> TlsSource {
        let configs = Arc::clone(self);
        Arc::new(move || configs.admin.load_full())
    }
}
