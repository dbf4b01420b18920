"""Random Arrow arrays of any type, with values that no Arrow array may have, and what they mean."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from pipeline.store.rows.nested import map_values

ZONES = ("UTC", "Europe/Berlin", "+01:00", "utc", "Z", "UTC+01:00", "Local", "Nowhere/At all")
"""names of time zones, some of which Arrow or Python do not know"""
NAMES = ("a", "b", "id", "text", "element", "a.b", "é", "key", "")
WORDS = (b"", b"a", b"true", "é 文".encode(), b"2024-01-01", b"nul\x00", b"long " * 20)
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_NS = 86_400 * 10**9
_DECIMALS = {pa.decimal32: 9, pa.decimal64: 18, pa.decimal128: 38, pa.decimal256: 76}

_plain_leaves = st.sampled_from(
    [
        *(pa.null(), pa.bool_(), pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
        *(pa.string(), pa.large_string(), pa.string_view()),
        *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3), pa.binary(16)),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.duration(unit) for unit in _UNITS),
        *(pa.timestamp(unit) for unit in _UNITS),
        *(pa.uuid(), pa.json_(), pa.json_(pa.string_view()), pa.bool8()),
        *(pa.opaque(kind, "kind", "test") for kind in (pa.string(), pa.binary_view(), pa.int32())),
        pa.fixed_shape_tensor(pa.int8(), [2]),
    ]
)
zoned = st.builds(pa.timestamp, st.sampled_from(list(_UNITS)), st.sampled_from(ZONES))
"""times in a zone"""
_leaves = (
    _plain_leaves
    | zoned
    | st.sampled_from(list(_DECIMALS)).flatmap(
        lambda make: st.integers(1, _DECIMALS[make]).flatmap(
            lambda precision: st.integers(0, precision).map(lambda scale: make(precision, scale))
        )
    )
)
_values = _leaves.filter(
    lambda kind: (
        not (
            isinstance(kind, pa.BaseExtensionType) or kind in (pa.null(), pa.string_view(), pa.binary_view())
        )
    )
)
_dictionaries = _values.map(lambda kind: pa.dictionary(pa.int8(), kind))


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(
        st.tuples(st.sampled_from(NAMES), inner), min_size=1, max_size=3, unique_by=lambda each: each[0]
    )
    keys = st.sampled_from([pa.string(), pa.int32(), pa.uuid(), pa.dictionary(pa.int8(), pa.string())])
    lists = (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)
    return st.one_of(
        *(inner.map(make) for make in lists),
        st.builds(pa.list_, inner, st.integers(1, 3)),  # Arrow's Parquet writer aborts for 0
        fields.map(pa.struct),
        st.builds(pa.map_, keys, inner),
    )


kinds = st.recursive(_leaves | _dictionaries, _nested, max_leaves=5)
"""types of any depth, as Parquet files have them"""
encoded_kinds = kinds | st.recursive(
    _values.flatmap(lambda kind: st.sampled_from([pa.run_end_encoded(pa.int32(), kind), pa.list_(kind, 0)])),
    _nested,
    max_leaves=5,
)
"""types of any depth, as arrays in memory have them, too"""


class Drawn(NamedTuple):
    """An array of random values, and what it means."""

    array: pa.Array
    values: list[Any]
    """each value as Python data, or None for null"""
    faults: list[set[str]]
    """of each value: "utf8" if text in it is not valid UTF-8, "value" if it has another invalid value"""


def draw(kind: pa.DataType, count: int, rng: np.random.Generator, faulty: float) -> Drawn:
    """Draw an array; `faulty` is the probability that a value of a leaf is invalid, if one can be."""
    if isinstance(kind, pa.BaseExtensionType):
        stored = draw(kind.storage_type, count, rng, 0 if isinstance(kind, pa.UuidType) else faulty)
        return Drawn(pa.ExtensionArray.from_storage(kind, stored.array), stored.values, stored.faults)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _draw_encoded(kind, count, rng, faulty)
    if pa.types.is_nested(kind):
        return _draw_nested(kind, count, rng, faulty)
    return _draw_leaf(kind, count, rng, faulty)


def in_zone(array: pa.Array, zone: str) -> pa.Array:
    """Return the same instants in another time zone, at all levels; other values stay as they are."""
    return map_values(array, lambda leaf: _leaf_in_zone(leaf, zone))


def _leaf_in_zone(leaf: pa.Array, zone: str) -> pa.Array:
    if pa.types.is_dictionary(leaf.type):
        return pa.DictionaryArray.from_arrays(leaf.indices, _leaf_in_zone(leaf.dictionary, zone))
    is_zoned = pa.types.is_timestamp(leaf.type) and leaf.type.tz
    return leaf.view(pa.timestamp(leaf.type.unit, zone)) if is_zoned else leaf


def _draw_encoded(kind: pa.DataType, count: int, rng: np.random.Generator, faulty: float) -> Drawn:
    """Draw a dictionary, some of whose indices are null, or runs of three values."""
    inner, picked = _draw_valid(kind.value_type, 3, rng, faulty), rng.integers(0, 3, count)
    if pa.types.is_dictionary(kind):
        is_null = rng.random(count) < 0.2
        indices = pa.array(picked, kind.index_type, mask=is_null)
        array = pa.DictionaryArray.from_arrays(indices, inner.array)
    else:
        picked.sort()
        is_null = np.zeros(count, bool)
        used, counts = np.unique(picked, return_counts=True)
        ends = pa.array(np.cumsum(counts), pa.int32())
        array = pa.RunEndEncodedArray.from_arrays(ends, inner.array.take(pa.array(used)))
    values, faults = [inner.values[each] for each in picked], [inner.faults[each] for each in picked]
    return _with_nulls(Drawn(array, values, faults), is_null)


def _draw_nested(kind: pa.DataType, count: int, rng: np.random.Generator, faulty: float) -> Drawn:
    """Draw lists of up to two values, structs or maps; a fifth of them are null."""
    is_null = rng.random(count) < 0.2
    if pa.types.is_struct(kind):
        fields = [draw(field.type, count, rng, faulty) for field in kind]
        values = [
            [[field.name, drawn.values[row]] for field, drawn in zip(kind, fields, strict=True)]
            for row in range(count)
        ]
        faults = [set().union(*(each.faults[row] for each in fields)) for row in range(count)]
        array = pa.StructArray.from_arrays(
            [each.array for each in fields], fields=list(kind), mask=pa.array(is_null)
        )
        return _with_nulls(Drawn(array, values, faults), is_null)
    is_fixed = pa.types.is_fixed_size_list(kind)
    lengths = np.where(is_null & (not is_fixed), 0, kind.list_size if is_fixed else rng.integers(0, 3, count))
    is_map, total = pa.types.is_map(kind), int(lengths.sum())
    inner = draw(kind.item_type if is_map else kind.value_type, total, rng, faulty)
    keys = _draw_valid(kind.key_type, total, rng, 0) if is_map else None
    ends = np.concatenate([[0], np.cumsum(lengths)])
    spans = [slice(start, stop) for start, stop in pairwise(ends)]
    if keys:
        values = [[list(each) for each in zip(keys.values[s], inner.values[s], strict=True)] for s in spans]
    else:
        values = [inner.values[span] for span in spans]
    faults = [set().union(*inner.faults[span]) for span in spans]
    array = _nested_array(kind, ends, inner.array, keys.array if keys else None, pa.array(is_null))
    return _with_nulls(Drawn(array, values, faults), is_null)


def _draw_valid(kind: pa.DataType, count: int, rng: np.random.Generator, faulty: float) -> Drawn:
    """Draw values of which none is null."""
    while True:
        drawn = draw(kind, 4 * count + 9, rng, faulty)
        rows = [row for row, value in enumerate(drawn.values) if value is not None][:count]
        if len(rows) == count:
            array = drawn.array.take(pa.array(rows, pa.int64()))
            return Drawn(array, [drawn.values[row] for row in rows], [drawn.faults[row] for row in rows])


def _nested_array(
    kind: pa.DataType, ends: np.ndarray, inner: pa.Array, keys: pa.Array | None, mask: pa.Array
) -> pa.Array:
    types = pa.types
    if types.is_fixed_size_list(kind):
        if not kind.list_size:
            return pa.Array.from_buffers(kind, len(mask), [None], children=[inner])
        return pa.FixedSizeListArray.from_arrays(inner, type=kind, mask=mask)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        is_large = types.is_large_list_view(kind)
        offsets = pa.array(ends, pa.int64() if is_large else pa.int32())
        sizes = pa.array(np.diff(ends), offsets.type)
        make = pa.LargeListViewArray if is_large else pa.ListViewArray
        return make.from_arrays(offsets[:-1], sizes, inner, type=kind, mask=mask)
    if keys is not None:
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, inner, type=kind, mask=mask)
    is_large = types.is_large_list(kind)
    make = pa.LargeListArray if is_large else pa.ListArray
    offsets = pa.array(ends, pa.int64() if is_large else pa.int32())
    return make.from_arrays(offsets, inner, type=kind, mask=mask)


def _with_nulls(drawn: Drawn, is_null: np.ndarray) -> Drawn:
    """Return the array, which has these nulls, with values and faults that fit."""
    if pa.types.is_fixed_size_list(drawn.array.type) and not drawn.array.type.list_size:
        return drawn
    return Drawn(
        drawn.array,
        [None if null else value for null, value in zip(is_null, drawn.values, strict=True)],
        [set() if null else fault for null, fault in zip(is_null, drawn.faults, strict=True)],
    )


def _draw_leaf(kind: pa.DataType, count: int, rng: np.random.Generator, faulty: float) -> Drawn:
    types = pa.types
    if types.is_null(kind):
        return Drawn(pa.nulls(count), [None] * count, [set() for _ in range(count)])
    is_valid = rng.random(count) > 0.2
    is_faulty = is_valid & (rng.random(count) < faulty)
    if types.is_boolean(kind):
        found = (rng.random(count) < 0.5).tolist()
        return _drawn(pa.array(found, kind, mask=~is_valid), found, is_valid)
    if types.is_fixed_size_binary(kind) and not types.is_decimal(kind):
        found = [rng.bytes(kind.byte_width) for _ in range(count)]
        return _drawn(pa.array(found, kind, mask=~is_valid), found, is_valid)
    if str(kind).removeprefix("large_").removesuffix("_view") in ("string", "binary"):
        return _draw_bytes(kind, count, rng, is_valid, is_faulty)
    return _draw_numbers(kind, count, rng, is_valid, is_faulty)


def _drawn(
    array: pa.Array, values: list[Any], is_valid: np.ndarray, is_faulty: Any = (), fault: str = ""
) -> Drawn:
    faults = [{fault} if each else set() for each in (is_faulty if len(is_faulty) else np.zeros(len(values)))]
    return Drawn(array, [each if ok else None for each, ok in zip(values, is_valid, strict=True)], faults)


def _draw_bytes(
    kind: pa.DataType, count: int, rng: np.random.Generator, is_valid: np.ndarray, is_faulty: np.ndarray
) -> Drawn:
    is_text = "string" in str(kind)
    words = [WORDS[each] for each in rng.integers(0, len(WORDS), count)]
    found = [b"caf\xe9" if bad or (not is_text and not n % 5) else word
             for n, (word, bad) in enumerate(zip(words, is_faulty, strict=True))]  # fmt: skip
    stored = pa.array(found, pa.large_binary() if "large" in str(kind) else pa.binary(), mask=~is_valid)
    validity, offsets, content = stored.buffers()
    if str(kind).endswith("view"):
        array = pa.array(found, pa.binary_view(), mask=~is_valid).view(kind)
    else:
        array = pa.Array.from_buffers(kind, count, [validity, offsets, content])
    return _drawn(array, found, is_valid, is_faulty & is_text, "utf8")


def _draw_numbers(
    kind: pa.DataType, count: int, rng: np.random.Generator, is_valid: np.ndarray, is_faulty: np.ndarray
) -> Drawn:
    """Draw numbers, dates and times as the bytes that Arrow stores, over all of their range."""
    types, width = pa.types, kind.bit_width // 8
    if types.is_floating(kind):
        numbers = np.frombuffer(rng.bytes(width * count), f"<f{width}")
        values = ["nan" if math.isnan(each) else float(each) for each in numbers]
        return _drawn(_from_bytes(kind, numbers.tobytes(), is_valid), values, is_valid)
    low, high, wrong = _range(kind)
    span = high - low + 1
    numbers = [low + int.from_bytes(rng.bytes(33), "little") % span for _ in range(count)]
    numbers = [
        int(rng.integers(0, 3)) if rng.random() < 0.3 and low <= 0 and high > 2 else each for each in numbers
    ]
    is_faulty = is_faulty & (wrong is not None)
    numbers = [wrong if bad else each for each, bad in zip(numbers, is_faulty, strict=True)]
    content = b"".join(
        each.to_bytes(width, "little", signed=low < 0 or types.is_temporal(kind)) for each in numbers
    )
    values = [_meaning(kind, each) for each in numbers]
    return _drawn(_from_bytes(kind, content, is_valid), values, is_valid, is_faulty, "value")


def _from_bytes(kind: pa.DataType, content: bytes, is_valid: np.ndarray) -> pa.Array:
    validity = pa.array(is_valid).buffers()[1]
    return pa.Array.from_buffers(kind, len(is_valid), [validity, pa.py_buffer(content)])


def _range(kind: pa.DataType) -> tuple[int, int, int | None]:
    """Return the smallest and the largest stored number of a type, and one that is invalid."""
    types = pa.types
    if types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1, 10**kind.precision
    if types.is_time(kind):
        day = 86_400 * _UNITS[kind.unit]
        return 0, day - 1, day if kind.unit in ("ms", "us") else -1
    if types.is_timestamp(kind) or types.is_duration(kind):
        largest = 9 * 10 ** (15 if kind.unit == "s" else 18)
        return -largest, largest, None
    if types.is_date64(kind):
        return 0, 0, None
    if types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1, None
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1, None


def _meaning(kind: pa.DataType, number: int) -> Any:
    types = pa.types
    if types.is_decimal(kind):
        return Fraction(number, 10**kind.scale)
    if types.is_date(kind):
        return number * (_DAY_NS if types.is_date32(kind) else 10**6)
    if types.is_duration(kind):  # Parquet files have durations inside of dictionaries as integers
        return number
    return number * 10**9 // _UNITS[kind.unit] if types.is_temporal(kind) else number


def meaning(scalar: pa.Scalar) -> Any:
    """Return a stored value in the form of `Drawn.values`."""
    types, kind = pa.types, scalar.type
    if not scalar.is_valid:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return meaning(scalar.value)
    if types.is_struct(kind):
        return [[name, meaning(value)] for name, value in scalar.items()]
    if types.is_map(kind):
        return [[meaning(value) for value in entry.values()] for entry in scalar.values]
    if types.is_nested(kind):
        return [meaning(value) for value in scalar.values]
    if types.is_floating(kind):
        return "nan" if math.isnan(scalar.as_py()) else float(scalar.as_py())
    if types.is_decimal(kind):
        return Fraction(scalar.as_py())
    if types.is_boolean(kind) or types.is_integer(kind):
        return scalar.as_py()
    return _meaning(kind, scalar.value) if types.is_temporal(kind) else scalar.as_buffer().to_pybytes()
