//! The rank of this process among those that a launcher has started: SLURM, MPI and torchrun put it into the
//! environment.

use caju_types::{Error, Result};
use clap::ValueEnum;

/// Whose variables are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Launcher {
    /// Those that are set; they must agree
    Auto,
    /// SLURM_PROCID and SLURM_NTASKS
    Slurm,
    /// OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE
    Openmpi,
    /// PMI_RANK and PMI_SIZE, of MPICH and Intel MPI
    Pmi,
    /// RANK and WORLD_SIZE
    Torchrun,
}

/// A launcher, by its name on the command line, and its variables.
struct LauncherVariables {
    launcher: Launcher,
    name: &'static str,
    rank: &'static str,
    size: &'static str,
}

const LAUNCHERS: [LauncherVariables; 4] = [
    LauncherVariables {
        launcher: Launcher::Slurm,
        name: "slurm",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
    },
    LauncherVariables {
        launcher: Launcher::Openmpi,
        name: "openmpi",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
    },
    LauncherVariables { launcher: Launcher::Pmi, name: "pmi", rank: "PMI_RANK", size: "PMI_SIZE" },
    LauncherVariables { launcher: Launcher::Torchrun, name: "torchrun", rank: "RANK", size: "WORLD_SIZE" },
];

/// The rank of this process, from 0, and the number of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank {
    /// From 0.
    pub(crate) index: u32,
    /// Processes.
    pub(crate) count: u32,
}

/// The rank that the environment of this process names.
///
/// # Errors
/// `InvalidArgument` if it names none, half of one, or several that differ.
pub(crate) fn rank_from_env(launcher: Launcher) -> Result<Rank> {
    rank(launcher, |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

fn rank(launcher: Launcher, variable: impl Fn(&str) -> Option<String>) -> Result<Rank> {
    let asked = |known: &&LauncherVariables| launcher == Launcher::Auto || known.launcher == launcher;
    let mut first: Option<(Rank, &LauncherVariables)> = None;
    for known in LAUNCHERS.iter().filter(asked) {
        let Some(rank) = rank_of(known, &variable)? else { continue };
        match first {
            None => first = Some((rank, known)),
            Some((other, by)) if other != rank => return Err(conflict((other, by), (rank, known))),
            Some(_) => {}
        }
    }
    first.map(|(rank, _)| rank).ok_or_else(|| {
        let pairs: Vec<_> = LAUNCHERS.iter().filter(asked).map(|k| format!("{} and {}", k.rank, k.size)).collect();
        Error::invalid(format!(
            "--rank-from-env: the environment names no rank ({}); start this with srun, mpirun or torchrun, or say \
             --num-consumers and --consumer-index",
            pairs.join(", ")
        ))
    })
}

/// The rank by one launcher's variables; none if they are not set.
fn rank_of(known: &LauncherVariables, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Rank>> {
    let (index, count) = match (variable(known.rank), variable(known.size)) {
        (None, None) => return Ok(None),
        (Some(index), Some(count)) => (number(known.rank, &index)?, number(known.size, &count)?),
        (index, _) => {
            let (set, missing) =
                if index.is_some() { (known.rank, known.size) } else { (known.size, known.rank) };
            return Err(Error::invalid(format!(
                "--rank-from-env: {set} is set and {missing} is not; set both, or name another launcher, such as \
                 --rank-from-env=torchrun"
            )));
        }
    };
    if index >= count {
        return Err(Error::invalid(format!(
            "--rank-from-env: {}={index} is not below {}={count}",
            known.rank, known.size
        )));
    }
    Ok(Some(Rank { index, count }))
}

fn number(name: &str, value: &str) -> Result<u32> {
    value
        .parse()
        .map_err(|_| Error::invalid(format!("--rank-from-env: {name}={value} is not a whole number")))
}

fn conflict((a, by_a): (Rank, &LauncherVariables), (b, by_b): (Rank, &LauncherVariables)) -> Error {
    let says = |rank: Rank, by: &LauncherVariables| {
        format!("{}={} of {}={}", by.rank, rank.index, by.size, rank.count)
    };
    Error::invalid(format!(
        "--rank-from-env: {} and {} contradict each other; name the launcher: --rank-from-env={} or --rank-from-env={}",
        says(a, by_a),
        says(b, by_b),
        by_a.name,
        by_b.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(launcher: Launcher, variables: &[(&str, &str)]) -> Result<(u32, u32), String> {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
        rank(launcher, get).map(|r| (r.index, r.count)).map_err(|e| e.message().to_string())
    }

    #[test]
    fn each_launcher_is_known() {
        for (known, launcher) in LAUNCHERS.iter().zip(["slurm", "openmpi", "pmi", "torchrun"]) {
            let variables = [(known.rank, "1"), (known.size, "4")];
            assert_eq!(of(Launcher::Auto, &variables), Ok((1, 4)));
            assert_eq!(of(Launcher::from_str(launcher, false).unwrap(), &variables), Ok((1, 4)));
            assert_eq!(known.name, launcher);
        }
    }

    #[test]
    fn launchers_must_agree_or_be_named() {
        let torchrun_in_slurm =
            [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("RANK", "3"), ("WORLD_SIZE", "8")];
        let e = of(Launcher::Auto, &torchrun_in_slurm).unwrap_err();
        for part in [
            "SLURM_PROCID=0 of SLURM_NTASKS=2",
            "RANK=3 of WORLD_SIZE=8",
            "=slurm or --rank-from-env=torchrun",
        ] {
            assert!(e.contains(part), "{e}");
        }
        assert_eq!(of(Launcher::Torchrun, &torchrun_in_slurm), Ok((3, 8)));
        assert_eq!(of(Launcher::Slurm, &torchrun_in_slurm), Ok((0, 2)));
        let both = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("RANK", "1"), ("WORLD_SIZE", "2")];
        assert_eq!(of(Launcher::Auto, &both), Ok((1, 2)));
    }

    #[test]
    fn mistakes_name_the_variable() {
        for (variables, part) in [
            (&[][..], "SLURM_PROCID and SLURM_NTASKS, OMPI_COMM_WORLD_RANK and"),
            (&[("RANK", "0")], "RANK is set and WORLD_SIZE is not"),
            (&[("SLURM_NTASKS", "2")], "SLURM_NTASKS is set and SLURM_PROCID is not"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK=2 is not below WORLD_SIZE=2"),
            (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK=x is not a whole number"),
        ] {
            let e = of(Launcher::Auto, variables).unwrap_err();
            assert!(e.contains(part), "{e}");
        }
        let e = of(Launcher::Pmi, &[("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert!(e.contains("(PMI_RANK and PMI_SIZE)"), "{e}");
    }
}
