"""Rows of outside data against a stated schema: each is taken as it is, or refused by file, line and field.

`datasets` states the schema (`Features`) and holds the rows; its own readers are not used for files here, because each
of four things that they do changes or loses data without a word (tried with 5.2): a text such as "2020-01-01" becomes
a point in time and comes back as another text, a number becomes a text, one broken line loses the whole file, and a
file whose name holds brackets is taken for a pattern and read as empty. Its cache knows files by name and time and is
never touched.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from inertia.benchmarks.render import sanitise
from inertia.benchmarks.seeding import digest

if TYPE_CHECKING:
    from datasets import Dataset, Features

log = logging.getLogger(__name__)

ROW_SUFFIXES = (".jsonl", ".json", ".parquet")

_BLANKS = re.compile(r"[ \t\r\n]*")
_SHOWN = 3


class DataError(ValueError):
    """The data are not what they should be: damaged, changed, incomplete or malformed."""


class RowError(ValueError):
    """A row is not what it should be.

    Attributes:
        name: the field, nested ones as `answers.text[0]`; "" where it is the whole row.
        problem: what is wrong with it.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem


Part = tuple[str, Any]
"""A row within a row of the file: where in it ("" for the row itself), and the row, or a `RowError` in its place."""


@dataclass(frozen=True)
class Schema:
    """What each row must hold. Other fields of a row play no part.

    Attributes:
        fields: by name `str`, `int` or `bool`, a list with the type of its items, or a mapping of nested fields.
        optional: fields that may be missing or null.
        unique: field whose values differ from row to row, where it is given; or None.
        within: a row of the file -> the rows it stands for, in the shape that `fields` state; by default itself.
        check: raises `RowError` for what types cannot say; by default takes any row.
    """

    fields: Mapping[str, Any]
    optional: frozenset[str] = frozenset()
    unique: str | None = None
    within: Callable[[Mapping[str, Any]], Iterable[Part]] = lambda row: (("", row),)
    check: Callable[[Mapping[str, Any]], None] = lambda row: None

    @property
    def features(self) -> Features:
        """The fields as `datasets` states them, with two more: `row` and `sanitised` (see `Rows`)."""
        from datasets import Features

        return Features(_feature({**self.fields, "row": int, "sanitised": bool}))


class Raw(NamedTuple):
    """A row as it stands in its file.

    Attributes:
        place: where, for messages.
        row: its fields; None where it cannot be read.
        problem: why it cannot.
        sha256: of its content.
    """

    place: str
    row: Mapping[str, Any] | None
    problem: str
    sha256: str


@dataclass(frozen=True)
class Rows:
    """The rows of one file that serve, in order.

    Attributes:
        data: the fields of the schema, and two more: `row`, the row's number in the file from 0, and `sanitised`,
            whether lone surrogates were replaced by U+FFFD.
        refused: what was not taken: file, line, field and reason of each.
        sha256: hash of all rows as they stand in the file, refused ones too: the identity of the data, whatever the
            file format.
    """

    data: Dataset = field(repr=False)
    refused: tuple[str, ...]
    sha256: str


def rows_of(name: str, file_name: str, content: bytes, schema: Schema) -> Rows:
    """Return the rows of a file that the schema takes.

    Args:
        name: what was asked for.
        file_name: with one of `ROW_SUFFIXES`.
        content: of the file, unpacked.
        schema: what a row must hold.

    Raises:
        DataError: the file as a whole cannot be read, or no row of it serves.
    """
    from datasets import Dataset

    good, refused, seen = [], [], {}
    raws = list(_raws(file_name, content))
    for number, raw in enumerate(raws):
        clean = sanitised(raw.row)
        flags = {"row": number, "sanitised": clean != raw.row}
        for inner, part in [("", RowError("", raw.problem))] if raw.row is None else schema.within(clean):
            try:
                if isinstance(part, RowError):
                    raise part
                row = _fitted(schema.fields, part, "", schema.optional)
                schema.check(row)
                _claim(schema.unique, row, seen, raw.place)
                good.append(row | flags)
            except RowError as error:
                full = ".".join(each for each in (inner, error.name) if each)
                refused.append(f"{raw.place}{f', field {full}' if full else ''}: {error.problem}")
    shown = "; ".join(refused[:_SHOWN]) + ("; ..." if len(refused) > _SHOWN else "")
    if not good:
        raise DataError(f"{file_name} has no row that serves as {name!r}{': ' + shown if refused else ''}")
    if refused:
        log.warning("%s: %d of %d rows refused: %s", file_name, len(refused), len(refused) + len(good), shown)
    identity = digest({f"{number:06d}": raw.sha256 for number, raw in enumerate(raws)})
    data = Dataset.from_list(good, features=schema.features)
    return Rows(data, tuple(refused), identity)


def not_blank(*names: str) -> Callable[[Mapping[str, Any]], None]:
    """Return the check that none of some text fields, or texts of a list of them, is blank, and no list is empty."""

    def check(row: Mapping[str, Any]) -> None:
        for name in names:
            texts = row[name] if isinstance(row[name], list) else [row[name]]
            if not texts or not all(text.strip() for text in texts):
                raise RowError(name, f"{'an empty list' if not texts else 'blank'}, got {row[name]!r}")

    return check


def sanitised(value: Any) -> Any:
    """Return a JSON value with all its texts sanitised, keys included."""
    if isinstance(value, str):
        return sanitise(value)
    if isinstance(value, list):
        return [sanitised(item) for item in value]
    if isinstance(value, dict):
        return {sanitise(key): sanitised(item) for key, item in value.items()}
    return value


def _feature(kind: Any) -> Any:
    from datasets import List, Value

    if isinstance(kind, list):
        return List(_feature(kind[0]))
    if isinstance(kind, Mapping):
        return {name: _feature(inner) for name, inner in kind.items()}
    return Value({str: "string", int: "int64", bool: "bool"}[kind])


def _fitted(kind: Any, value: Any, name: str, optional: frozenset[str]) -> Any:
    """Return the part of a value that its kind states, nothing of it converted."""
    if value is None and name in optional:
        return None
    wanted = kind if isinstance(kind, type) else type(kind)
    if type(value) is not wanted:
        raise RowError(name, f"{wanted.__name__} wanted, got {_shown(value)}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise RowError(name, f"a number of at most 64 bits wanted, got {_shown(value)}")
    if isinstance(kind, type):
        return value
    if isinstance(kind, list):
        return [_fitted(kind[0], each, f"{name}[{i}]", optional) for i, each in enumerate(value)]
    found = {}
    for key, inner in kind.items():
        full = f"{name}.{key}" if name else key
        if key not in value and full not in optional:
            raise RowError(full, f"missing, there are: {', '.join(value) or 'none'}")
        found[key] = _fitted(inner, value.get(key), full, optional)
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:40] + '...'}"


def _claim(unique: str | None, row: Mapping[str, Any], seen: dict[str, str], place: str) -> None:
    if unique is None or (value := row[unique]) is None:
        return
    if value in seen:
        raise RowError(unique, f"{value!r} stands in {seen[value]} already")
    seen[value] = place


def _raws(file_name: str, content: bytes) -> Iterator[Raw]:
    if file_name.endswith(".jsonl"):
        return _lines(file_name, content)
    if file_name.endswith(".json"):
        return _items(file_name, content)
    return _records(file_name, content)


def _lines(file_name: str, content: bytes) -> Iterator[Raw]:
    # Only "\n" ends a line: U+2028 and the like are legal inside a JSON text.
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        place = f"{file_name}, line {number}"
        try:
            yield _raw(place, json.loads(line.decode(), object_pairs_hook=_object))
        except (ValueError, RecursionError) as error:
            kind = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
            yield Raw(place, None, f"not {kind} ({error})", hashlib.sha256(line).hexdigest())


def _items(file_name: str, content: bytes) -> Iterator[Raw]:
    """The items of a JSON list, or the one value that the file holds."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file_name} is not UTF-8: {error}") from error
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    at = _BLANKS.match(text).end()
    many, line, counted = text.startswith("[", at), 1, 0
    at += many
    for number in range(len(text) + 1):
        at = _BLANKS.match(text, at).end()
        if many and number == 0 and text.startswith("]", at):
            break
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file_name}, line {line}, row {number} is not JSON: {error}") from error
        yield _raw(f"{file_name}, line {line}, row {number}", value)
        at = _BLANKS.match(text, at).end()
        if not many or not text.startswith(",", at):
            break
        at += 1
    if text[at:].strip() != ("]" if many else ""):
        raise DataError(f"{file_name} is not JSON: it does not end after row {number} as it should")


def _records(file_name: str, content: bytes) -> Iterator[Raw]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file_name} is damaged ({error}); fetch it again") from error
    for number, row in enumerate(rows):
        yield _raw(f"{file_name}, row {number}", row)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"an object names a field twice: {', '.join(name for name, _ in pairs)}")
    return found


def _raw(place: str, value: Any) -> Raw:
    # Escaped to ASCII, so that even a lone surrogate counts as what it was; what JSON cannot say counts as its repr.
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=repr)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    if not isinstance(value, dict):
        return Raw(place, None, f"dict wanted, got {_shown(value)}", sha256)
    return Raw(place, value, "", sha256)
