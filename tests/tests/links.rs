//! What the docs point to: every relative link, and every anchor, leads somewhere; every page is in the
//! book's summary; files, functions and wings that the pages about the code name are there.
//! Must not know: the network (links to other sites are not followed), whether what is said of the code is
//! true.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use turnkv_tests::workspace::root;

/// Files and folders whose pages are checked.
const ROOTS: [&str; 7] =
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs", "benches", "examples"];
/// The pages about the code.
const INTERNALS: &str = "docs/internals";
/// Folders of the code: what begins with one of them is a path.
const CODE: [&str; 7] = ["server/", "client/", "proto/", "engine-plugins/", "tests/", "benches/", "deploy/"];
/// The page of walks through the code.
const WALKS: &str = "docs/internals/journeys.md";
/// Files of one walk: what one sitting has room for.
const WALK_FILES_MAX: usize = 7;
/// The page of the pool's wings, its heading over what they may import, and the rules that it repeats.
const WINGS: [&str; 3] =
    ["docs/internals/pool.md", "## Who may import whom", "tests/tests/architecture/wings.rs"];
/// Lines that README may have.
const README_LINES_MAX: usize = 120;

#[test]
fn every_link_leads_somewhere() -> Result<()> {
    let pages = pages()?;
    let mut faults = Vec::new();
    for (path, text) in &pages {
        for link in links(text) {
            if let Err(why) = follow(path, &link, &pages) {
                faults.push(format!("{}: ({link}): {why}", path.display()));
            }
        }
    }
    ensure!(faults.is_empty(), "links that lead nowhere:\n{}", faults.join("\n"));
    Ok(())
}

#[test]
fn every_page_is_in_the_summary() -> Result<()> {
    let docs = Path::new("docs");
    let summary = docs.join("SUMMARY.md");
    let pages = pages()?;
    let text = pages.get(&summary).context("docs/SUMMARY.md is there")?;
    let named: BTreeSet<PathBuf> = links(text).iter().map(|link| docs.join(link)).collect();
    let missing: Vec<&PathBuf> = pages
        .keys()
        .filter(|path| path.starts_with(docs) && **path != summary && !named.contains(*path))
        .collect();
    ensure!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
    Ok(())
}

#[test]
fn the_readme_is_a_page() -> Result<()> {
    let lines = std::fs::read_to_string(root().join("README.md"))?.lines().count();
    ensure!(
        lines <= README_LINES_MAX,
        "README.md has {lines} lines, at most {README_LINES_MAX}: the rest is for docs/"
    );
    Ok(())
}

#[test]
fn the_pages_about_the_code_name_paths_that_are_there() -> Result<()> {
    let mut faults = Vec::new();
    for (page, text) in pages()?.iter().filter(|(page, _)| page.starts_with(INTERNALS)) {
        let missing = paths(text).into_iter().filter(|path| !root().join(path).exists());
        faults.extend(missing.map(|path| format!("{}: {path}", page.display())));
    }
    ensure!(faults.is_empty(), "paths that are not there:\n{}", faults.join("\n"));
    Ok(())
}

#[test]
fn the_walks_lead_through_code_that_is_there() -> Result<()> {
    let walks = walks(&read(WALKS)?);
    ensure!(walks.len() == 3, "there are {} walks in {WALKS}", walks.len());
    let mut faults = Vec::new();
    for (title, steps) in &walks {
        let files: BTreeSet<&str> = steps.iter().map(|step| step.file.as_str()).collect();
        if steps.len() > WALK_FILES_MAX || files.len() < steps.len() {
            faults.push(format!("{title}: {} steps through {} files", steps.len(), files.len()));
        }
        for step in steps {
            let why =
                read(&step.file).map_or_else(|error| vec![format!("{error:#}")], |code| step.faults(&code));
            faults.extend(why.iter().map(|why| format!("{title}: {}: {why}", step.file)));
        }
    }
    ensure!(faults.is_empty(), "walks that lead astray:\n{}", faults.join("\n"));
    Ok(())
}

#[test]
fn the_wings_may_import_what_the_page_says() -> Result<()> {
    let [page, heading, rules] = WINGS;
    let (page, rules) = (read(page)?, read(rules)?);
    let (_, after) = page.split_once(heading).context("the page has the heading")?;
    let table = after.split("\n## ").next().unwrap_or(after);
    let said: Vec<Vec<&str>> = table.lines().filter(|line| line.starts_with("| `")).map(spans).collect();
    let quoted = |line| -> Vec<&str> { str::split(line, '"').skip(1).step_by(2).collect() };
    let ruled: Vec<Vec<&str>> =
        rules.lines().filter(|line| line.starts_with("    (\"") && line.contains("&[")).map(quoted).collect();
    ensure!(ruled.len() > 5, "only {} wings have rules: they have moved", ruled.len());
    ensure!(said == ruled, "the page says {said:?}, the rules say {ruled:?}");
    Ok(())
}

#[test]
fn walks_and_paths_are_found() -> Result<()> {
    let text =
        "# All\n## A\n1. `a/b.rs`: `go`, `stop`\n\n   Calls `Sub`.\n\nNot `this`.\n\n## B\nNo steps.\n";
    let walks = walks(text);
    let [(title, steps)] = walks.as_slice() else { bail!("one walk: {walks:?}") };
    let [step] = steps.as_slice() else { bail!("one step: {steps:?}") };
    assert_eq!((title.as_str(), step.file.as_str()), ("A", "a/b.rs"));
    assert_eq!(step.functions, ["go", "stop"]);
    assert_eq!(step.words, ["Sub"]);
    assert!(step.faults("fn go() {}\nfn stop<T>() {}\nSub").is_empty());
    assert_eq!(step.faults("fn going() {}\nfn stop() {}").len(), 2);
    assert_eq!(paths("See `server/a/`, server/b.rs. [No](../../tests/c.md)"), ["server/a/", "server/b.rs"]);
    Ok(())
}

#[test]
fn links_and_anchors_are_found() {
    let text = "# A b: `c`!\n[x](y.md#z) and ![p](q.svg)\n```\n[no](no)\n```\n    [no](no)\n`[no](no)` [two\nlines](w.md)\n\
                ## Same\n## Same\n";
    assert_eq!(links(text), ["y.md#z", "q.svg", "w.md"]);
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["a-b-c", "same", "same-1"]);
}

/// One step of a walk through the code.
#[derive(Debug)]
struct Step {
    file: String,
    functions: Vec<String>,
    /// What else of the file its text names.
    words: Vec<String>,
}

impl Step {
    /// What is named and does not stand in the file.
    fn faults(&self, code: &str) -> Vec<String> {
        let defined =
            |name: &String| ["(", "<"].iter().any(|next| code.contains(&format!("fn {name}{next}")));
        let functions =
            self.functions.iter().filter(|name| !defined(name)).map(|name| format!("no fn {name}"));
        let words = self.words.iter().filter(|word| !code.contains(word.as_str()));
        functions.chain(words.map(|word| format!("no {word}"))).collect()
    }
}

/// The walks of a page: a heading, and numbered steps, each with its file, its functions, and an indented text.
fn walks(text: &str) -> Vec<(String, Vec<Step>)> {
    let mut walks: Vec<(String, Vec<Step>)> = Vec::new();
    let mut in_step = false;
    for line in text.lines() {
        let numbered = line.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok());
        if let Some(title) = line.strip_prefix("## ") {
            walks.push((title.to_owned(), Vec::new()));
        }
        let Some((_, steps)) = walks.last_mut() else { continue };
        let mut named = spans(line).into_iter().map(str::to_owned);
        if numbered {
            let file = named.next().unwrap_or_default();
            steps.push(Step { file, functions: named.collect(), words: Vec::new() });
            in_step = true;
        } else if in_step && line.starts_with("   ") {
            steps.last_mut().into_iter().for_each(|step| step.words.extend(&mut named));
        } else if !line.is_empty() {
            in_step = false;
        }
    }
    walks.retain(|(_, steps)| !steps.is_empty());
    walks
}

/// What stands between backticks in a line.
fn spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Paths of the code that a page names, in its text and its pictures.
fn paths(text: &str) -> Vec<&str> {
    let outside = |letter: char| !letter.is_ascii_alphanumeric() && !"/_.-{}".contains(letter);
    let words = text.split(outside).map(|word| word.trim_end_matches('.'));
    words.filter(|word| CODE.iter().any(|folder| word.starts_with(folder)) && !word.contains('{')).collect()
}

/// A file of the tree.
fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| format!("{path} cannot be read"))
}

/// Every page's text by its path from the root.
fn pages() -> Result<BTreeMap<PathBuf, String>> {
    let mut pages = BTreeMap::new();
    for begin in ROOTS {
        collect(Path::new(begin), &mut pages)?;
    }
    ensure!(pages.len() > 50, "only {} pages: they have moved", pages.len());
    Ok(pages)
}

fn collect(path: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    let whole = root().join(path);
    if whole.is_dir() {
        for entry in std::fs::read_dir(&whole)? {
            collect(&path.join(entry?.file_name()), pages)?;
        }
    } else if path.extension().is_some_and(|ending| ending == "md") {
        pages.insert(path.to_path_buf(), std::fs::read_to_string(&whole)?);
    }
    Ok(())
}

/// The text without code: what is fenced, indented, or between backticks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !line.starts_with("    ") {
            prose.push_str(line);
        }
        prose.push('\n');
    }
    // Every other piece between backticks is code; a link's text may be code, and stays a link without it.
    prose.split('`').enumerate().map(|(at, piece)| if at % 2 == 0 { piece } else { "code" }).collect()
}

/// Targets of a page's links and pictures, in order.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let mut found = Vec::new();
    let mut rest = prose.as_str();
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        if let Some(end) = rest.find(')') {
            found.push(rest[..end].to_owned());
        }
    }
    found
}

/// What a page's headings are called in links, as mdBook and code hosts name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        let name: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let mut unique = name.clone();
        for number in 1.. {
            if anchors.insert(unique) {
                break;
            }
            unique = format!("{name}-{number}");
        }
    }
    anchors
}

/// Whether a link of a page leads somewhere.
fn follow(page: &Path, link: &str, pages: &BTreeMap<PathBuf, String>) -> Result<()> {
    if link.starts_with("https://") || link.starts_with("http://") {
        return Ok(());
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() {
        page.to_path_buf()
    } else {
        plain(&page.parent().context("a page is in a folder")?.join(file))?
    };
    ensure!(root().join(&target).exists(), "{} does not exist", target.display());
    if !anchor.is_empty() {
        let text = pages.get(&target).with_context(|| format!("{} is no page", target.display()))?;
        ensure!(anchors(text).contains(anchor), "{} has no heading of that name", target.display());
    }
    Ok(())
}

/// The path without `..`, within the tree.
fn plain(path: &Path) -> Result<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => ensure!(plain.pop(), "{} leaves the tree", path.display()),
            Component::Normal(name) => plain.push(name),
            _ => {}
        }
    }
    Ok(plain)
}
