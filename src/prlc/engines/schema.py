"""The form of what is read from disk, checked in one place before anything is used.

A form is `Value` (one number or text), `ListOf`, `Table` (named values), `Like` (an example, which
may have other numbers) or several, any of which will do. `check` walks a value along its form; what
does not fit is said in words, with the place where it was found: `engine.traffic.pulls`.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, Union

import torch
from torch import Tensor

from prlc.text import is_number

_DEEPEST = 32  # levels of nesting: far more than anything that prlc writes
_LARGEST = 2**63 - 1


class FormError(ValueError):
    """A value does not have the form that it should have."""


@dataclasses.dataclass(frozen=True)
class Value:
    """One value, which `fits`."""

    what: str
    fits: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class ListOf:
    """Any number of values of one form."""

    form: Form


@dataclasses.dataclass(frozen=True)
class Table:
    """Values by name: those that must be there, those that may be, and the form of all others."""

    fields: Mapping[str, Form] = dataclasses.field(default_factory=dict)
    optional: Mapping[str, Form] = dataclasses.field(default_factory=dict)
    others: Form | None = None
    """None: there must be no others."""


@dataclasses.dataclass(frozen=True)
class Like:
    """The same names, kinds and shapes as in an example.

    What is empty in the example (a history, an optimizer's state) may be longer, and what is None
    there may be anything plain.
    """

    example: Any


Form: TypeAlias = "Value | ListOf | Table | Like | tuple[Form, ...]"

WHOLE = Value("a whole number, 0 or more", lambda v: type(v) is int and 0 <= v <= _LARGEST)
NUMBER = Value("a number", lambda v: is_number(v) and _fits_float(v))
SECONDS = Value("a number, 0 or more", lambda v: is_number(v) and 0 <= v < math.inf)
TEXT = Value("text", lambda v: isinstance(v, str))
FLAG = Value("true or false", lambda v: isinstance(v, bool))
NOTHING = Value("nothing", lambda v: v is None)


def check(value: Any, form: Form, where: str = "") -> None:
    """Raise FormError, with the place, if the value does not have the form."""
    if isinstance(form, tuple):
        if not any(_has(value, each, where) for each in form):
            raise _wrong(where, " or ".join(_words(each) for each in form), value)
    elif isinstance(form, Value):
        if not form.fits(value):
            raise _wrong(where, form.what, value)
    elif isinstance(form, ListOf):
        if not isinstance(value, list | tuple):
            raise _wrong(where, "a list", value)
        for number, each in enumerate(value):
            check(each, form.form, f"{where}[{number}]")
    elif isinstance(form, Table):
        _check_table(value, form, where)
    else:
        _check_like(value, form.example, where)


def of_settings(kind: type) -> Table:
    """The form of a dataclass of settings as JSON holds it."""
    hints = typing.get_type_hints(kind)
    return Table({each.name: _of_hint(hints[each.name]) for each in dataclasses.fields(kind)})


def _of_hint(hint: Any) -> Form:
    if typing.get_origin(hint) in (Union, types.UnionType):
        return tuple(_of_hint(each) for each in typing.get_args(hint))
    if typing.get_origin(hint) is list:
        return ListOf(_of_hint(typing.get_args(hint)[0]))
    kinds: dict[Any, Form] = {str: TEXT, Path: TEXT, bool: FLAG, float: NUMBER, type(None): NOTHING}
    kinds[int] = Value("a whole number", lambda v: type(v) is int)
    return kinds[hint]


def _has(value: Any, form: Form, where: str) -> bool:
    try:
        check(value, form, where)
    except FormError:
        return False
    return True


def _check_table(value: Any, form: Table, where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, "a table of named values", value)
    for name in form.fields:
        if name not in value:
            raise FormError(f"{_in(where)}{name} is missing")
    known = {**form.fields, **form.optional}
    for name, each in value.items():
        place = f"{where}.{name}" if where else str(name)
        own = known.get(name, form.others) if isinstance(name, str) else None
        if own is None:
            raise FormError(f"{_in(where)}there is {_shown(name)}, which should not be there")
        check(each, own, place)


def _check_like(value: Any, example: Any, where: str) -> None:
    if isinstance(example, dict) and example:
        fields: dict[Any, Any] = example
        if not isinstance(value, dict) or {*value} != {*fields}:
            raise _wrong(where, f"a table of {', '.join(map(str, fields))}", value)
        for name, each in fields.items():
            _check_like(value[name], each, f"{where}.{name}")
    elif isinstance(example, Tensor):
        fits = isinstance(value, Tensor) and value.shape == example.shape
        if not fits or value.dtype != example.dtype or value.layout is not torch.strided:
            raise _wrong(where, _shown(example), value)
    elif isinstance(example, list | tuple) and example:
        if not isinstance(value, list | tuple) or len(value) != len(example):
            raise _wrong(where, f"a list of {len(example)}", value)
        for number, (each, own) in enumerate(zip(value, example, strict=True)):
            _check_like(each, own, f"{where}[{number}]")
    elif example is None or isinstance(example, list | tuple | dict):
        check(value, PLAIN, where)
        if isinstance(example, list | tuple | dict) and not isinstance(value, type(example)):
            raise _wrong(where, "a table" if isinstance(example, dict) else "a list", value)
    elif is_number(example):
        check(value, NUMBER, where)
    elif not isinstance(value, type(example)):
        raise _wrong(where, f"{type(example).__name__}", value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether there is nothing but numbers, texts and tensors, not nested too deeply."""
    if depth > _DEEPEST:
        return False
    if isinstance(value, dict):
        return all(
            isinstance(key, str | int) and _is_plain(each, depth + 1) for key, each in value.items()
        )
    if isinstance(value, list | tuple):
        return all(_is_plain(each, depth + 1) for each in value)
    return value is None or isinstance(value, bool | int | float | str | Tensor)


PLAIN = Value("numbers, texts, tensors, and lists and tables of them", _is_plain)


def _fits_float(value: float) -> bool:
    """Whether it is a float, or an integer that can be one."""
    return isinstance(value, float) or abs(value) < 2**1023


def _wrong(where: str, expected: str, value: Any) -> FormError:
    return FormError(f"{where or 'it'} should be {expected}, but is {_shown(value)}")


def _in(where: str) -> str:
    return f"in {where} " if where else ""


def _words(form: Form) -> str:
    if isinstance(form, Value):
        return form.what
    return "a list" if isinstance(form, ListOf) else "a table"


def _shown(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, dict):
        return f"a table of {len(value)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
