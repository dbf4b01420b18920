"""Signs of headway reach every listener while its block runs, and stop no transfer."""

from pathlib import Path

from pipeline.headway import at_headway, headway


def test_listeners_hear_while_their_block_runs_and_one_that_fails_stops_nobody(tmp_path: Path):
    heard: list[str] = []
    with (tmp_path / "file").open("wb") as closed:
        pass
    gone = tmp_path / "gone" / "mark"
    with at_headway(lambda: heard.append("outer")):
        with (
            at_headway(lambda: heard.append(str(closed.fileno()))),
            at_headway(gone.touch),
            at_headway(lambda: heard.append("inner")),
        ):
            headway()
        headway()
    headway()
    assert heard == ["outer", "inner", "outer"]
