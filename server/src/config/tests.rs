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
        ("listen = \"unix:relative/turnkv.sock\"", "absolute path"),
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
    turnkv_mutate::each_seed(3_000, |random| {
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

#[test]
fn segments_that_nobody_asked_for_are_sixteen_or_more_where_they_can_be() {
    for (mib, segment_mib) in
        [(16, 4), (64, 4), (100, 6), (500, 31), (512, 32), (8 << 10, 32), (9_000, 36), (1 << 20, 256)]
    {
        let settings = parse(&format!("[nvme]\npath = \"x\"\nbytes = \"{mib}MiB\"")).unwrap();
        let nvme = settings.nvme.unwrap();
        assert_eq!(nvme.segment_bytes, segment_mib * MIB, "{mib} MiB");
        assert!(nvme.bytes / nvme.segment_bytes >= 16 || mib < 64, "{mib} MiB");
    }
}

/// A key's row of the table of settings in docs/operating/configuration.md: its default and its bounds.
fn row(key: &str) -> (String, String) {
    let begin = format!("| `{key}` | ");
    let row = include_str!("../../../docs/operating/configuration.md")
        .lines()
        .find(|line| line.starts_with(&begin));
    let row = row.unwrap_or_else(|| panic!("the table of settings has no {key}"));
    let mut cells = row[begin.len()..].split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
    (cells.next().unwrap(), cells.next().unwrap())
}

/// Least and most of a row's bounds, if they are numbers; the most may be left open.
fn numbers(bounds: &str) -> Option<(Bytes, Option<Bytes>)> {
    let bounds = bounds.split(',').next()?;
    let number = |text: &str| match text.split_once('^') {
        Some((base, power)) => Some(Bytes(base.parse::<u64>().ok()?.pow(power.parse().ok()?))),
        None => text.parse().ok(),
    };
    match (bounds.strip_prefix(">= "), bounds.split_once("..")) {
        (Some(least), _) => Some((number(least)?, None)),
        (_, Some((least, most))) => Some((number(least)?, Some(number(most)?))),
        _ => None,
    }
}

#[test]
fn the_table_of_settings_has_every_key_with_the_bounds_that_are_checked() {
    let whole = format!("{FULL}write_bytes_per_day = \"1GiB\"\n");
    let printed = toml::to_string(&parse(&whole).unwrap().as_file()).unwrap();
    let file: toml::Table = printed.parse().unwrap();
    let mut checked = 0;
    for (section, name, default) in file.iter().flat_map(|(key, value)| match value {
        toml::Value::Table(table) => table.iter().map(|(name, value)| (key.as_str(), name, value)).collect(),
        value => vec![("", key, value)],
    }) {
        let key = if section.is_empty() { name.clone() } else { format!("{section}.{name}") };
        let (said, bounds) = row(&key);
        if let (Ok(said), Some(default)) = (said.parse::<i64>(), default.as_integer()) {
            assert_eq!(said, default, "the default of {key}");
        }
        let Some((least, most)) = numbers(&bounds) else {
            assert_ne!(section, "limits", "{key} has bounds, and the table says: {bounds}");
            continue;
        };
        let takes = |Bytes(value): Bytes| {
            let room = if section == "nvme" { "path = \"x\"\nbytes = \"64GiB\"\n" } else { "" };
            let value = if default.is_str() { format!("\"{value}B\"") } else { value.to_string() };
            let error = parse(&format!("[{section}]\n{room}{name} = {value}\n")).err();
            error.is_none_or(|error| !error.to_string().contains(&key))
        };
        assert!(takes(least) && most.is_none_or(takes), "{key} is to be taken at its bounds: {bounds}");
        assert!(least.0 == 0 || !takes(Bytes(least.0 - 1)), "{key} under its least: {bounds}");
        assert!(most.is_none_or(|most| !takes(Bytes(most.0 + 1))), "{key} over its most: {bounds}");
        checked += 1;
    }
    assert!(checked >= 17, "only {checked} bounds are numbers: the table's form has changed");
}

const FILES: &str = "[tls]\ncert = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"\n";

#[test]
fn tcp_off_the_loopback_is_protected_or_said_not_to_be() {
    for address in ["0.0.0.0:1", "10.0.0.5:7411", "[::]:1", "[2001:db8::1]:1"] {
        let tcp = format!("tcp = \"{address}\"\n");
        let error = parse(&tcp).unwrap_err().to_string();
        assert!(error.starts_with("tcp: ") && error.contains("insecure = true"), "{error}");
        assert!(matches!(parse(&format!("{tcp}{FILES}")).unwrap().tls, Tls::Files(_)));
        let insecure = parse(&format!("{tcp}[tls]\ninsecure = true\n")).unwrap();
        let said = insecure.exposed().unwrap();
        assert!(said.contains(address) && said.contains("engine/*"), "{said}");
    }
    for address in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        let settings = parse(&format!("tcp = \"{address}\"\n[tls]\ninsecure = true\n")).unwrap();
        assert_eq!((settings.exposed(), settings.access.plain.words()), (None, vec!["operator".to_owned()]));
        assert!(parse(&format!("tcp = \"{address}\"\n")).is_ok());
    }
}

#[test]
fn half_a_set_of_tls_and_words_that_grant_nothing_name_their_key() {
    let cases = [
        ("[tls]\nkey = \"k\"\nclient_ca = \"a\"", "tls.cert"),
        ("[tls]\ncert = \"c\"\nclient_ca = \"a\"", "tls.key"),
        ("[tls]\ncert = \"c\"\nkey = \"k\"", "tls.client_ca"),
        (&format!("{FILES}insecure = true"), "tls.insecure"),
        ("[access]\nplain = \"root\"", "access.plain"),
        ("[access]\nothers = [\"engine\"]", "access.others"),
        ("[access.users]\nvllm = \"engine/%\"", "access.users"),
        ("[access.groups]\n7 = [\"operator\", \"x\"]", "access.groups"),
    ];
    for (text, key) in cases {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{key}: ")), "{text}: {error}");
    }
}

#[test]
fn access_and_tls_read_back_as_printed() {
    let users = "[access]\nplain = \"engine/a\"\n[access.users]\nvllm = \"engine/*\"\n7 = [\"operator\", \"member\"]\n";
    for text in [FILES.to_owned(), "[tls]\ninsecure = true\n".to_owned(), format!("{FILES}{users}")] {
        let printed = toml::to_string(&parse(&text).unwrap().as_file()).unwrap();
        assert_eq!(printed, toml::to_string(&parse(&printed).unwrap().as_file()).unwrap());
    }
    let access = parse(users).unwrap().access;
    assert_eq!(access.users["7"].words(), ["operator", "member"]);
}

#[test]
fn an_archive_is_a_directory_or_a_bucket_within_bounds_and_reads_back_as_printed() {
    for (text, key) in [
        ("place = \"archive\"", "archive.place"),
        ("place = \"s3://\"", "archive.place"),
        ("place = \"s3:///prefix\"", "archive.place"),
        ("place = \"/a\"\nregion = \"r\"", "archive.place"),
        ("place = \"s3://b\"\nendpoint = \"store:9000\"", "archive.endpoint"),
        ("exports = \"exports\"", "archive.exports"),
        ("inflight_bytes = \"1KiB\"", "archive.inflight_bytes"),
        ("inflight_bytes = \"2GiB\"", "archive.inflight_bytes"),
        ("operations_max = 0", "archive.operations_max"),
        ("workers = 17", "archive.workers"),
        ("request_ms = 99", "archive.request_ms"),
        ("grace_s = 0", "archive.grace_s"),
        ("sessions = \"all\"", "archive.sessions"),
        ("bytes_per_second = \"1KiB\"", "archive.bytes_per_second"),
        ("wait_ms = 60001", "archive.wait_ms"),
        ("older_than_days = 0", "archive.older_than_days"),
        ("stored_max = \"0\"", "archive.stored_max"),
    ] {
        let error = parse(&format!("[archive]\n{text}\n")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{key}: ")), "{text}: {error}");
    }
    let bucket = "place = \"s3://b/one/two/\"\nendpoint = \"http://store:9000\"\nconditional_puts = false";
    let all = "place = \"/a\"\nsessions = \"all\"\nidle_s = 5\nolder_than_days = 3\nstored_max = \"1GiB\"\ncollect_s = 0";
    for text in ["", all, "place = \"/a\"\nexports = \"/e\"\ninflight_bytes = \"3MiB\"\ngrace_s = 7", bucket]
    {
        let printed = toml::to_string(&parse(&format!("[archive]\n{text}\n")).unwrap().as_file()).unwrap();
        assert_eq!(printed, toml::to_string(&parse(&printed).unwrap().as_file()).unwrap());
    }
    assert!(parse("").unwrap().archive.place.is_none(), "off unless it is asked for");
    let place = parse(&format!("[archive]\n{bucket}\n")).unwrap().archive.place.unwrap().place();
    let turnkv_archive::Place::S3 { bucket, prefix, conditional_puts, .. } = place else {
        panic!("{place:?}")
    };
    assert_eq!((bucket.as_str(), prefix.as_str(), conditional_puts), ("b", "one/two", false));
}

#[test]
fn what_cannot_be_meant_names_its_key_and_its_neighbour_that_can_is_taken() {
    let long = |bytes: usize| format!("listen = \"unix:/{}\"", "s".repeat(bytes - 1));
    let nvme = |bytes: &str, more: &str| format!("[nvme]\npath = \"/n\"\nbytes = \"{bytes}\"\n{more}");
    let most = crate::limits::SOCKET_PATH_BYTES_MAX;
    let nics = |count: usize| {
        let names: Vec<String> = (0..count).map(|at| format!("\"nic{at}\"")).collect();
        format!("[remote]\nnics = [{}]", names.join(", "))
    };
    let topic =
        |bytes: usize| format!("[events]\npublish = \"127.0.0.1:1\"\ntopic = \"{}\"", "t".repeat(bytes));
    let cases = [
        (long(most), long(most + 1), "listen"),
        ("listen = \"unix:/s\"".to_owned(), "listen = \"unix:\"".to_owned(), "listen"),
        ("socket_mode = \"0777\"".to_owned(), "socket_mode = \"1000\"".to_owned(), "socket_mode"),
        ("socket_mode = \"0\"".to_owned(), "socket_mode = \"-1\"".to_owned(), "socket_mode"),
        ("[dram]\nbytes = \"16MiB\"".to_owned(), "[dram]\nbytes = \"16777215B\"".to_owned(), "dram.bytes"),
        (
            "[dram]\nbytes = \"64MiB\"\nslab_bytes = \"64MiB\"".to_owned(),
            "[dram]\nbytes = \"64MiB\"\nslab_bytes = \"65MiB\"".to_owned(),
            "dram.slab_bytes",
        ),
        (nvme("16MiB", ""), nvme("15MiB", ""), "nvme.bytes"),
        (
            nvme("64GiB", "segment_bytes = \"4095MiB\""),
            nvme("64GiB", "segment_bytes = \"4GiB\""),
            "nvme.segment_bytes",
        ),
        (
            nvme("1GiB", "segment_bytes = \"256MiB\""),
            nvme("1023MiB", "segment_bytes = \"256MiB\""),
            "nvme.bytes",
        ),
        (
            nvme("1GiB", "segment_bytes = \"8MiB\"\nwrite_bytes_per_day = \"8MiB\""),
            nvme("1GiB", "segment_bytes = \"8MiB\"\nwrite_bytes_per_day = \"8388607B\""),
            "nvme.write_bytes_per_day",
        ),
        (nics(crate::limits::NICS_MAX), nics(crate::limits::NICS_MAX + 1), "remote.nics"),
        (topic(128), topic(129), "events.topic"),
        (
            "[archive]\nplace = \"s3://b\"\nendpoint = \"https://s\"".to_owned(),
            "[archive]\nplace = \"s3://b\"\nendpoint = \"ftp://s\"".to_owned(),
            "archive.endpoint",
        ),
    ];
    for (right, wrong, key) in cases {
        assert!(parse(&right).is_ok(), "{right}: {:?}", parse(&right).err());
        let said = parse(&wrong).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{key}: ")), "{wrong}: {said}");
    }
}

#[test]
fn memory_is_whole_slabs_and_never_more_than_was_asked_for() {
    turnkv_mutate::each_seed(500, |random| {
        let bytes = (16 << 20) + random.extreme() % (1 << 40);
        let slab = 1 + random.below(1024) as u64;
        let said = if random.one_in(2) { format!("slab_bytes = \"{slab}MiB\"\n") } else { String::new() };
        let Ok(settings) = parse(&format!("[dram]\nbytes = {bytes}\n{said}")) else {
            assert!(slab << 20 > bytes, "{bytes} bytes hold a slab of {slab} MiB");
            return;
        };
        let Dram { bytes: whole, slab_bytes, any_slab_bytes, .. } = settings.dram;
        assert_eq!(any_slab_bytes, said.is_empty());
        assert!(whole <= bytes && bytes - whole < slab_bytes && whole.is_multiple_of(slab_bytes));
        assert!(whole > 0 && (any_slab_bytes || slab_bytes == slab << 20));
    });
}
