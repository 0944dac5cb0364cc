//! Checks what is linked: licences and sources from `deny.toml`, and the layers of our own crates. It works without a
//! network.
//!
//! Promises: each layer depends only on the lower layers that a table lists, so that none of them can grow into
//! another's work.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::step;
use crate::workspace::Workspace;

/// Our crates, and those of our crates that each may depend on. Tests may also depend on `trellis-testing` or
/// `trellis-base`.
const LAYERS: [(&str, &[&str]); 20] = [
    ("trellis-base", &[]),
    ("trellis-output", &["trellis-base"]),
    ("trellis-cluster-protocol", &["trellis-base"]),
    ("trellis-fabric-protocol", &["trellis-base"]),
    ("trellis-memory", &["trellis-base"]),
    ("trellis-testing", &["trellis-output"]),
    ("trellis-interpose", &[]),
    // `trellis-memory` is for its tests: what is loaded into programs that do not use Trellis depends on nothing else.
    ("trellis-calls", &["trellis-interpose", "trellis-memory"]),
    ("trellis-threads", &["trellis-base", "trellis-interpose"]),
    ("trellis-transport", &["trellis-base"]),
    ("trellis-store", &["trellis-base", "trellis-output"]),
    ("trellis-switch", &["trellis-base", "trellis-output"]),
    ("trellis-record", &["trellis-output"]),
    ("trellis-cache", &["trellis-memory", "trellis-output"]),
    (
        "trellis-remote",
        &[
            "trellis-base",
            "trellis-cache",
            "trellis-fabric-protocol",
            "trellis-memory",
            "trellis-record",
            "trellis-transport",
        ],
    ),
    ("trellis-stored", &["trellis-base", "trellis-cache", "trellis-memory", "trellis-remote", "trellis-store"]),
    (
        "trellis-cluster",
        &[
            "trellis-base",
            "trellis-cache",
            "trellis-cluster-protocol",
            "trellis-fabric-protocol",
            "trellis-memory",
            "trellis-output",
            "trellis-record",
            "trellis-remote",
            "trellis-transport",
        ],
    ),
    (
        "trellis-dsm",
        &[
            "trellis-cluster",
            "trellis-cluster-protocol",
            "trellis-memory",
            "trellis-output",
            "trellis-record",
            "trellis-remote",
            "trellis-stored",
            "trellis-transport",
        ],
    ),
    (
        "trellis-check",
        &["trellis-base", "trellis-cluster-protocol", "trellis-fabric-protocol", "trellis-output", "trellis-transport"],
    ),
    (
        "trellis-command",
        &["trellis-base", "trellis-dsm", "trellis-fabric-protocol", "trellis-output", "trellis-switch"],
    ),
];
/// The crate that tests of all layers may use.
const TESTING: &str = "trellis-testing";

/// Checks every crate that a build for this machine links.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let rules = std::fs::read_to_string(workspace.root.join("deny.toml")).context("deny.toml cannot be read")?;
    let rules = Rules::parse(&rules)?;
    let metadata = metadata(workspace)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut wrong = Vec::new();
    for package in packages {
        wrong.extend(rules.violations(package));
    }
    wrong.extend(layer_violations(packages));
    eprintln!("    {} crates, {} of them ours", packages.len(), packages.iter().filter(|one| is_ours(one)).count());
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// Calls cargo; `--locked` fails if `Cargo.lock` does not match the manifests.
fn metadata(workspace: &Workspace) -> Result<Value> {
    let host = step::output(workspace.command("rustc").arg("-vV"))?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?.to_owned();
    let ask = || {
        let mut command = workspace.cargo();
        command.args(["metadata", "--offline", "--locked", "--all-features", "--format-version", "1"]);
        command.args(["--filter-platform", &host]);
        command
    };
    // On a machine that never built everything some crates are missing; only then is a network needed.
    if !ask().output().is_ok_and(|output| output.status.success()) {
        step::run(workspace.cargo().args(["fetch", "--locked", "--target", &host]))
            .context("Cargo.lock must be committed and belong to the manifests")?;
    }
    let text = step::output(&mut ask())?;
    serde_json::from_str(&text).context("cargo metadata is no JSON")
}

fn is_ours(package: &Value) -> bool {
    package["source"].is_null()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or("a package without a name")
}

/// The parts of `deny.toml` that need no network.
struct Rules {
    licences: BTreeSet<String>,
    registries: Vec<String>,
}

impl Rules {
    fn parse(text: &str) -> Result<Rules> {
        let table: toml::Table = toml::from_str(text).context("deny.toml is no TOML")?;
        let list = |section: &str, key: &str| -> Result<Vec<String>> {
            let items = table.get(section).and_then(|section| section.get(key)).and_then(|list| list.as_array());
            let items = items.with_context(|| format!("deny.toml lacks the list {section}.{key}"))?;
            Ok(items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect())
        };
        if !list("sources", "allow-git")?.is_empty() {
            bail!("deny.toml: sources.allow-git: released crates only; accepted: []");
        }
        Ok(Rules {
            licences: list("licenses", "allow")?.into_iter().collect(),
            registries: list("sources", "allow-registry")?,
        })
    }

    fn violations(&self, package: &Value) -> Vec<String> {
        let mut wrong = Vec::new();
        let version = package["version"].as_str().unwrap_or_default();
        if let Some(source) = package["source"].as_str() {
            let registry = source.strip_prefix("registry+");
            if !registry.is_some_and(|registry| self.registries.iter().any(|allowed| allowed == registry)) {
                wrong.push(format!("{} {version} comes from {source}, which deny.toml does not allow", name(package)));
            }
        }
        let licence = package["license"].as_str().unwrap_or_default();
        match Expression::parse(licence) {
            Some(expression) if expression.is_satisfied_by(&self.licences) => {}
            _ => wrong.push(format!(
                "{} {version} has the licence `{licence}`, which deny.toml does not allow",
                name(package)
            )),
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if is_ours(package) && dependency["req"] == "*" && dependency["path"].is_null() {
                wrong.push(format!("{} asks for any version of {}; name one", name(package), name(dependency)));
            }
        }
        wrong
    }
}

fn layer_violations(packages: &[Value]) -> Vec<String> {
    let ours: BTreeSet<&str> = packages.iter().filter(|package| is_ours(package)).map(name).collect();
    let mut wrong = Vec::new();
    for (layer, below) in LAYERS {
        let Some(package) = packages.iter().find(|package| is_ours(package) && name(package) == layer) else {
            wrong.push(format!("the layer {layer} is no crate of this workspace"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let is_for_tests = dependency["kind"] == "dev" && [TESTING, "trellis-base"].contains(&name(dependency));
            if ours.contains(name(dependency)) && !below.contains(&name(dependency)) && !is_for_tests {
                wrong.push(format!("the layer {layer} depends on {}, which is not below it", name(dependency)));
            }
        }
    }
    wrong
}

/// An SPDX licence expression: names, `AND`, `OR`, parentheses; the old slash means `OR`.
#[derive(Debug, PartialEq, Eq)]
enum Expression {
    Licence(String),
    All(Vec<Expression>),
    Any(Vec<Expression>),
}

impl Expression {
    fn parse(text: &str) -> Option<Expression> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut rest = words.as_slice();
        let expression = Expression::any(&mut rest)?;
        rest.is_empty().then_some(expression)
    }

    fn any(rest: &mut &[&str]) -> Option<Expression> {
        let mut parts = vec![Expression::all(rest)?];
        while take(rest, "OR") {
            parts.push(Expression::all(rest)?);
        }
        Some(if parts.len() == 1 { parts.remove(0) } else { Expression::Any(parts) })
    }

    fn all(rest: &mut &[&str]) -> Option<Expression> {
        let mut parts = vec![Expression::one(rest)?];
        while take(rest, "AND") {
            parts.push(Expression::one(rest)?);
        }
        Some(if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) })
    }

    fn one(rest: &mut &[&str]) -> Option<Expression> {
        if take(rest, "(") {
            let inner = Expression::any(rest)?;
            return take(rest, ")").then_some(inner);
        }
        let (word, after) = rest.split_first().filter(|(word, _)| !matches!(**word, "AND" | "OR" | "WITH" | ")"))?;
        *rest = after;
        if take(rest, "WITH") {
            let (exception, after) = rest.split_first()?;
            *rest = after;
            return Some(Expression::Licence(format!("{word} WITH {exception}")));
        }
        Some(Expression::Licence((*word).to_owned()))
    }

    fn is_satisfied_by(&self, allowed: &BTreeSet<String>) -> bool {
        match self {
            Expression::Licence(licence) => allowed.contains(licence),
            Expression::All(parts) => parts.iter().all(|part| part.is_satisfied_by(allowed)),
            Expression::Any(parts) => parts.iter().any(|part| part.is_satisfied_by(allowed)),
        }
    }
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    let is_next = rest.first() == Some(&word);
    if is_next {
        *rest = &rest[1..];
    }
    is_next
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules() -> Rules {
        let text = "[licenses]\nallow = [\"MIT\", \"Unicode-3.0\", \"Apache-2.0 WITH LLVM-exception\"]\n\
                    [sources]\nallow-registry = [\"https://good\"]\nallow-git = []\n";
        Rules::parse(text).unwrap()
    }

    #[test]
    fn licence_expressions_are_understood() {
        let allowed = rules().licences;
        let satisfied = |text: &str| Expression::parse(text).map(|expression| expression.is_satisfied_by(&allowed));
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert_eq!(satisfied(good), Some(true), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT AND GPL-3.0) OR Apache-2.0", "Apache-2.0"] {
            assert_eq!(satisfied(bad), Some(false), "{bad}");
        }
        for broken in ["", "(MIT", "MIT OR", "MIT MIT", "OR MIT", "Apache-2.0 WITH", "MIT)"] {
            assert_eq!(satisfied(broken), None, "{broken}");
        }
    }

    #[test]
    fn sources_and_licences_are_held_against_the_rules() {
        let package = |source: Value, licence: &str| json!({"name": "x", "version": "1.0.0", "source": source, "license": licence});
        let count = |source: Value, licence: &str| rules().violations(&package(source, licence)).len();
        assert_eq!(count(json!("registry+https://good"), "MIT"), 0);
        assert_eq!(count(json!("registry+https://bad"), "MIT"), 1);
        assert_eq!(count(json!("git+https://good"), "MIT"), 1);
        assert_eq!(count(json!("git+https://good"), "GPL-3.0"), 2);
        assert_eq!(count(Value::Null, "MIT"), 0);
        assert_eq!(count(Value::Null, ""), 1);
        assert!(Rules::parse("[sources]\nallow-git = [\"x\"]\n").is_err());
    }

    #[test]
    fn a_layer_that_knows_one_that_is_not_below_it_is_found() {
        let with =
            |name: &str, dependencies: Value| json!({"name": name, "source": null, "dependencies": dependencies});
        let mut packages: Vec<Value> = LAYERS.iter().map(|(name, _)| with(name, json!([{"name": "libc"}]))).collect();
        packages[2] = with(LAYERS[2].0, json!([{"name": "trellis-base"}, {"name": TESTING, "kind": "dev"}]));
        assert_eq!(layer_violations(&packages), Vec::<String>::new());
        packages[4] = with("trellis-memory", json!([{"name": "trellis-cluster-protocol"}, {"name": TESTING}]));
        packages.pop();
        let wrong = layer_violations(&packages);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].contains("trellis-memory depends on trellis-cluster-protocol"));
        assert!(wrong[1].contains("trellis-memory depends on trellis-testing"));
        assert!(wrong[2].contains("trellis-command is no crate"));
    }
}
