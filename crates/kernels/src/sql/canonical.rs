//! The canonical spelling of an expression.

use std::ops::ControlFlow;

use caju_types::{Error, Result};
use datafusion_sql::sqlparser::ast::{
    AccessExpr, CastKind, Expr, Function as SqlFunction, FunctionArg, FunctionArgExpr, FunctionArgOperator,
    FunctionArgumentList, FunctionArguments, Ident, ObjectName, Value, ValueWithSpan, VisitMut, VisitorMut,
};

use crate::call::resolve;
use crate::catalog;
use crate::syntax::parse;

/// The canonical spelling: single spaces, parentheses around every operator within another one and nowhere else, quoted
/// columns, and function names in lower case. Calls of our functions have required arguments by position, and other arguments
/// by name in the order of the documentation.
///
/// # Errors
/// `InvalidArgument` if the text does not parse or calls one of our functions wrongly.
pub(crate) fn canonical(sql: &str) -> Result<String> {
    let mut expr = parse(sql)?;
    match VisitMut::visit(&mut expr, &mut Canonical) {
        ControlFlow::Break(e) => Err(*e),
        ControlFlow::Continue(()) => Ok(expr.to_string()),
    }
}

struct Canonical;

impl VisitorMut for Canonical {
    type Break = Box<Error>;

    fn post_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<Self::Break> {
        if let Value::SingleQuotedString(text) = &mut value.value {
            double(text, '\'');
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        if let Expr::Nested(inner) = expr {
            *expr = std::mem::replace(inner, Expr::Tuple(Vec::new()));
            return ControlFlow::Continue(());
        }
        for operand in operands(expr) {
            if is_operator(operand) {
                let inner = std::mem::replace(operand, Expr::Tuple(Vec::new()));
                *operand = Expr::Nested(Box::new(inner));
            }
        }
        match expr {
            Expr::Identifier(id) => quote(id),
            Expr::CompoundIdentifier(ids) => ids.iter_mut().for_each(quote),
            Expr::Cast { kind, .. } if *kind == CastKind::DoubleColon => *kind = CastKind::Cast,
            Expr::Cast { kind, .. } if *kind == CastKind::SafeCast => *kind = CastKind::TryCast,
            Expr::Array(a) => a.named = false,
            Expr::Named { name, .. } => quote(name),
            Expr::Dictionary(fields) => {
                for field in fields {
                    double(&mut field.key.value, '\'');
                    field.key.quote_style = Some('\'');
                }
            }
            Expr::Function(f) => {
                if let Some(mut column) = column(f) {
                    quote(&mut column);
                    *expr = Expr::Identifier(column);
                    return ControlFlow::Continue(());
                }
                if let Err(e) = call(f) {
                    return ControlFlow::Break(Box::new(e));
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn quote(id: &mut Ident) {
    double(&mut id.value, '"');
    id.quote_style = Some('"');
}

/// Doubles the quotes in a text or a name. The parser has made one of each two, and its `Display` doubles only single ones:
/// `a''b` and `a'b` would be one text.
fn double(text: &mut String, quote: char) {
    if text.contains(quote) {
        *text = text.replace(quote, &format!("{quote}{quote}"));
    }
}

/// Whether an expression binds less tightly than a call, so that it needs parentheses as an operand.
fn is_operator(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::BinaryOp { .. }
            | Expr::UnaryOp { .. }
            | Expr::Between { .. }
            | Expr::InList { .. }
            | Expr::Like { .. }
            | Expr::ILike { .. }
            | Expr::SimilarTo { .. }
            | Expr::RLike { .. }
            | Expr::AnyOp { .. }
            | Expr::AllOp { .. }
            | Expr::AtTimeZone { .. }
            | Expr::Collate { .. }
            | Expr::Interval(_)
            | Expr::TypedString(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::IsTrue(_)
            | Expr::IsNotTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsNotFalse(_)
            | Expr::IsUnknown(_)
            | Expr::IsNotUnknown(_)
            | Expr::IsDistinctFrom(..)
            | Expr::IsNotDistinctFrom(..)
            | Expr::JsonAccess { .. }
            | Expr::Lambda(_)
    )
}

/// The operands of an expression that may need parentheses.
fn operands(expr: &mut Expr) -> Vec<&mut Expr> {
    match expr {
        Expr::BinaryOp { left, right, .. }
        | Expr::AnyOp { left, right, .. }
        | Expr::AllOp { left, right, .. }
        | Expr::IsDistinctFrom(left, right)
        | Expr::IsNotDistinctFrom(left, right) => vec![left, right],
        Expr::UnaryOp { expr, .. }
        | Expr::InList { expr, .. }
        | Expr::Collate { expr, .. }
        | Expr::IsNull(expr)
        | Expr::IsNotNull(expr)
        | Expr::IsTrue(expr)
        | Expr::IsNotTrue(expr)
        | Expr::IsFalse(expr)
        | Expr::IsNotFalse(expr)
        | Expr::IsUnknown(expr)
        | Expr::IsNotUnknown(expr)
        | Expr::JsonAccess { value: expr, .. } => vec![expr],
        Expr::Between { expr, low, high, .. } => vec![expr, low, high],
        Expr::Like { expr, pattern, .. }
        | Expr::ILike { expr, pattern, .. }
        | Expr::SimilarTo { expr, pattern, .. }
        | Expr::RLike { expr, pattern, .. } => vec![expr, pattern],
        Expr::AtTimeZone { timestamp, time_zone } => vec![timestamp, time_zone],
        Expr::CompoundFieldAccess { root, access_chain } => {
            let mut all: Vec<&mut Expr> = vec![root];
            for access in access_chain {
                if let AccessExpr::Dot(e) = access {
                    all.push(e);
                }
            }
            all
        }
        _ => Vec::new(),
    }
}

/// The column that a function without parentheses names, such as `user`. Its case counts: `User` is another column. A word such
/// as `current_date` that names no column is refused where it is bound.
fn column(f: &SqlFunction) -> Option<Ident> {
    match f.name.0.as_slice() {
        [part] if f.args == FunctionArguments::None => part.as_ident().cloned(),
        _ => None,
    }
}

fn call(f: &mut SqlFunction) -> Result<()> {
    for part in &mut f.name.0 {
        if let datafusion_sql::sqlparser::ast::ObjectNamePart::Identifier(id) = part
            && id.quote_style.is_none()
        {
            id.value = id.value.to_lowercase();
        }
    }
    let Some(function) = catalog::find(&f.name.to_string()) else { return Ok(()) };
    let signature = &function.signature;
    let resolved = resolve(signature, f)?;
    let mut args = Vec::new();
    for (arg, given) in signature.all_args().zip(resolved.given) {
        let Some(value) = given else { continue };
        let Some(default) = arg.default else {
            args.push(FunctionArg::Unnamed(FunctionArgExpr::Expr(value)));
            continue;
        };
        if !value.to_string().eq_ignore_ascii_case(default) {
            args.push(FunctionArg::Named {
                name: Ident::new(arg.name),
                arg: FunctionArgExpr::Expr(value),
                operator: FunctionArgOperator::RightArrow,
            });
        }
    }
    f.name = ObjectName::from(vec![Ident::new(signature.name)]);
    f.args =
        FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: vec![] });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling() {
        for (same, want) in [
            (vec!["ln( x+1 )", "LN((x) + 1)", "(ln(\"x\" + 1))"], r#"ln("x" + 1)"#),
            (vec!["User", "\"User\""], r#""User""#),
            (vec!["upper(user)", "UPPER(\"user\")"], r#"upper("user")"#),
            (vec!["a+b*c", "a + (b * c)", "(a + ((b) * c))"], r#""a" + ("b" * "c")"#),
            (vec!["(a+b)*c"], r#"("a" + "b") * "c""#),
            (vec!["x::float", "cast(x as float)", "CAST(x AS FLOAT)"], r#"CAST("x" AS FLOAT)"#),
            (
                vec![
                    "random_resized_crop(img, 224, 224, scale_min => 0.25)",
                    "random_resized_crop(image => img, scale_min=>0.25, width => 224, height => 224, scale_max => 1.0)",
                    "random_resized_crop(img, 224, 224, 0.25)",
                ],
                r#"random_resized_crop("img", 224, 224, scale_min => 0.25)"#,
            ),
            (vec!["a -- a comment\n = 1 and not b is null"], r#"("a" = 1) AND (NOT ("b" IS NULL))"#),
            (vec!["-(-1)", "- (- 1)"], "-(-1)"),
            (vec!["s.a.b", "\"s\".a.\"b\""], r#""s"."a"."b""#),
            (vec!["array_length(ARRAY[1,2])", "array_length([1, 2])"], "array_length([1, 2])"),
        ] {
            for sql in same {
                let once = canonical(sql).unwrap();
                assert_eq!(once, want, "{sql}");
                assert_eq!(canonical(&once).unwrap(), once, "{sql}");
            }
        }
        assert_ne!(canonical("a - (b - c)").unwrap(), canonical("(a - b) - c").unwrap());
        assert_ne!(canonical("\"A\"").unwrap(), canonical("a").unwrap());
        assert!(canonical("resize(img, 3)").is_err());
    }

    #[test]
    fn expressions_that_differ_in_their_quotes_are_spelt_apart() {
        let mut found = std::collections::BTreeSet::new();
        for quotes in 0..9 {
            let text = |quote: char| format!("{quote}a{}b{quote}", quote.to_string().repeat(2 * quotes));
            for sql in [
                text('\''),
                text('"'),
                format!("date {}", text('\'')),
                format!("x like {}", text('\'')),
                format!("{{{}: 1}}", text('\'')),
                format!("'\\{}", &text('\'')[1..]),
                format!("\"\\{}", &text('"')[1..]),
            ] {
                let once = canonical(&sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
                assert_eq!(canonical(&once).unwrap(), once, "{sql}");
                assert!(found.insert(once), "{sql} is spelt as another expression");
            }
        }
    }
}
