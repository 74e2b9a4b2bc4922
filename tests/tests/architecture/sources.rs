//! Rules about one file's text: its length, its header, unsafe code, unfinished work and machine paths.
//! Must not know: where files come from; every rule is a pure function over (path, text).

/// Lines of a file before its inline tests.
const PRODUCTION_LINES_MAX: usize = 500;

/// Lints that the workspace must keep on.
pub(crate) const LINTS: [&str; 5] = [
    "unwrap_used = ",
    "expect_used = ",
    "panic = ",
    "too_many_lines = ",
    "undocumented_unsafe_blocks = \"deny\"",
];

/// Crate roots that must forbid unsafe code outright.
pub(crate) const FORBIDDING_ROOTS: [&str; 9] = [
    "proto/src/lib.rs",
    "server/archive/src/lib.rs",
    "server/cluster/src/lib.rs",
    "server/pool/src/lib.rs",
    "server/router/src/lib.rs",
    "server/sim/src/lib.rs",
    "client/src/lib.rs",
    "server/src/lib.rs",
    "server/src/main.rs",
];

/// Where unsafe code may be: bytes are moved here, or Python's C interface asks for it, or a test of copy
/// plans vouches for the tensors that it made (production code of the client forbids it at its root), or a
/// bench enqueues copies on a device's driver itself, as the limit to hold the client against, or is such a driver, or loops are called
/// that were compiled for instructions that the processor has.
const UNSAFE_FOLDERS: [&str; 8] = [
    "server/transfer/",
    "server/tier/",
    "server/codec/src/kernel.rs",
    "engine-plugins/",
    "client/tests/",
    "benches/src/bin/gpu/modelled.rs",
    "benches/src/bin/gpu/rig.rs",
    "tests/tests/framed_strided.rs",
];

// Spelled in two halves, so that this file does not accuse itself.
const UNSAFE_FORMS: [&str; 5] = [
    concat!("un", "safe {"),
    concat!("un", "safe fn "),
    concat!("un", "safe impl"),
    concat!("un", "safe trait "),
    concat!("un", "safe extern "),
];
const UNFINISHED: [&str; 7] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("unimple", "mented!"),
    concat!("to", "do!"),
    concat!("db", "g!"),
    concat!("NotImple", "mentedError"),
];
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
/// Crates that take `now` and return what is to be done.
const PURE: [&str; 3] = ["server/cluster/src/", "server/pool/src/", "server/router/src/"];
const OUTSIDE_WORLD: [&str; 8] = [
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
];

/// Whether a text takes the lock around the pool.
pub(crate) fn locks_the_pool(text: &str) -> bool {
    text.contains(concat!("self.core", ".lock()")) || text.contains(concat!("engine.core", ".lock()"))
}

/// A Rust file with too many production lines. Tests may be as long as they need.
pub(crate) fn too_long(path: &str, text: &str) -> Option<String> {
    let lines = production_lines(text).count();
    let long = !is_test(path) && lines > PRODUCTION_LINES_MAX;
    long.then(|| format!("{path}: {lines} production lines, {PRODUCTION_LINES_MAX} are allowed"))
}

/// A file that does not open by saying what it owns.
pub(crate) fn no_header(path: &str, text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| line.starts_with("#!/") || line.trim().is_empty());
    let first = lines.next().unwrap_or("");
    let (fine, wanted) = if path.ends_with(".py") {
        let opens = ["\"\"\"", "r\"\"\"", "'''"].iter().any(|quote| first.starts_with(quote));
        // An empty __init__.py owns nothing.
        (opens || (text.trim().is_empty() && path.ends_with("__init__.py")), "a docstring")
    } else {
        (first.starts_with("//! "), "`//!`")
    };
    (!fine).then(|| format!("{path}: must open with {wanted} saying what it owns"))
}

/// Unsafe code outside the folders that may have it.
pub(crate) fn misplaced_unsafe(path: &str, text: &str) -> Vec<String> {
    if UNSAFE_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    let code = |line: &str| line.split("//").next().unwrap_or("").to_owned();
    findings(path, text, |line| {
        let line = code(line);
        UNSAFE_FORMS
            .iter()
            .find(|form| line.contains(*form))
            .map(|_| "unsafe code must not be here".to_owned())
    })
}

/// What in the pool's production code reaches for a clock, a file, a thread or the environment.
pub(crate) fn impure(path: &str, text: &str) -> Vec<String> {
    if !PURE.iter().any(|folder| path.starts_with(folder)) || is_test(path) {
        return Vec::new();
    }
    let production: Vec<&str> = production_lines(text).collect();
    findings(path, &production.join("\n"), |line| {
        let code = line.split("//").next().unwrap_or("");
        let word = OUTSIDE_WORLD.iter().find(|word| code.contains(*word));
        word.map(|word| format!("{word}: decisions are handed `now` and return actions"))
    })
}

/// Where the server may name messages of the wire: its doors, and four that are no doors.
pub(crate) const WIRE_SPEAKERS: [&str; 5] = [
    "server/src/doors/",
    // The operator's commands are clients of a running server.
    "server/src/cmd/",
    // A member of a cluster is a client of the others.
    "server/src/cluster/link/",
    // A row of the catalog is a message: the format of a file.
    "server/src/catalog/namespaces.rs",
    // A simulated client speaks as one at a door does, through the doors' codec.
    "server/src/simulation/verbs.rs",
];

/// Lines of the server that name messages of the wire where nobody speaks it.
pub(crate) fn wire_outside_doors(path: &str, text: &str) -> Vec<String> {
    if !path.starts_with("server/src/") || WIRE_SPEAKERS.iter().any(|speaker| path.starts_with(speaker)) {
        return Vec::new();
    }
    findings(path, text, |line| {
        names_wire(line)
            .then(|| "messages of the wire are for doors/: ask the engine in its own words".to_owned())
    })
}

/// Whether a file names messages of the wire.
pub(crate) fn speaks_wire(text: &str) -> bool {
    text.lines().any(names_wire)
}

fn names_wire(line: &str) -> bool {
    has_word(line.split("//").next().unwrap_or(""), "wire")
}

/// Marks of unfinished work.
pub(crate) fn forbidden_words(path: &str, text: &str) -> Vec<String> {
    findings(path, text, |line| {
        UNFINISHED
            .iter()
            .find(|word| has_word(line, word))
            .map(|word| format!("{word} marks unfinished work"))
    })
}

/// Absolute paths that exist on one machine only.
pub(crate) fn machine_paths(path: &str, text: &str) -> Vec<String> {
    findings(path, text, |line| {
        MACHINE_PATHS
            .iter()
            .find(|start| has_path(line, start))
            .map(|start| format!("{start} is one machine's path"))
    })
}

/// Texts that the file must contain and does not.
pub(crate) fn missing(path: &str, text: &str, wanted: &[&str]) -> Vec<String> {
    let absent = wanted.iter().filter(|part| !text.contains(*part));
    absent.map(|part| format!("{path}: must contain {part:?}")).collect()
}

/// The lines outside inline test modules (`#[cfg(test)]` and then `mod name {` up to the brace that closes
/// it).
fn production_lines(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut kept, mut next) = (Vec::new(), 0);
    while let Some(line) = lines.get(next) {
        if *line == "#[cfg(test)]" {
            let opening = (next + 1..lines.len()).find(|&at| !lines[at].starts_with("#["));
            if let Some(at) = opening.filter(|&at| lines[at].contains("mod ") && lines[at].ends_with('{')) {
                next = (at..lines.len()).find(|&end| lines[end] == "}").unwrap_or(lines.len()) + 1;
                continue;
            }
        }
        kept.push(*line);
        next += 1;
    }
    kept.into_iter()
}

fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"))
}

fn findings(path: &str, text: &str, judge: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let judged = text.lines().enumerate().filter_map(|(at, line)| judge(line).map(|fault| (at, fault)));
    judged.map(|(at, fault)| format!("{path}:{}: {fault}", at + 1)).collect()
}

/// Whether `word` stands in `line` with no letter, digit or underscore touching it.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(joins) && (word.ends_with('!') || !line[at + word.len()..].starts_with(joins))
    })
}

/// Whether a path that starts with `start` stands in `line`: not the middle of a longer path.
fn has_path(line: &str, start: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || "_-./}*$".contains(c);
    line.match_indices(start).any(|(at, _)| !line[..at].ends_with(joins))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> String {
        "let x = 1;\n".repeat(count)
    }

    #[test]
    fn a_long_file_is_named_and_its_tests_do_not_count() {
        assert!(too_long("a/src/b.rs", &lines(500)).is_none());
        assert!(too_long("a/src/b.rs", &lines(501)).is_some());
        assert!(too_long("a/tests/b.rs", &lines(501)).is_none());
        assert!(too_long("a/src/b/tests.rs", &lines(501)).is_none());
        let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(400), lines(400));
        assert!(too_long("a/src/b.rs", &tested).is_none());
    }

    #[test]
    fn code_after_or_beside_a_test_module_counts() {
        let sandwich = format!("#[cfg(test)]\nmod tests {{\n}}\n{}", lines(501));
        assert!(too_long("a/src/b.rs", &sandwich).is_some());
        let sibling = format!("#[cfg(test)]\nmod tests;\n{}", lines(500));
        assert!(too_long("a/src/b.rs", &sibling).is_some());
    }

    #[test]
    fn headers_are_asked_for() {
        assert!(no_header("a.rs", "//! Owns a.\nuse b;").is_none());
        assert!(no_header("a.rs", "// Owns a.\n//! Late.").is_some());
        assert!(no_header("a.rs", "").is_some());
        assert!(no_header("a.py", "#!/usr/bin/env python3\n\"\"\"Owns a.\"\"\"").is_none());
        assert!(no_header("a.py", "import os").is_some());
        assert!(no_header("p/__init__.py", "").is_none());
    }

    #[test]
    fn unsafe_code_is_found_outside_its_folders() {
        let code = concat!("fn f() { un", "safe { g() } }");
        assert_eq!(
            misplaced_unsafe("client/src/a.rs", code),
            ["client/src/a.rs:1: unsafe code must not be here"]
        );
        assert!(misplaced_unsafe("server/transfer/src/a.rs", code).is_empty());
        assert!(misplaced_unsafe("client/src/a.rs", &format!("// {code}")).is_empty());
        assert!(misplaced_unsafe("client/src/a.rs", "#![forbid(unsafe_code)]").is_empty());
    }

    #[test]
    fn a_clock_in_the_pool_is_found() {
        assert_eq!(impure("server/pool/src/a.rs", "let t = std::time::Instant::now();").len(), 1);
        assert_eq!(impure("server/pool/src/a.rs", "use std::fs::File;").len(), 1);
        assert!(impure("server/pool/src/a.rs", "fn f(now: Now) {} // never Instant::now").is_empty());
        assert!(impure("server/pool/src/a.rs", "#[cfg(test)]\nmod tests {\nuse std::fs;\n}").is_empty());
        assert!(impure("server/src/a.rs", "use std::fs::File;").is_empty());
    }

    #[test]
    fn messages_of_the_wire_are_found_outside_the_doors() {
        let used = "use turnkv_proto::{BlockHash, wire};";
        assert_eq!(wire_outside_doors("server/src/engine/a.rs", used).len(), 1);
        assert_eq!(wire_outside_doors("server/src/engine/a.rs", "    wire::Verb::Hello").len(), 1);
        assert!(
            wire_outside_doors("server/src/engine/a.rs", "// the wire's name; rewire(); wired").is_empty()
        );
        assert!(wire_outside_doors("server/src/doors/codec/a.rs", used).is_empty());
        assert!(wire_outside_doors("client/src/a.rs", used).is_empty());
        assert!(speaks_wire(used) && !speaks_wire("let wires = 2;"));
    }

    #[test]
    fn unfinished_work_is_found() {
        assert_eq!(forbidden_words("a.rs", concat!("// TO", "DO: later")).len(), 1);
        assert_eq!(forbidden_words("a.rs", concat!("unimple", "mented!()")).len(), 1);
        assert_eq!(forbidden_words("a.rs", concat!("db", "g!(x)")).len(), 1);
        assert!(forbidden_words("a.rs", concat!("let TO", "DOS = [];")).is_empty());
    }

    #[test]
    fn machine_paths_are_found() {
        assert_eq!(machine_paths("a.py", concat!("open('/wo", "rk/x')")).len(), 1);
        assert_eq!(machine_paths("a.toml", concat!("path = \"/ho", "me/me/x\"")).len(), 1);
        assert!(machine_paths("a.md", concat!("see peerbench/wo", "rk/ for logs")).is_empty());
    }

    #[test]
    fn missing_text_is_named() {
        assert_eq!(missing("a", "one two", &["one", "three"]), ["a: must contain \"three\""]);
    }
}
