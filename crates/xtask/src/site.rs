//! `cargo xtask site`: the documentation as a web site with a search, made by mdBook from the files as they are.
//!
//! Promises: every page of the index is in the site, in the order of the index. Links to files that are no pages lead
//! to the repository. Every link within the site leads to a page and a place that are there. The version of mdBook is
//! fixed; it is installed once, into the target folder. It must never write outside the target folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Needed};
use crate::step;
use crate::tidy;
use crate::workspace::Workspace;

/// Tries the search.
pub(crate) const BROWSER: Needed = Needed::new("chromium", "chromium");

const MDBOOK: &str = "0.5.4";
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// The first page, and the one that links to all others.
const FIRST: [&str; 2] = ["README.md", "docs/README.md"];
/// A word to search for, and the page that must be found.
const SEARCHED: (&str, &str) = ("userfaultfd", "docs/concepts/catchers.html");

const BOOK: &str = r#"[book]
title = "Trellis"
description = "One memory across machines"
language = "en"
src = "pages"

[build]
build-dir = "html"
create-missing = false

[output.html]
no-section-label = true
git-repository-url = "@REPOSITORY@"

[output.html.search]
limit-results = 20
use-boolean-and = true
"#;

/// Makes the site, and returns its first page.
pub(crate) fn run(workspace: &Workspace) -> Result<PathBuf> {
    let mdbook = install(workspace)?;
    let folder = workspace.target.join("site");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let pages = pages(&workspace.root)?;
    let paths: BTreeSet<&str> = pages.iter().map(|page| page.path.as_str()).collect();
    for page in &pages {
        let text = fs::read_to_string(workspace.root.join(&page.path))?;
        write(&folder.join("pages").join(&page.path), &for_site(&page.path, &text, &paths, &workspace.root))?;
    }
    write(&folder.join("pages/SUMMARY.md"), &summary(&pages, &workspace.root)?)?;
    write(&folder.join("book.toml"), &BOOK.replace("@REPOSITORY@", REPOSITORY))?;
    step::step("the site", || step::output(Command::new(mdbook).args(["build"]).arg(&folder)).map(drop))?;
    let html = folder.join("html");
    step::step("links of the site", || check_links(&html))?;
    Ok(html.join("index.html"))
}

/// Makes the site, and searches in it with a browser, where there can be one.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let first = run(workspace)?;
    if let Err(error) = setup::ensure(&[BROWSER]) {
        eprintln!("SKIPPED the search of the site (program): {error:#}");
        return Ok(());
    }
    let (word, page) = SEARCHED;
    step::step("the search of the site", || {
        let mut command = Command::new("chromium");
        // Pages of this machine alone are opened, so that root needs no sandbox.
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]);
        command.arg(format!("--user-data-dir={}", workspace.target.join("site/browser").display()));
        command.arg(format!("file://{}?search={word}", first.display())).stderr(std::process::Stdio::null());
        let shown = command.output().context("the browser cannot be started")?;
        let shown = String::from_utf8_lossy(&shown.stdout);
        let results = shown.split_once("id=\"mdbook-searchresults\"").map_or("", |(_, results)| results);
        if !results.contains(page) {
            bail!("a search for {word} does not find {page}");
        }
        Ok(())
    })
}

fn install(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target.join(format!("mdbook-{MDBOOK}"));
    let program = folder.join("bin/mdbook");
    if !program.is_file() {
        let mut install = workspace.cargo();
        install.args(["install", "mdbook", "--version", MDBOOK, "--locked", "--quiet"]);
        install.args(["--no-default-features", "--features", "search", "--root"]).arg(&folder);
        step::command("install mdBook", install.arg("--target-dir").arg(folder.join("build")))?;
        fs::remove_dir_all(folder.join("build"))?;
    }
    Ok(program)
}

/// A page of the site.
struct Page {
    /// Its path in the repository.
    path: String,
    /// The part of the index that has it.
    part: String,
}

/// The pages in the order of the index.
fn pages(root: &Path) -> Result<Vec<Page>> {
    let [_, index] = FIRST;
    let text = fs::read_to_string(root.join(index)).with_context(|| format!("{index} cannot be read"))?;
    let mut pages: Vec<Page> =
        FIRST.iter().map(|path| Page { path: (*path).to_owned(), part: String::new() }).collect();
    let parts: Vec<&str> = text.lines().map(|line| bold(line).unwrap_or_default()).collect();
    for (number, target) in tidy::links(&text) {
        let path = resolved(index, target.split('#').next().unwrap_or_default());
        if path.ends_with(".md") && pages.iter().all(|page| page.path != path) {
            let part = if path.starts_with("docs/") {
                parts[..number].iter().rfind(|part| !part.is_empty()).copied().unwrap_or_default()
            } else {
                "The project"
            };
            pages.push(Page { path, part: part.to_owned() });
        }
    }
    Ok(pages)
}

/// The bold words at the beginning of a line.
fn bold(line: &str) -> Option<&str> {
    line.strip_prefix("**")?.split_once("**").map(|(words, _)| words)
}

/// A relative target as a path in the repository.
fn resolved(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// The table of contents as mdBook reads it.
fn summary(pages: &[Page], root: &Path) -> Result<String> {
    let mut text = "# Trellis\n".to_owned();
    let mut part = "";
    for page in pages {
        if page.part != part {
            part = &page.part;
            text.push_str(&format!("\n# {part}\n\n"));
        }
        let title = title(&fs::read_to_string(root.join(&page.path))?).with_context(|| page.path.clone())?;
        // Pages before the first part have no number, and no list.
        let item = if part.is_empty() { "" } else { "- " };
        text.push_str(&format!("{item}[{title}]({})\n", page.path));
    }
    Ok(text)
}

fn title(text: &str) -> Result<String> {
    let title = text.lines().find_map(|line| line.strip_prefix("# ")).context("the page has no title")?;
    Ok(title.replace(['[', ']'], ""))
}

/// The text with links to what is no page led to the repository. A `README.md` is the index of its folder in the site.
fn for_site(page: &str, text: &str, pages: &BTreeSet<&str>, root: &Path) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (number, target) in tidy::links(text) {
        let (path, place) = target.split_once('#').map_or((target, None), |(path, place)| (path, Some(place)));
        if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
            continue;
        }
        let to = resolved(page, path);
        let place = place.map(|place| format!("#{place}")).unwrap_or_default();
        let leads_to = match pages.contains(to.as_str()) {
            true => path.replace("README.md", "index.md") + &place,
            false => {
                let kind = if root.join(&to).is_dir() { "tree" } else { "blob" };
                format!("{REPOSITORY}/{kind}/main/{to}{place}")
            }
        };
        let line = &mut lines[number - 1];
        *line = line.replace(&format!("]({target})"), &format!("]({leads_to})"));
    }
    lines.join("\n") + "\n"
}

/// Each link within the site must lead to a page, and to a place that it has.
fn check_links(html: &Path) -> Result<()> {
    let mut places: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut all = Vec::new();
    for file in html_files(html)? {
        let text = fs::read_to_string(&file)?;
        places.insert(file.clone(), values(&text, "id=\"").map(str::to_owned).collect());
        let links = values(&text, "href=\"").map(str::to_owned).collect::<BTreeSet<_>>();
        all.extend(links.into_iter().map(|link| (file.clone(), link)));
    }
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (file, link) in &all {
        // The page for what is not found is shown at any path.
        if link.contains("://") || link.starts_with("mailto:") || file.ends_with("404.html") {
            continue;
        }
        let (path, place) = link.split_once('#').map_or((link.as_str(), ""), |(path, place)| (path, place));
        let folder = file.parent().unwrap_or(html);
        let to = if path.is_empty() { file.clone() } else { folder.join(path) };
        let to = to.canonicalize().unwrap_or(to);
        checked += 1;
        let is_there = match places.get(&to) {
            Some(known) => place.is_empty() || known.contains(place),
            None => to.is_file(),
        };
        if !is_there {
            wrong.push(format!("{}: {link}", file.strip_prefix(html).unwrap_or(file).display()));
        }
    }
    eprintln!("    {checked} links of {} pages", places.len());
    if wrong.is_empty() { Ok(()) } else { bail!("these links lead nowhere:\n{}", wrong.join("\n")) }
}

/// The values of an attribute.
fn values<'a>(text: &'a str, begin: &str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split('"').next())
}

/// The pages of the site, but that for printing, which repeats all others.
fn html_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        let path = entry?.path().canonicalize()?;
        if path.is_dir() {
            all.extend(html_files(&path)?);
        } else if path.extension().is_some_and(|ending| ending == "html") && !path.ends_with("print.html") {
            all.push(path);
        }
    }
    Ok(all)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_what_is_no_page_lead_to_the_repository() {
        let pages = BTreeSet::from(["docs/README.md", "docs/guides/a.md"]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text =
            "[a](guides/a.md#x) [i](README.md) [b](../Cargo.toml) and [c](../crates#y)\n```\n[d](../Cargo.toml)\n```\n";
        let site = for_site("docs/README.md", text, &pages, &root);
        let blob = format!("{REPOSITORY}/blob/main/Cargo.toml");
        let tree = format!("{REPOSITORY}/tree/main/crates#y");
        assert_eq!(
            site,
            format!("[a](guides/a.md#x) [i](index.md) [b]({blob}) and [c]({tree})\n```\n[d](../Cargo.toml)\n```\n")
        );
    }

    #[test]
    fn every_page_of_the_documentation_is_in_a_part() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = pages(&root).unwrap();
        let part = |path: &str| pages.iter().find(|page| page.path == path).map(|page| page.part.as_str());
        assert_eq!(part("README.md"), Some(""));
        assert_eq!(part("docs/guides/tutorial.md"), Some("Guides"));
        assert_eq!(part("docs/protocols/ivy.md"), Some("Protocols"));
        assert_eq!(part("docs/reference/stores/redis.md"), Some("Reference"));
        assert_eq!(part("SECURITY.md"), Some("The project"));
        let contents = summary(&pages, &root).unwrap();
        assert!(contents.contains("\n# Guides\n\n- [Tutorial"), "{contents}");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        let folder = trellis_testing::Folder::new();
        folder.write("a.html", "<a href=\"sub/b.html#there\"><a href=\"https://x.invalid\">");
        folder.write("sub/b.html", "<h1 id=\"there\"><a href=\"../a.html\"><a href=\"#gone\">");
        let wrong = check_links(folder.path()).unwrap_err().to_string();
        assert_eq!(wrong, "these links lead nowhere:\nsub/b.html: #gone");
    }
}
