"""A keep-alive signal reaches every listener whose block runs; an error of a listener ends no transfer."""

from pathlib import Path

from pipeline.keep_alive import keep_alive, on_keep_alive


def test_listeners_are_called_within_their_block_even_if_another_fails(tmp_path: Path):
    heard: list[str] = []
    with (tmp_path / "file").open("wb") as closed:
        pass
    gone = tmp_path / "gone" / "mark"
    with on_keep_alive(lambda: heard.append("outer")):
        with (
            on_keep_alive(lambda: heard.append(str(closed.fileno()))),
            on_keep_alive(gone.touch),
            on_keep_alive(lambda: heard.append("inner")),
        ):
            keep_alive()
        keep_alive()
    keep_alive()
    assert heard == ["outer", "inner", "outer"]
