"""Methods by name: two owners of one name are a defect; an unknown name gets similar ones as suggestions."""

import sys
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, Defect
from pipeline.objectives import OBJECTIVES
from pipeline.registry import Registry


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package on disk with two modules, each of which registers one name."""
    folder = tmp_path / "kinds_of_fruit"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from pipeline.registry import Registry\nFRUIT = Registry('fruit', __name__)\n"
    )
    for name in ("apple", "banana"):
        (folder / f"{name}.py").write_text(
            f"from kinds_of_fruit import FRUIT\n\n@FRUIT.register('{name}')\nclass Kind:\n    pass\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "kinds_of_fruit"
    for module in [name for name in sys.modules if name.split(".")[0] == "kinds_of_fruit"]:
        del sys.modules[module]


def test_a_new_file_is_registered_without_a_list_of_modules(package: str) -> None:
    fruit = __import__(package).FRUIT
    assert "kinds_of_fruit.apple" not in sys.modules, "modules are imported at the first look-up"
    assert fruit.names() == ["apple", "banana"]
    assert fruit["banana"].__module__ == "kinds_of_fruit.banana"


def test_an_unknown_name_gets_the_nearest_as_a_suggestion(package: str) -> None:
    with pytest.raises(ConfigError, match="did you mean 'banana'"):
        __import__(package).FRUIT["bananna"]
    with pytest.raises(ConfigError, match="known: apple, banana"):
        __import__(package).FRUIT["zucchini"]


def test_a_name_is_registered_once_but_its_module_can_be_reloaded() -> None:
    registry: Registry[type] = Registry("thing", "pipeline.stats")
    first = type("Thing", (), {})
    registry.register("one")(first)
    registry.register("one")(type("Thing", (), {}))
    with pytest.raises(Defect, match="one owner"):
        registry.register("one")(type("Other", (), {}))


def test_a_module_that_fails_to_import_fails_again(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "cherry.py").write_text("import a_module_that_is_not_there\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
            __import__(package).FRUIT.names()


def test_the_error_for_an_unknown_name_has_the_right_article() -> None:
    with pytest.raises(ConfigError, match="expected the name of an objective"):
        OBJECTIVES["no such objective"]
