"""Our own JSON files read back: the documents' types decide what is accepted."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from gpuhost.documents import Head, as_dict
from gpuhost_cli.serve_documents import GoldenSet, ServeCheck

D = TypeVar("D", ServeCheck, GoldenSet)
SCHEMA_VERSION = 1


def as_json(document: ServeCheck | GoldenSet) -> str:
    """The one writer. Raises ValueError for NaN and infinity."""
    return json.dumps(as_dict(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def load(path: Path, kind: type[D], schema: str) -> tuple[D, dict[str, Any]]:
    """A document and the plain data that it was made from. Raises ValueError with the reason."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != schema:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"{path}: the schema is {found}, expected {schema}")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"{path}: version {data.get('schema_version')} of {schema}, this gpuhost reads {SCHEMA_VERSION}"
        )
    head = {item.name: data.get(item.name) for item in dataclasses.fields(Head)}
    try:
        return _build(kind, {**data, "head": head}, ""), data
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _build(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise TypeError(f"{where or 'the document'} is no object")
        hints = typing.get_type_hints(hint)
        missing = [item.name for item in dataclasses.fields(hint) if item.name not in value]
        if missing:
            raise ValueError(f"{where or 'the document'} has no {missing[0]}")
        names = [item.name for item in dataclasses.fields(hint)]
        return hint(**{name: _build(hints[name], value[name], f"{where}.{name}".lstrip(".")) for name in names})  # type: ignore[operator]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _build(next(item for item in arguments if item is not type(None)), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_build(arguments[0], item, f"{where}[{number}]") for number, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {str(key): _build(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is typing.Literal and value in arguments:
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if hint in (str, int, bool) and type(value) is hint:
        return value
    raise TypeError(f"{where} is {value!r}")
