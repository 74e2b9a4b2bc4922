//! The embedded pool: found or started, one for all clients, gone after the last. The server is this very test binary.

use crate::fake::{Fake, chain, spec};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use turnkv_client::{Client, ClientConfig, DataPlane, EmbeddedConfig, OffloadOptions, PageSource};

/// Not a test: what the script started by [`server_in`] runs. Serves beside the given configuration until nobody is connected.
#[test]
#[ignore = "the embedded server of the other tests"]
fn serve() {
    let Some(config) = std::env::var_os("TURNKV_FAKE_CONFIG") else { return };
    let config = PathBuf::from(config);
    assert!(std::fs::read_to_string(&config).unwrap().contains("[dram]\nbytes = \"64MiB\""));
    let fake = Fake::start_in(config.parent().unwrap());
    let begun = Instant::now();
    let mut idle_since = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) && idle_since.elapsed() < Duration::from_millis(300) {
        if fake.connections() > 0 {
            idle_since = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn server_in(dir: &Path) -> PathBuf {
    let script = dir.join("turnkv");
    let exe = std::env::current_exe().unwrap();
    let starts = dir.join("starts");
    let text = format!(
        "#!/bin/sh\n[ \"$1 $2 $3\" = \"serve --embedded --config\" ] || exit 9\necho start >> {}\n\
         TURNKV_FAKE_CONFIG=\"$4\" exec {} embedded::serve --exact --ignored\n",
        starts.display(),
        exe.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
    script
}

fn config(dir: &Path, data_plane: DataPlane) -> ClientConfig {
    let server = Some(server_in(dir));
    let embedded = EmbeddedConfig {
        dram_bytes: 64 << 20,
        dir: Some(dir.to_path_buf()),
        server,
        ..EmbeddedConfig::default()
    };
    ClientConfig { data_plane, embedded, ..ClientConfig::default() }
}

fn starts(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("starts")).map_or(0, |text| text.lines().count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_one_user_share_one_pool() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), DataPlane::Auto);
    let clients: Vec<Client> = (0..4).map(|_| Client::new(config.clone()).unwrap()).collect();
    let opening = clients
        .clone()
        .into_iter()
        .map(|client| tokio::spawn(async move { client.open_namespace(spec()).await }));
    let opening: Vec<_> = opening.collect();
    let mut namespaces = Vec::new();
    for open in opening {
        namespaces.push(open.await.unwrap().unwrap());
    }
    assert_eq!(starts(dir.path()), 1);
    let (hashes, pages) = chain(1, 1);
    let sources = [PageSource::Bytes(&pages[0])];
    namespaces[0].offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
    assert_eq!(namespaces[3].lookup(&hashes).await.unwrap(), 1);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(namespaces[1].lookup(&hashes).await.unwrap(), 1, "a client at rest keeps the pool alive");
    assert_eq!(starts(dir.path()), 1);
    drop((clients, namespaces));
    let local = dir.path().join("turnkv.sock.local");
    crate::fake::eventually_async("the pool ends after its last client", || !local.exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_died_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let before = starts(dir.path());
        let client = Client::new(config(dir.path(), plane)).unwrap();
        let namespace = client.open_namespace(spec()).await.unwrap();
        assert_eq!(starts(dir.path()), before + 1);
        let local = dir.path().join("turnkv.sock.local");
        // What kill -9 leaves behind: sockets that refuse.
        for path in [&local, &dir.path().join("turnkv.sock")] {
            std::fs::remove_file(path).unwrap();
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }
        drop(client);
        let client = Client::new(config(dir.path(), plane)).unwrap();
        let again = client.open_namespace(spec()).await.unwrap();
        assert_eq!(starts(dir.path()), before + 2);
        assert_eq!(again.lookup(&chain(2, 1).0).await.unwrap(), 0);
        drop((namespace, again, client));
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
}
