"""A listing that keeps hashes answers as one that keeps paths and sizes."""

import numpy as np
import pytest

from pipeline.store.files import local
from pipeline.store.files.base import Store
from pipeline.store.files.file_sizes import ListedFiles, file_hash

_FOLDERS = ("units/a", "units/b", "moments")


def test_a_file_is_listed_with_its_path_and_its_size(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "_PAGE", 3)
    rng = np.random.default_rng(0)
    sizes = {}
    for number in range(30):
        path = f"{_FOLDERS[number % 2]}/{number // 2}.bin"  # the same names in two of the folders
        sizes[path] = int(rng.integers(4))
        store.write(path, bytes(sizes[path]))
    store.write("other/0.bin", b"")
    listed = ListedFiles(store, _FOLDERS)
    asked = [*sizes, "other/0.bin", "units/a/15.bin", "moments/0.bin", "units/a"]
    for path in asked:
        assert listed.has(path) == (path in sizes)
        for size in range(4):
            assert listed.has(path, size) == (sizes.get(path) == size)
    known = [file_hash(path, size) for path, size in sizes.items()]
    assert listed.has_all(np.array(known))
    assert not listed.has_all(np.array([*known, file_hash("moments/0.bin", None)]))


def test_nothing_is_listed_without_folders(store: Store):
    listed = ListedFiles(store, ())
    assert not listed.has("a")
    assert listed.has_all(np.zeros(0, np.int64))
