"""Words for what a plan is: schedules in short."""

from typing import Any

import pytest

from hetplan.plan import Schedule
from hetplan.report.measures import schedule_text


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({}, "1f1b"),
        ({"warmup": (4, 2, 0)}, "1f1b+4"),
        ({"name": "gpipe"}, "gpipe"),
        ({"name": "interleaved-1f1b", "virtual_stages": 4}, "interleaved-1f1b×4"),
        ({"name": "breadth-first", "virtual_stages": 2}, "breadth-first×2"),
        ({"name": "zb-h1"}, "zb-h1"),
        ({"name": "zb-v", "virtual_stages": 2}, "zb-v"),
        ({"name": "dualpipe", "virtual_stages": 2}, "dualpipe"),
    ],
)
def test_schedules_in_short(entry: dict[str, Any], text: str) -> None:
    """The deepest warm-up beyond plain 1F1B, and chunks per stage where there could be another number of them."""
    assert schedule_text(Schedule.model_validate(entry)) == text
