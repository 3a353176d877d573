//! Starts that are refused, each with a message that says what to do (S71, S75, and the errors that the issue names).

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

async fn start_error(config: stemma_controller::config::Config) -> String {
    match start(config, Options::default()).await {
        Ok(_) => panic!("it started"),
        Err(error) => error.to_string(),
    }
}

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
    let shown = key.display();
    for (mode, sentence) in [
        (0o644, format!("{shown}: others may read it (mode 0644), and it holds a secret; run: chmod 0600 {shown}")),
        (0o602, format!("{shown}: others may write it (mode 0602), so it is not trusted; run: chmod go-w {shown}")),
    ] {
        set_mode(&key, mode);
        assert_eq!(start_error(new_config(data.clone())).await, sentence);
    }
    set_mode(&key, 0o600);
    set_mode(&data.join("trust"), 0o777);
    let shown = data.join("trust");
    let shown = shown.display();
    assert_eq!(
        start_error(new_config(data.clone())).await,
        format!(
            "{shown}: others may write in this directory (mode 0777), so what it holds is not trusted; run: chmod go-w {shown}"
        )
    );
    set_mode(&data.join("trust"), 0o700);
    start(new_config(data), Options::default()).await.unwrap().stop().await;
}

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
    for of_another in [data.clone(), data.join("trust")] {
        std::os::unix::fs::chown(&of_another, Some(65534), None).unwrap();
        let refused = start_error(new_config(data.clone())).await;
        assert!(refused.starts_with(&of_another.display().to_string()) && refused.contains("65534"), "{refused}");
        std::os::unix::fs::chown(&of_another, Some(0), None).unwrap();
    }
    start(new_config(data), Options::default()).await.unwrap().stop().await;

    let strangers = directory.path().join("strangers");
    fs::create_dir(&strangers).unwrap();
    std::os::unix::fs::chown(&strangers, Some(65534), None).unwrap();
    let refused = init(&strangers, &[], SystemClock.unix_seconds()).unwrap_err();
    assert!(format!("{refused:?}").contains("65534"), "no key is made where another could replace it: {refused:?}");
    assert_eq!(fs::read_dir(&strangers).unwrap().count(), 0);
}

#[tokio::test]
async fn s71_start_rejects_configuration_writable_by_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("controller.toml");
    fs::write(&path, "data_dir = \"/nowhere\"").unwrap();
    set_mode(&path, 0o666);
    let run = stemma_controller::args::RunArgs { config: Some(path.clone()), ..Default::default() };
    let shown = path.display();
    let handed = stemma_controller::socket_activation::ActivatedSockets::default();
    assert_eq!(
        stemma_controller::config::Config::load_with_sockets(&run, &handed).unwrap_err().to_string(),
        format!("{shown}: others may write it (mode 0666), so it is not trusted; run: chmod go-w {shown}")
    );
}

#[tokio::test]
async fn start_names_port_and_fix_when_in_use() {
    let directory = new_fleet();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
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
    drop(taken);
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
    let first = start(new_config(data.clone()), Options::default()).await.unwrap();
    let (store, began) = (data.join("store.redb").display().to_string(), std::time::Instant::now());
    assert_eq!(
        start_error(new_config(data.clone())).await,
        format!(
            "the store {store} is in use by another process: only one controller can run on it; stop the other one first (`fuser {store}` \
             shows which)"
        )
    );
    assert!(began.elapsed() >= std::time::Duration::from_secs(3), "it was not waited for");
    first.stop().await;
    start(new_config(data), Options::default()).await.unwrap().stop().await;
}

#[tokio::test]
async fn start_waits_when_other_controller_releases_store_soon() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let held = RedbStore::open(&data.join("store.redb"), RedbOptions::default()).unwrap();
    let mut second = std::pin::pin!(start(new_config(data), Options::default()));
    tokio::select! {
        biased;
        started = &mut second => panic!("the store is held, and it is not waited for: {:?}", started.err()),
        () = std::future::ready(()) => {}
    }
    drop(held);
    second.await.unwrap().stop().await;
}

#[tokio::test]
async fn s71_start_checks_every_file_before_serving() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let writable = |shown: &str, mode: u32| {
        format!("{shown}: others may write it (mode {mode:04o}), so it is not trusted; run: chmod go-w {shown}")
    };
    let readable = |shown: &str, mode: u32| {
        format!("{shown}: others may read it (mode {mode:04o}), and it holds a secret; run: chmod 0600 {shown}")
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
        let (shown, before) = (path.display().to_string(), fs::metadata(&path).unwrap().permissions());
        set_mode(&path, 0o666);
        assert_eq!(start_error(new_config(data.clone())).await, writable(&shown, 0o666), "{name}");
        if is_secret {
            set_mode(&path, 0o644);
            assert_eq!(start_error(new_config(data.clone())).await, readable(&shown, 0o644), "{name}");
        }
        fs::set_permissions(&path, before).unwrap();
    }
    start(new_config(data), Options::default()).await.unwrap().stop().await;
}

#[tokio::test]
async fn start_creates_no_fleet_when_directory_is_empty() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let said = start_error(new_config(data.clone())).await;
    assert!(
        said.starts_with(&format!(
            "there is no store at {}: for a new fleet create one with `stemma-controller init",
            data.join("store.redb").display()
        )),
        "{said}"
    );
    assert!(!data.exists());
}

#[tokio::test]
async fn w10_06_start_omits_init_advice_when_authority_lacks_store() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    fs::remove_file(data.join("store.redb")).unwrap();
    let shown = data.display();
    assert_eq!(
        start_error(new_config(data.clone())).await,
        format!(
            "the store {shown}/store.redb is missing, although the fleet's authority exists: restore a backup (docs/backup.md), or put back a copy of {shown} that was made while the \
             controller was stopped"
        )
    );
}

#[tokio::test]
async fn w10_15_start_names_both_files_when_key_does_not_match() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let trust = data.join("trust");
    let read = |name: &str| fs::read(trust.join(format!("{name}.key"))).unwrap();
    let names = ["agents", "admin", "signers"];
    let keys = names.map(read);
    for (name, own) in names.iter().zip(&keys) {
        let (key, certificate) = (trust.join(format!("{name}.key")), trust.join(format!("{name}.pem")));
        for other in keys.iter().filter(|other| *other != own) {
            fs::write(&key, other).unwrap();
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
        fs::write(&key, own).unwrap();
    }
    start(new_config(data), Options::default()).await.unwrap().stop().await;
}

#[tokio::test]
async fn x02_start_removes_leftover_of_killed_restore() {
    let directory = new_fleet();
    let data = directory.path().join("data");
    let left = data.join(".restoring-killed");
    fs::create_dir_all(left.join("trust")).unwrap();
    fs::write(left.join("trust/root.key"), "a key").unwrap();
    start(new_config(data.clone()), Options::default()).await.unwrap().stop().await;
    assert!(!left.exists() && data.join("trust/root.key").exists());
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
