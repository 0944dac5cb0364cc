//! Text scripts about leases: `tests/scripts/lease/*.txt`. `trellis_testing::scripts` defines what a script is.
//!
//! The blocks of `lease` have these commands: `cluster servers=2 clients=2 [backups=1] [readers=1]` (server 0 is
//! home, a lease lasts 9, a home lease 12); `read c0 p0`, `update c0 p0`, `change c0 p0`, `commit c0 p0 [release]`,
//! `release c0 p0`, `follow r0 p0`; `deliver`, `deliver c0->s0 [at=c1]` (where a switch delivers it), `repeat c0->s0`
//! (it arrives, and stays under way), `lose c0->s0`; `wait 5`; `stop s0`, `restart s0 [blank]`, `restart controller`;
//! `move s1`.
//!
//! `TRELLIS_REWRITE_SCRIPTS=1 cargo test -p trellis-fabric-protocol --test scripts` records the present behaviour.

mod stories;

use std::path::Path;

#[test]
fn leases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/lease");
    trellis_testing::scripts::run_all(&folder, || Box::new(stories::Script::new()));
}
