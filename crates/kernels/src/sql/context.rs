//! The planner of expressions, and DataFusion's functions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use caju_runtime::budget;
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, TableReference, plan_err};
use datafusion_expr::planner::{ContextProvider, ExprPlanner};
use datafusion_expr::simplify::SimplifyContext;
use datafusion_expr::{AggregateUDF, Expr, HigherOrderUDF, ScalarUDF, TableSource, Volatility, WindowUDF};
use datafusion_optimizer::simplify_expressions::ExprSimplifier;
use datafusion_sql::planner::{ParserOptions, PlannerContext, SqlToRel};
use datafusion_sql::sqlparser::ast;

use super::builtins;
use super::lists::check_lists;
use super::names::CALL;
use crate::constant::Const;
use crate::guard::{FOLD_BYTES, charge_literals, charge_matches, guard, keep_long_literals};
use crate::udf::{checked, equal_zeros};

/// The functions of DataFusion.
pub(crate) struct Builtins {
    scalar: HashMap<String, Arc<ScalarUDF>>,
    higher_order: HashSet<String>,
    planners: Vec<Arc<dyn ExprPlanner>>,
    options: Arc<ConfigOptions>,
}

/// The kind of a function name that is not in the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Builtin {
    Pure,
    /// A function that gives another value on each call.
    Impure,
    Aggregate,
    Window,
    /// A function that takes a lambda, and the dialect has none.
    HigherOrder,
    Unknown,
}

impl Builtins {
    pub(crate) fn new() -> Self {
        let mut scalar = HashMap::new();
        for f in builtins::scalar_functions() {
            for name in f.aliases().iter().map(String::as_str).chain([f.name()]) {
                scalar.insert(name.to_owned(), Arc::clone(&f));
            }
        }
        let higher_order = builtins::higher_order_functions()
            .iter()
            .flat_map(|f| f.aliases().iter().cloned().chain([f.name().to_owned()]))
            .collect();
        let mut options = ConfigOptions::default();
        options.sql_parser.enable_ident_normalization = false;
        options.sql_parser.map_string_types_to_utf8view = false;
        Self { scalar, higher_order, planners: builtins::expr_planners(), options: Arc::new(options) }
    }

    /// The kind of a (lower-case) name.
    pub(crate) fn look_up(&self, name: &str) -> Builtin {
        if let Some(f) = self.scalar.get(name) {
            return match f.signature().volatility {
                Volatility::Immutable => Builtin::Pure,
                _ => Builtin::Impure,
            };
        }
        if self.higher_order.contains(name) {
            return Builtin::HigherOrder;
        }
        match (builtins::AGGREGATE_FUNCTIONS.contains(&name), builtins::WINDOW_FUNCTIONS.contains(&name)) {
            (true, _) => Builtin::Aggregate,
            (_, true) => Builtin::Window,
            _ => Builtin::Unknown,
        }
    }

    /// The name of the function that is called by a (lower-case) name.
    pub(crate) fn own_name(&self, name: &str) -> Option<&str> {
        self.scalar.get(name).map(|f| f.name())
    }

    /// The names that may be called.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let pure = |(name, f): (_, &Arc<ScalarUDF>)| {
            (f.signature().volatility == Volatility::Immutable).then_some(name)
        };
        self.scalar.iter().filter_map(pure).map(String::as_str)
    }
}

/// A planner of expressions over one schema.
pub(crate) struct Planner<'a> {
    pub(crate) builtins: &'a Builtins,
    /// The functions created for the calls of this stage, by their numbers.
    pub(crate) calls: &'a [Arc<ScalarUDF>],
}

impl Planner<'_> {
    /// The logical expression of a syntax tree, without aliases.
    pub(crate) fn plan(&self, expr: ast::Expr, schema: &DFSchema) -> Result<Expr, DataFusionError> {
        let options = ParserOptions {
            enable_ident_normalization: false,
            map_string_types_to_utf8view: false,
            ..ParserOptions::default()
        };
        let planner = SqlToRel::new_with_options(self, options);
        let expr = planner.sql_to_expr(expr, schema, &mut PlannerContext::new())?;
        // A function found by an alias of its name is wrapped in an alias expression, which would hide that two calls are
        // equal.
        expr.transform_up(|e| {
            Ok(match e {
                Expr::Alias(a) => Transformed::yes(*a.expr),
                e => Transformed::no(e),
            })
        })
        .data()
    }

    fn simplifier(&self, schema: &Arc<DFSchema>) -> ExprSimplifier {
        let context = SimplifyContext::builder()
            .with_schema(Arc::clone(schema))
            .with_config_options(Arc::clone(&self.builtins.options))
            .build();
        ExprSimplifier::new(context)
    }

    /// Inserts casts so that types match.
    pub(crate) fn coerce(&self, expr: Expr, schema: &Arc<DFSchema>) -> Result<Expr, DataFusionError> {
        check_lists(&expr, schema)?;
        self.simplifier(schema).coerce(expr, schema)
    }

    /// Folds small constants, and expands functions that DataFusion defines by others (`coalesce` by `case`). All that can
    /// take much memory is guarded.
    pub(crate) fn simplify(&self, expr: Expr, schema: &Arc<DFSchema>) -> Result<Expr, DataFusionError> {
        let expr = equal_zeros(expr, schema)?;
        let guarded = keep_long_literals(guard(checked(expr, schema)?, schema)?)?;
        let simplified = budget::scope(FOLD_BYTES, || self.simplifier(schema).simplify(guarded))?;
        // Simplification may add calls.
        charge_literals(charge_matches(guard(checked(simplified, schema)?, schema)?)?)
    }

    /// The value of a constant expression; none if it depends on a row.
    pub(crate) fn fold(&self, expr: &ast::Expr) -> Option<Const> {
        let schema = Arc::new(DFSchema::try_from(Schema::empty()).ok()?);
        let expr = self.plan(expr.clone(), &schema).ok()?;
        let expr = equal_zeros(self.coerce(expr, &schema).ok()?, &schema).ok()?;
        let expr = guard(checked(expr, &schema).ok()?, &schema).ok()?;
        let expr = keep_long_literals(expr).ok()?;
        match budget::scope(FOLD_BYTES, || self.simplifier(&schema).simplify(expr)).ok()? {
            Expr::Literal(value, _) => Const::of_scalar(&value),
            _ => None,
        }
    }
}

impl ContextProvider for Planner<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>, DataFusionError> {
        plan_err!("there is no table `{name}`: expressions see one row")
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.builtins.planners
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        if let Some(number) = name.strip_prefix(CALL) {
            return self.calls.get(number.parse::<usize>().ok()?).cloned();
        }
        self.builtins.scalar.get(name).cloned()
    }

    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, _: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.builtins.options
    }

    fn udf_names(&self) -> Vec<String> {
        self.builtins.scalar.keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}
