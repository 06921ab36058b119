"""Expressions written in Python: `col("x") + 1` is the SQL text `("x" + 1)`.

Wherever a dataset takes an expression, it takes SQL text as well.
"""

from __future__ import annotations

import datetime
import math
from typing import Any, Union

from ._errors import InvalidPipeline

__all__ = ["Expr", "ExprLike", "col", "fn", "lit", "sql", "to_sql"]


class Expr:
    """An expression over the columns of a row: SQL text with Python's operators.

    >>> str(col("label") < 100)
    '("label" < 100)'
    """

    __slots__ = ("_sql",)
    __hash__ = None  # type: ignore[assignment]  # `==` is an expression

    def __init__(self, text: str) -> None:
        self._sql = text

    def __str__(self) -> str:
        return self._sql

    def __repr__(self) -> str:
        return f"Expr({self._sql!r})"

    def __bool__(self) -> bool:
        raise TypeError(
            f"the expression {self._sql} has no value yet: use & | ~ in place of and, or, not, and write a < b < c "
            "as (a < b) & (b < c)"
        )

    def _binary(self, op: str, other: Any) -> Expr:
        return Expr(f"({self._sql} {op} {to_sql(other)})")

    def _reflected(self, op: str, other: Any) -> Expr:
        return Expr(f"({to_sql(other)} {op} {self._sql})")

    def __add__(self, other: Any) -> Expr:
        return self._binary("+", other)

    def __radd__(self, other: Any) -> Expr:
        return self._reflected("+", other)

    def __sub__(self, other: Any) -> Expr:
        return self._binary("-", other)

    def __rsub__(self, other: Any) -> Expr:
        return self._reflected("-", other)

    def __mul__(self, other: Any) -> Expr:
        return self._binary("*", other)

    def __rmul__(self, other: Any) -> Expr:
        return self._reflected("*", other)

    def __truediv__(self, other: Any) -> Expr:
        """Division as in SQL: between integers the remainder is dropped."""
        return self._binary("/", other)

    def __rtruediv__(self, other: Any) -> Expr:
        return self._reflected("/", other)

    def __mod__(self, other: Any) -> Expr:
        """The remainder as in SQL: it has the sign of the dividend."""
        return self._binary("%", other)

    def __rmod__(self, other: Any) -> Expr:
        return self._reflected("%", other)

    def __neg__(self) -> Expr:
        return Expr(f"(- {self._sql})")

    def _compared(self, op: str, other: Any) -> Expr:
        if self._sql == "NULL" or to_sql(other) == "NULL":
            raise InvalidPipeline(
                f"a comparison with None is true for no row, as in SQL: write {self._named()}.is_null() for == None, and "
                f"{self._named()}.is_not_null() for != None"
            )
        return self._binary(op, other)

    def _named(self) -> str:
        """The expression as Python code, if it is a column."""
        name = self._sql[1:-1].replace('""', '"')
        return f"col({name!r})" if str(col(name)) == self._sql else "expression"

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return self._compared("=", other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return self._compared("<>", other)

    def __lt__(self, other: Any) -> Expr:
        return self._compared("<", other)

    def __le__(self, other: Any) -> Expr:
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> Expr:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Expr:
        return self._compared(">=", other)

    def __and__(self, other: Any) -> Expr:
        return self._binary("AND", other)

    def __rand__(self, other: Any) -> Expr:
        return self._reflected("AND", other)

    def __or__(self, other: Any) -> Expr:
        return self._binary("OR", other)

    def __ror__(self, other: Any) -> Expr:
        return self._reflected("OR", other)

    def __invert__(self) -> Expr:
        return Expr(f"(NOT {self._sql})")

    def is_null(self) -> Expr:
        """True where the value is null."""
        return Expr(f"({self._sql} IS NULL)")

    def is_not_null(self) -> Expr:
        """True where the value is not null."""
        return Expr(f"({self._sql} IS NOT NULL)")

    def is_in(self, values: list[Any] | tuple[Any, ...]) -> Expr:
        """True where the value is one of `values`."""
        if not values:
            return Expr("false")
        if any(to_sql(v) == "NULL" for v in values):
            raise InvalidPipeline(
                f"is_in(...) finds no None, as in SQL: leave it out, and add | {self._named()}.is_null()"
            )
        return Expr(f"({self._sql} IN ({', '.join(to_sql(v) for v in values)}))")

    def cast(self, sql_type: str) -> Expr:
        """The value cast to an SQL type: `col("x").cast("float")`."""
        return Expr(f"CAST({self._sql} AS {sql_type})")


ExprLike = Union[Expr, str, int, float, bool]
"""What a dataset accepts as an expression: SQL text, an `Expr`, or a number."""


def col(name: str) -> Expr:
    """The column with this name, which may have any characters."""
    return Expr('"' + name.replace('"', '""') + '"')


def lit(value: Any) -> Expr:
    """A constant: number, string, bytes, boolean, date or None."""
    return Expr(_literal(value))


def sql(text: str) -> Expr:
    """SQL text as an expression for Python operators: `sql("a + b") * 2`."""
    return Expr(f"({text})")


def to_sql(value: Any) -> str:
    """The SQL text of an operand: an expression, or a constant."""
    return str(value) if isinstance(value, Expr) else _literal(value)


def expression(value: Any, place: str) -> str:
    """The SQL text of an argument that is an expression. A string is SQL text."""
    if isinstance(value, str):
        return value
    if isinstance(value, (Expr, int, float)) or value is None:
        return to_sql(value)
    raise InvalidPipeline(
        f"{place}: {type(value).__name__} is not an expression; give SQL text, caju.col(...) or a number"
    )


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(float(value))  # a float64 of NumPy is a float, and shows its type
        return f"CAST('{value}' AS double)"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return f"CAST('{value.isoformat()}' AS timestamp)"
        unit = "Nanosecond" if getattr(value, "nanosecond", 0) else "Microsecond"  # pandas has nanoseconds
        return f"arrow_cast('{value.isoformat()}', 'Timestamp({unit}, Some(\"UTC\"))')"
    if isinstance(value, datetime.date):
        return f"CAST('{value.isoformat()}' AS date)"
    item = getattr(value, "item", None)  # numbers of NumPy
    if callable(item) and getattr(value, "ndim", None) == 0:
        plain = item()
        kind = value.dtype.kind if isinstance(plain, int) else ""  # `item` gives times of nanoseconds as integers
        if kind == "M":
            return f"CAST('{value}' AS timestamp)"
        if kind != "m":
            return _literal(plain)
    raise InvalidPipeline(f"{value!r} cannot stand in an expression; use a number, a string, bytes or a date")


class _Functions:
    """Functions by name: `caju.fn.resize_shorter(col("image"), 256)`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **named: Any) -> Expr:
            texts = [to_sql(a) for a in args]
            texts += [f"{key} => {to_sql(value)}" for key, value in named.items()]
            return Expr(f"{name}({', '.join(texts)})")

        call.__name__ = name
        call.__doc__ = f"The SQL function `{name}`; positional arguments first, then `name => value`."
        return call


fn = _Functions()
"""The functions of expressions: caju's own and those of SQL."""
