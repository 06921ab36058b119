//! Resolving the arguments of a call of one of our functions.

use caju_types::{Error, Result, did_you_mean};
use datafusion_sql::sqlparser::ast::{
    Expr, Function as SqlFunction, FunctionArg, FunctionArgExpr, FunctionArguments,
};

use crate::constant::Const;
use crate::limits::Limits;
use crate::signature::{Kind, Signature};
use crate::syntax::parse;

/// A call with its arguments in the order of the signature.
pub(crate) struct Resolved {
    pub(crate) function: &'static Signature,
    /// The argument given for each of [`Signature::all_args`].
    pub(crate) given: Vec<Option<Expr>>,
}

/// The constants and context from which a kernel is built.
pub(crate) struct Call<'a> {
    consts: Vec<(&'static str, Const)>,
    pub(crate) limits: &'a Limits,
    pub(crate) site: u64,
}

/// Orders the arguments of a call by the signature.
///
/// # Errors
/// `InvalidArgument` for unknown, duplicate, missing or surplus arguments, with the signature.
pub(crate) fn resolve(function: &'static Signature, call: &SqlFunction) -> Result<Resolved> {
    let args: Vec<_> = function.all_args().collect();
    let mut given: Vec<Option<Expr>> = vec![None; args.len()];
    let mut position = 0;
    let mut named = false;
    for arg in list(function, call)? {
        let (at, value) = match arg {
            FunctionArg::Unnamed(value) => {
                if named {
                    return Err(function.misuse("an argument without a name follows a named one"));
                }
                position += 1;
                if position > function.args.len() {
                    let max = function.args.len();
                    return Err(
                        function.misuse(format!("{} takes {max} arguments by position", function.name))
                    );
                }
                (position - 1, value)
            }
            FunctionArg::Named { name, arg, .. } => {
                named = true;
                (find(function, &name.value)?, arg)
            }
            FunctionArg::ExprNamed { name, arg, .. } => {
                named = true;
                (find(function, &name.to_string())?, arg)
            }
        };
        let FunctionArgExpr::Expr(value) = value else {
            return Err(function.misuse(format!("`{value}` is not an argument of {}", function.name)));
        };
        if given[at].replace(value.clone()).is_some() {
            return Err(function.misuse(format!("`{}` of {} is given twice", args[at].name, function.name)));
        }
    }
    for (arg, value) in args.iter().zip(&given) {
        if value.is_none() && arg.default.is_none() {
            return Err(function.misuse(format!("{} lacks its argument `{}`", function.name, arg.name)));
        }
    }
    Ok(Resolved { function, given })
}

fn list<'a>(function: &Signature, call: &'a SqlFunction) -> Result<&'a [FunctionArg]> {
    let plain = call.over.is_none()
        && call.filter.is_none()
        && call.null_treatment.is_none()
        && call.within_group.is_empty()
        && call.parameters == FunctionArguments::None;
    match &call.args {
        FunctionArguments::List(l) if plain && l.duplicate_treatment.is_none() && l.clauses.is_empty() => {
            Ok(&l.args)
        }
        _ => Err(function
            .misuse(format!("{} is called with arguments in parentheses, and nothing else", function.name))),
    }
}

fn find(function: &Signature, name: &str) -> Result<usize> {
    let names = || function.all_args().map(|a| a.name);
    names().position(|n| n == name).ok_or_else(|| {
        let near = did_you_mean(name, names());
        function.misuse(format!("{} has no argument `{name}`{}", function.name, near.trim_end_matches('?')))
    })
}

impl Resolved {
    /// The arguments that differ from row to row, with defaults.
    ///
    /// # Errors
    /// `Internal` if a default does not parse.
    pub(crate) fn values(&self) -> Result<Vec<Expr>> {
        let args = self.function.all_args().zip(&self.given).filter(|(a, _)| a.kind == Kind::Value);
        args.map(|(arg, given)| match given {
            Some(e) => Ok(e.clone()),
            None => default(arg.default),
        })
        .collect()
    }

    /// The constant arguments. `fold` evaluates those that are not literals.
    ///
    /// # Errors
    /// `InvalidArgument` for arguments that are not constant or of another type, with the signature.
    pub(crate) fn call<'a>(
        &self,
        limits: &'a Limits,
        site: u64,
        fold: impl Fn(&Expr) -> Option<Const>,
    ) -> Result<Call<'a>> {
        let mut consts = Vec::new();
        for (arg, given) in self.function.all_args().zip(&self.given).filter(|(a, _)| a.kind != Kind::Value) {
            let expr = match given {
                Some(e) => e.clone(),
                None => default(arg.default)?,
            };
            let value = Const::of_literal(&expr).or_else(|| fold(&expr)).ok_or_else(|| {
                self.function.misuse(format!(
                    "`{}` of {} must be {}, and `{expr}` is not known before the rows are read",
                    arg.name,
                    self.function.name,
                    arg.kind.describe()
                ))
            })?;
            let absent = value == Const::Null && arg.default == Some("null");
            if !absent && !is_kind(&value, arg.kind) {
                let what = arg.kind.describe();
                let name = self.function.name;
                return Err(self
                    .function
                    .misuse(format!("`{}` of {name} must be {what}, not {value}", arg.name)));
            }
            consts.push((arg.name, value));
        }
        Ok(Call { consts, limits, site })
    }
}

fn default(text: Option<&str>) -> Result<Expr> {
    parse(text.unwrap_or("null")).map_err(|e| Error::internal(e.to_string()))
}

fn is_kind(value: &Const, kind: Kind) -> bool {
    match kind {
        Kind::Int => matches!(value, Const::Int(_)),
        Kind::Float => matches!(value, Const::Int(_) | Const::Float(_)),
        Kind::Text => matches!(value, Const::Text(_)),
        Kind::Bool => matches!(value, Const::Bool(_)),
        Kind::Floats3 => {
            matches!(value, Const::List(l) if l.len() == 3 && l.iter().all(|v| is_kind(v, Kind::Float)))
        }
        Kind::Literal => !matches!(value, Const::List(_)),
        Kind::Value => true,
    }
}

impl Call<'_> {
    fn get(&self, name: &str) -> &Const {
        self.consts.iter().find(|(n, _)| *n == name).map_or(&Const::Null, |(_, c)| c)
    }

    fn wrong(&self, name: &str) -> Error {
        Error::invalid(format!("`{name}` is {}, which is out of range", self.get(name)))
    }

    pub(crate) fn literal(&self, name: &str) -> &Const {
        self.get(name)
    }

    pub(crate) fn u64(&self, name: &str) -> Result<u64> {
        match self.get(name) {
            Const::Int(i) => u64::try_from(*i).map_err(|_| self.wrong(name)),
            _ => Err(self.wrong(name)),
        }
    }

    pub(crate) fn u32(&self, name: &str) -> Result<u32> {
        u32::try_from(self.u64(name)?).map_err(|_| self.wrong(name))
    }

    #[expect(clippy::cast_possible_truncation, reason = "rounded to the precision of the kernels")]
    pub(crate) fn f32(&self, name: &str) -> Result<f32> {
        self.number(self.get(name)).map(|f| f as f32).ok_or_else(|| self.wrong(name))
    }

    fn number(&self, c: &Const) -> Option<f64> {
        match c {
            Const::Int(i) => Some(*i as f64),
            Const::Float(f) => Some(*f),
            _ => None,
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "rounded to the precision of the kernels")]
    pub(crate) fn floats3(&self, name: &str) -> Result<[f32; 3]> {
        let Const::List(l) = self.get(name) else { return Err(self.wrong(name)) };
        match l.iter().map(|c| self.number(c)).collect::<Option<Vec<_>>>().as_deref() {
            Some([a, b, c]) => Ok([*a as f32, *b as f32, *c as f32]),
            _ => Err(self.wrong(name)),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<String> {
        match self.get(name) {
            Const::Text(t) => Ok(t.clone()),
            _ => Err(self.wrong(name)),
        }
    }

    pub(crate) fn bool(&self, name: &str) -> Result<bool> {
        match self.get(name) {
            Const::Bool(b) => Ok(*b),
            _ => Err(self.wrong(name)),
        }
    }

    /// The value of the argument `key`; none if it is absent.
    pub(crate) fn key(&self) -> Option<&str> {
        match self.get("key") {
            Const::Text(t) => Some(t),
            _ => None,
        }
    }
}
