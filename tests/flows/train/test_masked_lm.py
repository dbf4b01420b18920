"""A masked language model is trained on its own, and dev measures the probability of held-out words."""

from pathlib import Path

from pipeline.train.metrics import read_metrics
from tests.flows.train.training import rank_of, train, write_sentences
from tests.models.folders import folder_of_language_model


def test_dev_measures_masked_words_and_the_page_shows_it(tmp_path: Path):
    start = folder_of_language_model(tmp_path / "bert")
    write_sentences(tmp_path / "dev.parquet", 40, seed=9)
    dev = f"train.dev={{uri: {tmp_path}/dev.parquet, measure: log_likelihood, steps: 4}}"
    rank = rank_of(tmp_path, start, "train.objective=masked_lm", dev, "train.optimizer.learning_rate=0.003")
    train(rank)
    scores = [line.dev for line in read_metrics(rank.run.store) if line.dev is not None]
    assert len(scores) == 1 + 12 // 4
    assert all(score < 0 for score in scores)
    assert scores[-1] > scores[0] + 0.1, "the words of new sentences became likelier"
    assert rank.run.result().metrics["dev"] == max(scores)
    page, card = Path(rank.run.report).read_text(), Path(rank.run.encoder, "README.md").read_text()
    shown = f"{max(scores):.2f}".replace("-", "−")
    assert "Log p of masked words on dev" in page
    assert shown in page
    assert shown in card
    assert "probability of masked words (perplexity: exp(-x))" in card
