//! `cargo xtask pages`: writes the parts of the documentation that are generated from other files.
//!
//! A page contains `<!-- scripts NAME -->` where the table of the text scripts of a protocol crate's `tests/scripts/NAME`
//! belongs: what each shows, which is its first comment, and a link to it. The text between that line and
//! `<!-- end of scripts -->` is generated. Promises: a page whose table is up to date is not touched, and [`check`]
//! names the pages that are not. It must never change anything outside the marks.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The folder of the pages with scripts.
const PAGES: &str = "docs/protocols";
const SCRIPTS: [&str; 2] =
    ["crates/trellis-cluster-protocol/tests/scripts", "crates/trellis-fabric-protocol/tests/scripts"];
const END: &str = "<!-- end of scripts -->";

/// Updates every page.
pub(crate) fn write(root: &Path) -> Result<()> {
    for page in pages(root)? {
        if page.is != page.should_be {
            std::fs::write(&page.path, &page.should_be).with_context(|| format!("{} cannot be written", page.name))?;
            println!("{}", page.name);
        }
    }
    Ok(())
}

/// Errors for the pages that are not up to date.
pub(crate) fn check(root: &Path) -> Result<()> {
    let old: Vec<String> =
        pages(root)?.into_iter().filter(|page| page.is != page.should_be).map(|page| page.name).collect();
    if !old.is_empty() {
        bail!("{} not up to date with the scripts; run `cargo xtask pages`", old.join(", "));
    }
    Ok(())
}

struct Page {
    path: PathBuf,
    name: String,
    is: String,
    should_be: String,
}

fn pages(root: &Path) -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    for path in sorted_files(&root.join(PAGES))? {
        let is = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let should_be = with_scripts(&is, root, &SCRIPTS.map(|scripts| root.join(scripts)));
        let should_be = should_be.with_context(|| name.clone())?;
        pages.push(Page { path, name, is, should_be });
    }
    Ok(pages)
}

/// The page with the table of the present scripts.
fn with_scripts(page: &str, root: &Path, scripts: &[PathBuf]) -> Result<String> {
    let mut made = String::new();
    let mut rest = page.lines();
    while let Some(line) = rest.next() {
        made += line;
        made += "\n";
        let folder = line.strip_prefix("<!-- scripts ").and_then(|rest| rest.strip_suffix(" -->"));
        let Some(folder) = folder else { continue };
        let Some(scripts) = scripts.iter().map(|scripts| scripts.join(folder)).find(|scripts| scripts.is_dir()) else {
            bail!("there are no scripts of {folder}");
        };
        made += "\n| script | what it shows |\n|---|---|\n";
        for script in sorted_files(&scripts)? {
            let text =
                std::fs::read_to_string(&script).with_context(|| format!("{} cannot be read", script.display()))?;
            let name = script.file_stem().unwrap_or_default().to_string_lossy();
            let place = script.strip_prefix(root).unwrap_or(&script).display();
            let _ = writeln!(made, "| [{}](../../{place}) | {} |", title(&name), first_comment(&text));
        }
        let _ = write!(made, "\n{END}\n");
        // Existing scripts extend to their end mark; a new page has none.
        let old: Vec<&str> = rest.clone().collect();
        if let Some(end) = old.iter().position(|line| *line == END) {
            rest.nth(end);
        }
    }
    Ok(made)
}

/// The title of a script: `04-two-writers-queue` becomes "Two writers queue".
fn title(stem: &str) -> String {
    let words = stem.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '-').replace('-', " ");
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The comment at the start of a script, in one line.
fn first_comment(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix('#'));
    lines.map(str::trim).collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn sorted_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let mut paths: Vec<_> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    #[test]
    fn scripts_are_put_between_the_marks_and_once() {
        let folder = [std::env::temp_dir().join(format!("trellis-pages-{}", std::process::id()))];
        std::fs::create_dir_all(folder[0].join("p")).unwrap();
        std::fs::write(folder[0].join("p/01-first-touch.txt"), "# Touch\n# it.\n\nread n0 p0\n# no\n").unwrap();
        let page = "# P\n\n<!-- scripts p -->\n\nAfter.\n";
        let with_scripts = |page: &str| super::with_scripts(page, &folder[0], &folder);
        let once = with_scripts("# P\n\n<!-- scripts p -->\n").unwrap();
        assert!(once.contains("\n| [First touch](../../p/01-first-touch.txt) | Touch it. |\n"), "{once}");
        assert_eq!(with_scripts(&once).unwrap(), once);
        assert!(with_scripts(page).unwrap().ends_with("<!-- end of scripts -->\n\nAfter.\n"));
        assert!(with_scripts("<!-- scripts q -->").is_err());
        std::fs::remove_dir_all(&folder[0]).unwrap();
    }
}
