//! The instructions that the protocols of pages execute for a fault, counted by callgrind and compared with a table.
//!
//! Promises: only what a fault adds is counted, with the loop that passes messages between the two nodes, so neither the start of a program nor the machine's speed matters. A
//! count fails if it is more than [`SLACK_PERCENT`] above the table, which leaves room for another compiler. It must
//! never compare times.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use crate::parallel::on_all_processors;
use crate::setup::{self, Needed};
use crate::workspace::{Profile, Workspace};

/// The program that counts.
pub(crate) const COUNTER: Needed = Needed::new("valgrind", "valgrind");
/// The path of the table. A line has a protocol, the accesses of a node in its turn, and the instructions for a fault.
const TABLE: &str = "crates/xtask/assets/instructions.txt";
const SLACK_PERCENT: u64 = 10;
/// Two runs differ by this many turns, and nothing else.
const TURNS: u64 = 4000;

/// Counts everything in the table. With `rewrite`, puts the counts into the table.
pub(crate) fn run(workspace: &Workspace, rewrite: bool) -> Result<()> {
    setup::ensure(&[COUNTER])?;
    workspace.build(Profile::Debug)?;
    let path = workspace.root.join(TABLE);
    let table = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = table.lines().map(entry).collect::<Result<Vec<_>>>()?;
    let counts = on_all_processors(&lines, |line| {
        line.map(|(protocol, access, _)| per_fault(workspace, protocol, access)).transpose()
    })?;
    let (mut counted, mut above) = (String::new(), Vec::new());
    for (line, (entry, now)) in table.lines().zip(lines.iter().zip(counts)) {
        let (Some((protocol, access, kept)), Some(now)) = (entry, now) else {
            writeln!(counted, "{line}")?;
            continue;
        };
        eprintln!("    {protocol}, {access}: {now} instructions per fault (table: {kept})");
        writeln!(counted, "{protocol} {access} {now}")?;
        if now * 100 > kept * (100 + SLACK_PERCENT) {
            above.push(format!("{protocol} {access} executes {now}, and {kept} in the table"));
        }
    }
    if rewrite {
        return Ok(std::fs::write(&path, counted)?);
    }
    if !above.is_empty() {
        bail!(
            "a fault takes more instructions: {}; profile `trellis-check turns`, or, if it is worth it, run `cargo xtask \
             instructions --rewrite`",
            above.join("; ")
        );
    }
    Ok(())
}

/// A line of the table; `None` for a comment.
fn entry(line: &str) -> Result<Option<(&str, &str, u64)>> {
    if line.starts_with('#') || line.is_empty() {
        return Ok(None);
    }
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        [protocol, access, count] => Ok(Some((protocol, access, count.parse().with_context(|| line.to_owned())?))),
        _ => bail!("{TABLE}: `{line}` is not PROTOCOL ACCESS COUNT"),
    }
}

fn per_fault(workspace: &Workspace, protocol: &str, access: &str) -> Result<u64> {
    let few = count(workspace, protocol, access, TURNS)?;
    let many = count(workspace, protocol, access, 2 * TURNS)?;
    Ok((many.0 - few.0) / (many.1 - few.1))
}

/// The instructions of a run, and its faults.
fn count(workspace: &Workspace, protocol: &str, access: &str, turns: u64) -> Result<(u64, u64)> {
    let mut command = workspace.command("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(workspace.target.join("debug/trellis-check"));
    command.args(["turns", "--protocol", protocol, "--access", access, "--turns", &turns.to_string()]);
    let output = command.output().context("valgrind cannot be started")?;
    let (text, printed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("`trellis-check turns --protocol {protocol}` failed under valgrind: {printed}");
    }
    let faults = text.split_whitespace().find_map(|word| word.parse().ok());
    Ok((instructions(&printed).context("valgrind printed no count")?, faults.context("no faults were printed")?))
}

/// The number after "Collected :".
fn instructions(printed: &str) -> Option<u64> {
    let (_, count) = printed.split_once("Collected :")?;
    count.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_counter_are_read() {
        assert_eq!(entry("ivy stores 812").unwrap(), Some(("ivy", "stores", 812)));
        assert_eq!(entry("# instructions").unwrap(), None);
        assert!(entry("ivy 812").unwrap_err().to_string().contains("is not PROTOCOL ACCESS COUNT"));
        assert_eq!(instructions("==7== Events    : Ir\n==7== Collected : 123456\n==7==\n"), Some(123_456));
        assert_eq!(instructions("==7== nothing"), None);
    }
}
