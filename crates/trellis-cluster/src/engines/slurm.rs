//! The environment that Slurm gives to its tasks: lists of hosts, and counts for each of them.
//!
//! Source: srun(1), sbatch(1) and scontrol(1) of Slurm 22.05, "hostlist expressions".

use std::iter;

/// Steps with this number or a higher one are batch scripts, interactive shells and the like (`SLURM_BATCH_SCRIPT` and
/// its neighbours in slurm.h).
const FIRST_RESERVED_STEP: u32 = 0xffff_fff0;

/// The number of tasks of the step to which this process belongs. `None` for a batch script and the like, which have
/// variables of tasks but are none.
pub fn tasks_of_step(variable: impl Fn(&str) -> Option<String>) -> Option<u32> {
    let step: u32 = variable("SLURM_STEP_ID")?.parse().ok()?;
    let tasks = variable("SLURM_STEP_NUM_TASKS")?.parse().ok()?;
    (step < FIRST_RESERVED_STEP && variable("SLURM_PROCID").is_some()).then_some(tasks)
}

/// The maximum number of hosts of a list.
const HOSTS_MAX: usize = 4_096;

/// The hosts of a list such as `login,rack[1-2]n[01-03,7]`.
///
/// # Errors
///
/// A sentence, if the list is not well formed or has more than 4,096 hosts.
pub fn hosts(list: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("`{list}` is not a list of hosts as Slurm writes them");
    let mut hosts = Vec::new();
    for item in split_outside_brackets(list) {
        let mut begun = vec![String::new()];
        let mut rest = item;
        while let Some((before, after)) = rest.split_once('[') {
            let (inside, after) = after.split_once(']').ok_or_else(wrong)?;
            let numbers = numbers(inside).ok_or_else(wrong)?;
            if begun.len() * numbers.len() > HOSTS_MAX {
                return Err(format!("`{list}` has more than {HOSTS_MAX} hosts"));
            }
            begun = begun
                .iter()
                .flat_map(|begin| numbers.iter().map(move |number| format!("{begin}{before}{number}")))
                .collect();
            rest = after;
        }
        if item.is_empty() || rest.contains(']') {
            return Err(wrong());
        }
        hosts.extend(begun.into_iter().map(|begin| begin + rest));
    }
    Ok(hosts)
}

/// The counts of a text such as `4(x2),3`.
///
/// # Errors
///
/// A sentence, if the text is not well formed.
pub fn counts(text: &str) -> Result<Vec<usize>, String> {
    let one = |item: &str| -> Option<Vec<usize>> {
        let (count, times) = match item.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (item, 1),
        };
        (times <= HOSTS_MAX).then_some(())?;
        Some(iter::repeat_n(count.parse().ok()?, times).collect())
    };
    let all: Option<Vec<Vec<usize>>> = text.split(',').map(one).collect();
    all.map(|all| all.concat()).ok_or_else(|| format!("`{text}` is not a list of counts as Slurm writes them"))
}

fn split_outside_brackets(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    list.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

/// `01-03,7`, with the zeros that the first number has.
fn numbers(inside: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if to < from || to - from >= HOSTS_MAX {
            return None;
        }
        all.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Some(all)
}

/// A port for the step of a job, which its tasks compute by themselves. Ports below 32,768 are not given to outgoing
/// connections (`ip_local_port_range` in ip(7)).
pub(super) fn port(job: &str, step: &str) -> u16 {
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    20_000 + (trellis_base::mixed(number(job) << 32 | number(step) & 0xffff_ffff) % 10_000) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_hosts_are_expanded_in_their_order() {
        let expanded = |list| hosts(list).map(|hosts| hosts.join(" "));
        assert_eq!(expanded("h1").unwrap(), "h1");
        assert_eq!(expanded("h[1-2]").unwrap(), "h1 h2");
        assert_eq!(expanded("login,n[08-10,3].a,b").unwrap(), "login n08.a n09.a n10.a n3.a b");
        assert_eq!(expanded("r[1-2]n[1-2]").unwrap(), "r1n1 r1n2 r2n1 r2n2");
        for wrong in ["", "h[1-", "h1-2]", "h[2-1]", "h[a]", "a,,b", "h[1-99999]", "a[1-999]b[1-999]"] {
            assert!(expanded(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_may_be_repeated() {
        assert_eq!(counts("4").unwrap(), [4]);
        assert_eq!(counts("4(x2),3").unwrap(), [4, 4, 3]);
        for wrong in ["", "x", "4(2)", "4(x", "1(x99999)"] {
            assert!(counts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports_of_steps_differ_and_are_not_ephemeral() {
        assert_ne!(port("7", "0"), port("7", "1"));
        assert!((20_000..30_000).contains(&port("4294967295", "4000")));
    }
}
