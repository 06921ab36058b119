//! `and`, `or` and `in` whose later parts are computed only for the rows that need them.
//!
//! DataFusion computes both sides of `and` for all rows of a batch, unless few rows or none need the right side, and the items of
//! `in` until all rows are found. So `a <> 0 and 1 / a > 2` would fail for a batch in which some rows are zero, although it fails for
//! none of these rows alone. A row's values do not depend on the rows that share its batch.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, NullArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{and_kleene, or_kleene};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion_common::cast::as_boolean_array;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DataFusionError, ScalarValue};
use datafusion_expr::{ColumnarValue, Operator};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{BinaryExpr, InListExpr, Literal, NotExpr};
use datafusion_physical_expr::utils::collect_columns;

use crate::infallible::is_infallible;

/// Replaces each `and` and `or` over `schema` whose right side may fail, and each `in` with an item after the first that may.
pub(crate) fn short_circuits(
    expr: Arc<dyn PhysicalExpr>,
    schema: &Schema,
) -> Result<Arc<dyn PhysicalExpr>, DataFusionError> {
    expr.transform_up(|e| {
        if let Some(list) = e.downcast_ref::<InListExpr>() {
            let may_fail = |item: &Arc<dyn PhysicalExpr>| !is_infallible(item, schema);
            return Ok(match list.list().iter().skip(1).any(may_fail) {
                true => Transformed::yes(any_equal(list)),
                false => Transformed::no(e),
            });
        }
        let Some(b) = e.downcast_ref::<BinaryExpr>() else { return Ok(Transformed::no(e)) };
        let decisive = match b.op() {
            Operator::And => false,
            Operator::Or => true,
            _ => return Ok(Transformed::no(e)),
        };
        if is_infallible(b.right(), schema) {
            return Ok(Transformed::no(e));
        }
        let (left, right) = (Arc::clone(b.left()), Arc::clone(b.right()));
        Ok(Transformed::yes(Arc::new(ShortCircuit { decisive, left, right }) as Arc<dyn PhysicalExpr>))
    })
    .data()
}

/// `x in (a, b)` as `x = a or x = b`, and `not` of that.
fn any_equal(list: &InListExpr) -> Arc<dyn PhysicalExpr> {
    let equal = |item: &Arc<dyn PhysicalExpr>| {
        let (value, item) = (Arc::clone(list.expr()), Arc::clone(item));
        Arc::new(BinaryExpr::new(value, Operator::Eq, item)) as Arc<dyn PhysicalExpr>
    };
    let either =
        |left, right| Arc::new(ShortCircuit { decisive: true, left, right }) as Arc<dyn PhysicalExpr>;
    let found = list.list().iter().map(equal).reduce(either);
    let found = found.unwrap_or_else(|| Arc::new(Literal::new(ScalarValue::Boolean(Some(false)))));
    if list.negated() { Arc::new(NotExpr::new(found)) } else { found }
}

/// `and` or `or`.
#[expect(clippy::derived_hash_with_manual_eq, reason = "both are of the same fields")]
#[derive(Debug, Eq, Hash)]
struct ShortCircuit {
    /// The value of the left side that decides: false of `and`, true of `or`.
    decisive: bool,
    left: Arc<dyn PhysicalExpr>,
    right: Arc<dyn PhysicalExpr>,
}

// Deriving it would move out of the sides: https://github.com/rust-lang/rust/issues/78808
impl PartialEq for ShortCircuit {
    fn eq(&self, other: &Self) -> bool {
        self.decisive == other.decisive && self.left.eq(&other.left) && self.right.eq(&other.right)
    }
}

impl ShortCircuit {
    /// The rows whose left side does not decide: null does not either.
    fn undecided(&self, left: &BooleanArray) -> BooleanArray {
        let deciding = if self.decisive { left.values().clone() } else { !left.values() };
        let decided: BooleanBuffer = match left.nulls() {
            Some(nulls) => &deciding & nulls.inner(),
            None => deciding,
        };
        BooleanArray::new(!&decided, None)
    }

    /// The right side of some rows. Other rows have any value.
    fn right_of(&self, batch: &RecordBatch, rows: &BooleanArray) -> Result<ArrayRef, DataFusionError> {
        let value = match rows.false_count() {
            0 => self.right.evaluate(batch)?,
            _ => self.right.evaluate_selection(&only_read(batch, &self.right)?, rows)?,
        };
        value.into_array(batch.num_rows())
    }
}

/// A batch without the values of columns that an expression does not read: rows of them are not copied.
fn only_read(batch: &RecordBatch, expr: &Arc<dyn PhysicalExpr>) -> Result<RecordBatch, DataFusionError> {
    let read = collect_columns(expr);
    let rows = batch.num_rows();
    let column = |(i, field): (usize, &Arc<Field>)| match read.iter().any(|c| c.index() == i) {
        true => (Arc::clone(field), Arc::clone(batch.column(i))),
        false => {
            let unread = Field::new(field.name(), DataType::Null, true);
            (Arc::new(unread), Arc::new(NullArray::new(rows)) as ArrayRef)
        }
    };
    let (fields, columns): (Vec<_>, Vec<_>) =
        batch.schema_ref().fields().iter().enumerate().map(column).unzip();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?)
}

impl fmt::Display for ShortCircuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.left, if self.decisive { "OR" } else { "AND" }, self.right)
    }
}

impl PhysicalExpr for ShortCircuit {
    fn data_type(&self, _: &Schema) -> Result<DataType, DataFusionError> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool, DataFusionError> {
        Ok(self.left.nullable(schema)? || self.right.nullable(schema)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue, DataFusionError> {
        let left = self.left.evaluate(batch)?.into_array(batch.num_rows())?;
        let left = as_boolean_array(&left)?;
        let rows = self.undecided(left);
        if rows.true_count() == 0 {
            return Ok(ColumnarValue::Array(Arc::new(left.clone())));
        }
        let right = self.right_of(batch, &rows)?;
        let right = as_boolean_array(&right)?;
        let both = if self.decisive { or_kleene(left, right) } else { and_kleene(left, right) };
        Ok(ColumnarValue::Array(Arc::new(both?)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.left, &self.right]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>, DataFusionError> {
        let (Some(right), Some(left), None) = (children.pop(), children.pop(), children.pop()) else {
            return Err(DataFusionError::Internal("`and` and `or` have two sides".to_owned()));
        };
        Ok(Arc::new(Self { decisive: self.decisive, left, right }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.left.fmt_sql(f)?;
        f.write_str(if self.decisive { " OR " } else { " AND " })?;
        self.right.fmt_sql(f)
    }
}
