//! The facts about expressions that a definition's fingerprint needs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use caju_pipeline::Functions;
use caju_runtime::budget;
use caju_types::Result;
use datafusion_sql::sqlparser::ast::{Expr, Visit, Visitor};

use crate::catalog;
use crate::constant::Const;
use crate::guard::BIND_BYTES;
use crate::registry::Registry;
use crate::sql;
use crate::versions::ENGINES;

/// The version of what we change about the values of DataFusion's functions. It is raised whenever equal arguments give another
/// value: fields of null structs, and times and roundings that were null or no number, changed them in version 1, and
/// searches for zeros in version 2.
const GUARDS: u32 = 2;

impl Functions for Registry {
    /// Our functions have versions of their own. Those of DataFusion have version 0: their version is the engine's.
    fn version(&self, sql: &str) -> Result<Vec<(String, u32)>> {
        let mut used = self.inspect(sql)?.1.functions;
        // In version 1 `'a''b'` had the spelling of `'a''''b'`, and rows of one may be stored as those of the other.
        let spelling = self.canonical(sql)?;
        if spelling.contains("''") || spelling.contains("\"\"") {
            used.push(("quotes".into(), 2));
        }
        Ok(used)
    }

    fn is_random(&self, sql: &str) -> Result<bool> {
        Ok(self.inspect(sql)?.1.random)
    }

    fn canonical(&self, sql: &str) -> Result<String> {
        sql::with_stack(|| budget::scope(BIND_BYTES, || sql::canonical(sql)))
    }

    fn trusts_code(&self) -> bool {
        !self.runs_foreign_code()
    }

    fn engine_versions(&self) -> BTreeMap<String, String> {
        let ours = |name: &str, version: &str| match name {
            "datafusion" => format!("{version}+{GUARDS}"),
            _ => version.to_owned(),
        };
        ENGINES.iter().map(|(name, version)| ((*name).to_owned(), ours(name, version))).collect()
    }

    /// An expression of columns, constants and our functions alone does not depend on DataFusion or Arrow. The versions of
    /// the functions and of their codecs determine its value.
    fn engines_used(&self, sql: &str) -> Result<Vec<String>> {
        let (tree, found) = self.inspect(sql)?;
        let mut used: Vec<&str> = found.engines;
        let mut visitor = OwnFunctionsOnly { depth: 0 };
        if tree.visit(&mut visitor).is_break() {
            used.extend(["arrow", "datafusion"]);
        }
        used.sort_unstable();
        used.dedup();
        Ok(used.into_iter().map(str::to_owned).collect())
    }
}

/// Stops at the first part that DataFusion computes.
struct OwnFunctionsOnly {
    /// The number of our calls around the current expression. Within them literals, also negative ones and lists, are
    /// arguments.
    depth: usize,
}

impl Visitor for OwnFunctionsOnly {
    type Break = ();

    fn pre_visit_expr(&mut self, e: &Expr) -> ControlFlow<()> {
        match e {
            Expr::Function(f) if catalog::find(&f.name.to_string().to_lowercase()).is_some() => {
                self.depth += 1;
                ControlFlow::Continue(())
            }
            Expr::Identifier(_) | Expr::Nested(_) => ControlFlow::Continue(()),
            e if self.depth > 0 && Const::of_literal(e).is_some() => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    fn post_visit_expr(&mut self, e: &Expr) -> ControlFlow<()> {
        if let Expr::Function(_) = e {
            self.depth -= 1;
        }
        ControlFlow::Continue(())
    }
}
