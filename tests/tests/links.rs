//! The links of the docs: every relative link, and every anchor, leads somewhere; every page is in the book's summary.
//! Must not know: the network; links to other sites are not followed.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};
use turnkv_tests::workspace::root;

/// Files and folders whose pages are checked.
const ROOTS: [&str; 7] =
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs", "benches", "examples"];
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
fn links_and_anchors_are_found() {
    let text = "# A b: `c`!\n[x](y.md#z) and ![p](q.svg)\n```\n[no](no)\n```\n    [no](no)\n`[no](no)` [two\nlines](w.md)\n\
                ## Same\n## Same\n";
    assert_eq!(links(text), ["y.md#z", "q.svg", "w.md"]);
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["a-b-c", "same", "same-1"]);
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
