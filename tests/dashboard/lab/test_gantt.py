"""The picture of a run: a lane for each worker, its waits, kills and what was done again."""

from dashboard.lab import charts
from dashboard.lab.measure import Span


def span(worker: int, began: float, ended: float, *, wait: float = 0.0, kind: str = "effect", again: bool = False):
    return Span(worker, 7, kind, began, ended, wait, again)


def test_work_waits_repetitions_and_kills_stand_in_their_lanes():
    kill = span(1, 1.5, 1.5, kind="kill")
    drawn = charts.draw_gantt([span(0, 0.0, 0.5), span(1, 1.0, 2.0, wait=0.5, again=True), kill], workers=3)
    assert [(bar.style, bar.x, bar.width) for bar in drawn.bars] == [
        ("work", 0, 2500),
        ("wait", 2500, 2500),
        ("duplicate", 5000, 5000),
    ]
    assert len({bar.y for bar in drawn.bars}) == 2
    assert [(cross.x, drawn.bars[1].y < cross.y < drawn.bars[1].y + drawn.bar) for cross in drawn.crosses] == [
        (7500, True)
    ]
    assert "3 workers, 1 items in 2.0 s; 1 done again, 1 kills." in drawn.summary


def test_a_worker_that_did_nothing_has_a_lane():
    drawn = charts.draw_gantt([span(3, 0.0, 1.0)], workers=4)
    assert [worker for worker, _ in drawn.names] == [0, 1, 2, 3]
    assert drawn.high == 4 * charts.LANE
