//! Starts of a controller. A refused start has a message that describes the correction (S71, S75).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use stemma_controller::init::init;
use stemma_controller::run::{Options, start};
use stemma_controller::store::{RedbOptions, RedbStore};
use stemma_wire::clock::{Clock as _, SystemClock};

use crate::fleet::{new_config, wait_until};

/// Starts a controller that must not start, and returns the message of the error.
async fn start_error(config: stemma_controller::config::Config) -> String {
    match start(config, Options::default()).await {
        Ok(_) => panic!("the controller started"),
        Err(error) => error.to_string(),
    }
}

/// Creates the data directory of a new fleet, in a temporary directory.
fn new_fleet() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    init(&directory.path().join("data"), &[], SystemClock.unix_seconds()).unwrap();
    directory
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn s71_start_names_fixing_command_when_key_is_open() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let key = data.join("trust/agents.key");
    let path = key.display();
    for (mode, sentence) in [
        (0o644, format!("{path}: others may read it (mode 0644), and it holds a secret; run: chmod 0600 {path}")),
        (0o602, format!("{path}: others may write it (mode 0602), so it is not trusted; run: chmod go-w {path}")),
    ] {
        set_mode(&key, mode);
        assert_eq!(start_error(new_config(data.clone())).await, sentence);
    }
    set_mode(&key, 0o600);
    set_mode(&data.join("trust"), 0o777);
    let path = data.join("trust");
    let path = path.display();
    assert_eq!(
        start_error(new_config(data.clone())).await,
        format!("{path}: others may write in this directory (mode 0777), so its content is not trusted; run: chmod go-w {path}")
    );
    set_mode(&data.join("trust"), 0o700);
    start(new_config(data), Options::default()).await.unwrap().stop().await;
}

/// The data directory, or its directory `trust`, belongs to user 65534, and a start fails. In another directory of that
/// user, `init` fails and creates nothing.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "a test that is left out says so")]
async fn w10_11_start_rejects_directory_of_other_user() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "only root can give a directory to another user");
        println!("SKIPPED: only root can give a directory to another user");
        return;
    }
    let directory = new_fleet();
    let data = directory.path().join("data");
    for path in [data.clone(), data.join("trust")] {
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let error = start_error(new_config(data.clone())).await;
        assert!(error.starts_with(&path.display().to_string()) && error.contains("65534"), "{error}");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    start(new_config(data), Options::default()).await.unwrap().stop().await;

    let foreign_directory = directory.path().join("strangers");
    fs::create_dir(&foreign_directory).unwrap();
    std::os::unix::fs::chown(&foreign_directory, Some(65534), None).unwrap();
    let error = init(&foreign_directory, &[], SystemClock.unix_seconds()).unwrap_err();
    assert!(format!("{error:?}").contains("65534"), "no key is created in a directory of another user: {error:?}");
    assert_eq!(fs::read_dir(&foreign_directory).unwrap().count(), 0);
}

#[tokio::test]
async fn s71_start_rejects_configuration_writable_by_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("controller.toml");
    fs::write(&path, "data_dir = \"/nowhere\"").unwrap();
    set_mode(&path, 0o666);
    let run = stemma_controller::args::RunArgs { config: Some(path.clone()), ..Default::default() };
    let path_text = path.display();
    let sockets = stemma_controller::socket_activation::ActivatedSockets::default();
    assert_eq!(
        stemma_controller::config::Config::load_with_sockets(&run, &sockets).unwrap_err().to_string(),
        format!("{path_text}: others may write it (mode 0666), so it is not trusted; run: chmod go-w {path_text}")
    );
}

#[tokio::test]
async fn start_names_port_and_fix_when_in_use() {
    let directory = new_fleet();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for (field, flag) in [("admin_listen", "--admin-listen"), ("agent_listen", "--agent-listen")] {
        let mut config = new_config(directory.path().join("data"));
        match field {
            "admin_listen" => config.admin = stemma_controller::config::AdminListen::Tls(address),
            _ => config.agents = address,
        }
        assert_eq!(
            start_error(config).await,
            format!(
                "{field} {address}: the port is in use by another program; set another address with {flag} HOST:PORT, or stop the program that listens there \
                 (ss -ltnp shows it)"
            )
        );
    }
    drop(listener);
    start(new_config(directory.path().join("data")), Options::default()).await.unwrap().stop().await;
}

#[tokio::test]
async fn start_names_place_of_bad_extra_trait() {
    let directory = new_fleet();
    let mut config = new_config(directory.path().join("data"));
    config.extra_standard_traits = vec!["HW_SITE_X".to_owned(), "hw_site_y".to_owned()];
    assert_eq!(
        start_error(config).await,
        "extra_standard_traits[1]: \"hw_site_y\" is not a valid trait name: write a capital letter, then capitals, digits and '_', at \
         most 255 characters in all"
    );
}

#[tokio::test]
async fn start_fails_when_other_controller_holds_store() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let first_controller = start(new_config(data.clone()), Options::default()).await.unwrap();
    let (store, start_time) = (data.join("store.redb").display().to_string(), std::time::Instant::now());
    assert_eq!(
        start_error(new_config(data.clone())).await,
        format!(
            "the store {store} is in use by another process: only one controller can run on it; stop the other one first (`fuser {store}` \
             shows which)"
        )
    );
    assert!(start_time.elapsed() >= std::time::Duration::from_secs(3), "the start waits for the store");
    first_controller.stop().await;
    start(new_config(data), Options::default()).await.unwrap().stop().await;
}

#[tokio::test]
async fn start_waits_when_other_controller_releases_store_soon() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let open_store = RedbStore::open(&data.join("store.redb"), RedbOptions::default()).unwrap();
    // The start is polled once while the store is open, and must wait.
    let mut second_start = std::pin::pin!(start(new_config(data), Options::default()));
    tokio::select! {
        biased;
        started = &mut second_start => panic!("the start does not wait for the open store: {:?}", started.err()),
        () = std::future::ready(()) => {}
    }
    drop(open_store);
    second_start.await.unwrap().stop().await;
}

/// Each listed file of the data directory in turn may be written by others, and each secret among them read by others.
/// Each start fails and names the file.
#[tokio::test]
async fn s71_start_rejects_listed_file_when_open_to_others() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let writable = |path_text: &str, mode: u32| {
        format!("{path_text}: others may write it (mode {mode:04o}), so it is not trusted; run: chmod go-w {path_text}")
    };
    let readable = |path_text: &str, mode: u32| {
        format!("{path_text}: others may read it (mode {mode:04o}), and it holds a secret; run: chmod 0600 {path_text}")
    };
    for (name, is_secret) in [
        ("store.redb", true),
        ("ca.pem", false),
        ("trust/root.key", true),
        ("trust/root.pem", false),
        ("trust/agents.key", true),
        ("trust/signers.pem", false),
        ("admin/admin.key", true),
        ("admin/admin.pem", false),
        ("admin/context.toml", false),
    ] {
        let path = data.join(name);
        let (path_text, permissions) = (path.display().to_string(), fs::metadata(&path).unwrap().permissions());
        set_mode(&path, 0o666);
        assert_eq!(start_error(new_config(data.clone())).await, writable(&path_text, 0o666), "{name}");
        if is_secret {
            set_mode(&path, 0o644);
            assert_eq!(start_error(new_config(data.clone())).await, readable(&path_text, 0o644), "{name}");
        }
        fs::set_permissions(&path, permissions).unwrap();
    }
    start(new_config(data), Options::default()).await.unwrap().stop().await;
}

#[tokio::test]
async fn start_creates_no_fleet_when_data_directory_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let error = start_error(new_config(data.clone())).await;
    assert!(
        error.starts_with(&format!(
            "there is no store at {}: for a new fleet create one with `stemma-controller init",
            data.join("store.redb").display()
        )),
        "{error}"
    );
    assert!(!data.exists());
}

#[tokio::test]
async fn w10_06_start_omits_init_advice_when_authority_lacks_store() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    fs::remove_file(data.join("store.redb")).unwrap();
    let data_path = data.display();
    assert_eq!(
        start_error(new_config(data.clone())).await,
        format!(
            "the store {data_path}/store.redb is missing, although the fleet's authority exists: restore a backup (docs/backup.md), or put back a copy of {data_path} that was made while the \
             controller was stopped"
        )
    );
}

#[tokio::test]
async fn w10_15_start_names_both_files_when_key_does_not_match() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let trust = data.join("trust");
    let read_key = |name: &str| fs::read(trust.join(format!("{name}.key"))).unwrap();
    let names = ["agents", "admin", "signers"];
    let keys = names.map(read_key);
    for (name, own_key) in names.iter().zip(&keys) {
        let (key, certificate) = (trust.join(format!("{name}.key")), trust.join(format!("{name}.pem")));
        // A start fails with each key that belongs to another certificate.
        for other_key in keys.iter().filter(|other_key| *other_key != own_key) {
            fs::write(&key, other_key).unwrap();
            assert_eq!(
                start_error(new_config(data.clone())).await,
                format!(
                    "{} and {} do not belong together: the certificate is for another key; restore both from one backup of the data \
                     directory",
                    key.display(),
                    certificate.display()
                )
            );
        }
        fs::write(&key, own_key).unwrap();
    }
    start(new_config(data), Options::default()).await.unwrap().stop().await;
}

#[tokio::test]
async fn x02_start_removes_leftover_of_killed_restore() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let leftover = data.join(".restoring-killed");
    fs::create_dir_all(leftover.join("trust")).unwrap();
    fs::write(leftover.join("trust/root.key"), "a key").unwrap();
    start(new_config(data.clone()), Options::default()).await.unwrap().stop().await;
    assert!(!leftover.exists() && data.join("trust/root.key").exists());
}

#[tokio::test]
async fn restart_writes_nothing_when_unchanged() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    for _ in 0..3 {
        let controller = start(new_config(data.clone()), Options::default()).await.unwrap();
        let head = controller.components().registry.store().head().await.unwrap().get();
        wait_until(|| controller.components().desired.resolved_revision().0 >= head).await;
        let text = controller.components().metrics.text_for_cluster(None);
        assert!(text.contains("stemma_store_commits_total 0\n"), "{text}");
        controller.stop().await;
    }
}
