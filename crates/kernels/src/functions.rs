//! What a definition's fingerprint needs to know about its expressions.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use caju_pipeline::Functions;
use caju_runtime::budget;
use caju_types::Result;
use datafusion_sql::sqlparser::ast::{Expr, Visit, Visitor};

use crate::Registry;
use crate::catalog;
use crate::guard::BIND_BYTES;
use crate::sql;
use crate::versions::ENGINES;

impl Functions for Registry {
    /// Our functions with their versions; DataFusion's with version 0, because theirs is the engine's.
    fn version(&self, sql: &str) -> Result<Vec<(String, u32)>> {
        Ok(self.inspect(sql)?.1.functions)
    }

    fn is_random(&self, sql: &str) -> Result<bool> {
        Ok(self.inspect(sql)?.1.random)
    }

    fn canonical(&self, sql: &str) -> Result<String> {
        sql::roomy(|| budget::scope(BIND_BYTES, || sql::canonical(sql)))
    }

    fn believes_code(&self) -> bool {
        !self.runs_for_others()
    }

    fn engine_versions(&self) -> BTreeMap<String, String> {
        ENGINES.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
    }

    /// An expression of columns, constants and our functions alone does not depend on DataFusion or Arrow:
    /// its value is given by the versions of the functions and the codecs that they use.
    fn engines_used(&self, sql: &str) -> Result<Vec<String>> {
        let (tree, found) = self.inspect(sql)?;
        let mut used: Vec<&str> = found.engines;
        let mut walk = OursAlone { depth: 0 };
        if tree.visit(&mut walk).is_break() {
            used.extend(["arrow", "datafusion"]);
        }
        used.sort_unstable();
        used.dedup();
        Ok(used.into_iter().map(str::to_owned).collect())
    }
}

/// Stops at whatever DataFusion computes.
struct OursAlone {
    /// Calls of ours around the present place: literals, also negative ones and lists, are arguments there.
    depth: usize,
}

impl Visitor for OursAlone {
    type Break = ();

    fn pre_visit_expr(&mut self, e: &Expr) -> ControlFlow<()> {
        match e {
            Expr::Function(f) if catalog::find(&f.name.to_string().to_lowercase()).is_some() => {
                self.depth += 1;
                ControlFlow::Continue(())
            }
            Expr::Identifier(_) | Expr::Nested(_) => ControlFlow::Continue(()),
            e if self.depth > 0 && sql::Const::of_literal(e).is_some() => ControlFlow::Continue(()),
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
