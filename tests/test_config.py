"""Settings equal their YAML and can be pickled; unknown keys and values are refused with a suggestion."""

import contextlib
import pickle
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.cli import app
from pipeline.config import load_settings, refuse_credentials, to_yaml
from pipeline.errors import ConfigError, DataError, GatesRefused, PipelineError, PublishConflict, RootHeld
from pipeline.settings import Job
from pipeline.targets.target import TARGETS

CONFIGS = Path(__file__).parent.parent / "jobs" / "configs"


def write(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(text)
    return file


def test_settings_equal_their_yaml(tmp_path: Path):
    job = load_settings(Job, None, ("encode.unit_rows=5", "corpus.keep=[lang, url]"))
    assert load_settings(Job, write(tmp_path, to_yaml(job))) == job
    assert pickle.loads(pickle.dumps(job)) == job


def test_overrides_take_precedence_over_the_file(tmp_path: Path):
    file = write(tmp_path, "corpus: {uri: data, id: key}\nindex: {kind: flat}\n")
    job = load_settings(Job, file, ("corpus.uri=s3://bucket/*.parquet", "index.nlist=64", "whiten.k="))
    assert (job.corpus.uri, job.corpus.id, job.index.kind, job.index.nlist, job.whiten.k) == (
        "s3://bucket/*.parquet",
        "key",
        "flat",
        64,
        None,
    )


def test_a_repeated_key_is_refused(tmp_path: Path):
    file = write(tmp_path, "corpus: {uri: data}\nindex:\n  kind: flat\n  kind: hnsw\n")
    with pytest.raises(
        ConfigError, match=r"line 3 of .*job\.yaml: expected every key once, found 'kind' more than once"
    ):
        load_settings(Job, file)
    with pytest.raises(ConfigError, match=r"line 1 of argument 'evaluate\.own=.*'uri' more than once"):
        load_settings(Job, None, ("evaluate.own=[{kind: sts, uri: a, uri: b}]",))


def test_an_unknown_key_inside_a_list_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'name'"):
        load_settings(Job, None, ("evaluate.candidates=[{nme: a}]",))


def test_an_error_says_whether_the_file_or_the_command_line_holds_the_value(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text("index: {kind: hnws}\n")
    with pytest.raises(ConfigError, match=r"job\.yaml: index\.kind: "):
        load_settings(Job, file, ("encode.unit_rows=5000",))
    file.write_text("index: {kind: hnsw}\n")
    for argument in ("encode.unt_rows=5", "encode={unt_rows: 5}", "encode.unit_rows=.inf"):
        with pytest.raises(ConfigError, match=r"^command line: encode\.un"):
            load_settings(Job, file, (argument,))


@pytest.mark.parametrize(("word", "mode"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("'off'", "off")])
def test_on_and_off_are_read_as_strings(tmp_path: Path, word: str, mode: str):
    assert load_settings(Job, write(tmp_path, f"whiten: {{mode: {word}}}")).whiten.mode == mode
    assert load_settings(Job, None, (f"whiten.mode={word}",)).whiten.mode == mode


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("encode.unt_rows=5", "encode.unt_rows.*did you mean 'unit_rows'"),
        ("corpsu.uri=x", "did you mean 'corpus'"),
        ("encode.unit_rows=0", "encode.unit_rows.*greater than or equal to 1, found 0"),
        ("encode.unit_rows=many", "encode.unit_rows.*integer.*'many'"),
        ("whiten.mode=maybe", "whiten.mode.*'auto', 'on' or 'off'"),
        ("corpus.keep=[a, a]", "each column once"),
        ("corpus.keep=[vector]", "vector"),
        ("corpus.keep=[score, text]", "leave out score"),
        ("corpus={id: key, keep: [id]}", "leave out id"),
        ("corpus.id=vector", "corpus.id to be another column than vector"),
        ("corpus.id=text_key", "corpus.id to be another column than text_key"),
        ("augment.keep.similarity={low: 0.8}", "similarity: expected a list, found"),
        ("just words", "key.path=value"),
        ("a..b=1", "key.path=value"),
        (
            "whiten.k=devv",
            (
                r"whiten\.k: expected a valid integer, or one of 'dev' or 'likelihood', found "
                r"'devv'; did you mean 'dev'\?$"
            ),
        ),
        (
            "index.kind=hnws",
            (
                r"index\.kind: expected one of 'auto', .* or a faiss factory string such as IVF1024,PQ48x8, "
                r"found 'hnws'; did you mean 'hnsw'\?$"
            ),
        ),
        ("encode.threads=100000", r"encode\.threads: .* less than or equal to 1024"),
        ("index.seed=3000000000", r"index\.seed: .* less than 2147483648"),
        ("encoder.template=x", r"\[X\] once, 'x' has it 0 times, found 'x'; correct the value"),
        (
            "whiten.shrinkage=2",
            (
                r"whiten\.shrinkage: expected a value less than or equal to 1, or "
                r"'auto', found 2;"
            ),
        ),
        (
            "train.optimizer.learning_rate=.inf",
            r"train\.optimizer\.learning_rate: expected a finite number, found inf;",
        ),
        (
            "train.objective={name: simcse, options: {temperature: .nan}}",
            r"train\.objective\.options\.temperature: expected a finite number, found nan;",
        ),
        ("train.objective=[]", r"train\.objective: expected at least 1 item"),
        ("train.optimizer.betas=[0.9, 1.5]", r"train\.optimizer\.betas\.1: .*less than 1, found 1\.5"),
        ("train.data={uri: x, columns: {txt: a}}", "a known role instead of 'txt'; did you mean 'text'"),
    ],
)
def test_an_invalid_setting_is_named_with_its_path(override: str, words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        load_settings(Job, None, (override,))
    assert caught.value.exit_code == 2


def test_a_section_whose_settings_contradict_each_other_is_shown_in_part(tmp_path: Path):
    file = write(tmp_path, to_yaml(Job()))
    with pytest.raises(ConfigError, match="at most one new encoder") as refused:
        load_settings(Job, file, ("train.recurrent.cell=gru", "train.dan.width=8"))
    assert refused.value.found.endswith(" ...")
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("text", "words"),
    [("corpus: [", "readable YAML"), ("- a\n- b\n", "a mapping of sections"), ("corpus: 3", "corpus")],
)
def test_a_file_without_job_settings_is_named(tmp_path: Path, text: str, words: str):
    with pytest.raises(ConfigError, match=words):
        load_settings(Job, write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "\n".join(
                [
                    f"k{number}: &a{number} [{', '.join(9 * [f'*a{number - 1}'])}]"
                    if number
                    else "k0: &a0 [x, x]"
                    for number in range(30)
                ]
            ),
            "more than 100,000 values",
        ),
        ("a: " + 3_000 * "[" + 3_000 * "]", "RecursionError"),
        ("release: {root: 2026-99-99}", "month must be in 1..12"),
        ("a: &a [*a]", "line 1: an alias inside of the value of its own anchor"),
    ],
)
def test_a_huge_or_unreadable_file_is_refused(tmp_path: Path, text: str, words: str):
    with pytest.raises(ConfigError, match=words):
        load_settings(Job, write(tmp_path, text))


def test_a_secret_in_an_argument_without_a_key_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        load_settings(Job, None, ("s3://AKIAKEY:SECRET@bucket/corpus",))
    assert "SECRET" not in str(caught.value)
    assert "credentials come from the environment" in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "variables", "named"),
    [
        ("s3://AKIAKEY:SECRET@bucket/x", "", "AWS_ACCESS_KEY_ID"),
        ("corpus.uri=gs://me:SECRET@bucket/x", "", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfs://me:SECRET@bucket/x", "", "AZURE_STORAGE_CONNECTION_STRING"),
        ("hf://datasets/x/y?token=SECRET", "", "HF_TOKEN"),
        ("sftp://me:SECRET@host/x", "", "credentials come from the environment"),
        *(
            ("https://me:SECRET@host:1/x", TARGETS[name].credentials, TARGETS[name].credentials)
            for name in TARGETS.names()
        ),
    ],
)
def test_a_refused_secret_names_the_variables_of_the_system_that_it_is_for(
    uri: str, variables: str, named: str
):
    with pytest.raises(ConfigError) as caught:
        refuse_credentials(uri, variables)
    assert named in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert ("AWS" in str(caught.value)) == (named == "AWS_ACCESS_KEY_ID")


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "ABFSS", "corpus.uri=Abfs"])
def test_the_container_of_an_azure_uri_is_no_user(scheme: str):
    refuse_credentials(f"{scheme}://container@account.dfs.core.windows.net/docs")


@pytest.mark.parametrize(
    "file", ["s3://AKIAKEY:SECRET@bucket/night.yaml", "s3://AKIAKEY:SECRET@bucket/night"]
)
def test_a_secret_in_the_uri_of_the_settings_file_is_not_shown(file: str):
    for read in (lambda: load_settings(Job, Path(file)), lambda: load_settings(Job, file)):
        with pytest.raises(ConfigError, match="credentials come from the environment") as caught:
            read()
        assert "SECRET" not in str(caught.value)
    ended = CliRunner().invoke(app, ["nightly", "--config", file])
    assert (ended.exit_code, "SECRET" in ended.output + ended.stderr) == (2, False)
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(Job, "s3://bucket/night.yaml")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(Job, tmp_path / "none.yaml")


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.yaml")), ids=lambda file: file.name)
def test_every_shipped_config_loads(file: Path):
    load_settings(Job, file)


def test_the_reference_config_holds_every_key_with_its_default_and_a_comment():
    file = CONFIGS / "nightly.yaml"
    assert load_settings(Job, file) == Job()
    assert file.read_text() == to_yaml(Job()), (
        "manta nightly --print-config > jobs/configs/nightly.yaml writes it"
    )
    lines = ["", *file.read_text().splitlines()]
    keys = [number for number, line in enumerate(lines) if line and not line.lstrip().startswith("#")]
    assert len(keys) > 100
    assert [lines[number] for number in keys if not lines[number - 1].lstrip().startswith("#")] == []


@pytest.mark.parametrize(
    "error",
    [
        DataError("file", "a column 'id'", "the columns a, b", "set corpus.id"),
        GatesRefused("candidates/abc", ("recall_at_10 0.81 < 0.95",), {"recall_at_10": 0.81}, ({"k": 8},)),
        RootHeld(3, "2026-11-22T11:24:05Z", "/srv/manta", "a bad encoder"),
        PublishConflict(3, "abc"),
        PipelineError("words"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_pickle_with_all_fields(error: PipelineError):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


_TAGS = (
    "",
    *(
        f"!!{name}"
        for name in [
            "bool",
            "int",
            "float",
            "null",
            "timestamp",
            "binary",
            "str",
            "omap",
            "pairs",
            "set",
            "seq",
            "map",
        ]
    ),
)
_SCALARS = (
    *("x", '""', "1", "0x" + "f" * 5_000, "[0x" + "f" * 5_000 + "]", "[1]", "{a: 1}", "{1: 2}", "2026-01-01"),
    *("2026-99-99", "1e999", "[{a: 1}]", "{2026-01-01: 2}", "{[1]: 2}", "~", "<<", "="),
)


@pytest.mark.parametrize("tag", _TAGS)
def test_no_tag_and_no_scalar_of_yaml_is_an_internal_error(tmp_path: Path, tag: str):
    for key in ("corpus", "corpus.uri", "encode.unit_rows", "gates.recall_at_10", "train.data"):
        section, _, name = key.partition(".")
        for scalar in _SCALARS:
            value = f"{tag} {scalar}".strip()
            with contextlib.suppress(ConfigError):
                load_settings(Job, None, (f"{key}={value}",))
            file = write(tmp_path, f"{section}:\n  {name}: {value}\n" if name else f"{key}: {value}\n")
            with contextlib.suppress(ConfigError):
                load_settings(Job, file)


@pytest.mark.parametrize("value", ["!!bool x", "!!timestamp x", '!!int ""', "0x" + "f" * 5_000])
def test_a_value_that_does_not_fit_its_tag_is_named(tmp_path: Path, value: str):
    with pytest.raises(ConfigError, match=r"job\.yaml: expected readable YAML"):
        load_settings(Job, write(tmp_path, f"encode:\n  unit_rows: {value}\n"))
