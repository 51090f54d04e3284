"""Methods and their parts as text.

    topk,0.01,bits=4                 a part: its name, then settings separated by commas
    prlc:0.1:every=5:up=topk,0.01    a method: the same with colons, and parts as values
    mine.py:Mine:setting=2           a class in a file of the user's own

A bare value is the first setting. `write` is the inverse of `read`. It leaves out defaults, so
equal objects have equal texts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard, TypeVar

from prlc.errors import ConfigError

T = TypeVar("T")

Pairs = list[tuple[str, str]]
"""Settings as typed: name (empty for a bare value) and text."""


def split(text: str, separator: str) -> tuple[str, Pairs]:
    """Split a text into name and settings. A class in a file is named `FILE.py<separator>CLASS`."""
    name, *words = text.split(separator)
    if name.endswith(".py") and words:
        name, words = f"{name}{separator}{words[0]}", words[1:]
    pairs = []
    for word in words:
        key, equals, value = word.partition("=")
        pairs.append((key.replace("-", "_"), value) if equals else ("", word))
    return name, pairs


def read(
    text: str, separator: str, what: str, known: Mapping[str, Callable[..., T]], base: type[T]
) -> T:
    """Make the object that `text` describes: one of `known`, or a subclass of `base` in a file."""
    name, pairs = split(text, separator)
    make = find(name, separator, what, known, base)
    names = setting_names(make)
    settings: dict[str, Any] = {}
    for number, (key, value) in enumerate(pairs):
        if not key:
            if number > 0 or not _takes_bare(make) or not value:
                raise ConfigError(
                    f"In {text!r}, {value!r} should be written as setting=value."
                    if number > 0 or names
                    else f"{name} takes no settings, but {value!r} was given."
                )
            key = names[0]  # noqa: PLW2901
        if key in settings:
            raise ConfigError(f"In {text!r}, {key} is given twice: leave out one of them.")
        settings[key] = value_of(value)
    check_names(name, settings, names)
    try:
        return make(**settings)
    except ConfigError:
        raise
    except Exception as error:  # whatever a user's class may raise
        raise ConfigError(f"{text!r} is not a {what} ({type(error).__name__}: {error}).") from None


def find(
    name: str, separator: str, what: str, known: Mapping[str, Callable[..., T]], base: type[T]
) -> Callable[..., T]:
    """The class called `name`, from the table or from a user's file."""
    if name in known:
        return known[name]
    file, _, attribute = name.partition(separator)
    if file.endswith(".py"):
        return _in_file(file, attribute, separator, what, base)
    raise ConfigError(f"There is no {what} {name!r}. Choose one of: {', '.join(known)}.")


def setting_names(make: Callable[..., Any]) -> list[str]:
    """The settings that a class takes, in order."""
    return [name for name in inspect.signature(make).parameters if name not in ("args", "kwargs")]


def _takes_bare(make: Callable[..., Any]) -> bool:
    """Whether the first setting may be given without its name."""
    first = next(iter(inspect.signature(make).parameters.values()), None)
    return first is not None and first.kind is first.POSITIONAL_OR_KEYWORD


def check_names(name: str, settings: Mapping[str, Any], known: list[str]) -> None:
    """Refuse unknown settings."""
    for setting in settings:
        if setting not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ConfigError(f"{name} has no setting {setting!r}: {takes}.")


def value_of(text: str) -> Any:
    """Read a boolean, an integer or a float; anything else stays text."""
    if text.lower() in ("true", "yes", "false", "no"):
        return text.lower() in ("true", "yes")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number. Python counts booleans as numbers; this does not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def write(part: Any, separator: str) -> str:
    """The text from which `read` makes an equal `part`, a dataclass."""
    words = [name_of(type(part), separator)]
    changed = part.changed() if hasattr(part, "changed") else None
    for number, field in enumerate(_in_order(part)):
        value = getattr(part, field.name)
        if value == _default(field) or (changed is not None and field.name not in changed):
            continue
        text = write_value(value)
        bare = number == 0 and "=" not in text and _takes_bare(type(part))
        words.append(text if bare else f"{field.name}={text}")
    return separator.join(words)


def name_of(kind: Any, separator: str) -> str:
    """The name in a text: the one in the table, or the user's file and class."""
    file = _file_of(kind)
    return str(kind.name) if file is None else f"{file}{separator}{kind.__qualname__}"


def write_value(value: Any) -> str:
    """A setting's value as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _in_order(part: Any) -> list[dataclasses.Field[Any]]:
    """A dataclass's fields in the order of its constructor."""
    fields = {field.name: field for field in dataclasses.fields(part) if field.init}
    return [fields[name] for name in setting_names(type(part))]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


# -- users' files -------------------------------------------------------------------------------


def names_a_file(text: str) -> bool:
    """Whether reading the text would run a user's file."""
    return any(word.endswith(".py") for word in re.split("[:,=]", text))


def without_folders(text: str) -> str:
    """The text with bare file names, since a file may be named from any folder."""
    return re.sub(r"[^:,=]*[/\\]", "", text)


def file_digests(part: Any) -> dict[str, str]:
    """Digests of the users' files that a method and its parts come from, by bare name."""
    found = {}
    file, digest = _file_of(type(part)), file_digest(type(part))
    if file is not None and digest is not None:
        found[file.name] = digest
    if dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            found |= file_digests(getattr(part, field.name))
    return found


def file_digest(kind: type) -> str | None:
    """The digest of the file that defines a user's class; None for this package's classes."""
    read: str | None = vars(sys.modules[kind.__module__]).get("__prlc_digest__")
    file = _file_of(kind)
    if read is None and file is not None and file.is_file():
        return _digest(file.read_bytes())
    return read


def _file_of(kind: type) -> Path | None:
    """The file that defines a user's class; None for this package's, or without a file."""
    module = sys.modules.get(kind.__module__)
    if kind.__module__.partition(".")[0] in ("prlc", "builtins") or module is None:
        return None
    named = getattr(module, "__prlc_file__", None) or getattr(module, "__file__", None)
    return Path(named) if named else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _in_file(file: str, name: str, separator: str, what: str, base: type[T]) -> Callable[..., T]:
    """The class `name` in a user's file."""
    module = _module(Path(file))
    own = [k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, base)]
    own = [k for k in own if getattr(module, k).__module__ == module.__name__]
    if name in own:
        found: Callable[..., T] = getattr(module, name)
        return found
    there = f"{file} has the {what}s {', '.join(own)}" if own else f"{file} has no {what}"
    if not name:
        wanted = f"Name the class of the {what}, as in {file}{separator}CLASS"
    elif isinstance(getattr(module, name, None), type):
        wanted = f"{name} must be derived from prlc.{base.__name__}"
    else:
        wanted = f"There is no class {name!r} in {file}"
    raise ConfigError(f"{wanted}; {there}.")


def _module(file: Path) -> ModuleType:
    """Import a user's file, once, whatever path names it."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}. Name a Python file with the class."
        ) from None
    digest = _digest(content)
    name = f"prlc_user_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__prlc_digest__"] = digest
    module.__dict__["__prlc_file__"] = str(file)
    sys.modules[name] = module  # before it runs: dataclasses look themselves up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file may raise
        del sys.modules[name]
        beside = (
            ": it must import by itself, without other files beside it"
            if isinstance(error, ImportError)
            else ""
        )
        raise ConfigError(
            f"{file} cannot be imported ({type(error).__name__}: {error}){beside}."
        ) from None
    return module
