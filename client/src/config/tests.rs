//! Settings at the ends of their ranges, and addresses as people write them.

use super::*;
use crate::limits::MEMBERS_LISTED_MAX;
use proptest::prelude::*;

#[test]
fn what_the_environment_says_of_fabrics_is_checked_like_a_setting() {
    let said = |fabric: &str, nics: &str| {
        ClientConfig::default().checked_fabric(|name| match name {
            "TURNKV_FABRIC" => Some(fabric.to_owned()),
            "TURNKV_NICS" => Some(nics.to_owned()),
            _ => None,
        })
    };
    let fabric = said("verbs", " mlx5_0, ,mlx5_1:2").unwrap();
    assert_eq!(fabric.choice, FabricChoice::Verbs);
    assert_eq!(fabric.nics, ["mlx5_0", "mlx5_1:2"]);
    assert!(matches!(said("rdma", ""), Err(ConfigError::UnknownWord(_))));
    let many = said("", &["nic"; 9].join(","));
    assert!(matches!(many, Err(ConfigError::OutOfRange { got: 9, max: 8, .. })), "{many:?}");
    let own = FabricConfig { nics: vec!["own".to_owned()], ..FabricConfig::default() };
    let config = ClientConfig { fabric: own, ..ClientConfig::default() };
    assert_eq!(config.checked_fabric(|_| Some(String::new())).unwrap().nics, ["own"]);
}

#[test]
fn numbers_are_taken_up_to_the_ends_of_their_ranges_and_not_beyond() {
    type Set = fn(&mut ClientConfig, u64);
    let table: [(&str, Set, u64, u64); 5] = [
        ("connect_ms", |config, value| config.connect_ms = value, 1, 60_000),
        ("call_ms", |config, value| config.call_ms = value, 1, 600_000),
        ("breaker.failures", |config, value| config.breaker.failures = value as u32, 1, 1000),
        ("breaker.cooldown_ms", |config, value| config.breaker.cooldown_ms = value, 1, 600_000),
        ("embedded.dram_bytes", |config, value| config.embedded.dram_bytes = value, 16 << 20, 1 << 50),
    ];
    for (name, set, least, most) in table {
        for (value, is_right) in [(least - 1, false), (least, true), (most, true), (most + 1, false)] {
            let mut config = ClientConfig::default();
            set(&mut config, value);
            let expected = ConfigError::OutOfRange { what: name, got: value, min: least, max: most };
            assert_eq!(config.check(), if is_right { Ok(()) } else { Err(expected) }, "{value}");
        }
    }
    let mut config = ClientConfig::default();
    config.embedded.nvme_bytes = 0;
    assert!(config.check().is_ok(), "a pool without a disk");
}

#[test]
fn certificates_beside_an_address_that_is_not_encrypted_are_refused() {
    let given = [
        TlsConfig { ca: Some(PathBuf::from("ca.pem")), ..TlsConfig::default() },
        TlsConfig { cert: Some(PathBuf::from("cert.pem")), ..TlsConfig::default() },
        TlsConfig { key: Some(PathBuf::from("key.pem")), ..TlsConfig::default() },
        TlsConfig { server_name: Some("pool.example".to_owned()), ..TlsConfig::default() },
    ];
    for (address, is_open) in [
        ("tcp://host:1", true),
        ("http://host:1", true),
        ("tls://host:1", false),
        ("unix:/run/turnkv.sock", false),
    ] {
        for tls in given.clone() {
            let made = crate::Client::new(ClientConfig { tls, ..ClientConfig::at(address) });
            match is_open {
                true => assert_eq!(made.err(), Some(ConfigError::NotEncrypted(address.to_owned()))),
                false => assert!(made.is_ok(), "{address}"),
            }
        }
        assert!(crate::Client::new(ClientConfig::at(address)).is_ok(), "{address}");
    }
    let tls = TlsConfig { ca: Some(PathBuf::from("ca.pem")), ..TlsConfig::default() };
    let list = crate::Client::new(ClientConfig { tls, ..ClientConfig::at("tcp://host:1,tcp://other:1") });
    assert_eq!(list.err(), Some(ConfigError::NotEncrypted("tcp://host:1".to_owned())));
}

#[test]
fn an_address_is_one_of_its_forms_or_is_refused_as_it_was_written() {
    let right = [
        ("unix:/run/turnkv.sock", "unix:/run/turnkv.sock"),
        ("unix:///run/turnkv.sock", "unix:/run/turnkv.sock"),
        ("unix:/run/with space,comma", "unix:/run/with space,comma"),
        ("tcp://host:1", "tcp://host:1"),
        ("tls://[::1]:65535", "tls://[::1]:65535"),
        ("http://host", "http://host"),
    ];
    for (text, shown) in right {
        let address = Address::parse(text).unwrap();
        assert_eq!(address.to_string(), shown);
        assert_eq!(Address::parse(shown).unwrap(), address, "what is shown is the same address");
    }
    let wrong = [
        "",
        "host:1",
        "unix:",
        "unix:run/turnkv.sock",
        "unix://run",
        "tcp://",
        "tcp://host",
        "tcp://host:",
        "tcp://:1",
        "tcp://host:0",
        "tcp://host:65536",
        "tcp://host:-1",
        "tcp://host:1/",
        "tcp://::1:2",
        "tcp://[host]:1",
        "tcp://user@host:1",
        "TCP://host:1",
        "https://host:1",
        "http://",
        " tcp://host:1",
        "tcp://host:1 ",
    ];
    for text in wrong {
        assert_eq!(Address::parse(text), Err(ConfigError::BadAddress(text.to_owned())));
    }
    let path = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
    // The local socket beside it has a longer name.
    let most = SOCKET_PATH_BYTES_MAX - turnkv_proto::limits::LOCAL_SOCKET_SUFFIX.len();
    assert!(Address::parse(&format!("unix:{}", path(most))).is_ok());
    let long = Address::parse(&format!("unix:{}", path(most + 1)));
    assert_eq!(long, Err(ConfigError::LongPath { path: path(most + 1).into(), max: most }));
}

#[test]
fn what_is_said_of_a_fabric_comes_before_what_the_environment_says() {
    let environment = |name: &str| match name {
        "TURNKV_FABRIC" => Some("verbs".to_owned()),
        "TURNKV_NICS" => Some("theirs".to_owned()),
        "TURNKV_LIBFABRIC_PROVIDER" => Some("efa".to_owned()),
        "TURNKV_DEVICE_MEMORY" => Some("host".to_owned()),
        _ => None,
    };
    let own = FabricConfig {
        choice: FabricChoice::Framed,
        nics: vec!["own".to_owned()],
        libfabric_provider: "cxi".to_owned(),
        device_memory: DeviceMemoryChoice::Host,
    };
    assert_eq!(own.or_environment(environment).unwrap(), own);
    let theirs = FabricConfig::default().or_environment(environment).unwrap();
    let expected = FabricConfig {
        choice: FabricChoice::Verbs,
        nics: vec!["theirs".to_owned()],
        libfabric_provider: "efa".to_owned(),
        device_memory: DeviceMemoryChoice::Host,
    };
    assert_eq!(theirs, expected);
    let refused = |_: &str| Some("Verbs".to_owned());
    assert!(FabricConfig::default().or_environment(refused).is_err(), "names are in lower case");
    assert!(own.or_environment(refused).is_ok(), "nobody asks what was said already");
    for name in ["auto", "framed", "libfabric", "verbs"] {
        let choice = FabricChoice::by_name(name).unwrap();
        let allowed =
            turnkv_transfer::fabric::Engine::ALL.into_iter().filter(|engine| choice.allows(*engine));
        let allowed: Vec<&str> = allowed.map(turnkv_transfer::fabric::Engine::name).collect();
        assert!(if name == "auto" { allowed.len() == 3 } else { allowed == [name] }, "{name}: {allowed:?}");
    }
}

/// Few, so that members are named twice.
fn hosts() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b.c", "10.0.0.1", "[::1]", "[fe80::2]"]).prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn a_list_is_read_in_its_order_each_member_once_whatever_spaces_are_in_it(
        members in prop::collection::vec((hosts(), 1..6u16, 0..3usize), 2..30), is_tls in any::<bool>()
    ) {
        let scheme = if is_tls { "tls" } else { "tcp" };
        let written = members.iter().map(|(host, port, spaces)| {
            let spaces = " ".repeat(*spaces);
            format!("{scheme}://{host}:{port}{spaces}")
        });
        let written: Vec<String> = written.collect();
        let mut expected: Vec<String> = Vec::new();
        for member in &written {
            if !expected.iter().any(|known| known == member.trim()) {
                expected.push(member.trim().to_owned());
            }
        }
        match Address::parse_list(&written.join(" ,")) {
            Ok(list) => {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                prop_assert!(list == expected && list.len() <= MEMBERS_LISTED_MAX, "{:?}", list);
            }
            Err(error) => {
                let is_long = matches!(error, ConfigError::OutOfRange { what: "addresses", .. });
                prop_assert!(is_long && expected.len() > MEMBERS_LISTED_MAX, "{}", error);
            }
        }
    }
}
