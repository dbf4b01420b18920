"""An index that cannot be extended is rebuilt, and says why; foreign vectors are refused."""

from pathlib import Path

import pytest

from pipeline.errors import DataError, SpaceMismatch
from pipeline.flows.index.build import IndexInput
from pipeline.flows.index.extend import extend_index
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from pipeline.store.records.sealed_json import FileRef
from tests.flows.index.extending import DIM, Chain

pytestmark = pytest.mark.usefixtures("cluster")
WIDE = ("index.nprobe=99",)  # all lists: then an IVF index is exhaustive


@pytest.fixture(scope="module")
def first(child: LocalWorkers, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Publish a first night, which tests copy."""
    with connect(ClusterSettings(), Stages(), local=child) as cluster:
        chain = (
            Chain(
                tmp_path_factory.mktemp("first") / "root",
                cluster,
                ("index.kind=ivf_flat", "index.nlist=8", *WIDE),
            )
            .add(300)
            .add(300)
            .kill(10)
        )
        chain.night()
    return chain


def flip(chain: Chain, reference: FileRef) -> None:
    """Change one bit of a stored file."""
    content = bytearray(chain.store.read(reference.path))
    content[len(content) // 2] ^= 1
    chain.store.write(reference.path, bytes(content))


def forget_a_death(chain: Chain) -> None:
    """Revive a dead row."""
    chain.dead = chain.dead[1:]


def replace_a_unit(chain: Chain) -> None:
    """Replace the vectors of the first unit."""
    other = Chain(chain.root, chain.cluster, seed=5).add(300).units[0]
    chain.vectors |= Chain(chain.root, chain.cluster, seed=5).add(300).vectors
    chain.units[0] = other


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda chain: flip(chain, chain.built.files[0]), "sha256"),
        (lambda chain: flip(chain, chain.built.ids[0]), "sha256"),
        (lambda chain: flip(chain, chain.built.queries), "sha256"),
        (lambda chain: chain.store.delete(chain.built.files[0].path), "is gone"),
        (
            lambda chain: setattr(chain, "overrides", ("index.kind=ivf_flat", "index.nlist=9", *WIDE)),
            "index.nlist",
        ),
        (lambda chain: chain.kill(300), "are left"),
        (lambda chain: chain.add(300, spread=0.4, centre=0), "imbalance rose"),
        (forget_a_death, "live again"),
        (replace_a_unit, "other vectors"),
    ],
)
def test_an_index_that_cannot_be_extended_is_rebuilt_with_a_reason(
    first: Chain, tmp_path: Path, change, sentence: str
):
    chain = first.copy(tmp_path / "root")
    change(chain)
    chain.add(5).night()
    chain.assert_sound()
    assert [choice.chosen for choice in chain.choices] == ["built anew"]
    assert sentence in chain.choices[0].sentence


def test_vectors_of_two_spaces_are_not_mixed_in_one_index(first: Chain, cluster: Workers, tmp_path: Path):
    chain = first.copy(tmp_path / "root")
    other = Chain(tmp_path / "other", cluster, space_id="7" * 64).add(10).add(10).add(10)
    mixed = IndexInput((*chain.units, other.units[2]), None, None, DIM)
    with pytest.raises(SpaceMismatch, match=f"{'5' * 64}.*{'7' * 64}"):
        extend_index(chain.context(Stages()), mixed, chain.before)
    foreign = other.units[2]
    chain.store.write(foreign.path, other.store.read(foreign.path))
    disguised = foreign.model_copy(update={"space_id": chain.space_id})
    vectors = IndexInput((*chain.units, disguised), None, None, DIM)
    with pytest.raises(SpaceMismatch, match=f"{'5' * 64}.*{'7' * 64}"):
        extend_index(chain.context(Stages()), vectors, chain.before)


def test_a_changed_unit_is_refused(first: Chain, tmp_path: Path):
    chain = first.copy(tmp_path / "root").add(50)
    flip(chain, FileRef(path=chain.units[2].path, sha256=""))
    with pytest.raises(DataError, match=f"{chain.units[2].path}: expected sha256"):
        chain.night()
