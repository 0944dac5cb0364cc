//! The stores behind cargo features, whose clients are heavy: lints, and the tests against their servers.
//!
//! Promises: everything is built in a folder of its own, so that the default build never holds these clients.

use anyhow::Result;

use crate::setup;
use crate::step;
use crate::test;
use crate::workspace::Workspace;

/// The features, each a store of the same name.
const FEATURES: &str = "bigtable,datastore,etcd,spanner";

/// Runs all of it.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    setup::ensure(setup::NEEDED)?;
    let cargo = |words: &[&str]| {
        let mut command = workspace.cargo();
        command.env("CARGO_TARGET_DIR", workspace.target.join("stores")).args(words);
        command.args(["--locked", "-p", "trellis-store", "--features", FEATURES]);
        command
    };
    step::command("stores: lints", cargo(&["clippy", "--all-targets"]).args(["--", "-D", "warnings"]))?;
    let mut tests = cargo(&["test", "--lib"]);
    tests.args(TESTS);
    test::run_tests(workspace, "stores: tests", tests)
}

/// Those that need a feature; the others ran with everything else.
const TESTS: [&str; 8] = ["--test", "bigtable", "--test", "datastore", "--test", "etcd", "--test", "spanner"];
