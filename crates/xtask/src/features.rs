//! Optional features that an ordinary build omits: stores with heavy clients, the link `fabric`, the switches `bpf` and
//! `openflow`.
//!
//! Promises: a wrong name is refused with the list of valid ones before anything is built. System packages that a
//! feature needs are installed first. It must never build in the folder of the ordinary build, which would then
//! contain features that were not requested.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::setup::{self, Needed};
use crate::step;
use crate::workspace::Workspace;

/// The features of the command and of the library, and the system packages that they need.
///
/// The switches `bpf` and `openflow` are only for the command: the library has none.
const FEATURES: &[(&str, &[Needed])] = &[
    ("bpf", &[setup::BPF_COMPILER, setup::KERNEL_HEADERS]),
    ("bigtable", &[]),
    ("datastore", &[]),
    ("etcd", &[setup::PROTOBUF, setup::PROTOBUF_TYPES]),
    ("spanner", &[]),
    ("openflow", &[]),
    ("stores", &[setup::PROTOBUF, setup::PROTOBUF_TYPES]),
    ("fabric", &[setup::PACKAGE_FINDER, setup::FABRIC]),
];

/// The name that stands for all features.
const ALL: &str = "all";

/// Builds the command and the library with these features, optimised; returns their location.
pub(crate) fn build_release(workspace: &Workspace, features: &[String]) -> Result<Workspace> {
    let features = &expanded(features);
    let needed = needed(features)?;
    let target = match features.is_empty() {
        true => workspace.target.clone(),
        false => folder(workspace),
    };
    let built = Workspace { root: workspace.root.clone(), target };
    if features.is_empty() {
        built.build_release()?;
        return Ok(built);
    }
    setup::ensure(&needed)?;
    let mut build = built.cargo();
    build.args(["build", "--release", "--locked", "-p", "trellis-cli", "-p", "trellis-c", "-p", "trellis-calls"]);
    build.args(["--features", &features.join(",")]).env("CARGO_TARGET_DIR", &built.target);
    step::command(&format!("build the command and the library with {}", features.join(", ")), &mut build)?;
    Ok(built)
}

/// The command that [`build_release`] built with features.
pub(crate) fn program(workspace: &Workspace) -> PathBuf {
    Workspace { root: workspace.root.clone(), target: folder(workspace) }.trellis()
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("features")
}

/// The features with each of them in place of [`ALL`].
fn expanded(features: &[String]) -> Vec<String> {
    match features.iter().any(|feature| feature == ALL) {
        true => FEATURES.iter().map(|(name, _)| (*name).to_owned()).collect(),
        false => features.to_vec(),
    }
}

/// The system packages that these features need; an error for an unknown feature.
fn needed(features: &[String]) -> Result<Vec<Needed>> {
    let mut all = Vec::new();
    for feature in features {
        let Some((_, needed)) = FEATURES.iter().find(|(name, _)| name == feature) else {
            let names: Vec<&str> = FEATURES.iter().map(|(name, _)| *name).collect();
            bail!("there is no feature `{feature}`; there are {}, and `{ALL}` for all of them", names.join(", "));
        };
        all.extend_from_slice(needed);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        let error = needed(&["etc".to_owned()]).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no feature `etc`; there are bpf, bigtable, datastore, etcd, spanner, openflow, stores, fabric, \
             and `all` for all of them"
        );
        let all = expanded(&["etcd".to_owned(), ALL.to_owned()]);
        assert_eq!(all.len(), FEATURES.len());
        assert!(needed(&all).is_ok());
        assert_eq!(needed(&["etcd".to_owned(), "bigtable".to_owned()]).unwrap().len(), 2);
    }

    #[test]
    fn what_is_installed_has_these_features_and_no_other() {
        let root = Workspace::find().unwrap().root;
        let mut known: Vec<&str> = FEATURES.iter().map(|(name, _)| *name).collect();
        known.sort_unstable();
        for package in ["trellis-cli", "trellis-c"] {
            let manifest = std::fs::read_to_string(root.join("crates").join(package).join("Cargo.toml")).unwrap();
            let manifest: toml::Table = toml::from_str(&manifest).unwrap();
            let features = manifest["features"].as_table().unwrap().keys().map(String::as_str);
            // What an ordinary build has is not chosen by name.
            let theirs: Vec<&str> = features.filter(|name| !["default", "full", "remote"].contains(name)).collect();
            let is_here = |name: &&str| package == "trellis-cli" || !["bpf", "openflow"].contains(name);
            let expected: Vec<&str> = known.iter().copied().filter(is_here).collect();
            assert_eq!(theirs, expected, "{package}");
        }
    }
}
