//! A file that is read again: what stays as it is in force, what is told to be other, and what another process is to run with.

use super::*;
use crate::config::load;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A file that is written again and again.
struct Rig {
    dir: TempDir,
    in_force: Settings,
}

impl Rig {
    fn new(text: &str) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("turnkv.toml");
        std::fs::write(&path, text).unwrap();
        let in_force = load(Some(&path)).unwrap();
        Rig { dir, in_force }
    }

    fn again(&self, text: &str) -> Result<Settings, ConfigError> {
        let path = self.dir.path().join("turnkv.toml");
        std::fs::write(&path, text).unwrap();
        load_again(&path, &self.in_force)
    }

    /// The keys that are other in this text.
    fn other_in(&self, text: &str) -> Vec<String> {
        self.in_force.differences(&self.again(text).unwrap())
    }
}

#[test]
fn what_follows_from_other_settings_stays_as_it_is_in_force() {
    let text = "[dram]\nbytes = \"4GiB\"\n[nvme]\npath = \"/n\"\nbytes = \"64GiB\"\n";
    let rig = Rig::new(text);
    assert_eq!(rig.other_in(text), [""; 0]);
    let wanted = rig.again("[dram]\nbytes = \"1GiB\"\n[nvme]\npath = \"/n\"\nbytes = \"8GiB\"\n").unwrap();
    let (before, after) = (&rig.in_force, &wanted);
    assert_eq!(after.dram.slab_bytes, before.dram.slab_bytes, "1 GiB alone would have smaller slabs");
    assert_eq!(after.limits.pages_max, before.limits.pages_max);
    let segments = |settings: &Settings| settings.nvme.as_ref().unwrap().segment_bytes;
    assert_eq!(segments(after), segments(before), "8 GiB alone would have smaller segments");
    assert_eq!(before.differences(after), ["dram.bytes", "nvme.bytes"]);
    // What is said counts, also where it is what would follow.
    let said =
        rig.again("[dram]\nbytes = \"4GiB\"\nslab_bytes = \"32MiB\"\n[limits]\npages_max = 5000\n").unwrap();
    assert_eq!((said.dram.slab_bytes, said.limits.pages_max), (32 * MIB, 5_000));
}

#[test]
fn every_key_that_is_other_is_named_whether_it_changed_came_or_went() {
    let rig = Rig::new(
        "tcp = \"127.0.0.1:7\"\n[limits]\nlease_ms = 500\n[nvme]\npath = \"/n\"\nbytes = \"1GiB\"\n",
    );
    let nvme = "[nvme]\npath = \"/n\"\nbytes = \"1GiB\"\n";
    let cases = [
        (format!("tcp = \"127.0.0.1:7\"\n[limits]\nlease_ms = 501\n{nvme}"), vec!["limits.lease_ms"]),
        (format!("[limits]\nlease_ms = 500\n{nvme}"), vec!["tcp"]),
        (
            format!("tcp = \"127.0.0.1:7\"\nmetrics = \"127.0.0.1:8\"\n[limits]\nlease_ms = 500\n{nvme}"),
            vec!["metrics"],
        ),
        (format!("tcp = \"127.0.0.1:7\"\n{nvme}"), vec!["limits.lease_ms"]),
        (
            format!(
                "tcp = \"127.0.0.1:7\"\n[limits]\nlease_ms = 500\n{nvme}write_bytes_per_day = \"1GiB\"\n"
            ),
            vec!["nvme.write_bytes_per_day"],
        ),
        (
            format!(
                "tcp = \"127.0.0.1:7\"\n[limits]\nlease_ms = 500\n{nvme}[access.users]\nvllm = \"engine/a\"\n"
            ),
            vec!["access.users.vllm"],
        ),
        (
            format!(
                "tcp = \"127.0.0.1:7\"\n[limits]\nlease_ms = 500\n{nvme}[events]\npublish = \"127.0.0.1:9\"\nnames = \"bytes\"\n"
            ),
            vec!["events.insecure", "events.kept_bytes", "events.names", "events.publish", "events.topic"],
        ),
    ];
    for (text, keys) in cases {
        assert_eq!(rig.other_in(&text), keys, "{text}");
    }
    let without_nvme = rig.other_in("tcp = \"127.0.0.1:7\"\n[limits]\nlease_ms = 500\n");
    assert!(
        without_nvme.iter().all(|key| key.starts_with("nvme.")) && without_nvme.len() >= 8,
        "{without_nvme:?}"
    );
}

#[test]
fn a_file_that_is_wrong_in_any_line_is_refused_whole() {
    let rig = Rig::new("[dram]\nbytes = \"1GiB\"\n");
    for (text, word) in [
        ("[dram]\nbytes = \"2GiB\"\n[limits]\nlease_ms = 1\n", "limits.lease_ms"),
        ("[dram]\nbytes = \"2GiB\"\nsize = 3\n", "unknown field"),
        ("[dram]\nbytes = \"8MiB\"\n", "dram.bytes"),
        ("[dram\n", "turnkv.toml:1"),
    ] {
        let said = rig.again(text).unwrap_err().to_string();
        assert!(said.contains(word), "{text}: {said}");
    }
    let gone = load_again(Path::new("/nonexistent/turnkv.toml"), &rig.in_force);
    assert!(matches!(gone, Err(ConfigError::Read { .. })));
}

#[test]
fn only_what_may_change_at_once_is_taken_over() {
    let live = [
        ("dram.bytes", "[dram]\nbytes = \"2GiB\"\n"),
        ("limits.client_slots_percent", "[limits]\nclient_slots_percent = 7\n"),
        ("limits.user_slots_percent", "[limits]\nuser_slots_percent = 7\n"),
        ("limits.all_slots_percent", "[limits]\nall_slots_percent = 7\n"),
        ("limits.free_slots_percent", "[limits]\nfree_slots_percent = 7\n"),
    ];
    let kept = [
        ("limits.lease_ms", "[limits]\nlease_ms = 777\n"),
        ("limits.protected_percent", "[limits]\nprotected_percent = 7\n"),
        ("policy", "policy = \"lru\"\n"),
        ("dram.lock", "[dram]\nlock = false\n"),
        ("keep.dram", "[keep]\ndram = \"off\"\n"),
    ];
    for (at, (key, text)) in live.into_iter().chain(kept).enumerate() {
        let rig = Rig::new("");
        let wanted = rig.again(text).unwrap();
        assert_eq!(rig.in_force.differences(&wanted), [key]);
        let mut now = rig.in_force.clone();
        now.take_over(&wanted);
        assert_eq!(now.differences(&wanted).is_empty(), at < live.len(), "{key}");
        assert_eq!(now.differences(&rig.in_force).is_empty(), at >= live.len(), "{key}");
    }
}

#[test]
fn another_process_runs_with_what_is_in_force_and_settles_for_itself_what_was_left_open() {
    let rig =
        Rig::new("metrics = \"127.0.0.1:8\"\n[dram]\nbytes = \"1GiB\"\n[access]\nothers = [\"member\"]\n");
    let text = rig.in_force.in_force(512 * MIB).unwrap();
    assert!(
        !text.contains("connections_max"),
        "what the limit of open files allows is the other one's to see"
    );
    let there = crate::config::parse(Path::new("left"), &text).unwrap();
    assert_eq!(rig.in_force.differences(&there), ["dram.bytes"]);
    assert_eq!(there.dram.bytes, 512 * MIB);
    let said = Rig::new("[limits]\nconnections_max = 100\n");
    let text = said.in_force.in_force(said.in_force.dram.bytes).unwrap();
    let there = crate::config::parse(Path::new("left"), &text).unwrap();
    assert_eq!((there.limits.connections_max, said.in_force.differences(&there)), (Some(100), Vec::new()));
}
