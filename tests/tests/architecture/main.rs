//! The house rules, checked on the tree itself: crate edges, edges inside the pool, circles of imports, names of
//! types, file sizes, headers, unsafe code, words and paths. Each checker is a pure function over text with tests
//! of its own beside it, so that each can be seen to fail.
#![allow(clippy::expect_used, reason = "a test says what it expected by failing")]
#![forbid(unsafe_code)]

mod circles;
mod edges;
mod modules;
mod sources;
mod steps;
mod wings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use turnkv_tests::workspace;

/// Folders that hold nothing of ours.
const SKIPPED: [&str; 6] = ["target", "data", "__pycache__", "node_modules", "build", "dist"];

#[test]
fn crates_know_only_what_they_may() {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(workspace::root())
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let crates = edges::read(&metadata).expect("the metadata has the shape we know");
    report(edges::violations(&crates));
}

#[test]
fn every_crate_obeys_the_workspace_lints() {
    let root = workspace::root();
    let mut faults = Vec::new();
    for (path, text) in texts(&["toml"]).iter().filter(|(path, _)| path.ends_with("Cargo.toml")) {
        let wanted =
            if path == "Cargo.toml" { sources::LINTS.as_slice() } else { &["[lints]\nworkspace = true"] };
        faults.extend(sources::missing(path, text, wanted));
    }
    let clippy = std::fs::read_to_string(root.join("clippy.toml")).expect("clippy.toml is there");
    faults.extend(sources::missing("clippy.toml", &clippy, &["too-many-lines-threshold = 70"]));
    report(faults);
}

#[test]
fn every_step_of_the_makefile_can_be_read() {
    let makefile =
        std::fs::read_to_string(workspace::root().join("Makefile")).expect("the Makefile is there");
    let targets = steps::targets(&makefile);
    assert!(targets.len() > 20, "only {} targets: they are declared elsewhere", targets.len());
    report(targets.iter().filter_map(|target| steps::fault(&workspace::root(), target)).collect());
}

#[test]
fn files_stay_short() {
    report(texts(&["rs"]).iter().filter_map(|(path, text)| sources::too_long(path, text)).collect());
}

#[test]
fn every_file_says_what_it_owns() {
    report(texts(&["rs", "py"]).iter().filter_map(|(path, text)| sources::no_header(path, text)).collect());
}

#[test]
fn modules_form_no_circles() {
    let found = |(krate, modules): (String, Vec<modules::Module>)| {
        circles::of(&modules).into_iter().map(move |circle| format!("{krate}: {circle}"))
    };
    report(crates().into_iter().flat_map(found).collect());
}

#[test]
fn a_type_name_is_defined_once_in_a_crate() {
    let found = |(krate, modules): (String, Vec<modules::Module>)| {
        circles::names_twice(&modules).into_iter().map(move |name| format!("{krate}: {name}"))
    };
    report(crates().into_iter().flat_map(found).collect());
}

#[test]
fn unsafe_code_stays_where_it_may_be() {
    let texts = texts(&["rs"]);
    let mut faults: Vec<String> =
        texts.iter().flat_map(|(path, text)| sources::misplaced_unsafe(path, text)).collect();
    for path in sources::FORBIDDING_ROOTS {
        match texts.iter().find(|(found, _)| found == path) {
            Some((_, text)) => faults.extend(sources::missing(path, text, &["#![forbid(unsafe_code)]"])),
            None => faults.push(format!("{path}: this crate root is gone; mend FORBIDDING_ROOTS")),
        }
    }
    report(faults);
}

#[test]
fn the_pool_touches_nothing_outside_itself() {
    let texts = texts(&["rs"]);
    report(texts.iter().flat_map(|(path, text)| sources::impure(path, text)).collect());
}

#[test]
fn wings_of_the_pool_know_only_what_they_may() {
    let texts = texts(&["rs"]);
    report(texts.iter().flat_map(|(path, text)| wings::violations(path, text)).collect());
}

#[test]
fn only_the_facade_of_the_pool_and_its_verbs_know_it() {
    let texts = texts(&["rs"]);
    report(texts.iter().flat_map(|(path, text)| wings::names_facade(path, text)).collect());
    let verbs = texts.iter().filter(|(path, text)| wings::is_of_facade(path) && text.contains("impl Pool "));
    assert!(verbs.count() > 5, "the pool's verbs are not where they were; mend FACADE");
}

#[test]
fn every_verb_of_the_pool_is_on_one_screen() {
    let texts = texts(&["rs"]);
    let facade = texts.iter().find(|(path, _)| path == "server/pool/src/pool.rs");
    let (_, facade) = facade.expect("the facade is there");
    report(texts.iter().flat_map(|(path, text)| wings::unlisted_verbs(facade, path, text)).collect());
}

#[test]
fn only_doors_speak_the_wire() {
    let texts = texts(&["rs"]);
    let mut faults: Vec<String> =
        texts.iter().flat_map(|(path, text)| sources::wire_outside_doors(path, text)).collect();
    for allowed in sources::WIRE_SPEAKERS {
        if !texts.iter().any(|(path, text)| path.starts_with(allowed) && sources::speaks_wire(text)) {
            faults.push(format!("{allowed}: no message of the wire is named there; mend WIRE_SPEAKERS"));
        }
    }
    report(faults);
}

#[test]
fn the_pool_is_locked_where_what_follows_is_carried_out_and_nowhere_else() {
    let texts = texts(&["rs"]);
    let locks: Vec<&String> =
        texts.iter().filter(|(_, text)| sources::locks_the_pool(text)).map(|(path, _)| path).collect();
    assert_eq!(locks, ["server/src/engine/decide.rs"]);
}

#[test]
fn nothing_is_left_unfinished() {
    let texts = texts(&["rs", "py", "proto", "toml", "sh", "md", "service"]);
    report(texts.iter().flat_map(|(path, text)| sources::forbidden_words(path, text)).collect());
}

#[test]
fn no_path_of_one_machine_is_written_down() {
    let texts = texts(&["rs", "py", "proto", "toml", "sh", "md", "service"]);
    report(texts.iter().flat_map(|(path, text)| sources::machine_paths(path, text)).collect());
}

#[test]
fn the_walk_finds_the_tree() {
    let found = texts(&["rs", "toml"]);
    for path in ["Cargo.toml", "proto/src/lib.rs", "server/pool/src/lib.rs", "client/src/lib.rs"] {
        assert!(found.iter().any(|(name, _)| name == path), "{path} was not visited");
    }
}

/// The modules of every library of ours, by its folder.
fn crates() -> BTreeMap<String, Vec<modules::Module>> {
    let mut crates: BTreeMap<String, Vec<modules::Module>> = BTreeMap::new();
    for (path, text) in texts(&["rs"]) {
        if let Some((krate, module)) = modules::place(&path) {
            crates.entry(krate).or_default().push(modules::read(module, &text));
        }
    }
    crates
}

fn report(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} fault(s):\n  {}", faults.len(), faults.join("\n  "));
}

/// Every file of ours with one of `extensions`: (path from the root, text), in order.
fn texts(extensions: &[&str]) -> Vec<(String, String)> {
    let root = workspace::root();
    let mut files = Vec::new();
    walk(&root, &mut files);
    files.sort();
    let wanted = |path: &PathBuf| path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x));
    let name = |path: &Path| path.strip_prefix(&root).expect("walked from the root").display().to_string();
    let read = |path: PathBuf| (name(&path), std::fs::read_to_string(&path).expect("our files are UTF-8"));
    files.into_iter().filter(wanted).map(read).collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace can be listed") {
        let entry = entry.expect("a folder of the workspace can be listed");
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("a file's type can be read");
        if name.starts_with('.') || name.ends_with(".egg-info") || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if kind.is_dir() {
            walk(&entry.path(), files);
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
}
