//! The hosts of an allocation in which the launcher runs, from the environment of Slurm, PBS, LSF or Open MPI.
//!
//! It is pure, but for a file that the environment names. Promises: hosts come in the order in which the scheduler
//! lists them, each with as many slots as the scheduler gave. It must never ask a scheduler for anything.
//!
//! Sources: salloc(1) and sbatch(1) of Slurm 22.05 (`SLURM_JOB_NODELIST`, `SLURM_TASKS_PER_NODE`), the job environment
//! of OpenPBS (`PBS_NODEFILE`), the environment of jobs of IBM Spectrum LSF (`LSB_DJOB_HOSTFILE`, `LSB_HOSTS`), the
//! parameter `orte_default_hostfile` of Open MPI.

use std::io;

use trellis::engines::slurm;

use super::connection::Carrier;
use super::list::{self, Host};

/// Hosts that a scheduler gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) hosts: Vec<Host>,
    pub(super) carrier: Carrier,
    /// The variable that names them.
    pub(super) variable: &'static str,
}

/// Files with a host in each line.
const FILES: [&str; 3] = ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "OMPI_MCA_orte_default_hostfile"];

/// The hosts of the allocation, if this process runs in one.
///
/// # Errors
///
/// A sentence, if the environment of the scheduler is not understood, or if each of several tasks asks.
pub(super) fn allocation(
    variable: impl Fn(&str) -> Option<String>,
    read: impl Fn(&str) -> io::Result<String>,
) -> Result<Option<Allocation>, String> {
    let number = |name: &str| variable(name).and_then(|tasks| tasks.parse().ok()).unwrap_or(1);
    let of_step = slurm::tasks_of_step(&variable);
    let tasks = [
        ("PMI_SIZE", number("PMI_SIZE")),
        ("OMPI_COMM_WORLD_SIZE", number("OMPI_COMM_WORLD_SIZE")),
        ("SLURM_STEP_NUM_TASKS", of_step.unwrap_or(1)),
    ];
    for (name, tasks) in tasks {
        if tasks > 1u32 {
            return Err(format!(
                "{name}={tasks}: each of these tasks would start a cluster; let srun, mpirun or mpiexec start the program \
                 itself, or start `trellis run` once"
            ));
        }
    }
    let given = |name: &'static str| variable(name).filter(|value| !value.is_empty()).map(|value| (name, value));
    // In a step the hosts and slots are those of the step; srun leaves the list of the job in place.
    let (of_hosts, of_slots) = match of_step {
        Some(_) => ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"),
        None => ("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"),
    };
    if let (Some((name, list)), Some(_)) = (given(of_hosts), given("SLURM_JOB_ID")) {
        let about = |why: String| format!("{name}: {why}");
        let hosts = slurm::hosts(&list).map_err(about)?;
        let slots = match given(of_slots) {
            Some((name, counts)) => slurm::counts(&counts).map_err(|why| format!("{name}: {why}"))?,
            None => vec![1; hosts.len()],
        };
        if slots.len() != hosts.len() {
            return Err(about(format!("it has {} hosts, and {of_slots} has {}", hosts.len(), slots.len())));
        }
        let listed: Vec<String> = hosts.iter().zip(slots).map(|(host, slots)| format!("{host}:{slots}")).collect();
        let hosts = list::in_list(&listed.join(",")).map_err(about)?;
        return Ok(Some(Allocation { hosts, carrier: Carrier::Srun, variable: name }));
    }
    let by_ssh = |variable, hosts: Result<Vec<Host>, String>| {
        let hosts = hosts.map_err(|why| format!("{variable}: {why}"))?;
        Ok(Some(Allocation { hosts, carrier: Carrier::Ssh(None), variable }))
    };
    if let Some((name, file)) = FILES.into_iter().find_map(given) {
        let text = read(&file).map_err(|error| format!("{name}={file}: cannot be read: {error}"))?;
        return by_ssh(name, list::in_file(&text));
    }
    match given("LSB_HOSTS") {
        Some((name, hosts)) => by_ssh(name, list::in_list(&hosts.split_whitespace().collect::<Vec<_>>().join(","))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<(String, Carrier)>, String> {
        let get = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let read = |file: &str| match file {
            "/job/hosts" => Ok("h1\nh1\nh2\n".to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let found = allocation(get, read)?;
        Ok(found.map(|allocation| {
            let placed = list::placed(allocation.hosts, None, None, list::MapBy::Slot).expect("all slots can be taken");
            let shares = placed.iter().map(|(host, nodes)| format!("{}={nodes:?} ", host.name())).collect();
            (shares, allocation.carrier)
        }))
    }

    #[test]
    fn each_scheduler_says_where_its_hosts_are() {
        let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "h[1-3]"), ("SLURM_TASKS_PER_NODE", "2(x2),1")];
        assert_eq!(found(&slurm), Ok(Some(("h1=[0, 1] h2=[2, 3] h3=[4] ".to_owned(), Carrier::Srun))));
        let twice_and_once = Ok(Some(("h1=[0, 1] h2=[2] ".to_owned(), Carrier::Ssh(None))));
        assert_eq!(found(&[("PBS_NODEFILE", "/job/hosts")]), twice_and_once);
        assert_eq!(found(&[("LSB_DJOB_HOSTFILE", "/job/hosts")]), twice_and_once);
        assert_eq!(found(&[("LSB_HOSTS", "h1 h1 h2")]), twice_and_once);
        assert_eq!(found(&[("OMPI_MCA_orte_default_hostfile", "/job/hosts")]), twice_and_once);
        assert_eq!(found(&[]), Ok(None));
        let script = [&slurm[..], &[("SLURM_STEP_ID", "4294967291"), ("SLURM_STEP_NUM_TASKS", "4")]].concat();
        assert_eq!(found(&script).map(|found| found.is_some()), Ok(true), "a batch script is no task");
        let step = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        let in_step = [("SLURM_STEP_NODELIST", "h2"), ("SLURM_STEP_TASKS_PER_NODE", "1")];
        let step = [&slurm[..], &step, &in_step].concat();
        assert_eq!(found(&step), Ok(Some(("h2=[0] ".to_owned(), Carrier::Srun))), "the step counts, not the job");
    }

    #[test]
    fn what_cannot_be_right_is_refused() {
        assert!(found(&[("PBS_NODEFILE", "/nowhere")]).unwrap_err().starts_with("PBS_NODEFILE=/nowhere: cannot be"));
        let uneven = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "h[1-3]"), ("SLURM_TASKS_PER_NODE", "2(x2)")];
        assert_eq!(
            found(&uneven),
            Err("SLURM_JOB_NODELIST: it has 3 hosts, and SLURM_TASKS_PER_NODE has 2".to_owned())
        );
        let step =
            [("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4")];
        let tasks = found(&step).unwrap_err();
        assert!(tasks.starts_with("SLURM_STEP_NUM_TASKS=4: each of these tasks"), "{tasks}");
    }
}
