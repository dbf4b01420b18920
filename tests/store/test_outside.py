"""No path leaves the root, no URI with credentials is accepted, a full disk is reported, and no stored file
is unpickled.
"""

import ast
import errno
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from pipeline import config, yaml_tree
from pipeline.errors import ConfigError, DataError, PipelineError, TransientError
from pipeline.models.folder.locate import locate
from pipeline.store.files.base import Store
from pipeline.store.files.disk import temporary_folder, translate_disk_errors
from pipeline.store.files.open_store import open_store

ROOT = Path(__file__).parent.parent.parent
OUTSIDE = ["../x", "a/../../x", "/etc/passwd", "..", "a\\..\\x", "a\0b", ""]


@pytest.fixture(params=["local", "s3", "az", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(tmp_path / "root")
    if request.param in ("az", "gs"):
        return open_store(f"{request.param}://bucket/root")
    return open_store(f"{request.getfixturevalue('s3')}/{tmp_path.name}/root")


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_operation_takes_a_path_that_leaves_the_root(store: Store, path: str, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"1")
    operations = [
        lambda: store.read(path),
        lambda: store.write(path, b""),
        lambda: store.create(path, b""),
        lambda: store.put(tmp_path / "file", path),
        lambda: store.open(path),
        lambda: store.local(path),
        lambda: store.size(path),
        lambda: store.delete(path),
        lambda: store.uri_of(path),
        lambda: store.fetch(path, tmp_path / "copy"),
        lambda: store.read_checked(path, "0" * 64),
        *([lambda: store.list(path)] if path else []),
    ]
    for operation in operations:
        with pytest.raises(DataError, match="below the root"):
            operation()
    assert (tmp_path / "file").exists()
    assert not (tmp_path / "x").exists()


def test_a_link_that_leads_out_of_the_root_is_not_followed(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"secret")
    store = open_store(tmp_path / "root")
    store.write("inside/key", b"open")
    for name, target in {
        "folder": secret,
        "file": secret / "key",
        "within": tmp_path / "root" / "inside",
    }.items():
        (tmp_path / "root" / name).symlink_to(target)
    reading, writing = (store.read, store.open, store.local, store.size), (store.write, store.create)
    for path in ("folder/key", "file"):
        for operation in (*reading, *(partial(verb, data=b"x") for verb in writing)):
            with pytest.raises(DataError, match="a link to"):
                operation(path)
    assert store.read("within/key") == b"open"
    assert [entry.path for entry in store.list()] == ["inside/key"]
    store.delete("file")
    assert not (tmp_path / "root" / "file").is_symlink()
    assert (secret / "key").read_bytes() == b"secret"


def test_a_root_may_be_a_symbolic_link(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    store = open_store(tmp_path / "root")
    store.write("a/b", b"1")
    assert store.read("a/b") == b"1"
    assert [entry.path for entry in store.list()] == ["a/b"]


def test_keys_with_parent_folders_are_not_copied(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from pipeline.store.files.s3 import client

    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache" / "deep"))
    for key in ("config.json", "../../../../climbed.json", "a\\b.json"):
        client().call_s3(
            "put_object", Bucket=s3.removeprefix("s3://"), Key=f"{tmp_path.name}/{key}", Body=b"{}"
        )
    folder = locate(f"{s3}/{tmp_path.name}")
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    assert not list(tmp_path.rglob("climbed.json"))


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIASECRET:pass/word@bucket/prefix",
        "s3://AKIASECRET:pass@bucket",
        "s3://pass@bucket/x",
        "s3://bucket/x?key=AKIASECRET&secret=pass",
        "s3://bucket?token=pass",
        "https://user:pass@host/file.parquet",
        "s3://AKIASECRET:pass/word+more/x@bucket/prefix",
    ],
)
def test_a_uri_with_credentials_is_refused_without_showing_them(uri: str):
    with pytest.raises(ConfigError, match="environment") as caught:
        open_store(uri)
    assert caught.value.exit_code == 2
    assert not [
        word
        for word in ("AKIASECRET", "pass/", "pass@", "word")
        if word in str(caught.value).replace("user, password", "")
    ]


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/a@b/c",
        "s3://bucket",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name/prefix",
        "memory://a/b:c",
    ],
)
def test_uris_without_credentials_are_accepted(uri: str):
    assert open_store(uri).uri == uri


@pytest.mark.parametrize(
    "setting", ["release.root", "release.commits_root", "corpus.uri", "encoder.path", "whiten.dev"]
)
def test_settings_with_credentials_in_a_uri_end_a_job_with_2_and_are_not_shown(setting: str, tmp_path: Path):
    for job in ("preflight", "nightly") if setting == "corpus.uri" else ("nightly",):
        overrides = [
            f"release.root={tmp_path / 'releases'}",
            f"corpus.uri={tmp_path}",
            f"{setting}=s3://AKIASECRET:hush/hush@bucket/prefix",
        ]
        ended = subprocess.run(
            [sys.executable, "-m", "jobs.cli", job, *overrides, "--json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 2, ended.stderr
        assert not [word for word in ("AKIASECRET", "hush") if word in ended.stdout + ended.stderr]
    assert not list(tmp_path.rglob("*.json"))


def test_globs_are_not_taken_for_query_strings():
    config.refuse_credentials("s3://bucket/year=202?/month=1/part-?.parquet")
    config.refuse_credentials("https://host:8080/file.parquet?version=3")


def test_a_full_disk_leaves_no_partial_file(tmp_path: Path):
    """A limit on the size of files replaces a full disk: writes fail in the middle, as on a full disk."""
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from pipeline.store.files.open_store import open_store\n"
        "from pipeline.errors import TransientError; import os\n"
        "store = open_store(sys.argv[1]); large = b'x' * 200_000\n"
        "Path(sys.argv[1] + '-file').write_bytes(large)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "def unlinked(*_): raise OSError(1, 'no links here')\n"
        "def scratch():\n"
        "    import pyarrow as pa, pyarrow.parquet as pq\n"
        "    with store.scratch() as folder: pq.write_table(pa.table({'a': [os.urandom(200_000)]}), "
        "folder / 'u.parquet')\n"
        "for work in (lambda: store.write('a', large), lambda: store.create('b', large), scratch, "
        "lambda: (setattr(os, 'link', unlinked), store.create('c', large))):\n"
        "    try: work(); print('no error')\n"
        "    except TransientError as error: print(error.exit_code, error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "root")], capture_output=True, text=True, check=False
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == 4, ended.stderr
    assert all(line.startswith("75 ") and "space for a new file" in line for line in lines), lines
    assert open_store(tmp_path / "root").list() == []
    assert not [path for path in (tmp_path / "root").rglob("*") if path.is_file()], (
        "no temporary file is left either"
    )


@pytest.mark.parametrize("path", ["a", "b/c"])
def test_a_root_that_is_a_file_is_named(tmp_path: Path, path: str):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(ConfigError, match="expected a directory, found a file"):
        open_store(tmp_path / "root").write(path, b"x")
    with (
        pytest.raises(ConfigError, match="check the path and its permissions"),
        translate_disk_errors("/somewhere"),
    ):
        raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error in faiss: write error: No space left on device"),
        RuntimeError("Error in faiss: write error: File too large"),
        RuntimeError("IOError: Error writing bytes to file. Detail: Disk quota exceeded"),
    ],
)
def test_a_full_disk_is_recognized_in_errors_of_every_library(error: Exception):
    with pytest.raises(TransientError, match="free disk space"), translate_disk_errors("/somewhere"):
        raise error
    with pytest.raises(TransientError, match="a disk that answers"), translate_disk_errors("/somewhere"):
        raise OSError(errno.EIO, "Input/output error")
    with pytest.raises(KeyError), translate_disk_errors("/somewhere"):
        raise KeyError("x")


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EROFS, 2), (errno.EACCES, 2), (errno.ENOSPC, 75), (errno.EIO, 75)]
)
def test_no_new_folder_or_file_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
):
    store = open_store(tmp_path / "root")
    store.write("a", b"x")

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    def make_scratch() -> None:
        with store.scratch():
            pass

    def make_temporary() -> None:
        with temporary_folder("manta-"):
            pass

    for name in ("mkdir", "unlink"):
        monkeypatch.setattr(os, name, fail)
    for call in (make_scratch, make_temporary, lambda: store.delete("a"), lambda: store.write("new/a", b"")):
        with pytest.raises(PipelineError) as caught:
            call()
        assert caught.value.exit_code == code


@pytest.mark.parametrize("operation", ["write", "create", "put"])
def test_a_root_that_is_removed_while_a_file_is_written_is_a_transient_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
):
    store, plain = open_store(tmp_path / "root"), os.fsync
    (tmp_path / "file").write_bytes(b"x")
    content = tmp_path / "file" if operation == "put" else b"x"
    arguments = (content, "folder/name") if operation == "put" else ("folder/name", content)
    monkeypatch.setattr(os, "fsync", lambda file: (plain(file), shutil.rmtree(tmp_path / "root", True)))
    with pytest.raises(TransientError, match="a folder that stays while files are written"):
        getattr(store, operation)(*arguments)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_file_system_is_a_transient_error(tmp_path: Path):
    tmp_path.joinpath("root").mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path / "root")],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip(f"mounting is not permitted here: {mount.stderr.strip()}")
    try:
        store = open_store(tmp_path / "root")
        store.write("fits", b"1" * 100_000)
        for operation in (
            lambda: store.write("a", b"x" * 2_000_000),
            lambda: store.create("b", b"x" * 2_000_000),
        ):
            with pytest.raises(TransientError, match="No space left"):
                operation()
        assert [entry.path for entry in store.list()] == ["fits"]
        store.write("fits", b"2" * 100_000)
        assert store.read("fits") == b"2" * 100_000
    finally:
        subprocess.run(["umount", str(tmp_path / "root")], check=True)


def unsafe_calls(source: Path) -> list[str]:
    """List the calls of a module that could run code from a file."""
    calls = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call)]
    unsafe = [
        call
        for call in calls
        if _is_unsafe(
            ast.unparse(call.func), {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        )
    ]
    return [f"{source.relative_to(ROOT)}: {ast.unparse(call)[:80]}" for call in unsafe]


def _is_unsafe(function: str, options: dict[str | None, str]) -> bool:
    module, _, name = function.rpartition(".")
    if module in ("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle") and name in (
        "load",
        "loads",
        "Unpickler",
        "open",
    ):
        return True
    if module == "torch" and name == "load":
        return options.get("weights_only") != "True"
    if module in ("np", "numpy") and name == "load":
        return options.get("allow_pickle", "False") != "False"
    return function in (
        "eval",
        "exec",
        "yaml.load",
        "yaml.unsafe_load",
        "pd.read_pickle",
        "pandas.read_pickle",
        "Unpickler",
    )


def test_no_file_of_a_store_is_unpickled():
    calls = [
        call
        for top in ("pipeline", "jobs")
        for source in sorted((ROOT / top).rglob("*.py"))
        for call in unsafe_calls(source)
    ]
    # these load bytes that another process of the job sent, never a stored file
    between_processes = tuple(
        f"pipeline/flows/workers/{name}.py: pickle.loads("
        for name in ("check_nodes", "ray_pool", "local", "tasks")
    )
    calls_between_processes = [call for call in calls if call.startswith(between_processes)]
    assert calls_between_processes
    assert issubclass(yaml_tree._Loader, yaml.SafeLoader)
    assert set(calls) == set(calls_between_processes)
