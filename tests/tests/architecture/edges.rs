//! Who may depend on whom, and the check of `cargo metadata` against it.
//! Must not know: files; it judges what it is handed.

use serde_json::Value;

/// What one crate of the workspace may know.
struct Rule {
    name: &'static str,
    /// Crates of the workspace it may depend on, in any role.
    ours: &'static [&'static str],
    others: Others,
    /// Whether it may ask turnkv-proto for the wire messages.
    wire: bool,
}

/// Which foreign crates may be normal or build dependencies.
enum Others {
    /// Nothing but these.
    Only(&'static [&'static str]),
    /// Anything but these.
    Not(&'static [&'static str]),
}

const RPC: [&str; 8] =
    ["h2", "http", "hyper", "prost", "tonic", "tonic-health", "tonic-prost", "tonic-reflection"];
const IO_AND_RPC: [&str; 13] = [
    "h2",
    "http",
    "hyper",
    "io-uring",
    "libc",
    "mio",
    "nix",
    "redb",
    "rustix",
    "socket2",
    "tokio",
    "tokio-stream",
    "tower",
];

const RULES: [Rule; 15] = [
    Rule { name: "turnkv-codec", ours: &[], others: Others::Only(&["thiserror", "zstd"]), wire: false },
    Rule { name: "turnkv-proto", ours: &[], others: Others::Not(&IO_AND_RPC), wire: true },
    Rule { name: "turnkv-transfer", ours: &[], others: Others::Not(&RPC), wire: false },
    Rule {
        name: "turnkv-pool",
        ours: &["turnkv-proto"],
        others: Others::Only(&["hashbrown", "thiserror"]),
        wire: false,
    },
    Rule {
        name: "turnkv-router",
        ours: &["turnkv-proto"],
        others: Others::Only(&["hashbrown", "thiserror"]),
        wire: false,
    },
    Rule {
        name: "turnkv-cluster",
        ours: &["turnkv-proto"],
        others: Others::Only(&["hashbrown", "sha2"]),
        wire: false,
    },
    Rule {
        name: "turnkv-sim",
        ours: &["turnkv-cluster", "turnkv-pool", "turnkv-proto", "turnkv-router"],
        others: Others::Only(&["flate2", "serde", "serde_json", "thiserror"]),
        wire: false,
    },
    Rule {
        name: "turnkv-tier",
        ours: &["turnkv-codec", "turnkv-proto", "turnkv-transfer"],
        others: Others::Not(&RPC),
        wire: false,
    },
    // Object stores: what speaks HTTP to them is object_store's own. CRC-64 is the transfer crate's. A directory is opened step by step.
    Rule {
        name: "turnkv-archive",
        ours: &["turnkv-codec", "turnkv-proto", "turnkv-transfer"],
        others: Others::Only(&[
            "async-trait",
            "bytes",
            "futures-util",
            "object_store",
            "parking_lot",
            "rustix",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "tracing",
            "zstd",
        ]),
        wire: false,
    },
    Rule {
        name: "turnkv-client",
        ours: &["turnkv-proto", "turnkv-transfer"],
        others: Others::Not(&["redb"]),
        wire: true,
    },
    Rule {
        name: "turnkv",
        ours: &[
            "turnkv-archive",
            "turnkv-client",
            "turnkv-cluster",
            "turnkv-pool",
            "turnkv-proto",
            "turnkv-router",
            "turnkv-sim",
            "turnkv-tier",
            "turnkv-transfer",
        ],
        others: Others::Not(&["pyo3", "io-uring"]),
        wire: true,
    },
    Rule {
        name: "turnkv-python",
        ours: &["turnkv-client"],
        others: Others::Only(&["pyo3", "tokio"]),
        wire: false,
    },
    // The GPU bench holds the client's path against what the driver itself reaches; codecs and the archive are measured alone, too.
    Rule {
        name: "turnkv-benches",
        ours: &["turnkv-archive", "turnkv-client", "turnkv-codec", "turnkv-transfer"],
        others: Others::Not(&RPC),
        wire: false,
    },
    // What the fuzzers of every crate share: it knows nothing.
    Rule { name: "turnkv-mutate", ours: &[], others: Others::Only(&[]), wire: false },
    // The seeded fault simulation runs the whole server in one process, through its face for simulators.
    Rule {
        name: "turnkv-tests",
        ours: &["turnkv", "turnkv-client", "turnkv-mutate", "turnkv-proto", "turnkv-transfer"],
        others: Others::Not(&["pyo3"]),
        wire: true,
    },
];

/// A crate of the workspace and what it depends on.
pub(crate) struct Crate {
    name: String,
    edges: Vec<Edge>,
}

struct Edge {
    to: String,
    /// A dev-dependency: tests may use what production code may not, but not our own upper crates.
    dev: bool,
    wire: bool,
}

/// The crates named by `cargo metadata --no-deps`; None if the document has another shape.
pub(crate) fn read(metadata: &Value) -> Option<Vec<Crate>> {
    metadata["packages"].as_array()?.iter().map(read_crate).collect()
}

fn read_crate(package: &Value) -> Option<Crate> {
    let edges = package["dependencies"].as_array()?.iter().map(read_edge).collect::<Option<Vec<_>>>()?;
    Some(Crate { name: package["name"].as_str()?.to_owned(), edges })
}

fn read_edge(dependency: &Value) -> Option<Edge> {
    let named = |feature: &Value| feature == "wire";
    Some(Edge {
        to: dependency["name"].as_str()?.to_owned(),
        dev: dependency["kind"] == "dev",
        wire: dependency["uses_default_features"].as_bool()?
            || dependency["features"].as_array()?.iter().any(named),
    })
}

/// Every edge that the rules forbid, and every crate without a rule.
pub(crate) fn violations(crates: &[Crate]) -> Vec<String> {
    let mut faults = Vec::new();
    for found in crates {
        let Some(rule) = RULES.iter().find(|rule| rule.name == found.name) else {
            faults.push(format!("{}: a new crate needs a rule saying what it may know", found.name));
            continue;
        };
        faults.extend(found.edges.iter().filter_map(|edge| judge(rule, edge)));
    }
    for rule in RULES.iter().filter(|rule| !crates.iter().any(|found| found.name == rule.name)) {
        faults.push(format!("{}: there is a rule but no such crate", rule.name));
    }
    faults
}

fn judge(rule: &Rule, edge: &Edge) -> Option<String> {
    let (from, to) = (rule.name, edge.to.as_str());
    if to == "turnkv" || to.starts_with("turnkv-") {
        if edge.dev && (from == to || to == "turnkv-mutate") {
            return None; // its own tests run with a feature of its own, and fuzz
        }
        if !rule.ours.contains(&to) {
            return Some(format!("{from} must not know {to}"));
        }
        let wire = to == "turnkv-proto" && edge.wire && !rule.wire;
        return wire.then(|| format!("{from} must not know the wire messages of {to} (feature \"wire\")"));
    }
    let allowed = match rule.others {
        Others::Only(names) => names.contains(&to),
        Others::Not(names) => !names.contains(&to),
    };
    (!edge.dev && !allowed).then(|| format!("{from} must not depend on {to}"))
}

#[cfg(test)]
mod tests {
    use super::{Crate, Edge, RULES, read, violations};
    use serde_json::json;

    fn house() -> Vec<Crate> {
        RULES.iter().map(|rule| Crate { name: rule.name.to_owned(), edges: Vec::new() }).collect()
    }

    fn with(from: &str, to: &str, dev: bool, wire: bool) -> Vec<String> {
        let mut crates = house();
        let found = crates.iter_mut().find(|found| found.name == from).expect("the crate has a rule");
        found.edges.push(Edge { to: to.to_owned(), dev, wire });
        violations(&crates)
    }

    #[test]
    fn an_empty_house_is_in_order() {
        assert_eq!(violations(&house()), Vec::<String>::new());
    }

    #[test]
    fn forbidden_edges_are_named() {
        let forbidden = [
            ("turnkv-pool", "tokio"),
            ("turnkv-pool", "rustix"),
            ("turnkv-pool", "turnkv-transfer"),
            ("turnkv-pool", "turnkv-router"),
            ("turnkv-router", "turnkv-pool"),
            ("turnkv-transfer", "turnkv-proto"),
            ("turnkv-transfer", "tonic"),
            ("turnkv-tier", "turnkv-pool"),
            ("turnkv-tier", "tonic"),
            ("turnkv-client", "turnkv-pool"),
            ("turnkv-client", "turnkv-tier"),
            ("turnkv-client", "turnkv"),
            ("turnkv-python", "turnkv-proto"),
            ("turnkv-python", "tonic"),
            ("turnkv-proto", "tokio"),
            ("turnkv-benches", "turnkv-pool"),
            ("turnkv-sim", "turnkv-tier"),
            ("turnkv-sim", "tokio"),
            ("turnkv-archive", "turnkv-pool"),
            ("turnkv-archive", "tonic"),
            ("turnkv", "turnkv-python"),
        ];
        for (from, to) in forbidden {
            assert_eq!(with(from, to, false, false).len(), 1, "{from} -> {to} must be refused");
        }
    }

    #[test]
    fn allowed_edges_pass() {
        for (from, to) in
            [("turnkv", "turnkv-pool"), ("turnkv-tier", "io-uring"), ("turnkv-pool", "hashbrown")]
        {
            assert_eq!(with(from, to, false, false), Vec::<String>::new(), "{from} -> {to}");
        }
    }

    #[test]
    fn tests_may_use_foreign_crates_but_not_our_upper_ones() {
        assert!(with("turnkv-pool", "proptest", true, false).is_empty());
        assert_eq!(with("turnkv-pool", "turnkv-tier", true, false).len(), 1);
        assert!(with("turnkv-tier", "turnkv-tier", true, false).is_empty());
    }

    #[test]
    fn the_wire_messages_are_for_those_who_speak() {
        assert_eq!(with("turnkv-pool", "turnkv-proto", false, true).len(), 1);
        assert!(with("turnkv-pool", "turnkv-proto", false, false).is_empty());
        assert!(with("turnkv-client", "turnkv-proto", false, true).is_empty());
    }

    #[test]
    fn a_crate_without_a_rule_and_a_rule_without_a_crate_are_faults() {
        let mut crates = house();
        crates.push(Crate { name: "turnkv-extra".to_owned(), edges: Vec::new() });
        assert_eq!(violations(&crates).len(), 1);
        crates.retain(|found| found.name != "turnkv-pool");
        assert_eq!(violations(&crates).len(), 2);
    }

    #[test]
    fn metadata_is_read_as_cargo_prints_it() {
        let dependency = json!({"name": "turnkv-proto", "kind": null, "features": ["wire"], "uses_default_features": false});
        let crates = read(&json!({"packages": [{"name": "turnkv-pool", "dependencies": [dependency]}]}));
        let crates = crates.expect("the shape is cargo's");
        assert!(crates[0].edges[0].wire && !crates[0].edges[0].dev);
        assert!(read(&json!({"packages": 3})).is_none());
    }
}
