"""Every setting of a night counts when the current release is compared, unless it is named."""

import pytest
from pydantic import ValidationError

from pipeline.flows.night.previous_release import NOT_PUBLISHED, _release_settings
from pipeline.settings import Job

# Sections that do not decide the files of a release.
UNREAD = {"evaluate", "train", "augment", "pairs", "release", "cluster"}


def test_every_section_is_compared_or_without_influence():
    assert NOT_PUBLISHED.keys() == Job.model_fields.keys() - UNREAD
    for section, names in NOT_PUBLISHED.items():
        assert names <= Job.model_fields[section].annotation.model_fields.keys(), (
            "no name of an earlier version"
        )


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"index": {"kind": "flat"}}, True),
        ({"index": {"shards": 3}}, False),
        ({"whiten": {"mode": "off"}}, True),
        ({"whiten": {"write_vectors": True}}, False),
        ({"encode": {"vectors": "float16"}}, True),
        ({"encode": {"unit_rows": 3}}, False),
        ({"encoder": {"query_prompt": "q: "}}, True),
        ({"gates": {"recall_at_10": 0.5}}, True),
        ({"gates": {"queries": "queries.txt"}}, True),
        ({"gates": {"max_deleted": 0.5}}, False),
        ({"corpus": {"id": "key"}}, True),
    ],
)
def test_a_changed_setting_makes_another_release_unless_it_is_named(change: dict[str, object], counts: bool):
    assert (_release_settings(Job.model_validate(change)) != _release_settings(Job())) == counts


def test_another_bound_for_queries_of_users_makes_another_release():
    jobs = [
        Job.model_validate({"gates": {"queries": "queries.txt", "recall_at_10_queries": bound}})
        for bound in (None, 0.5)
    ]
    assert _release_settings(jobs[0]) != _release_settings(jobs[1])
    with pytest.raises(ValidationError, match="no effect without it"):
        Job.model_validate({"gates": {"recall_at_10_queries": 0.5}})
