//! CPU time, medians and tables.

use std::time::Duration;

/// CPU time of this thread.
pub fn thread_cpu_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid, and the clock exists on every Unix.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// The quantile `q` of some numbers.
pub fn quantile(numbers: &[f64], q: f64) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() {
        return f64::NAN;
    }
    let at = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// Measures alternatives that do the same work: `rounds` rounds, in each of which every alternative runs over all
/// images in blocks, the blocks of the alternatives in turn. Gives seconds per round and alternative.
pub fn alternate(
    rounds: usize,
    images: usize,
    block: usize,
    alternatives: usize,
    mut run: impl FnMut(usize, usize) -> crate::Outcome<()>,
) -> crate::Outcome<Vec<Vec<f64>>> {
    let mut times = vec![vec![0.0; rounds]; alternatives];
    for round in 0..rounds {
        for first in (0..images).step_by(block) {
            for turn in 0..alternatives {
                let a = (turn + round) % alternatives;
                let begin = thread_cpu_time();
                for i in first..(first + block).min(images) {
                    run(a, i)?;
                }
                times[a][round] += (thread_cpu_time() - begin).as_secs_f64();
            }
        }
    }
    Ok(times)
}

/// A row of the table: what, microseconds per image of the first alternative, and how many times as long the others
/// take, each as the median of the rounds' ratios with the quartiles.
pub fn row(name: &str, images: usize, times: &[Option<Vec<f64>>]) -> String {
    let Some(Some(ours)) = times.first() else { return String::new() };
    let mut line = format!("| {name} | {:.0} |", quantile(ours, 0.5) * 1e6 / images as f64);
    for other in &times[1..] {
        match other {
            None => line.push_str(" - |"),
            Some(t) => {
                let ratios: Vec<f64> = t.iter().zip(ours).map(|(t, ours)| t / ours).collect();
                let q = |q| quantile(&ratios, q);
                line.push_str(&format!(" {:.2} [{:.2}..{:.2}] |", q(0.5), q(0.25), q(0.75)));
            }
        }
    }
    line
}
