"""Every setting of config.json is computed as transformers computes it, refused, or without effect."""

import pytest

from tests.models.config_fields import line_of, table
from tests.models.every_family import FAMILIES


@pytest.mark.slow
@pytest.mark.parametrize("name", table())
def test_the_table_says_what_each_setting_does(name: str):
    assert line_of(name) == table()[name]


def test_the_table_has_families_of_the_property_test_and_no_other_vectors():
    assert len(table()) > 30
    assert table().keys() <= FAMILIES.keys()
    assert not any("OTHER" in line for line in table().values())
