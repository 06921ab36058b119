//! Types of lists that DataFusion accepts when it plans a call, and fails on with the first row.

use arrow::datatypes::DataType;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DataFusionError, plan_err};
use datafusion_expr::{Expr, ExprSchemable};

/// Functions that compute with the numbers of lists.
const OF_NUMBERS: [&str; 9] = [
    "array_add",
    "array_avg",
    "array_normalize",
    "array_product",
    "array_scale",
    "array_subtract",
    "array_sum",
    "cosine_distance",
    "inner_product",
];

/// Refuses lists of lists where numbers are expected.
///
/// # Errors
/// A plan error that names the function and the type of its argument.
pub(crate) fn check_lists(expr: &Expr, schema: &DFSchema) -> Result<(), DataFusionError> {
    expr.apply(|e| {
        let Expr::ScalarFunction(call) = e else { return Ok(TreeNodeRecursion::Continue) };
        if OF_NUMBERS.contains(&call.func.name()) {
            for arg in &call.args {
                match arg.get_type(schema) {
                    Ok(of) if item(&of).and_then(item).is_some() => {
                        return plan_err!(
                            "{} takes lists of numbers, and `{arg}` is a list of lists; flatten makes one list of it",
                            call.func.name()
                        );
                    }
                    _ => {}
                }
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// The type of the items of a list.
fn item(of: &DataType) -> Option<&DataType> {
    match of {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type())
        }
        _ => None,
    }
}
