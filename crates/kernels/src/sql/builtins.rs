//! The functions and expression planners of DataFusion's default session.
//!
//! DataFusion lists them in its facade crate (`SessionStateDefaults`), which brings the whole query engine. The lists
//! here name the same functions from the crates that hold them.

use std::sync::Arc;

use datafusion_expr::planner::ExprPlanner;
use datafusion_expr::{HigherOrderUDF, ScalarUDF};

/// The window functions of DataFusion 55. Expressions refuse them by name, so their code is not needed.
pub(crate) const WINDOW_FUNCTIONS: [&str; 11] = [
    "cume_dist",
    "dense_rank",
    "first_value",
    "lag",
    "last_value",
    "lead",
    "nth_value",
    "ntile",
    "percent_rank",
    "rank",
    "row_number",
];

/// The aggregate functions of DataFusion 55, with their aliases, in order. Expressions refuse them by name; without their code
/// the binary is several megabytes smaller.
pub(crate) const AGGREGATE_FUNCTIONS: &[&str] = &[
    "any_value",
    "approx_distinct",
    "approx_median",
    "approx_percentile_cont",
    "approx_percentile_cont_with_weight",
    "array_agg",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "corr",
    "count",
    "covar",
    "covar_pop",
    "covar_samp",
    "first_value",
    "grouping",
    "last_value",
    "max",
    "mean",
    "median",
    "min",
    "nth_value",
    "percentile_cont",
    "quantile_cont",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "sum",
    "var",
    "var_pop",
    "var_population",
    "var_samp",
    "var_sample",
];

/// Functions from one value per argument to one value.
pub(crate) fn scalar_functions() -> Vec<Arc<ScalarUDF>> {
    let mut functions = datafusion_functions::all_default_functions();
    functions.extend(datafusion_functions_nested::all_default_nested_functions());
    functions
}

/// Functions that take functions, such as `array_transform`.
pub(crate) fn higher_order_functions() -> Vec<Arc<HigherOrderUDF>> {
    datafusion_functions_nested::all_default_higher_order_functions()
}

/// The planners that turn SQL syntax without a function's name (`a[1]`, `EXTRACT`, `POSITION`) into calls.
pub(crate) fn expr_planners() -> Vec<Arc<dyn ExprPlanner>> {
    vec![
        Arc::new(datafusion_functions::core::planner::CoreFunctionPlanner::default()),
        Arc::new(datafusion_functions_nested::planner::NestedFunctionPlanner),
        Arc::new(datafusion_functions_nested::planner::FieldAccessPlanner),
        Arc::new(datafusion_functions::datetime::planner::DatetimeFunctionPlanner),
        Arc::new(datafusion_functions::unicode::planner::UnicodeFunctionPlanner),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_aggregate_functions_are_those_of_datafusion() {
        let all = datafusion_functions_aggregate::all_default_aggregate_functions();
        let mut names: Vec<String> =
            all.iter().flat_map(|f| [&[f.name().to_owned()], f.aliases()].concat()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names, super::AGGREGATE_FUNCTIONS);
    }
}
