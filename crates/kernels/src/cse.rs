//! Common subexpressions: what several expressions of a stage share is computed once.

use std::cell::Cell;

use datafusion_common::DataFusionError;
use datafusion_common::cse::{CSE, CSEController, FoundCommonNodes};
use datafusion_expr::expr::{InList, ScalarFunction};
use datafusion_expr::{BinaryExpr, Case, Expr, Operator, col};

/// The expressions of a stage, and their common subexpressions.
pub(crate) struct Shared {
    /// The common subexpressions, which are computed first, and their internal columns.
    pub(crate) common: Vec<(Expr, String)>,
    /// The expressions, over the input and these columns.
    pub(crate) exprs: Vec<Expr>,
}

/// Finds the common subexpressions.
///
/// # Errors
/// Those of DataFusion. It has none here.
pub(crate) fn share(exprs: Vec<Expr>) -> Result<Shared, DataFusionError> {
    let mut cse = CSE::new(Controller { made: Cell::new(0) });
    Ok(match cse.extract_common_nodes(vec![exprs])? {
        FoundCommonNodes::No { original_nodes_list } => {
            Shared { common: vec![], exprs: original_nodes_list.into_iter().flatten().collect() }
        }
        FoundCommonNodes::Yes { common_nodes, new_nodes_list, .. } => {
            Shared { common: common_nodes, exprs: new_nodes_list.into_iter().flatten().collect() }
        }
    })
}

struct Controller {
    made: Cell<usize>,
}

impl CSEController for Controller {
    type Node = Expr;

    /// The operands that are evaluated for every row, and those that are evaluated for some rows only. Computing the latter
    /// for all rows could fail where the original expression does not.
    fn conditional_children(node: &Expr) -> Option<(Vec<&Expr>, Vec<&Expr>)> {
        match node {
            Expr::ScalarFunction(ScalarFunction { func, args }) => func.conditional_arguments(args),
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, right }) => {
                Some((vec![left], vec![right]))
            }
            Expr::Case(Case { expr, when_then_expr, else_expr }) => {
                let first_when = when_then_expr.iter().take(1).map(|(when, _)| when.as_ref());
                let sure = expr.iter().map(AsRef::as_ref).chain(first_when).collect();
                let mut maybe: Vec<&Expr> = Vec::new();
                for (i, (when, then)) in when_then_expr.iter().enumerate() {
                    if i > 0 {
                        maybe.push(when);
                    }
                    maybe.push(then);
                }
                maybe.extend(else_expr.iter().map(AsRef::as_ref));
                Some((sure, maybe))
            }
            // Items behind the first are computed for rows that equal none of those before.
            Expr::InList(InList { expr, list, .. }) => {
                let (first, others) = list.split_at(list.len().min(1));
                Some((std::iter::once(expr.as_ref()).chain(first).collect(), others.iter().collect()))
            }
            _ => None,
        }
    }

    fn is_valid(node: &Expr) -> bool {
        !node.is_volatile_node() && !matches!(node, Expr::Lambda(_) | Expr::LambdaVariable(_))
    }

    /// Expressions that are as cheap to compute as to look up.
    fn is_ignored(&self, node: &Expr) -> bool {
        match node {
            Expr::IsNull(e) | Expr::IsNotNull(e) => matches!(**e, Expr::Column(_)),
            Expr::ScalarFunction(f) => f.func.name() == "get_field",
            e => matches!(
                e,
                Expr::Literal(..)
                    | Expr::Column(_)
                    | Expr::ScalarVariable(..)
                    | Expr::Alias(_)
                    | Expr::Lambda(_)
                    | Expr::LambdaVariable(_)
            ),
        }
    }

    fn generate_alias(&self) -> String {
        self.made.set(self.made.get() + 1);
        format!("__caju_common_{}", self.made.get())
    }

    fn rewrite(&mut self, _: &Expr, alias: &str) -> Expr {
        col(alias)
    }
}
