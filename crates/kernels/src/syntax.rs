//! Parsing: from text to a syntax tree, and positions in the text.

use std::ops::ControlFlow;

use caju_types::{Error, Result};
use datafusion_sql::parser::DFParserBuilder;
use datafusion_sql::sqlparser::ast::{Expr, ExprWithAlias, Visit, Visitor};
use datafusion_sql::sqlparser::dialect::GenericDialect;
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::parser::ParserError;
use datafusion_sql::sqlparser::tokenizer::{Location, Token, Tokenizer};

use crate::dialect::BoundedDialect;

/// The most levels of nested calls and parentheses: more than people write, less than overflows a thread's stack.
const MAX_NESTING: usize = 50;

/// The most levels of the tree. A long sum is a deep tree, too, and every pass over it is recursive.
const MAX_DEPTH: usize = 150;

/// The most tokens of an expression. Dropping the tree is recursive, too.
const MAX_TOKENS: usize = 4000;

/// Parses one expression.
///
/// # Errors
/// `InvalidArgument`, which names the position in the text.
pub(crate) fn parse(sql: &str) -> Result<Expr> {
    if sql.trim().is_empty() {
        return Err(Error::invalid("the expression is empty"));
    }
    let tokens = tokens(sql);
    if tokens.len() > MAX_TOKENS {
        return Err(Error::invalid(format!(
            "the expression has more than {MAX_TOKENS} words and signs; split it into steps"
        )));
    }
    let parsed = parsed(sql).map_err(|e| match e {
        Failure::TooLong => Error::invalid(
            "the expression takes too long to parse, because calls are nested within calls, or names have many parts; split it \
             into steps",
        ),
        Failure::Syntax(e) => {
            Error::invalid(format!("`{sql}` does not parse: {}{}", reason(&e), quote_hint(sql)))
        }
    })?;
    if parsed.expr.visit(&mut Depth(0)).is_break() {
        return Err(Error::invalid(format!(
            "the expression is a chain of more than {MAX_DEPTH} operators; split it into steps, or use parentheses to \
             make it balanced"
        )));
    }
    match parsed.alias {
        None => Ok(parsed.expr),
        Some(alias) => Err(Error::invalid(format!(
            "`{sql}` names its result (as {alias}){}: the key of the expression in the pipeline names the column",
            at(alias.span.start)
        ))),
    }
}

/// Why a text has no expression.
enum Failure {
    /// The parser gave up: see [`BoundedDialect`].
    TooLong,
    Syntax(datafusion_common::DataFusionError),
}

fn parsed(sql: &str) -> Result<ExprWithAlias, Failure> {
    let dialect = BoundedDialect::default();
    let parsed = DFParserBuilder::new(sql)
        .with_dialect(&dialect)
        .with_recursion_limit(MAX_NESTING)
        .build()
        .and_then(|mut p| p.parse_into_expr());
    // What the parser gave back after that may not be the first reading.
    if dialect.is_exhausted() {
        return Err(Failure::TooLong);
    }
    parsed.map_err(Failure::Syntax)
}

/// The most reserved words that [`quote_hint`] tries. Each one costs a parse of the whole text.
const MAX_QUOTED_WORDS: usize = 8;

/// What to do about a text that does not parse because a column has the name of a reserved word, such as `interval`. Empty
/// unless the text parses with that word in quotes.
fn quote_hint(sql: &str) -> String {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap_or_default();
    let reserved = |at: usize| match &tokens[at] {
        Token::Word(w) if w.quote_style.is_none() && w.keyword != Keyword::NoKeyword => {
            Some(w.value.as_str())
        }
        _ => None,
    };
    // In front of a parenthesis it names a function.
    let is_called = |at: usize| {
        let mut next = tokens[at + 1..].iter().filter(|t| !matches!(t, Token::Whitespace(_)));
        matches!(next.next(), Some(Token::LParen))
    };
    let mut words: Vec<&str> = Vec::new();
    for at in 0..tokens.len() {
        if words.len() == MAX_QUOTED_WORDS {
            break;
        }
        if let Some(word) = reserved(at).filter(|word| !words.contains(word) && !is_called(at)) {
            words.push(word);
        }
    }
    let quoted = |word: &str| -> String {
        let text = |at: usize| match reserved(at) {
            Some(found) if found == word => format!("\"{word}\""),
            _ => tokens[at].to_string(),
        };
        (0..tokens.len()).map(text).collect()
    };
    match words.iter().find(|word| parsed(&quoted(word)).is_ok()) {
        Some(word) => format!(
            "; `{word}` is a word of SQL: if it is a column, write \"{word}\" in double quotes, in YAML '\"{word}\"'"
        ),
        None => String::new(),
    }
}

/// The words and signs of a text; none if it has no tokens.
fn tokens(sql: &str) -> Vec<Token> {
    let mut tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap_or_default();
    tokens.retain(|t| !matches!(t, Token::Whitespace(_)));
    tokens
}

/// Stops below [`MAX_DEPTH`].
struct Depth(usize);

impl Visitor for Depth {
    type Break = ();

    fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.0 += 1;
        if self.0 > MAX_DEPTH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.0 -= 1;
        ControlFlow::Continue(())
    }
}

fn reason(e: &datafusion_common::DataFusionError) -> String {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(e) = source {
        match e.downcast_ref::<ParserError>() {
            Some(ParserError::RecursionLimitExceeded) => {
                return format!("it nests more than {MAX_NESTING} levels deep");
            }
            Some(ParserError::ParserError(text) | ParserError::TokenizerError(text)) => return tidy(text),
            None => source = e.source(),
        }
    }
    tidy(&e.strip_backtrace())
}

/// Rewords messages such as `Expected: an expression, found: ) at Line: 1, Column: 8`.
fn tidy(text: &str) -> String {
    let (what, place) = match text.rsplit_once(" at Line: ") {
        None => (text, String::new()),
        Some((what, place)) => {
            let mut numbers = place.split(", Column: ").map(|n| n.trim().parse().unwrap_or(0));
            let line = numbers.next().unwrap_or(0);
            (what, at(Location { line, column: numbers.next().unwrap_or(0) }))
        }
    };
    let what =
        what.strip_prefix("Expected: ").map_or_else(|| what.to_owned(), |rest| format!("expected {rest}"));
    let what = match what.split_once(", found: ") {
        Some((wanted, "EOF")) => format!("{wanted}, and the text ends"),
        Some((wanted, found)) => format!("{wanted}, found `{found}`"),
        None => what,
    };
    format!("{what}{place}")
}

/// A position in the text: ` at column 12`, or ` at line 2, column 3`; empty if it is unknown.
pub(crate) fn at(l: Location) -> String {
    match (l.line, l.column) {
        (0, _) | (_, 0) => String::new(),
        (1, c) => format!(" at column {c}"),
        (line, c) => format!(" at line {line}, column {c}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser tries several readings of these words, and of what is in them: each level doubles the time.
    #[test]
    fn what_has_many_readings_ends_soon() {
        let nestings = [
            ("cast(", " as bigint)"),
            ("not(", ")"),
            ("array[", "]"),
            ("substring(", " from 1)"),
            ("interval ", ""),
            ("current_timestamp(", ")"),
            ("case when ", " then 1 end"),
            ("a.", ""),
            ("x(a.", ")"),
            ("struct(", ")"),
            ("{'a': ", "}"),
            ("exists(", ")"),
            ("(select ", ")"),
        ];
        let parse = |sql: String| crate::sql::with_stack(move || parse(&sql));
        for (begin, end) in nestings {
            let nested =
                |levels: usize, inner: &str| format!("{}{inner}{}", begin.repeat(levels), end.repeat(levels));
            for levels in [24, 400] {
                for inner in ["x", "x x", ")"] {
                    let sql = nested(levels, inner);
                    let began = std::time::Instant::now();
                    let e = parse(sql.clone()).err();
                    let took = began.elapsed();
                    assert!(took < std::time::Duration::from_secs(20), "{sql}: {took:?}, {e:?}");
                }
            }
        }
        for (begin, end) in &nestings[..4] {
            let sql = format!("{}x{}", begin.repeat(12), end.repeat(12));
            assert!(parse(sql.clone()).is_ok(), "{sql}");
        }
        let e = parse(format!("{})", "a.".repeat(40))).unwrap_err();
        assert!(e.message().contains("takes too long to parse"), "{e}");
    }

    #[test]
    fn errors_name_their_position() {
        for (sql, want) in [
            ("ln(x +)", "`ln(x +)` does not parse: expected an expression, found `)` at column 7"),
            ("ln(x", "`ln(x` does not parse: expected ), and the text ends"),
            ("a b c", "`a b c` does not parse: expected end of expression, found `b` at column 3"),
            (
                "a as b",
                "`a as b` names its result (as b) at column 6: the key of the expression in the pipeline names the column",
            ),
            ("", "the expression is empty"),
            (
                "text || interval",
                "`text || interval` does not parse: expected an expression, and the text ends; `interval` is a word of \
                 SQL: if it is a column, write \"interval\" in double quotes, in YAML '\"interval\"'",
            ),
            (
                "Interval > 1",
                "`Interval > 1` does not parse: expected an expression, found `>` at column 10; `Interval` is a word of \
                 SQL: if it is a column, write \"Interval\" in double quotes, in YAML '\"Interval\"'",
            ),
            ("user(1)", "`user(1)` does not parse: expected end of expression, found `(` at column 5"),
        ] {
            assert_eq!(parse(sql).unwrap_err().to_string(), want);
        }
        let deep = format!("{}1{}", "(".repeat(1000), ")".repeat(1000));
        assert!(
            crate::sql::with_stack(|| parse(&deep))
                .unwrap_err()
                .to_string()
                .ends_with("it nests more than 50 levels deep")
        );
    }
}
