"""Which batch a stage had in hand when a second ended, though lines and seconds come apart."""

from exporter.pipeline.newest_batches import FRESH_SECONDS, NewestBatches
from exporter.records import Mode
from tests.unit.test_pipeline_model import T, decode


def line(at: float, requests: int, pp: int = 0):
    return decode(at, pp=pp, running=requests)


def test_the_newest_line_before_the_end_of_a_second_counts() -> None:
    newest = NewestBatches()
    for at, requests in ((0.2, 4), (0.9, 5), (1.1, 6)):
        newest.fold(line(T + at, requests))
    assert newest.by(T) == {}
    assert newest.by(T + 1) == {0: 5}
    assert newest.by(T + 2) == {0: 6}


def test_lines_a_moment_out_of_order_are_put_in_order() -> None:
    newest = NewestBatches()
    for at, requests in ((1.3, 7), (0.8, 4), (0.7, 3)):
        newest.fold(line(T + at, requests))
    assert newest.by(T + 1) == {0: 4}
    assert newest.by(T + 2) == {0: 7}


def test_an_old_line_says_nothing_and_stages_are_apart() -> None:
    newest = NewestBatches()
    newest.fold(line(T, 4, pp=0))
    newest.fold(line(T + 20, 5, pp=1))
    assert newest.by(T + FRESH_SECONDS + 1) == {1: 5}


def test_a_prefill_counts_with_its_new_requests_and_a_line_without_any_not_at_all() -> None:
    newest = NewestBatches()
    newest.fold(line(T, 9)._replace(mode=Mode.PREFILL, new_seqs=2))
    newest.fold(line(T + 0.1, 9)._replace(running_reqs=None))
    assert newest.by(T + 1) == {0: 2}


def test_lines_of_a_server_whose_seconds_never_settle_are_bounded() -> None:
    newest = NewestBatches()
    for at in range(20_000):
        newest.fold(line(T + at, 1))
    assert len(newest._waiting) == 5_000
