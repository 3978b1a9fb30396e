"""One small change in a program's tree at a time: what a test suite has to notice.

Left alone: annotations, decorators, invariants (``assert``, ``strict=``), what is raised, and text.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LEAVING = (ast.Return, ast.Continue, ast.Break)
UNTOUCHED = (ast.Assert, ast.Raise, ast.JoinedStr)
ELSEWHERE = ("annotation", "returns", "decorator_list")

Change = tuple[str, Callable[[], None]]
Setting = tuple[str, str, object]  # what, the field of the node, its other value


class Mutation(NamedTuple):
    """The ``index``-th change of a source, in the statement that begins at ``statement_line``."""

    index: int
    line: int
    statement_line: int
    what: str
    is_at_import: bool  # outside every function: constants, defaults, fields


def mutations(source: str) -> list[Mutation]:
    return [mutation for mutation, _ in _all(ast.parse(source))]


def mutated(source: str, index: int) -> ast.Module:
    """The tree of ``source`` with the change of that index, with the line numbers of the source."""
    tree = ast.parse(source)
    _all(tree)[index][1]()
    return ast.fix_missing_locations(tree)


def with_hits(source: str, hit: str, module: str) -> ast.Module:
    """The tree of ``source`` in which each statement of a function first adds to the set ``hit``.

    What it adds is (module, line of the statement).
    """
    tree = ast.parse(source)
    functions = [item for item in ast.walk(tree) if isinstance(item, ast.FunctionDef)]
    inside = {item for function in functions for item in ast.walk(function)}
    for node in inside:
        for name in ("body", "orelse", "finalbody"):
            part = getattr(node, name, None)
            if isinstance(part, list):
                adds = (ast.parse(f"{hit}.add({(module, item.lineno)})").body[0] for item in part)
                setattr(
                    node, name, [item for both in zip(adds, part, strict=True) for item in both]
                )
    return ast.fix_missing_locations(tree)


def _all(tree: ast.Module) -> list[tuple[Mutation, Callable[[], None]]]:
    found = []
    for node, statement, inside in _nodes(tree, tree.body[0], inside=False):
        for what, apply in _changes(node):
            line = getattr(node, "lineno", statement.lineno)
            found.append((Mutation(len(found), line, statement.lineno, what, not inside), apply))
    return found


def _nodes(
    node: ast.AST, statement: ast.stmt, *, inside: bool
) -> Iterator[tuple[ast.AST, ast.stmt, bool]]:
    """Each node that may change, the statement it is in, and whether a function holds it."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, UNTOUCHED):
                continue
            if name in ELSEWHERE or getattr(child, "arg", "") == "strict":
                continue
            nearest = child if isinstance(child, ast.stmt) else statement
            within = inside or (name == "body" and isinstance(node, ast.FunctionDef))
            yield child, nearest, within
            yield from _nodes(child, nearest, inside=within)


def _changes(node: ast.AST) -> Iterator[Change]:
    for kind, changes in _CHANGES.items():
        if isinstance(node, kind):
            for what, field, value in changes(node):
                yield what, lambda field=field, value=value: setattr(node, field, value)


def _of_comparison(node: ast.Compare) -> Iterator[Setting]:
    for which, kind in enumerate(map(type, node.ops)):
        for other in filter(None, (BOUNDARY.get(kind), OPPOSITE.get(kind))):
            ops = [*node.ops[:which], other(), *node.ops[which + 1 :]]
            yield f"{kind.__name__} -> {other.__name__}", "ops", ops


def _of_conditions(node: ast.BoolOp) -> Iterator[Setting]:
    is_and = isinstance(node.op, ast.And)
    yield ("and -> or", "op", ast.Or()) if is_and else ("or -> and", "op", ast.And())
    for which, value in enumerate(node.values):
        rest = [*node.values[:which], ast.Constant(is_and), *node.values[which + 1 :]]
        yield f"without `{ast.unparse(value)}`", "values", rest


def _of_arithmetic(node: ast.BinOp | ast.AugAssign) -> Iterator[Setting]:
    if other := ARITHMETIC.get(type(node.op)):
        yield f"{type(node.op).__name__} -> {other.__name__}", "op", other()


def _of_sign(node: ast.UnaryOp) -> Iterator[Setting]:
    if isinstance(node.op, ast.Not):
        yield "without not", "operand", ast.UnaryOp(ast.Not(), node.operand)


def _of_constant(node: ast.Constant) -> Iterator[Setting]:
    value = node.value
    if isinstance(value, bool):
        yield f"{value} -> {not value}", "value", not value
    elif isinstance(value, int):
        yield f"{value} -> {value + 1}", "value", value + 1
    elif isinstance(value, float):
        yield f"{value} -> {value * 2 or 1.0}", "value", value * 2 or 1.0


def _of_return(node: ast.Return) -> Iterator[Setting]:
    if node.value is not None and getattr(node.value, "value", 0) is not None:
        yield "return None", "value", ast.Constant(None)


def _of_expression(node: ast.Expr) -> Iterator[Setting]:
    if isinstance(node.value, ast.Call):
        yield "call left out", "value", ast.Constant(None)


def _of_branch(node: ast.If) -> Iterator[Setting]:
    if isinstance(node.body[-1], LEAVING) and not node.orelse:
        yield "early end left out", "body", [ast.Pass()]


def _of_choice(node: ast.IfExp) -> Iterator[Setting]:
    yield "branches swapped", "test", ast.UnaryOp(ast.Not(), node.test)


def _of_call(node: ast.Call) -> Iterator[Setting]:
    name = getattr(node.func, "id", None)
    if other := EXTREMES.get(name or ""):
        yield f"{name} -> {other}", "func", ast.Name(other, ast.Load())


def _of_filter(node: ast.comprehension) -> Iterator[Setting]:
    if node.ifs:
        yield "filter left out", "ifs", []


_CHANGES: dict[Any, Callable[[Any], Iterator[Setting]]] = {
    ast.Compare: _of_comparison,
    ast.BoolOp: _of_conditions,
    (ast.BinOp, ast.AugAssign): _of_arithmetic,
    ast.UnaryOp: _of_sign,
    ast.Constant: _of_constant,
    ast.Return: _of_return,
    ast.Expr: _of_expression,
    ast.If: _of_branch,
    ast.IfExp: _of_choice,
    ast.Call: _of_call,
    ast.comprehension: _of_filter,
}
