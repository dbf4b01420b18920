"""Each key of folders of other kinds is computed as the library that wrote them does, refused, or unused."""

import pytest

from tests.models.folder.folder_kinds import KINDS, line_of, table


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_says_what_each_key_does(kind: str):
    assert line_of(kind) == table()[kind]


def test_the_table_has_every_kind_and_no_other_vectors():
    assert table().keys() == KINDS.keys()
    assert not any("OTHER" in line for line in table().values())
