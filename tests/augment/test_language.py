"""Languages are identified, in several threads at once, each with its own choice of languages."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.augment import language
from pipeline.augment.keep import check_keep
from pipeline.augment.language import check_languages, languages_of
from pipeline.errors import ConfigError
from pipeline.settings.augment import KeepSettings

pytest.importorskip("py3langid")
TEXTS = {
    "en": "A man is riding a bicycle along the street.",
    "de": "Ein Mann fährt mit dem Fahrrad die Straße entlang.",
    "fr": "Un homme fait du vélo dans la rue.",
}


def test_choices_of_languages_do_not_affect_other_threads():
    choices = [(), ("en", "de"), ("de", "fr"), ("fr", "en", "de")] * 8
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda among: languages_of(list(TEXTS.values()), among), choices))
    for among, languages in zip(choices, found, strict=True):
        allowed = among or tuple(TEXTS)
        assert set(languages) <= set(allowed)
        for language_found, language_of_text in zip(languages, TEXTS, strict=True):
            assert language_found == language_of_text or language_of_text not in allowed


def test_the_error_for_an_unknown_language_code_lists_the_known_codes():
    with pytest.raises(ConfigError, match=r"augment.keep.language: expected .* found 'eng'; known: .*\ben\b"):
        check_keep(KeepSettings(language="eng"), "augment.keep")
    with pytest.raises(ConfigError, match="'xx'"):
        check_keep(KeepSettings(language="en", languages=("en", "xx")), "augment.keep")
    check_keep(KeepSettings(language="en", languages=("en", "de")), "augment.keep")


@pytest.mark.skipif("MANTA_EVAL_DATA" not in os.environ, reason="needs the evaluation data")
@pytest.mark.parametrize("other", ["de", "fr", "cs"])
def test_at_most_one_caption_in_two_hundred_is_misidentified(other: str):
    table = pq.read_table(
        Path(os.environ["MANTA_EVAL_DATA"]) / "parallel" / f"multi30k.en-{other}.parquet"
    ).slice(0, 2_000)
    for column, right in (("src", "en"), ("tgt", other)):
        found = languages_of(table[column].to_pylist(), ("en", other))
        assert found.count(right) >= 0.995 * len(found)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    language._load.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(
        ConfigError, match=r"py3langid.*not installed; pip install 'manta-embeddings\[augment\]'"
    ):
        check_languages(("en",), "augment.keep.language")
