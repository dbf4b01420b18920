"""Every item goes through the pool once, on several actors, and an error of ours comes out as it was raised."""

import pytest

from pipeline.errors import DataError
from pipeline.flows.cluster import Cluster
from pipeline.flows.units import Pool, map_units, run_task
from tests.flows.tasks import Double


def test_every_item_comes_back_once_with_its_number(cluster: Cluster):
    made = dict(map_units(Double(), list(range(100, 112)), Pool(2, cpus=0.5)))
    assert {number: value for number, (value, _) in made.items()} == {number: 2 * (100 + number) for number in range(12)}


def test_an_error_of_ours_keeps_its_type_and_words(cluster: Cluster):
    with pytest.raises(DataError, match="item 13: expected luck") as caught:
        list(map_units(Double(), [12, 13, 14], Pool(1)))
    assert caught.value.exit_code == 3
    with pytest.raises(DataError, match="item 13"):
        run_task(Double(), 13, Pool(1))


def test_no_items_start_no_actor():
    assert list(map_units(Double(), [], Pool(1))) == []
