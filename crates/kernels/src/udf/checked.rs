//! `+`, `-`, `*`, `<<` and `>>` of integers that fail on overflow.
//!
//! DataFusion wraps: `9223372036854775807 + 1` is negative, and `1 << 64` is 1. The functions here compute the wrapped values in one pass, as
//! fast as DataFusion, with one overflow flag for the whole batch. Only if the flag is set, the row is searched.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    DataType, Field, FieldRef, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use caju_types::Error;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, ScalarValue, internal_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::BinaryExpr as PhysicalBinary;

use super::decimals_in_range;
use crate::kernel::Fault;

/// An operation that also returns whether it overflowed.
type Overflowing<N> = fn(N, N) -> (N, bool);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Add,
    Sub,
    Mul,
    ShiftLeft,
    ShiftRight,
}

impl Op {
    /// As it is written.
    fn sign(self) -> &'static str {
        match self {
            Op::Add => "+",
            Op::Sub => "-",
            Op::Mul => "*",
            Op::ShiftLeft => "<<",
            Op::ShiftRight => ">>",
        }
    }
}

/// Replaces the integer arithmetic in `expr` by checked arithmetic. Types have to match already.
pub(crate) fn checked(expr: Expr, schema: &DFSchema) -> Result<Expr, DataFusionError> {
    let expr = decimals_in_range(expr, schema)?;
    expr.transform_up(|e| {
        let (op, left, right) = match &e {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let op = match op {
                    Operator::Plus => Op::Add,
                    Operator::Minus => Op::Sub,
                    Operator::Multiply => Op::Mul,
                    Operator::BitwiseShiftLeft => Op::ShiftLeft,
                    Operator::BitwiseShiftRight => Op::ShiftRight,
                    _ => return Ok(Transformed::no(e)),
                };
                (op, left.as_ref().clone(), right.as_ref().clone())
            }
            Expr::Negative(of) => match of.get_type(schema).and_then(|t| ScalarValue::new_zero(&t)) {
                Ok(zero) => (Op::Sub, Expr::Literal(zero, None), of.as_ref().clone()),
                Err(_) => return Ok(Transformed::no(e)),
            },
            _ => return Ok(Transformed::no(e)),
        };
        match (left.get_type(schema), right.get_type(schema)) {
            (Ok(l), Ok(r)) if l == r && l.is_integer() => {
                let signature = Signature::any(2, Volatility::Immutable);
                let udf = ScalarUDF::new_from_impl(Checked { op, of: l, signature });
                let call = ScalarFunction::new_udf(Arc::new(udf), vec![left, right]);
                Ok(Transformed::yes(Expr::ScalarFunction(call)))
            }
            _ => Ok(Transformed::no(e)),
        }
    })
    .data()
}

/// Makes all other arithmetic (of decimals, and where types were unknown before) fail on overflow.
pub(crate) fn checked_rest(expr: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>, DataFusionError> {
    expr.transform_up(|e| {
        let Some(b) = e.downcast_ref::<PhysicalBinary>() else { return Ok(Transformed::no(e)) };
        if !matches!(b.op(), Operator::Plus | Operator::Minus | Operator::Multiply) {
            return Ok(Transformed::no(e));
        }
        let checked = PhysicalBinary::new(Arc::clone(b.left()), *b.op(), Arc::clone(b.right()));
        Ok(Transformed::yes(Arc::new(checked.with_fail_on_overflow(true)) as Arc<dyn PhysicalExpr>))
    })
    .data()
}

/// One operation on integers of type `of`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    op: Op,
    of: DataType,
    signature: Signature,
}

/// Wrapping arithmetic that also returns whether it wrapped.
trait Wrapping: Copy {
    fn add(self, other: Self) -> (Self, bool);
    fn sub(self, other: Self) -> (Self, bool);
    fn mul(self, other: Self) -> (Self, bool);
    /// A shift that loses bits of the value wraps, and one by a number of bits that the type does not have.
    fn shift_left(self, other: Self) -> (Self, bool);
    /// A shift by a number of bits that the type does not have wraps.
    fn shift_right(self, other: Self) -> (Self, bool);
}

macro_rules! shifts {
    ($t:ty) => {
        #[inline(always)]
        fn shift_left(self, other: Self) -> (Self, bool) {
            match u32::try_from(other).ok().filter(|bits| *bits < <$t>::BITS) {
                Some(bits) => (self << bits, self << bits >> bits != self),
                None => (0, true),
            }
        }
        #[inline(always)]
        fn shift_right(self, other: Self) -> (Self, bool) {
            match u32::try_from(other).ok().filter(|bits| *bits < <$t>::BITS) {
                Some(bits) => (self >> bits, false),
                None => (0, true),
            }
        }
    };
}

macro_rules! signed {
    ($($t:ty),*) => {$(impl Wrapping for $t {
        // A sum overflowed if its sign differs from those of both operands. Sign operations vectorise.
        #[inline(always)]
        fn add(self, other: Self) -> (Self, bool) {
            let sum = self.wrapping_add(other);
            (sum, (self ^ sum) & (other ^ sum) < 0)
        }
        #[inline(always)]
        fn sub(self, other: Self) -> (Self, bool) {
            let difference = self.wrapping_sub(other);
            (difference, (self ^ other) & (self ^ difference) < 0)
        }
        #[inline(always)]
        fn mul(self, other: Self) -> (Self, bool) {
            self.overflowing_mul(other)
        }
        shifts!($t);
    })*};
}

macro_rules! unsigned {
    ($($t:ty),*) => {$(impl Wrapping for $t {
        #[inline(always)]
        fn add(self, other: Self) -> (Self, bool) {
            let sum = self.wrapping_add(other);
            (sum, sum < self)
        }
        #[inline(always)]
        fn sub(self, other: Self) -> (Self, bool) {
            (self.wrapping_sub(other), self < other)
        }
        #[inline(always)]
        fn mul(self, other: Self) -> (Self, bool) {
            self.overflowing_mul(other)
        }
        shifts!($t);
    })*};
}

signed!(i8, i16, i32, i64);
unsigned!(u8, u16, u32, u64);

/// An operand: a column, or one value for all rows.
struct Operand<'a, T: ArrowPrimitiveType> {
    array: &'a PrimitiveArray<T>,
    scalar: bool,
}

impl<T: ArrowPrimitiveType> Operand<'_, T> {
    fn value(&self, row: usize) -> T::Native {
        self.array.value(if self.scalar { 0 } else { row })
    }
}

fn values<T: ArrowPrimitiveType>(
    (a, b): (&Operand<'_, T>, &Operand<'_, T>),
    op: impl Fn(T::Native, T::Native) -> (T::Native, bool),
) -> (Vec<T::Native>, bool) {
    let mut wrapped = false;
    let mut one = |x: T::Native, y: T::Native| {
        let (value, over) = op(x, y);
        wrapped |= over;
        value
    };
    let out = match (a.scalar, b.scalar) {
        (false, false) => a.array.values().iter().zip(b.array.values()).map(|(x, y)| one(*x, *y)).collect(),
        (false, true) => {
            let y = b.array.value(0);
            a.array.values().iter().map(|x| one(*x, y)).collect()
        }
        (true, false) => {
            let x = a.array.value(0);
            b.array.values().iter().map(|y| one(x, *y)).collect()
        }
        (true, true) => vec![one(a.array.value(0), b.array.value(0))],
    };
    (out, wrapped)
}

impl Checked {
    fn run<T>(&self, a: &Operand<'_, T>, b: &Operand<'_, T>) -> Result<ArrayRef, DataFusionError>
    where
        T: ArrowPrimitiveType,
        T::Native: Wrapping,
    {
        let (out, wrapped) = match self.op {
            Op::Add => values((a, b), Wrapping::add),
            Op::Sub => values((a, b), Wrapping::sub),
            Op::Mul => values((a, b), Wrapping::mul),
            Op::ShiftLeft => values((a, b), Wrapping::shift_left),
            Op::ShiftRight => values((a, b), Wrapping::shift_right),
        };
        let nulls =
            NullBuffer::union(a.array.nulls().filter(|_| !a.scalar), b.array.nulls().filter(|_| !b.scalar));
        if wrapped && let Some(row) = self.first_wrapped(a, b, nulls.as_ref(), out.len()) {
            let sign = self.op.sign();
            let what = format!(
                "{:?} {sign} {:?} does not fit {}; cast to a wider type (bigint, decimal(38, 0) or double) before",
                a.value(row),
                b.value(row),
                self.of
            );
            return Err(Fault::at(row, Error::invalid(what)).into());
        }
        Ok(Arc::new(PrimitiveArray::<T>::new(out.into(), nulls)))
    }

    /// The first row that overflows and is not null. The value under a null may be anything.
    fn first_wrapped<T>(
        &self,
        a: &Operand<'_, T>,
        b: &Operand<'_, T>,
        nulls: Option<&NullBuffer>,
        rows: usize,
    ) -> Option<usize>
    where
        T: ArrowPrimitiveType,
        T::Native: Wrapping,
    {
        let op: Overflowing<T::Native> = match self.op {
            Op::Add => Wrapping::add,
            Op::Sub => Wrapping::sub,
            Op::Mul => Wrapping::mul,
            Op::ShiftLeft => Wrapping::shift_left,
            Op::ShiftRight => Wrapping::shift_right,
        };
        (0..rows).find(|&i| nulls.is_none_or(|n| n.is_valid(i)) && op(a.value(i), b.value(i)).1)
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        match self.op {
            Op::Add => "add",
            Op::Sub => "subtract",
            Op::Mul => "multiply",
            Op::ShiftLeft => "shift_left",
            Op::ShiftRight => "shift_right",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(self.of.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        let nullable = args.arg_fields.iter().any(|f| f.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.of.clone(), nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let [left, right] = &args.args[..] else {
            return internal_err!("arithmetic of {} values", args.args.len());
        };
        let scalar = |v: &ColumnarValue| matches!(v, ColumnarValue::Scalar(_));
        let null = |v: &ColumnarValue| matches!(v, ColumnarValue::Scalar(s) if s.is_null());
        if null(left) || null(right) {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_new_null(&self.of)?));
        }
        let (l, r) = (left.to_array(1)?, right.to_array(1)?);
        if l.data_type() != &self.of || r.data_type() != &self.of {
            return internal_err!(
                "arithmetic of {} and {} instead of {}",
                l.data_type(),
                r.data_type(),
                self.of
            );
        }
        macro_rules! run {
            ($($t:ident => $primitive:ty),*) => {
                match &self.of {
                    $(DataType::$t => self.run::<$primitive>(
                        &Operand { array: l.as_primitive(), scalar: scalar(left) },
                        &Operand { array: r.as_primitive(), scalar: scalar(right) },
                    )?,)*
                    other => return internal_err!("arithmetic of {other}"),
                }
            };
        }
        let out = run!(
            Int8 => Int8Type, Int16 => Int16Type, Int32 => Int32Type, Int64 => Int64Type,
            UInt8 => UInt8Type, UInt16 => UInt16Type, UInt32 => UInt32Type, UInt64 => UInt64Type
        );
        if scalar(left) && scalar(right) {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&out, 0)?));
        }
        Ok(ColumnarValue::Array(out))
    }
}
