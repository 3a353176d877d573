//! The programs that ask logind not to reboot the machine now (`systemd-inhibit`).

use std::io;
use std::time::Duration;

use zbus::Error;
use zbus::connection::Builder;

use super::units::has_bus;
use crate::host::HostError;

/// The name of logind on the bus.
const LOGIND: &str = "org.freedesktop.login1";
const LOGIND_PATH: &str = "/org/freedesktop/login1";
const LOGIND_MANAGER: &str = "org.freedesktop.login1.Manager";

/// Maximum time of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// An inhibitor in the list of logind: what, who, why, mode, uid, process id.
type Inhibitor = (String, String, String, String, u32, u32);

/// Returns who asks logind not to shut the machine down, each with the reason. Without a bus or logind
/// nobody can ask.
///
/// `systemctl reboot --check-inhibitors=yes` would also refuse while a person is logged in, so the list is read here.
///
/// # Errors
/// [`HostError::Io`] if logind is there and does not answer.
pub(super) async fn shutdown_blockers() -> Result<Vec<String>, HostError> {
    if !has_bus() {
        return Ok(Vec::new());
    }
    list_blockers().await.map_err(|error| HostError::io("list the inhibitors of", "logind")(io::Error::other(error)))
}

/// As [`shutdown_blockers`], with the error of the bus.
async fn list_blockers() -> zbus::Result<Vec<String>> {
    let connection = Builder::system().method_timeout(CALL_TIMEOUT).build().await?;
    let reply = match connection.call_method(Some(LOGIND), LOGIND_PATH, Some(LOGIND_MANAGER), "ListInhibitors", &()).await {
        Err(Error::MethodError(name, ..)) if is_absent(&name) => return Ok(Vec::new()),
        reply => reply?,
    };
    let body = reply.body();
    Ok(blockers(&body.deserialize::<Vec<Inhibitor>>()?))
}

/// Returns whether the name of an error means that no logind is there.
fn is_absent(name: &str) -> bool {
    matches!(name, "org.freedesktop.DBus.Error.ServiceUnknown" | "org.freedesktop.DBus.Error.NameHasNoOwner")
}

/// Returns those inhibitors that block a shutdown. An inhibitor with the mode `delay` only delays it, and logind itself
/// waits for it.
fn blockers(inhibitors: &[Inhibitor]) -> Vec<String> {
    let blocks = |(what, _, _, mode, ..): &&Inhibitor| mode == "block" && what.split(':').any(|word| word == "shutdown");
    inhibitors.iter().filter(blocks).map(|(_, who, why, _, _, process)| format!("{who} (process {process}): {why}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines are those of `systemd-inhibit --list` on Debian 12.
    #[test]
    fn blockers_are_inhibitors_of_shutdown_in_mode_block() {
        let inhibitor = |what: &str, who: &str, mode: &str| (what.into(), who.into(), "why".into(), mode.into(), 0, 7);
        let list = [
            inhibitor("sleep", "NetworkManager", "delay"),
            inhibitor("shutdown:idle", "apt", "block"),
            inhibitor("shutdown", "unattended-upgrades", "delay"),
            inhibitor("handle-power-key", "desktop", "block"),
            inhibitor("shutdown", "weak", "block-weak"),
        ];
        assert_eq!(blockers(&list), ["apt (process 7): why"]);
    }
}
