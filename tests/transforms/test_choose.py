"""Held-out likelihood from moments equals that of the Gaussian; curves find the constructed dimensions."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA

from pipeline.errors import DataError
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.transforms.chain import fit_transform
from pipeline.transforms.choose import Curve, held_out_likelihood, tune_transform
from pipeline.transforms.compare import DevPairs, Halves, mean_reciprocal_rank, spearman


def factors(rows: int, signals: int = 5, dim: int = 24, seed: int = 0) -> np.ndarray:
    """Return vectors with `signals` directions above isotropic noise, as probabilistic PCA assumes."""
    rng = np.random.default_rng(seed)
    loadings = np.random.default_rng(42).normal(size=(signals, dim)) * 2
    return np.asarray(rng.normal(size=(rows, signals)) @ loadings + 0.5 * rng.normal(size=(rows, dim)) + 3)


@pytest.mark.parametrize("k", [1, 5, 12, 23, 24])
def test_the_likelihood_from_moments_matches_the_rows(k: int) -> None:
    fit, held = factors(600), factors(200, seed=1) + 0.1
    found = held_out_likelihood(Moments.of(fit), Moments.of(held), [k])[0]
    if k < 24:
        pca = PCA(k, svd_solver="full").fit(fit)  # with the same noise, of the sample covariance
        covariance = pca.get_covariance() * (len(fit) - 1) / len(fit)
    else:
        covariance = np.cov(fit.T, bias=True)
    assert found == pytest.approx(
        multivariate_normal(fit.mean(axis=0), covariance).logpdf(held).mean(), rel=1e-9
    )


def test_directions_without_variance_are_ignored() -> None:
    fit, held = factors(600), factors(200, seed=1)
    wide = [np.hstack([x, np.full((len(x), 3), 0.25)]) for x in (fit, held)]
    plain, padded = (
        held_out_likelihood(Moments.of(a), Moments.of(b), [3, 24]) for a, b in ((fit, held), wide)
    )
    np.testing.assert_allclose(padded, plain, rtol=1e-9)


def test_the_full_covariance_of_few_rows_is_degenerate() -> None:
    found = held_out_likelihood(Moments.of(factors(12)), Moments.of(factors(40, seed=1)), [3, 11, 24])
    assert np.isfinite(found[0])
    assert found[2] == -np.inf


@pytest.mark.parametrize("signals", [2, 5, 10])
def test_likelihood_finds_the_directions_above_the_noise(signals: int) -> None:
    x = factors(4_000, signals)
    chosen, (curve,) = tune_transform(
        WhitenSettings(k="likelihood"), Moments.of(x), held_out=Moments.of(x[:800])
    )
    values = [value for value, _ in curve.points]
    assert abs(values.index(curve.chosen) - int(np.argmin(np.abs(np.array(values) - signals)))) <= 1
    assert chosen.k == curve.chosen
    assert values[-1] == 24
    assert curve.numbers()["k"] == curve.chosen
    assert curve.numbers()[f"k_{curve.chosen}"] == max(figure for _, figure in curve.points)
    assert curve.count == 800
    fitted = held_out_likelihood(Moments.of(x[800:]), Moments.of(x[:800]), [curve.chosen])[0]
    assert dict(curve.points)[curve.chosen] == pytest.approx(fitted, rel=1e-9)


def test_after_another_step_the_likelihood_is_computed_on_its_output() -> None:
    x = factors(4_000) * np.linspace(1, 30, 24)
    plain, (curve,) = tune_transform(
        WhitenSettings(transform="standardize+whitening", k="likelihood"),
        Moments.of(x),
        held_out=Moments.of(x[:800]),
    )
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    _, (oracle,) = tune_transform(
        WhitenSettings(k="likelihood"), Moments.of(scaled), held_out=Moments.of(scaled[:800])
    )
    assert plain.k == oracle.chosen
    np.testing.assert_allclose(
        [figure for _, figure in curve.points], [figure for _, figure in oracle.points], atol=1e-4
    )


def halves(loud: int) -> Halves:
    """Return two views of 300 texts that differ less than `loud` directions that all vectors share."""
    rng = np.random.default_rng(0)
    meaning = rng.normal(size=(300, 20))
    views = [
        np.hstack([meaning + 0.6 * rng.normal(size=(300, 20)), 40 * rng.normal(size=(300, loud))])
        for _ in range(2)
    ]
    return Halves(*views)


@pytest.mark.parametrize("loud", [2, 6])
def test_dev_finds_how_many_directions_to_remove(loud: int) -> None:
    dev = halves(loud)
    moments = Moments.of(np.concatenate([dev.first, dev.second]))
    chosen, (curve,) = tune_transform(WhitenSettings(transform="components", remove="dev"), moments, dev)
    assert chosen.remove == curve.chosen == loud
    assert dict(curve.points)[0] == pytest.approx(
        mean_reciprocal_rank(dev.first - moments.mean, dev.second - moments.mean), abs=1e-4
    )
    assert curve.sentence.startswith(f"whiten.remove is {loud}, the best of 10 values by MRR (300 texts): ")


def test_dev_chooses_remove_before_k_by_scores_of_the_whole_transform() -> None:
    dev = halves(3)
    gold = np.r_[np.ones(150), np.zeros(150)]
    pairs = DevPairs(dev.first, np.concatenate([dev.second[:150], dev.second[150:][::-1]]), gold)
    moments = Moments.of(np.concatenate([dev.first, dev.second]))
    chosen, curves = tune_transform(
        WhitenSettings(transform="components+whitening", k="dev", remove="dev"), moments, pairs
    )
    assert [(curve.setting, curve.metric) for curve in curves] == [("remove", "Spearman"), ("k", "Spearman")]
    for value, figure in curves[1].points[::3]:
        transform = fit_transform(moments, chosen.model_copy(update={"k": value}), "")
        assert figure == pytest.approx(
            spearman(transform(pairs.left), transform(pairs.right), gold), abs=1e-9
        )
    assert (chosen.remove, chosen.k) == (curves[0].chosen, curves[1].chosen)


def test_k_is_at_most_a_fifth_of_the_rows() -> None:
    x = factors(60)
    _, (curve,) = tune_transform(WhitenSettings(k="dev"), Moments.of(x), Halves(x[:30], x[30:]))
    assert curve.points[-1][0] == 12


def test_given_numbers_are_not_changed() -> None:
    settings = WhitenSettings(k=7, remove=3)
    assert tune_transform(settings, Moments.of(factors(100))) == (settings, ())
    with pytest.raises(DataError):
        tune_transform(
            WhitenSettings(k="dev"), Moments.of(np.ones((30, 4))), Halves(np.ones((3, 4)), np.ones((3, 4)))
        )


def test_of_equal_scores_the_smallest_value_wins() -> None:
    x = np.random.default_rng(0).normal(size=(200, 6))
    _, (curve,) = tune_transform(
        WhitenSettings(transform="components", remove="dev"),
        Moments.of(x),
        Halves(np.eye(6)[:2], np.eye(6)[:2]),
    )
    assert isinstance(curve, Curve)
    assert curve.chosen == min(
        value for value, figure in curve.points if figure == max(figure for _, figure in curve.points)
    )
