"""Every setting of config.json is computed as transformers computes it, refused, or without effect."""

import pytest

from tests.models.config_fields import NOT_CHANGED, TABLE, line_of, table
from tests.models.every_family import FAMILIES


@pytest.mark.slow
@pytest.mark.parametrize("name", table())
def test_the_table_says_what_each_setting_does(name: str):
    assert line_of(name) == table()[name]


def test_the_table_has_every_family_and_no_other_vectors():
    assert table().keys() == FAMILIES.keys()
    assert not any("OTHER" in line for line in table().values())
    assert all(f"`{name}`" in TABLE.read_text() for name in NOT_CHANGED)
