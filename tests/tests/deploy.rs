//! What deploy/ ships: the sample configuration, the systemd unit and the Dockerfile fit the binary and one another.
//! Must not know: how the server reads its configuration; it is asked through its command line.
#![allow(clippy::expect_used, reason = "a test says what it expected by failing")]
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Output};

use turnkv_tests::workspace;

const SAMPLE: &str = "deploy/turnkv.toml";
const INSTALLED_BINARY: &str = "/usr/local/bin/turnkv";
const INSTALLED_CONFIG: &str = "/etc/turnkv/turnkv.toml";

#[test]
fn the_sample_configuration_is_accepted_and_printed_back() {
    let output = config(&workspace::root().join(SAMPLE));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for key in ["listen", "socket_mode", "metrics", "slab_bytes", "segment_bytes", "drain_ms"] {
        assert!(printed.contains(key), "{key} is missing from what is in force:\n{printed}");
    }
    // What is printed is itself a configuration that means the same.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let again = folder.path().join("again.toml");
    std::fs::write(&again, &printed).expect("the temporary folder can be written");
    assert_eq!(String::from_utf8_lossy(&config(&again).stdout), printed);
}

#[test]
fn a_misspelt_key_is_refused_by_name() {
    let sample = read(SAMPLE).replace("slab_bytes", "slab_byte");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("misspelt.toml");
    std::fs::write(&path, sample).expect("the temporary folder can be written");
    let output = config(&path);
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("slab_byte"), "the message must name the key: {message}");
}

#[test]
fn the_unit_fits_the_sample() {
    let unit = read("deploy/turnkv.service");
    for line in [
        "Type=notify",
        "LimitMEMLOCK=infinity",
        "User=turnkv",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "RuntimeDirectory=turnkv",
        "StateDirectory=turnkv",
    ] {
        assert!(unit.lines().any(|found| found == line), "the unit lacks {line}");
    }
    assert!(unit.contains(&format!("ExecStart={INSTALLED_BINARY} serve --config {INSTALLED_CONFIG}")));
    let sample = read(SAMPLE);
    assert!(sample.contains("unix:/run/turnkv/"), "RuntimeDirectory= makes /run/turnkv for the socket");
    assert!(
        sample.contains("path = \"/var/lib/turnkv\""),
        "StateDirectory= makes /var/lib/turnkv for the pages"
    );
    let stop_s = number(&unit, "TimeoutStopSec=");
    let drain_ms = number(&sample, "drain_ms = ");
    assert!(stop_s * 1000 > drain_ms, "systemd would kill a drain of {drain_ms} ms after {stop_s} s");
    // Slabs of the sample twice, the table, the catalog, four listening sockets, each twice while it moves, and one that stays free.
    let sizes = sample.replace("GiB\"", "").replace('"', "");
    let slabs = number(&sizes, "bytes = ") / number(&sizes, "slab_bytes = ");
    assert!(
        number(&unit, "FileDescriptorStoreMax=") >= 2 * slabs + 11,
        "systemd has no room for {slabs} slabs"
    );
}

#[test]
fn the_keepers_unit_is_where_the_server_looks_for_it() {
    let (unit, keep) = (read("deploy/turnkv.service"), read("deploy/turnkv-keep.service"));
    let sample = read(SAMPLE);
    let (_, socket) = sample.split_once("\nlisten = \"unix:").expect("the sample says where to listen");
    let socket = socket.split('"').next().expect("the path ends");
    assert!(keep.contains(&format!("ExecStart={INSTALLED_BINARY} keep --socket {socket}.keep ")));
    for line in ["User=turnkv", "RuntimeDirectory=turnkv", "RuntimeDirectoryPreserve=yes"] {
        let both = [&unit, &keep].iter().all(|unit| unit.lines().any(|found| found == line));
        assert!(both, "a unit lacks {line}");
    }
}

/// A keeper's container and a server's, in a pod and for Docker: what they run exists, and they meet where the sample listens.
#[test]
fn the_containers_run_a_keeper_beside_the_server() {
    let sample = read(SAMPLE);
    let (_, socket) = sample.split_once("\nlisten = \"unix:").expect("the sample says where to listen");
    let socket = socket.split('"').next().expect("the path ends");
    let directory = Path::new(socket).parent().expect("it lies in a directory").display().to_string();
    for (manifest, key, shares_processes) in [
        ("deploy/pod.yaml", "args: ", "shareProcessNamespace: true"),
        ("deploy/compose.yaml", "command: ", "pid: host"),
    ] {
        let text = read(manifest);
        let lists = text.lines().filter_map(|line| line.trim().strip_prefix(key));
        let commands: Vec<Vec<String>> = lists
            .filter_map(|list| serde_json::from_str(list).ok())
            .filter(|list: &Vec<String>| list[0] != INSTALLED_BINARY)
            .collect();
        assert_eq!(commands.len(), 2, "{manifest}: a keeper and a server");
        let keeper = commands.iter().find(|command| command[0] == "keep").expect("a keeper");
        assert_eq!(keeper[1..3], ["--socket".to_owned(), format!("{socket}.keep")], "{manifest}");
        let server = commands.iter().find(|command| command[0] == "serve").expect("a server");
        assert_eq!(server[1..], ["--config".to_owned(), INSTALLED_CONFIG.to_owned()], "{manifest}");
        for command in &commands {
            let help = String::from_utf8_lossy(&turnkv(&[&command[0], "--help"]).stdout).into_owned();
            for option in command.iter().filter(|word| word.starts_with("--")) {
                assert!(help.contains(option.as_str()), "{manifest}: turnkv {} has no {option}", command[0]);
            }
        }
        let mounts = [format!("mountPath: {directory} "), format!("run:{directory}\"")];
        let mounted = text.lines().filter(|line| mounts.iter().any(|mount| line.contains(mount))).count();
        assert_eq!(mounted, 2, "{manifest}: both have the sockets' directory");
        assert!(text.contains(shares_processes), "{manifest}: both see who writes");
        let stop_s =
            text.split_once("terminationGracePeriodSeconds: ").or(text.split_once("stop_grace_period: "));
        let stop_s = stop_s.and_then(|(_, rest)| rest.split(['s', '\n']).next()).expect("a time to stop");
        let drain_ms = number(&sample, "drain_ms = ");
        assert!(
            stop_s.parse::<u64>().expect("a number") * 1000 > drain_ms,
            "{manifest}: a drain would be killed"
        );
    }
}

#[test]
fn systemd_understands_the_unit() {
    if let Err(why) = Command::new("systemd-analyze").arg("--version").output() {
        eprintln!("skipped: systemd-analyze does not run here ({why})");
        return;
    }
    let verify = |unit: &str| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("turnkv.service");
        // systemd checks that the program exists: let it find one.
        std::fs::write(&path, unit.replace(INSTALLED_BINARY, "/bin/true"))
            .expect("the folder can be written");
        let output =
            Command::new("systemd-analyze").arg("verify").arg(&path).output().expect("it ran before");
        // Unknown keys are warnings, with exit status 0; other units of this machine are not our affair.
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.lines().filter(|line| line.contains("turnkv.service")).map(str::to_owned).collect::<Vec<_>>()
    };
    let unit = read("deploy/turnkv.service");
    assert_eq!(verify(&unit), Vec::<String>::new());
    assert_eq!(verify(&read("deploy/turnkv-keep.service")), Vec::<String>::new());
    assert!(!verify(&unit.replace("LimitMEMLOCK", "LimitMemLock")).is_empty(), "this check cannot fail");
}

#[test]
fn the_image_is_small_unprivileged_and_watched() {
    let dockerfile = read("deploy/Dockerfile");
    let lines: Vec<&str> = dockerfile.lines().filter(|line| !line.starts_with('#')).collect();
    let stages: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert_eq!(stages.len(), 2, "one stage builds, one runs: {stages:?}");
    assert_eq!(stages[1], "debian:12-slim");
    assert!(
        stages[0].ends_with(" AS build") && stages[0].contains("bookworm"),
        "build on the libc that runs it"
    );
    let position = |start: &str| lines.iter().position(|line| line.starts_with(start));
    let user = position("USER ").expect("the image names its user");
    assert_eq!(lines[user], "USER turnkv");
    assert!(user < position("ENTRYPOINT ").expect("the image has an entry point"));
    let health = lines[position("HEALTHCHECK ").expect("the image is watched")];
    assert!(health.contains("\"status\""), "{health}");
    assert!(dockerfile.contains(&format!("CMD [\"serve\", \"--config\", \"{INSTALLED_CONFIG}\"]")));
    for line in lines.iter().filter(|line| line.starts_with("COPY ") && !line.contains("--from=")) {
        let source = line.split(' ').nth(1).expect("COPY names a source");
        assert!(workspace::root().join(source).exists(), "{line}: no such file");
    }
}

#[test]
fn the_commands_that_deploy_uses_exist() {
    for command in
        [["serve", "--config"], ["config", "--config"], ["status", "--address"], ["upgrade", "--address"]]
    {
        let output = turnkv(&[command[0], "--help"]);
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && help.contains(command[1]), "turnkv {}: {help}", command.join(" "));
    }
}

fn config(path: &Path) -> Output {
    turnkv(&["config", "--config", path.to_str().expect("our paths are UTF-8")])
}

fn turnkv(arguments: &[&str]) -> Output {
    let binary = workspace::server_binary().expect("the server can be built");
    Command::new(binary).args(arguments).output().expect("the server's binary runs")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(workspace::root().join(path)).expect("deploy/ is complete")
}

/// The number after the first line that starts with `key`.
fn number(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key)).expect("the key is there");
    value.split([' ', '#']).next().and_then(|value| value.parse().ok()).expect("its value is a number")
}
