//! An answer as a table for a terminal.

use super::explain::money;
use super::{Scaling, ScalingCandidate};
use crate::format;

const HEAD: [&str; 6] = ["workers", "rows/s", "consumers wait", "cost/h", "cost/epoch", "limited by"];

/// Rows around the chosen one that the table shows. JSON has all.
const ROWS_AROUND_CHOICE: usize = 5;

impl Scaling {
    /// The answer as text: a row per number of workers near the chosen one, which is marked with `*`, and the reason.
    ///
    /// ```
    /// # let text = include_str!("../../../tests/golden_plans/design-example.profile.json");
    /// use caju_planner::{Profile, WorkerLimits, scale};
    /// let scaling = scale(&Profile::from_json(text)?, WorkerLimits::new(1, 16)?)?;
    /// let text = scaling.to_text();
    /// assert!(text.contains(&format!("\n* {:>7}", scaling.workers)), "{text}");
    /// assert!(text.ends_with(&format!("{}\n", scaling.reason)));
    /// # Ok::<(), caju_types::Error>(())
    /// ```
    pub fn to_text(&self) -> String {
        let chosen = self.candidates.iter().position(|c| c.workers == self.workers).unwrap_or(0);
        let (first, last) = (
            chosen.saturating_sub(ROWS_AROUND_CHOICE),
            (chosen + ROWS_AROUND_CHOICE).min(self.candidates.len() - 1),
        );
        let shown = self.candidates.get(first..=last).unwrap_or_default();
        let cells: Vec<[String; 6]> =
            std::iter::once(HEAD.map(str::to_owned)).chain(shown.iter().map(row)).collect();
        let widths: [usize; 6] =
            std::array::from_fn(|i| cells.iter().map(|r| r[i].chars().count()).max().unwrap_or(0));
        let mut out = String::new();
        for (n, cells) in cells.iter().enumerate() {
            let marked = n > 0 && first + n - 1 == chosen;
            let mut line = String::from(if marked { "* " } else { "  " });
            for (i, cell) in cells.iter().enumerate() {
                let pad = " ".repeat(widths[i] - cell.chars().count());
                line += &if i == 5 { cell.clone() } else { format!("{pad}{cell}  ") };
            }
            out += line.trim_end();
            out.push('\n');
        }
        let hidden = self.candidates.len() - shown.len();
        if hidden > 0 {
            let hidden = format::count(hidden as u64, "more number");
            out += &format!("  {hidden}: --format json shows them\n");
        }
        out + &format!("\n{}\n", self.reason)
    }
}

fn row(c: &ScalingCandidate) -> [String; 6] {
    let or_dash = |v: Option<f64>, f: fn(f64) -> String| v.map_or_else(|| "-".into(), f);
    [
        c.workers.to_string(),
        format::rate(c.rows_per_s),
        or_dash(c.consumer_wait, |w| if w < 5e-5 { "0 %".into() } else { format::percent(w) }),
        or_dash(c.cost_per_h, money),
        or_dash(c.cost_per_epoch, money),
        c.bottleneck.clone(),
    ]
}
