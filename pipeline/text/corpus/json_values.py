"""Parse JSON lines: a block at once by Arrow, or one line by Python, and check the values of ids."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.json as pj


@dataclass(frozen=True)
class JsonBlock:
    """Whole lines of a file."""

    lines: bytes
    first: int
    """number of the first line, from 0"""
    position: int
    """bytes of the file read so far"""


def parse_block(lines: bytes, types: dict[str, pa.DataType]) -> pa.Table:
    """The objects' values under the keys of `types`.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: a value has another type, or a line is not valid JSON.
    """
    schema = pa.schema(list(types.items()))
    parse = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    return pj.read_json(pa.BufferReader(lines), read, parse)


def parse_line(line: bytes) -> tuple[dict[str, Any] | None, str, str]:
    """Parse one line.

    Returns:
        (object, "", ""), or (None, reason, detail) if the line is not a JSON object.
    """
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return None, "invalid_utf8", f"byte {error.start} of the line"
    except ValueError as error:
        return None, "invalid_json", str(error)
    except RecursionError:
        return None, "invalid_json", "nested too deep to be parsed"
    if not isinstance(value, dict):
        return None, "invalid_json", f"{type(value).__name__}, not an object"
    return value, "", ""


def is_id(value: Any, kind: pa.DataType) -> bool:
    """Whether a value can be an id of that type."""
    if pa.types.is_string(kind):
        return isinstance(value, str)
    low, high = (0, 2**64) if pa.types.is_uint64(kind) else (-(2**63), 2**63)
    return is_integer(value) and low <= value < high


def is_integer(value: Any) -> bool:
    """Whether a value of JSON is an integer; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def show_value(value: Any) -> str:
    """The beginning of a value, as JSON."""
    return json.dumps(value)[:60]
