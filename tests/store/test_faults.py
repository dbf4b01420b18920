"""Under faults of an S3 server a call succeeds or raises, and permanent faults are reported at once."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.store.files.base import Store
from pipeline.store.files.check_store import check_store
from pipeline.store.files.open_store import open_store
from tests.faults import Faults, FaultyProxy

KINDS = ["throttled", "internal", "limited", "reset", "delayed", "cut", "lost"]
PROPORTIONS = {"delayed": 0.1, "lost": 0.5}
LARGE = 40 << 20  # three parts


@pytest.fixture
def store(faulty: FaultyProxy, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MANTA_STORE_TIMEOUT_S", "0.4")
    monkeypatch.setattr("pipeline.store.files.retry._FIRST_PAUSE_S", 0.01)
    return open_store(f"{s3}/{tmp_path.name}")


def run_random_operation(
    store: Store, oracle: dict[str, bytes], rng: np.random.Generator, folder: Path
) -> None:
    """Run one random operation on the store and compare its result with that of a dictionary."""
    path, content = f"d{rng.integers(2)}/{rng.integers(4)}", rng.bytes(int(rng.integers(2, 5_000)))
    stored, sha256 = oracle.get(path), hashlib.sha256(oracle.get(path, b"")).hexdigest()
    match int(rng.integers(9)):
        case 0:
            store.write(path, content)
            oracle[path] = content
        case 1:
            assert store.create(path, content) == (stored is None)
            oracle.setdefault(path, content)
        case 2:
            (folder / "file").write_bytes(content)
            store.put(folder / "file", path)
            oracle[path] = content
        case 3:
            store.delete(path)
            oracle.pop(path, None)
        case 4:
            assert store.size(path) == (None if stored is None else len(stored))
        case 5:
            assert {entry.path: entry.size for entry in store.list("d0")} == {
                name: len(data) for name, data in oracle.items() if name.startswith("d0/")
            }
        case 6 if stored is not None:
            assert store.local(path, sha256).read_bytes() == stored
        case 7 if stored is not None:
            assert store.open(path, sha256).read() == stored
        case _ if stored is not None:
            assert store.read(path) == stored
        case _:
            with pytest.raises(FileNotFoundError):
                store.read(path)


@pytest.mark.parametrize("kind", KINDS)
def test_operations_on_a_faulty_store_equal_those_on_a_sound_one(
    store: Store, faulty: FaultyProxy, tmp_path: Path, kind: str
):
    faulty.faults = Faults(**{kind: PROPORTIONS.get(kind, 0.25)}, delay_s=0.8, seed=10 + KINDS.index(kind))
    oracle: dict[str, bytes] = {}
    rng = np.random.default_rng(0)
    for number in range(500):  # how many calls meet a fault depends also on the name of the store's folder
        run_random_operation(store, oracle, rng, tmp_path)
        if number >= 50 and faulty.met[kind] >= 3:
            break
    assert faulty.met[kind] >= 3, "the faults did happen"
    faulty.faults = Faults()
    assert {entry.path: store.read(entry.path) for entry in store.list()} == oracle


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lost"])
def test_an_outage_is_reported_at_the_deadline(
    store: Store, faulty: FaultyProxy, monkeypatch: pytest.MonkeyPatch, kind: str
):
    store.write("there", b"1234")
    monkeypatch.setenv("MANTA_STORE_DEADLINE_S", "0.1")
    faulty.faults = Faults(**{kind: 1.0}, delay_s=0.8)
    reading: dict[str, Callable[[], object]] = {
        "read": lambda: store.read("there"),
        "local": lambda: store.local("there", "0" * 64),
        "open": lambda: store.open("there"),
    }
    others: dict[str, Callable[[], object]] = {
        "write": lambda: store.write("a", b"1"),
        "create": lambda: store.create("b", b"1"),
        "size": lambda: store.size("a"),
        "list": store.list,
        "delete": lambda: store.delete("a"),
    }
    for operation in (reading if kind == "cut" else reading | others).values():
        start = time.monotonic()
        with pytest.raises(TransientError, match=store.uri):
            operation()
        assert time.monotonic() - start < 10, (
            "one layer of retries; three nested layers would multiply to minutes"
        )


def test_a_creation_with_a_lost_response_is_recognized_as_successful(store: Store, faulty: FaultyProxy):
    store.create("theirs", b"same bytes")
    faulty.faults = Faults(lost=1.0)
    assert store.create("ours", b"same bytes")
    assert faulty.met["lost"] >= 1
    assert not store.create("ours", b"same bytes"), "equal bytes are no proof: this call created nothing"
    assert not store.create("theirs", b"same bytes")


def test_a_large_object_is_uploaded_in_parts_and_created_once(store: Store, faulty: FaultyProxy):
    content = np.random.default_rng(0).bytes(LARGE)
    faulty.faults = Faults(lost=0.3, throttled=0.2, cut=0.2, seed=3)
    assert store.create("large", content)
    assert not store.create("large", content[::-1])
    assert min(faulty.met["lost"], faulty.met["throttled"]) > 0
    digest = hashlib.sha256(content).hexdigest()
    for copy in (store.local("large"), store.local("large", digest)):
        assert hashlib.sha256(copy.read_bytes()).hexdigest() == digest
    assert store.read("large") == content
    assert store.list("")[0].stamp.endswith("-3"), "three parts"


def test_one_of_many_creators_of_a_large_object_wins_despite_lost_responses(
    store: Store, faulty: FaultyProxy
):
    contents = [bytes([number]) * LARGE for number in range(3)]
    faulty.faults = Faults(lost=0.25, seed=5)
    with ThreadPoolExecutor(3) as pool:
        won = list(pool.map(lambda content: store.create("large", content), contents))
    faulty.faults = Faults()
    assert sum(won) == 1
    assert store.read("large") == contents[won.index(True)]


def test_a_large_file_is_published_from_disk_and_read_by_ranges(
    store: Store, faulty: FaultyProxy, tmp_path: Path
):
    content = np.random.default_rng(1).bytes(LARGE)
    (tmp_path / "file").write_bytes(content)
    faulty.faults = Faults(internal=0.2, reset=0.2, seed=1)
    store.put(tmp_path / "file", "large")
    assert not (tmp_path / "file").exists()
    store.fetch("large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


def test_uploads_of_killed_writers_are_aborted_by_age(store: Store, faulty: FaultyProxy):
    from pipeline.store.files.s3 import client

    bucket, _, prefix = store.uri.removeprefix("s3://").partition("/")
    client().call_s3("create_multipart_upload", Bucket=bucket, Key=f"{prefix}/large")

    def unfinished_uploads() -> list[str]:
        listing = client().call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
        return [upload["Key"] for upload in listing.get("Uploads", ())]

    store.sweep(0)  # the test's server dates every upload to 2010
    assert unfinished_uploads() == [f"{prefix}/large"]
    store.sweep(time.time())
    assert unfinished_uploads() == []


@pytest.mark.parametrize("missing", ["drops_conditions", "refuses_conditions"])
def test_a_server_without_conditional_writes_is_detected(store: Store, faulty: FaultyProxy, missing: str):
    check_store(store, creates_once=True)
    faulty.faults = Faults(**{missing: True})
    check_store(store, creates_once=False)
    with pytest.raises(ConfigError, match=r"release\.commits_root") as caught:
        check_store(store, creates_once=True)
    assert caught.value.exit_code == 2
    assert [store.create("record", b"1") for _ in range(2)] == [True, True], (
        "records of equal bytes may be created over one another"
    )
    assert store.read("record") == b"1"


@pytest.mark.parametrize(
    ("fault", "words"), [("denied", "AccessDenied|403"), ("unknown", "InvalidAccessKeyId|403")]
)
def test_a_refusal_of_the_store_is_reported_at_once(
    store: Store, faulty: FaultyProxy, fault: str, words: str
):
    faulty.faults = Faults(**{fault: 1.0})
    for operation in (
        lambda: store.read("x"),
        lambda: store.write("x", b""),
        lambda: store.create("x", b""),
        lambda: store.size("x"),
        lambda: store.list(),
    ):
        before = faulty.calls.total()
        with pytest.raises(ConfigError, match=words) as caught:
            operation()
        assert faulty.calls.total() == before + 1, "a retry would not help"
        assert caught.value.exit_code == 2


def test_an_endpoint_that_redirects_every_call_is_named(store: Store, faulty: FaultyProxy):
    faulty.faults = Faults(redirected=1.0)
    for operation in (lambda: store.read("x"), lambda: store.create("x", b""), lambda: store.list()):
        with pytest.raises(ConfigError, match="a redirect for every call; set AWS_ENDPOINT_URL"):
            operation()


def test_a_missing_bucket_is_named(faulty: FaultyProxy):
    nowhere = open_store("s3://no-such-bucket-here/prefix")
    for operation in (
        lambda: nowhere.write("x", b""),
        lambda: nowhere.list(),
        lambda: nowhere.read("x"),
        lambda: nowhere.create("x", b"x" * (LARGE)),
    ):
        with pytest.raises(ConfigError, match=r"no-such-bucket-here.*a bucket that exists"):
            operation()
    assert nowhere.size("x") is None


def test_without_credentials_the_variables_are_named(faulty: FaultyProxy, tmp_path: Path):
    program = (
        "from pipeline.store.files.open_store import open_store; open_store('s3://bucket/x').write('a', b'')"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": faulty.url,
    }
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert "ConfigError: s3://bucket/x/a: expected credentials in the environment" in ended.stderr
    assert faulty.calls.total() == 0


def test_content_with_another_digest_is_refused_after_a_second_read(store: Store, faulty: FaultyProxy):
    store.write("unit", b"tampered")
    for operation in (
        lambda: store.local("unit", "0" * 64),
        lambda: store.open("unit", "0" * 64),
        lambda: store.read_checked("unit", "0" * 64),
    ):
        before = faulty.calls["GET"]
        with pytest.raises(DataError, match="sha256 0000"):
            operation()
        assert faulty.calls["GET"] == before + 2


def test_concurrent_calls_are_limited_to_the_number_of_connections(
    store: Store, faulty: FaultyProxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(
        "MANTA_STORE_TIMEOUT_S", "30"
    )  # a call that the client gave up is still running on the server
    store.write("x", b"1")
    faulty.most_at_work, faulty.faults = 0, Faults(delayed=1.0, delay_s=0.05)
    with ThreadPoolExecutor(80) as pool:
        assert set(pool.map(lambda _: open_store(store.uri).read("x"), range(200))) == {b"1"}
    assert 8 < faulty.most_at_work <= 32


def test_listings_are_complete_and_never_cached(store: Store, faulty: FaultyProxy):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.write(f"many/{number:03d}", b""), range(230)))
    other = open_store(store.uri)
    assert len(store.list("many")) == 230, "three pages of the test's server"
    pages = list(store.pages("many"))
    assert [entry for page in pages for entry in page] == store.list("many")
    assert len(pages) == 3
    other.write("many/new", b"")
    assert len(store.list("many")) == 231
    other.delete("many/new")
    assert (len(store.list("many")), store.exists("many/new")) == (230, False)
    faulty.faults = Faults(throttled=0.4, seed=2)
    assert len(store.list("many")) == 230


def test_keys_that_are_not_valid_paths_are_ignored(store: Store, faulty: FaultyProxy):
    from pipeline.store.files.s3 import client

    bucket, _, prefix = store.uri.removeprefix("s3://").partition("/")
    for key in ("a/../../b", "a//b", "folder/", "a\\b", "good"):
        client().call_s3("put_object", Bucket=bucket, Key=f"{prefix}/{key}", Body=b"")
    assert [entry.path for entry in store.list()] == ["good"]
