"""The model card describes the encoder, can be read by hubs, and does not change the encoder."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pipeline.models.folder.folder import open_folder
from pipeline.models.layers.post_pooling import TanhHead
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.models.trainable.saving import SavedHeads, save_folder
from pipeline.report.model_card import CARD, card, write_card
from pipeline.report.training import render
from pipeline.report.training_report import EncoderSummary, TrainingReport
from pipeline.settings import EncoderSettings
from tests.models import folders
from tests.report.runs import FULL, SMALLEST, with_settings


def front(text: str) -> dict[str, object]:
    opened, head, _ = text.split("---\n", 2)
    assert opened == ""
    return yaml.safe_load(head)


def test_the_front_matter_has_the_fields_of_hubs():
    assert front(card(FULL)) == {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", "manta"],
    }


def test_the_card_describes_the_training_and_the_use():
    text = card(FULL)
    expected = [
        "# simcse-3fa9c2d1e0b7",
        "`MiniLM`",
        "6,500 rows",
        "| Dimensions | 384 |",
        "256 tokens",
        "of length 1",
        "| Head | none",
        "a1" * 32,
    ]
    expected += [
        "| best | 250 | 84.50 |",
        "`STSB-dev.parquet`",
        "weights after step 250",
        "temperature 0.05",
        "learning rate 3e-05",
        "11; 3 for the order of rows",
        "torch 2.13.0",
    ]
    expected += [
        "manta encode encoder.path=",
        "SentenceTransformer(",
        "(2, 384)",
        "`s3://texts/wiki/*.parquet` (6,400 rows)",
    ]
    assert [each for each in expected if each not in text] == []
    assert "/home" not in text  # a card is published, folders of one machine are not
    assert "six" not in text
    assert "Nothing was measured" in card(SMALLEST)
    assert "the first 64, 128 are usable alone" in card(with_settings(matryoshka=(64, 128)))


@pytest.mark.parametrize(("length", "said"), [(None, False), (32, True), (256, False)])
def test_the_length_of_training_texts_is_mentioned_if_the_encoder_reads_more(length: int | None, said: bool):
    report = with_settings(max_length=length)
    assert (
        "256 tokens; longer texts are truncated; in the training, texts over 32 were" in card(report)
    ) == said
    assert ("up to 256 tokens, 32 in the training" in render(report, [])) == said


def test_every_table_has_as_many_cells_in_each_row():
    report = replace(
        FULL, name="a|b", trained_encoder=replace(FULL.trained_encoder, prompt="query|: ", head=True)
    )
    tables = re.findall(r"(?:^\|.*\|\n)+", card(report), re.MULTILINE)
    assert len(tables) >= 2
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_no_code_for_other_libraries_if_they_cannot_load_the_encoder():
    text = card(replace(FULL, trained_encoder=replace(FULL.trained_encoder, is_portable=False)))
    assert "SentenceTransformer" not in text
    assert "library_name" not in front(text)
    assert "sentence-transformers does not compute its vectors" in text


def test_a_template_needs_trust_remote_code(tmp_path: Path):
    source = load_trainable(
        open_folder(EncoderSettings(path=str(folders.save_folder(tmp_path / "start", "bert"))))
    )
    for denoise in (False, True):
        encoder = PromptedEncoder(source, "It says [X] : [MASK]", limit=12, denoise=denoise)
        trained_encoder = EncoderSummary.of(
            save_folder(encoder, encoder.folder, tmp_path / f"saved {denoise}"), head=False
        )
        assert (trained_encoder.is_portable, trained_encoder.has_own_modules, trained_encoder.head) == (
            False,
            True,
            denoise,
        )
        assert 'SentenceTransformer("path/of/this/folder", trust_remote_code=True)' in card(
            replace(FULL, trained_encoder=trained_encoder)
        )


def saved(folder: Path, to: Path, pooling: str, head: bool) -> tuple[TrainingReport, Path]:
    encoder = load_trainable(open_folder(EncoderSettings(path=str(folder), pooling=pooling)))
    made = save_folder(encoder, encoder.folder, to, SavedHeads(TanhHead(encoder.dim) if head else None))
    return replace(FULL, trained_encoder=EncoderSummary.of(made, head=head)), made.path


def test_the_encoder_loads_as_the_card_says(tmp_path: Path):
    from sentence_transformers import SentenceTransformer

    folder = folders.save_folder(tmp_path / "start", "bert")
    report, path = saved(folder, tmp_path / "encoder", "mean", head=True)
    write_card(report, path)
    assert open_folder(EncoderSettings(path=str(path))).space_id == report.trained_encoder.space_id
    assert (path / CARD).read_text() == card(report)
    assert (
        report.trained_encoder.dim,
        report.trained_encoder.max_length,
        report.trained_encoder.pooling,
        report.trained_encoder.is_portable,
    ) == (48, 64, ("mean",), True)
    assert "a layer after the pooling" in card(report)
    model = SentenceTransformer(str(path), device="cpu")
    assert model.encode(["A sentence.", "Another one."]).shape == (2, 48)


def test_a_pooling_unknown_to_other_libraries_is_mentioned(tmp_path: Path):
    folder = folders.save_folder(tmp_path / "start", "bert")
    report, _ = saved(folder, tmp_path / "encoder", "first_last", head=False)
    assert not report.trained_encoder.is_portable
