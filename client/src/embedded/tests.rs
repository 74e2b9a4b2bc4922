//! Tests of the embedded pool's parts that need no server.

use super::*;

fn embedded(dir: &Path) -> Embedded {
    Embedded::new(&EmbeddedConfig { dir: Some(dir.to_path_buf()), ..EmbeddedConfig::default() }).unwrap()
}

#[test]
fn the_configuration_is_what_the_server_reads() {
    let pool = embedded(Path::new("/tmp/a \"b\\c"));
    let expected = "listen = \"unix:/tmp/a \\\"b\\\\c/turnkv.sock\"\n\n[dram]\nbytes = \"256MiB\"\n\n\
                    [nvme]\npath = \"/tmp/a \\\"b\\\\c/nvme\"\nbytes = \"2048MiB\"\n";
    assert_eq!(pool.toml(), expected);
    let settings = EmbeddedConfig { nvme_bytes: 0, dir: Some("/tmp/x".into()), ..EmbeddedConfig::default() };
    assert!(!Embedded::new(&settings).unwrap().toml().contains("nvme"));
}

#[tokio::test]
async fn a_server_that_ends_at_once_is_named_with_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("broken");
    std::fs::write(&script, "#!/bin/sh\necho no such key >&2\nexit 3\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut pool = embedded(dir.path());
    pool.settings.server = Some(script);
    let error = pool.ensure(Deadline::after(std::time::Duration::from_secs(20))).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("no such key"), "{error}");
}

#[tokio::test]
async fn a_missing_server_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut pool = embedded(dir.path());
    pool.settings.server = Some(dir.path().join("nowhere"));
    let error = pool.ensure(Deadline::after(std::time::Duration::from_secs(5))).await.unwrap_err();
    assert!(error.message.contains("nowhere") && error.message.contains("TURNKV_SERVER"), "{error}");
    assert_eq!(error.kind, ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_running_pool_is_found_and_not_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(dir.path().join(LOCAL_SOCKET)).unwrap();
    let mut pool = embedded(dir.path());
    pool.settings.server = Some(dir.path().join("nowhere"));
    pool.ensure(Deadline::after(std::time::Duration::from_secs(5))).await.unwrap();
}
