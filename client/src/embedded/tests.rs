//! Tests of the embedded pool's parts that need no server.

use super::*;

fn embedded(dir: &Path) -> Embedded {
    Embedded::new(&EmbeddedConfig { dir: Some(dir.to_path_buf()), ..EmbeddedConfig::default() }).unwrap()
}

#[test]
fn the_configuration_is_what_the_server_reads() {
    let pool = embedded(Path::new("/tmp/a \"b\\c"));
    let expected = "listen = \"unix:/tmp/a \\\"b\\\\c/turnkv.sock\"\n\n[dram]\nbytes = \"256MiB\"\n\n\
                    [nvme]\npath = \"/tmp/a \\\"b\\\\c/nvme\"\nbytes = \"2048MiB\"\n\n[keep]\nwithout_server_ms = 5000\n";
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
    pool.named = Some(script);
    let error = pool.ensure(Deadline::after(std::time::Duration::from_secs(20))).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("no such key"), "{error}");
}

#[test]
fn a_server_that_is_no_program_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "not executable").unwrap();
    for wrong in
        [dir.path().join("nowhere"), plain, dir.path().to_path_buf(), "no-such-program-anywhere".into()]
    {
        let settings = EmbeddedConfig { server: Some(wrong.clone()), ..EmbeddedConfig::default() };
        let error = named_server(&settings).unwrap_err();
        assert_eq!(error, ConfigError::NoServer { named_by: "`server`", path: wrong.clone() });
        assert!(error.to_string().contains(&format!("{wrong:?}")), "{error}");
    }
    let bare = EmbeddedConfig { server: Some("sh".into()), ..EmbeddedConfig::default() };
    assert!(named_server(&bare).unwrap().unwrap().is_absolute());
}

#[test]
fn the_bundled_server_comes_before_those_on_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let bundled = dir.path().join("turnkv");
    std::fs::write(&bundled, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&bundled, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut pool = embedded(dir.path());
    (pool.named, pool.settings.bundled) = (None, Some(bundled.clone()));
    assert_eq!(pool.find_server().unwrap(), bundled);
    pool.named = Some("/named".into());
    assert_eq!(pool.find_server().unwrap(), Path::new("/named"));
}

#[tokio::test]
async fn a_running_pool_is_found_and_not_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(dir.path().join(LOCAL_SOCKET)).unwrap();
    let mut pool = embedded(dir.path());
    pool.named = Some(dir.path().join("nowhere"));
    pool.ensure(Deadline::after(std::time::Duration::from_secs(5))).await.unwrap();
}
