"""Dead rows of some units are read from the row groups that have them."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.store.files.base import Store
from pipeline.store.records.dead import Dead, DeadRows, write_address_pieces, write_addresses
from pipeline.store.rows.address import to_addresses

_UNITS = 40


def dead_rows() -> dict[int, np.ndarray]:
    """Return about 200,000 dead rows, which are several row groups; unit 7 has a hundred thousand of them."""
    rng, counts = np.random.default_rng(0), dict.fromkeys(range(0, _UNITS, 2), 3_000)
    counts |= {7: 100_000, 9: 1, 11: 40_000}
    return {unit: np.sort(rng.choice(200_000, count, replace=False)) for unit, count in counts.items()}


@pytest.fixture(scope="module")
def rows() -> dict[int, np.ndarray]:
    return dead_rows()


@pytest.fixture
def addresses(rows: dict[int, np.ndarray]) -> np.ndarray:
    return np.concatenate([to_addresses(unit, rows[unit]) for unit in sorted(rows)])


def test_rows_are_read_by_unit_in_any_order(store: Store, rows: dict[int, np.ndarray], addresses: np.ndarray):
    reader = DeadRows(store, Dead(addresses).store_in(store, "dead"))
    for unit in [*range(_UNITS + 2), 7, 0, 39]:
        np.testing.assert_array_equal(reader.rows_of(unit), rows.get(unit, np.zeros(0)))
    for first, end in [(0, _UNITS), (7, 8), (8, 12), (12, 12), (50, 60)]:
        ordinals = addresses >> 32
        expected = addresses[(ordinals >= first) & (ordinals < end)]
        np.testing.assert_array_equal(reader.between(first, end), expected)


def test_addresses_of_dead_rows_are_recognized(store: Store, addresses: np.ndarray):
    rng = np.random.default_rng(1)
    sought = to_addresses(rng.integers(0, _UNITS, 5_000), rng.integers(0, 200_000, 5_000))
    sought = np.concatenate([sought, addresses[:20_000:4]]).reshape(2, -1)
    is_dead = DeadRows(store, Dead(addresses).store_in(store, "dead")).contains(sought)
    np.testing.assert_array_equal(is_dead, np.isin(sought, addresses))


def test_a_missing_or_empty_file_has_no_dead_rows(store: Store):
    for file in (None, write_addresses(store, np.zeros(0, dtype=np.int64), "gone")):
        reader = DeadRows(store, file)
        assert len(reader.rows_of(0)) == len(reader.between(0, 5)) == 0
        assert reader.contains(np.arange(3)).tolist() == [False] * 3


def test_a_changed_file_is_refused(store: Store):
    file = Dead(np.arange(10)).store_in(store, "dead")
    assert file is not None
    store.write(file.path, b"changed")
    with pytest.raises(DataError, match="sha256"):
        DeadRows(store, file)


@pytest.mark.parametrize("cuts", [[], [0, 5], [65_536, 65_537, 199_000], list(range(0, 160_000, 20_000))])
def test_addresses_written_in_pieces_give_the_bytes_of_one_table(
    store: Store, tmp_path: Path, addresses: np.ndarray, cuts: list[int]
):
    whole = write_addresses(store, addresses, "dead")
    expected = store.read(whole.path)
    store.delete(whole.path)
    assert write_address_pieces(store, tmp_path, np.split(addresses, cuts), "dead") == whole
    assert store.read(whole.path) == expected
    assert write_address_pieces(store, tmp_path, [addresses[:0]], "dead") is None
