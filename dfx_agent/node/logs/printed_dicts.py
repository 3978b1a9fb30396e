"""Dicts of numbers inside a line of output, as ``print`` and ``json.dumps`` write them."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from dfx_agent.node.logs.json_lines import flat, parse_object
from dfx_agent.node.logs.run import Record
from dfx_agent.node.logs.values import numbers

_BRACES = re.compile(r"[{}]")
_OPENING = re.compile(r"\{\s*(['\"])")
# values that are no literals: nan, inf, np.float64(0.5), tensor(0.5, device='cuda:0')
_BARE = re.compile(r"(?<=[:\[,(\s])([-+]?(?:nan|inf))(?=[\s,}\])])", re.IGNORECASE)
_WRAPPED = re.compile(r"\b(?:np|numpy|torch|tensor)[\w.]*\(([^(),]*)(?:,[^()]*)?\)")
# what precedes a dict inside a dict
_INSIDE = (":", ",", "[", "(", "{", "=", "")
_MAX_DICT_CHARS, _MAX_DEPTH = 1 << 20, 16


def printed_dicts(line: str) -> Iterator[tuple[str, str, Record]]:
    """(text before it, the dict as it stands there, its numbers) for each dict of the line."""
    for begin, end, is_whole in _spans(line) if "{" in line else ():
        if is_whole:
            text = line[begin:end]
            yield line[max(0, begin - 200) : begin], text, _parsed(text)


def cut_dicts(line: str) -> list[str]:
    """Dicts of the line that begin and do not end."""
    if line.count("{") <= line.count("}"):
        return []
    return [line[begin:end] for begin, end, is_whole in _spans(line) if not is_whole]


def _spans(line: str) -> Iterator[tuple[int, int, bool]]:
    """Positions of outermost braces that open with a quoted key, and whether they close."""
    depth = begin = 0
    quote = ""
    for brace in _BRACES.finditer(line):
        at = brace.start()
        opening = _OPENING.match(line, at) if brace[0] == "{" else None
        if (
            depth
            and opening
            and opening[1] == quote
            and not _is_inside(line[max(begin, at - 9) : at])
        ):
            yield begin, at, False
            depth = 0
        if not depth and opening:
            begin, quote = at, opening[1]
        if brace[0] == "{" and (depth or opening):
            depth += 1
        elif brace[0] == "}" and depth:
            depth -= 1
            if not depth and at - begin < _MAX_DICT_CHARS:
                yield begin, at + 1, True
    if depth:
        yield begin, len(line), False


def _is_inside(before: str) -> bool:
    """Whether a dict behind this text of a dict is inside that dict."""
    return before.rstrip()[-1:] in _INSIDE


def _parsed(text: str) -> Record:
    if text.count("{") + text.count("[") + text.count("(") > _MAX_DEPTH + text.count(":"):
        return {}
    record = parse_object(text) or _literal(text)
    leaves = {key: value for key, value in flat(record).items() if isinstance(key, str)}
    found = numbers(leaves)
    # a report holds numbers; what is mostly words is a sample or a setting
    return found if len(found) * 2 >= len(leaves) else {}


def _literal(text: str) -> dict[str, object]:
    if "(" in text:
        text = _WRAPPED.sub(r"\1", text)
    if "n" in text or "N" in text:
        text = _BARE.sub(r"'\1'", text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an escape that Python does not know
            record = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return {}
    return record if isinstance(record, dict) else {}
