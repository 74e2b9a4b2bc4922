//! Configuration: what is accepted, what is refused by name, what reads back.

use super::*;

fn parse(text: &str) -> Result<Settings, ConfigError> {
    super::parse(Path::new("test"), text)
}

#[test]
fn defaults_are_legal_and_read_back_as_printed() {
    let full = "[nvme]\npath = \"/var/lib/turnkv\"\nbytes = \"64GiB\"\n";
    for text in ["", full] {
        let settings = parse(text).unwrap();
        let printed = toml::to_string(&settings.as_file()).unwrap();
        let again = parse(&printed).unwrap();
        assert_eq!(printed, toml::to_string(&again.as_file()).unwrap());
    }
}

#[test]
fn unknown_keys_are_refused_by_name() {
    for text in
        ["drma = 1", "[dram]\nbyte = 5", "[limits]\nlease = 4", "[nvme]\npath=\"x\"\nbytes=\"1GiB\"\nx=1"]
    {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains("unknown field"), "{error}");
    }
}

#[test]
fn values_out_of_bounds_name_their_key() {
    let cases = [
        ("[dram]\nbytes = \"1MiB\"", "dram.bytes"),
        ("[dram]\nslab_bytes = \"3000000\"", "dram.slab_bytes"),
        ("[nvme]\npath = \"x\"\nbytes = \"5MiB\"", "nvme.bytes"),
        ("listen = \"tcp:1\"", "listen"),
        ("socket_mode = \"9\"", "socket_mode"),
        ("[limits]\nlease_ms = 1", "limits.lease_ms"),
        ("[limits]\nclient_slots_percent = 0", "limits.client_slots_percent"),
        ("[limits]\nconnections_max = 3", "limits.connections_max"),
    ];
    for (text, key) in cases {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(key), "{text}: {error}");
    }
}

#[test]
fn sizes_read_and_print() {
    for (text, bytes) in [("64MiB", 64 << 20), ("1GiB", 1 << 30), ("512", 512), ("7 KiB", 7 << 10), ("3B", 3)]
    {
        assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(bytes));
    }
    for text in ["", "x", "-1", "1.5GiB", "99999999999TiB"] {
        assert!(text.parse::<Bytes>().is_err(), "{text}");
    }
    assert_eq!(Bytes((1 << 30) + 4096).to_string().parse::<Bytes>().unwrap().0, (1 << 30) + 4096);
}

#[test]
fn a_fault_is_one_line_that_names_its_place() {
    let error = parse("[dram]\nbytes = \"1GiB\"\nbyts = 5\n").unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("test:3: `byts = 5`: unknown field `byts`"), "{text}");
    assert_eq!((text.lines().count(), error.advice().lines().count()), (1, 1));
    assert!(std::error::Error::source(&error).is_none(), "a cause would be said twice");
    assert_eq!(parse("[dram\n").unwrap_err().to_string().lines().count(), 1);
}

#[test]
fn damaged_files_are_refused_by_name_or_read_back_as_printed() {
    let whole = toml::to_string(&parse(FULL).unwrap().as_file()).unwrap();
    let others = [
        "true",
        "\"\"",
        "\"64GiB\"",
        "-1",
        "1e9",
        "[",
        "]",
        "=",
        "\n",
        "bytes",
        "99999999999999999999",
        "\"0B\"",
    ];
    let mut good = 0;
    turnkv_mutate::each_seed(2_000, |random| {
        let text = match random.below(4) {
            0 => String::from_utf8_lossy(&turnkv_mutate::mutate_bytes(random, whole.as_bytes())).into_owned(),
            _ => turnkv_mutate::mutate_text(random, &whole, &others),
        };
        match parse(&text) {
            Ok(settings) => {
                let printed = toml::to_string(&settings.as_file()).unwrap();
                let again = parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
                assert_eq!(printed, toml::to_string(&again.as_file()).unwrap());
                good += 1;
            }
            Err(error) => assert!(error.to_string().len() > 10, "{error}"),
        }
    });
    assert!(good > 100, "only {good} were configurations: the others prove little");
}

const FULL: &str = "metrics = \"127.0.0.1:9411\"\n[nvme]\npath = \"/var/lib/turnkv\"\nbytes = \"64GiB\"\n";
