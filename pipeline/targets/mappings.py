"""Types of the fields of OpenSearch and Elasticsearch for columns of Arrow.

Servers would guess the type of a field from its first value: a text that looks like a date would make a field
of dates, which refuses other texts.
"""

from typing import Any

import pyarrow as pa

_TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}  # as servers guess
_UNPARSED = {"type": "object", "enabled": False}  # stored, but not searchable

# Types of Arrow, and those of fields that take their values in JSON.
_TYPES = (
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_uint64, {"type": "unsigned_long"}),
    (pa.types.is_integer, {"type": "long"}),
    (pa.types.is_float64, {"type": "double"}),
    (pa.types.is_floating, {"type": "float"}),
    (pa.types.is_duration, {"type": "double"}),
    (pa.types.is_date, {"type": "date"}),
    (pa.types.is_timestamp, {"type": "date"}),
    (pa.types.is_time, {"type": "keyword"}),
    (pa.types.is_decimal, {"type": "keyword"}),
    (pa.types.is_string, _TEXT),
    (pa.types.is_large_string, _TEXT),
    (pa.types.is_string_view, _TEXT),
    (pa.types.is_binary, {"type": "binary"}),
    (pa.types.is_large_binary, {"type": "binary"}),
    (pa.types.is_fixed_size_binary, {"type": "binary"}),
)


def field_type(kind: pa.DataType) -> dict[str, Any]:
    """Return the type of the field for a column. Lists have the type of their values."""
    if isinstance(kind, pa.BaseExtensionType):
        return {"type": "keyword"} if kind.extension_name == "arrow.uuid" else field_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return field_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return field_type(kind.value_type)
    if pa.types.is_struct(kind):
        return {"type": "object", "properties": {field.name: field_type(field.type) for field in kind}}
    return next((dict(found) for holds, found in _TYPES if holds(kind)), _UNPARSED)
