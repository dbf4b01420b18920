"""A follower tries a damaged release again, after pauses that grow up to a limit."""

from pipeline.serve.follow import pause_s


def test_pauses_double_up_to_ten_minutes_whatever_the_number_of_failures():
    pauses = [pause_s(30, failures) for failures in range(1, 3_000)]
    assert pauses[:5] == [60, 120, 240, 480, 600]
    assert set(pauses[5:]) == {600}
    assert pause_s(0.1, 1) == 0.2
