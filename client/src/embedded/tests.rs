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

/// A server of the tests: a script that notes that it was started.
fn scripted(dir: &Path, then: &str) -> Embedded {
    let script = dir.join("scripted");
    std::fs::write(&script, format!("#!/bin/sh\necho start >> \"$0.starts\"\n{then}\n")).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut pool = embedded(dir);
    pool.named = Some(script);
    pool
}

fn starts(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("scripted.starts")).map_or(0, |text| text.lines().count())
}

fn in_ms(ms: u64) -> Deadline {
    Deadline::after(std::time::Duration::from_millis(ms))
}

#[tokio::test]
async fn a_server_that_is_slow_to_start_gets_no_twin() {
    let dir = tempfile::tempdir().unwrap();
    // It ends with the directory.
    let pool = scripted(dir.path(), "while [ -e \"$0\" ]; do sleep 0.02; done");
    for _ in 0..3 {
        let error = pool.ensure(in_ms(40)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Deadline);
        assert!(pool.is_starting());
    }
    let listener = std::os::unix::net::UnixListener::bind(dir.path().join(LOCAL_SOCKET)).unwrap();
    pool.ensure(in_ms(10_000)).await.unwrap();
    assert_eq!(starts(dir.path()), 1, "it was waited for");
    drop(listener);
}

#[tokio::test]
async fn whoever_starts_it_is_waited_for_and_what_it_started_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (scripted(dir.path(), "exit 1"), embedded(dir.path()));
    first.make_dirs().unwrap();
    let lock = first.lock(in_ms(10_000)).await.unwrap();
    let error = second.ensure(in_ms(30)).await.unwrap_err();
    assert_eq!((error.kind, starts(dir.path())), (ErrorKind::Deadline, 0), "another one is at it");
    let _listener = std::os::unix::net::UnixListener::bind(dir.path().join(LOCAL_SOCKET)).unwrap();
    drop(lock);
    second.ensure(in_ms(10_000)).await.unwrap();
    assert_eq!(starts(dir.path()), 0, "there is one");
}

#[tokio::test]
async fn the_log_of_a_failed_start_is_quoted_from_its_end_and_the_next_start_is_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    // Characters of two bytes, so that the bound falls within one.
    let words =
        "i=0; while [ $i -lt 400 ]; do printf '\\303\\244' >&2; i=$((i+1)); done; echo the end >&2; exit 3";
    let pool = scripted(dir.path(), words);
    for round in 1..=2 {
        let error = pool.ensure(in_ms(20_000)).await.unwrap_err();
        assert_eq!((error.kind, starts(dir.path())), (ErrorKind::Unavailable, round));
        let quoted = error.message.split("says: ").nth(1).unwrap();
        assert!(quoted.ends_with("the end"), "{quoted}");
        assert!((500..=EMBEDDED_LOG_BYTES_MAX + 3).contains(&quoted.len()), "{} bytes", quoted.len());
        assert!(!pool.is_starting(), "it is reaped");
    }
}

#[test]
fn what_is_made_for_a_pool_is_its_users_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let pool = embedded(&dir.path().join("deep/er"));
    pool.make_dirs().unwrap();
    private_file(&pool.run_dir.join(CONFIG)).unwrap();
    for (path, mode) in [("", 0o700), ("nvme", 0o700), (CONFIG, 0o600)] {
        let found = std::fs::metadata(pool.run_dir.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{path}");
    }
    std::fs::write(dir.path().join("file"), "").unwrap();
    let error = embedded(&dir.path().join("file")).make_dirs().unwrap_err();
    assert!(matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory), "{error}");
}
