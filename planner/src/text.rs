//! A decision as a table for a terminal.

use crate::choice::Choice;
use crate::decision::{Decision, PlanOption};
use crate::format;

const HEAD: [&str; 8] =
    ["option", "rows/s", "epoch", "horizon", "limited by", "storage", "ahead from", "feasible"];

/// Columns that are read from the left; the numbers align at the right.
const LEFT: [bool; 8] = [true, false, false, false, true, false, false, true];

impl Decision {
    /// The decision as text: a row per option, the chosen one marked with `*`; a sentence per option; and the
    /// reason.
    ///
    /// Rates are source rows per second of a steady epoch; `ahead from` is the epoch at whose end the
    /// option has overtaken computing.
    ///
    /// ```
    /// # let text = include_str!("../../tests/golden_plans/design-example.profile.json");
    /// use caju_planner::{Policy, Profile, plan};
    /// let decision = plan(&Profile::from_json(text)?, &Policy::Auto)?;
    /// let text = decision.to_text();
    /// assert!(text.contains("* source arrow/none"), "{text}");
    /// assert!(text.ends_with(&format!("{}\n", decision.reason)));
    /// # Ok::<(), caju_types::Error>(())
    /// ```
    pub fn to_text(&self) -> String {
        let rows: Vec<[String; 8]> = std::iter::once(HEAD.map(str::to_owned))
            .chain(self.options.iter().map(|o| self.row(o)))
            .collect();
        let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
        let widths: [usize; 8] = std::array::from_fn(width);
        let chosen = self.chosen().map(std::ptr::from_ref);
        let mut out = format!("policy {}\n\n", self.policy);
        for (n, row) in rows.iter().enumerate() {
            let marked = n > 0 && chosen == Some(std::ptr::from_ref(&self.options[n - 1]));
            let mut line = String::from(if marked { "* " } else { "  " });
            for (i, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[i] - cell.chars().count());
                line += &if LEFT[i] { format!("{cell}{pad}  ") } else { format!("{pad}{cell}  ") };
            }
            out += line.trim_end();
            out.push('\n');
        }
        out.push('\n');
        for o in &self.options {
            out += &format!("{}: {}.\n", o.choice, o.why);
        }
        out + &format!("\n{}\n", self.reason)
    }

    fn row(&self, o: &PlanOption) -> [String; 8] {
        let or_dash = |v: Option<f64>, f: fn(f64) -> String| v.map_or_else(|| "-".into(), f);
        let ahead = match (self.break_even_epoch(o), &o.choice) {
            (_, Choice::Compute) => "-".into(),
            (Some(n), _) => format!("epoch {n}"),
            (None, _) if o.horizon_s > Some(0.0) => "never".into(),
            (None, _) => "-".into(),
        };
        [
            o.choice.to_string(),
            or_dash(o.rows_per_s, format::rate),
            or_dash(o.epoch_s, format::time),
            or_dash(o.horizon_s, format::time),
            o.bottleneck.clone(),
            if o.choice == Choice::Compute { "-".into() } else { caju_types::format_bytes(o.snapshot_bytes) },
            ahead,
            if o.feasible { "yes" } else { "no" }.into(),
        ]
    }
}
