//! Rewriting: replaces calls of our functions in a syntax tree, and refuses functions that are not scalar and immutable.

use std::ops::ControlFlow;

use caju_types::{Error, Result, did_you_mean, mix64};
use datafusion_sql::sqlparser::ast::{
    Expr, Function as SqlFunction, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments,
    Ident, ObjectName, Query, VisitMut, VisitorMut,
};
use xxhash_rust::xxh3::xxh3_64;

use super::bounds;
use super::context::{Builtin, Builtins, Planner};
use super::names::{CALL, KEY_COLUMN};
use crate::call::resolve;
use crate::catalog::{self, Built, Function};
use crate::constant::Const;
use crate::guard::Patterns;
use crate::image_udf::ChainKernel;
use crate::kernel::{Kernel, KernelUdf};
use crate::limits::Limits;
use crate::syntax::at;
use caju_image::{ImageChain, ImageOp, InputKind};

/// The result of a rewrite.
#[derive(Default)]
pub(crate) struct Rewritten {
    /// The functions created for the calls, by their numbers.
    pub(crate) kernels: Vec<KernelUdf>,
    /// The called functions and their versions. Those of DataFusion have version 0.
    pub(crate) functions: Vec<(String, u32)>,
    /// Whether any call draws random numbers.
    pub(crate) random: bool,
    /// The libraries on which our functions depend.
    pub(crate) engines: Vec<&'static str>,
}

/// A rewrite of one expression.
pub(crate) struct Rewrite<'a> {
    pub(crate) builtins: &'a Builtins,
    pub(crate) limits: &'a Limits,
    /// The names of the input's columns, if they are known.
    pub(crate) columns: Option<&'a [&'a str]>,
    /// The column that the expression computes. It is part of the call sites.
    pub(crate) output: &'a str,
    /// The number of calls in expressions before this one.
    pub(crate) first_call: usize,
    /// Whether nested image operations become one function.
    pub(crate) fuse: bool,
    /// The patterns of the definition.
    pub(crate) patterns: &'a Patterns,
}

impl Rewrite<'_> {
    /// Rewrites an expression in place.
    ///
    /// # Errors
    /// `InvalidArgument` for unknown functions, wrong arguments, and anything that is not a scalar
    /// expression.
    pub(crate) fn run(&self, expr: &mut Expr) -> Result<Rewritten> {
        let mut visitor = CallVisitor {
            env: self,
            calls: Vec::new(),
            sites: Vec::new(),
            random_calls: 0,
            out: Rewritten::default(),
        };
        if let ControlFlow::Break(e) = VisitMut::visit(expr, &mut visitor) {
            return Err(*e);
        }
        let CallVisitor { calls, mut out, .. } = visitor;
        out.kernels = calls.into_iter().map(ReplacedCall::into_udf).collect();
        Ok(out)
    }
}

/// A call that was replaced.
struct ReplacedCall {
    function: &'static Function,
    place: String,
    random: bool,
    target: Target,
}

/// The function of a replaced call.
enum Target {
    Chain(ChainKernel),
    Kernel(Box<dyn Kernel>),
}

impl ReplacedCall {
    fn into_udf(self) -> KernelUdf {
        // An error of a chain may concern any of its operations, not the outermost one.
        let usage = match &self.target {
            Target::Chain(chain) if chain.ops.len() > 1 => String::new(),
            _ => self.function.signature.usage(),
        };
        let kernel = match self.target {
            Target::Chain(chain) => Box::new(chain),
            Target::Kernel(kernel) => kernel,
        };
        KernelUdf::new(self.function.signature.name, self.place, usage, self.random, kernel)
    }
}

struct CallVisitor<'a> {
    env: &'a Rewrite<'a>,
    calls: Vec<ReplacedCall>,
    /// The call sites of the functions around the current expression.
    sites: Vec<u64>,
    random_calls: u64,
    out: Rewritten,
}

fn stop<T>(r: Result<T>) -> ControlFlow<Box<Error>, T> {
    match r {
        Ok(v) => ControlFlow::Continue(v),
        Err(e) => ControlFlow::Break(Box::new(e)),
    }
}

/// The function's name for the lookup, and its position.
fn name_of(f: &SqlFunction) -> (String, String) {
    match f.name.0.as_slice() {
        [part] => match part.as_ident() {
            Some(id) if id.quote_style.is_none() => (id.value.to_lowercase(), at(id.span.start)),
            Some(id) => (id.value.clone(), at(id.span.start)),
            None => (f.name.to_string(), String::new()),
        },
        parts => {
            let first = parts.first().and_then(|p| p.as_ident());
            (f.name.to_string(), first.map(|id| at(id.span.start)).unwrap_or_default())
        }
    }
}

impl VisitorMut for CallVisitor<'_> {
    type Break = Box<Error>;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        stop(Err(Error::invalid("subqueries are not offered: an expression sees one row")))
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        stop(bounds::check(expr, self.env.builtins, self.env.patterns))?;
        match expr {
            Expr::Function(f) => {
                if let Some(column) = self.as_column(f) {
                    *expr = Expr::Identifier(column);
                    return ControlFlow::Continue(());
                }
                let (name, place) = name_of(f);
                let function = catalog::find(&name);
                if function.is_none() {
                    stop(self.check_builtin(f, &name, &place))?;
                    self.name_canonically(f, &name);
                }
                // Sites are numbered in the order of the text: an outer call comes before the calls in it.
                if function.is_some_and(|f| f.signature.random) {
                    self.random_calls += 1;
                    self.sites.push(mix64(xxh3_64(self.env.output.as_bytes()), self.random_calls));
                } else {
                    self.sites.push(0);
                }
                ControlFlow::Continue(())
            }
            Expr::Wildcard(_) | Expr::QualifiedWildcard(..) => {
                stop(Err(Error::invalid("`*` is not an expression; name the columns")))
            }
            Expr::Identifier(id) if id.value == KEY_COLUMN => {
                stop(Err(Error::invalid(format!("`{KEY_COLUMN}` is reserved"))))
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        let Expr::Function(f) = expr else { return ControlFlow::Continue(()) };
        let site = self.sites.pop().unwrap_or(0);
        let (name, place) = name_of(f);
        if let Some(function) = catalog::find(&name) {
            let made = self.replace_call(function, f, site, &place).map_err(|e| {
                let place = place.trim_start();
                if place.is_empty() { e } else { e.context(format_args!("`{name}` {place}")) }
            });
            *f = stop(made)?;
        }
        ControlFlow::Continue(())
    }
}

impl CallVisitor<'_> {
    /// The column that a function without parentheses names. To the parser, words such as `user` are functions. Where the
    /// columns are not known yet, such a word is left to the binding, which knows them.
    fn as_column(&self, f: &SqlFunction) -> Option<Ident> {
        let [part] = f.name.0.as_slice() else { return None };
        let id = part.as_ident()?;
        let is_column = |columns: &[&str]| {
            // A word that names neither a column nor a function is an unknown column: the error lists the columns.
            columns.contains(&id.value.as_str())
                || matches!(self.env.builtins.look_up(&id.value.to_lowercase()), Builtin::Unknown)
        };
        (f.args == FunctionArguments::None && self.env.columns.is_none_or(is_column)).then(|| id.clone())
    }

    /// Calls a function of DataFusion by its own name. For a call by another one of its names DataFusion makes a column's name from
    /// the names of the arguments, twice: nested calls take a time that doubles with each level.
    fn name_canonically(&self, f: &mut SqlFunction, name: &str) {
        let own = self.env.builtins.own_name(name).filter(|own| *own != name && catalog::find(own).is_none());
        if let (Some(own), [part]) = (own, f.name.0.as_slice())
            && let Some(id) = part.as_ident()
        {
            let id = Ident { value: own.to_owned(), quote_style: None, span: id.span };
            f.name = ObjectName::from(vec![id]);
        }
    }

    fn check_builtin(&mut self, f: &SqlFunction, name: &str, place: &str) -> Result<()> {
        let refuse = |what: String| Err(Error::invalid(what));
        if f.over.is_some() {
            return refuse(format!(
                "`{name}`{place} is called as a window function: an expression sees one row"
            ));
        }
        match self.env.builtins.look_up(name) {
            Builtin::Pure => {
                self.out.add_function(name.to_owned(), 0);
                Ok(())
            }
            Builtin::Impure => refuse(impure(name, place)),
            Builtin::Aggregate => {
                let instead = match name {
                    "max" => "; `greatest` compares the values of one row",
                    "min" => "; `least` compares the values of one row",
                    "sum" | "avg" | "mean" | "count" => {
                        "; functions such as array_length work within one row"
                    }
                    _ => "",
                };
                refuse(format!("`{name}`{place} is an aggregate: an expression sees one row{instead}"))
            }
            Builtin::Window => {
                refuse(format!("`{name}`{place} is a window function: an expression sees one row"))
            }
            Builtin::HigherOrder => refuse(format!(
                "`{name}`{place} takes a lambda, and expressions have none; use functions of whole lists (array_sum, \
                 array_position, ...), or a function in Python"
            )),
            Builtin::Unknown => {
                let known = catalog::functions().map(|f| f.signature.name).chain(self.env.builtins.names());
                refuse(format!("unknown function `{name}`{place}{}", did_you_mean(name, known)))
            }
        }
    }

    /// Creates the function of one call. Gives the call that replaces it.
    fn replace_call(
        &mut self,
        function: &'static Function,
        f: &SqlFunction,
        site: u64,
        place: &str,
    ) -> Result<SqlFunction> {
        let signature = &function.signature;
        let resolved = resolve(signature, f)?;
        let planner = Planner { builtins: self.env.builtins, calls: &[] };
        let mut call =
            resolved.call(self.env.limits, site, |e: &Expr| -> Option<Const> { planner.fold(e) })?;
        if let Some(key) = call.key() {
            // The second word is one that no site of a column's name has, so that keys and sites never collide.
            call.site = mix64(xxh3_64(key.as_bytes()), u64::MAX);
        }
        self.out.add_function(signature.name.to_owned(), signature.version());
        for engine in signature.engines {
            if !self.out.engines.contains(engine) {
                self.out.engines.push(engine);
            }
        }
        let mut values = resolved.values()?;
        let place = format!("`{}`{place}", signature.name);
        let made = match (function.build)(&call).map_err(|e| signature.misuse(e))? {
            Built::Kernel(kernel) => {
                ReplacedCall { function, place, random: signature.random, target: Target::Kernel(kernel) }
            }
            Built::Image { op, scaled } => {
                let kind = if let ImageOp::Decode { .. } = op { InputKind::Encoded } else { InputKind::U8 };
                let random = op.is_random();
                // Arguments are checked here, where the position of the call is known.
                ImageChain::new(vec![(op.clone(), random.then_some(0))], kind)
                    .map_err(|e| signature.misuse(e))?;
                let step = (op, random.then_some(call.site));
                match self.inner_chain(&mut values) {
                    Some((mut chain, inner_random)) => {
                        chain.ops.push(step);
                        ReplacedCall {
                            function,
                            place,
                            random: random || inner_random,
                            target: Target::Chain(chain),
                        }
                    }
                    None => {
                        let chain = ChainKernel { ops: vec![step], scaled };
                        ReplacedCall { function, place, random, target: Target::Chain(chain) }
                    }
                }
            }
        };
        self.out.random |= made.random;
        if made.random {
            values.push(Expr::Identifier(Ident::with_quote('"', KEY_COLUMN)));
        }
        let number = self.env.first_call + self.calls.len();
        self.calls.push(made);
        Ok(internal_call(f, number, values))
    }

    /// If the image argument is the result of a chain, gives that chain, and replaces the argument by the chain's input.
    fn inner_chain(&self, values: &mut [Expr]) -> Option<(ChainKernel, bool)> {
        let mut image = values.first().filter(|_| self.env.fuse)?;
        while let Expr::Nested(e) = image {
            image = e;
        }
        let Expr::Function(f) = image else { return None };
        let number: usize = name_of(f).0.strip_prefix(CALL)?.parse().ok()?;
        // Children are visited before their parents, so the inner call was replaced before. It stays in the list without a
        // call, so that the numbers of other calls stay valid.
        let inner = self.calls.get(number.checked_sub(self.env.first_call)?)?;
        let Target::Chain(chain) = &inner.target else { return None };
        let FunctionArguments::List(list) = &f.args else { return None };
        let FunctionArg::Unnamed(FunctionArgExpr::Expr(input)) = list.args.first()? else { return None };
        let found = (chain.clone(), inner.random);
        let input = input.clone();
        values[0] = input;
        Some(found)
    }
}

impl Rewritten {
    fn add_function(&mut self, name: String, version: u32) {
        if !self.functions.iter().any(|(n, _)| *n == name) {
            self.functions.push((name, version));
        }
    }
}

fn internal_call(f: &SqlFunction, number: usize, values: Vec<Expr>) -> SqlFunction {
    let args = values.into_iter().map(|e| FunctionArg::Unnamed(FunctionArgExpr::Expr(e))).collect();
    SqlFunction {
        name: ObjectName::from(vec![Ident::new(format!("{CALL}{number}"))]),
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses: vec![],
        }),
        ..f.clone()
    }
}

fn impure(name: &str, place: &str) -> String {
    let instead = match name {
        "random" | "rand" => {
            "use uniform(0, 1), which draws from the job's seed; see also normal and random_int"
        }
        "uuid" => "use random_int(low, high), which draws from the job's seed",
        "now" | "current_date" | "current_time" | "current_timestamp" | "today" => {
            "write the time into the expression, or read it from a column"
        }
        _ => "random numbers come from uniform, normal and random_int, which draw from the job's seed",
    };
    format!("`{name}`{place} gives another value each time, and a row must not: {instead}")
}
