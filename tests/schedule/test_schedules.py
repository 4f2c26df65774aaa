"""The tuple of schedules and the names that a plan may carry."""

from typing import get_args

import numpy as np
import pytest

from hetplan.plan import Schedule
from hetplan.schedule.schedules import SCHEDULES


def test_plans_name_the_schedules_of_the_tuple() -> None:
    """A schedule that is added to the tuple is a name that plans accept, and the other way round."""
    assert get_args(Schedule.model_fields["name"].annotation) == tuple(schedule.name for schedule in SCHEDULES)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize(("stages", "num_microbatches"), [(1, 1), (2, 1), (4, 2), (4, 4), (5, 13), (8, 8)])
def test_order_and_levels(schedule: object, stages: int, num_microbatches: int) -> None:
    """Every stage does each forward and backward once, and levels grow along the order and along dependencies."""
    order = schedule.order(stages, num_microbatches)  # type: ignore[attr-defined]
    level = schedule.level(stages, num_microbatches)  # type: ignore[attr-defined]
    m = num_microbatches
    assert (np.sort(order, axis=1) == np.arange(2 * m)).all()
    along = np.take_along_axis(level, order, axis=1)
    assert (np.diff(along, axis=1) > 0).all()
    assert (level[1:, :m] > level[:-1, :m]).all()
    assert (level[:-1, m:] > level[1:, m:]).all()
    assert (level[-1, m:] > level[-1, :m]).all()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize(("stages", "num_microbatches"), [(1, 3), (4, 2), (5, 13)])
def test_in_flight_is_what_the_order_holds(schedule: object, stages: int, num_microbatches: int) -> None:
    """The most forwards without their backward in the order equals `in_flight`."""
    order = schedule.order(stages, num_microbatches)  # type: ignore[attr-defined]
    for stage, row in enumerate(order):
        held = np.cumsum(np.where(row < num_microbatches, 1, -1))
        assert held.max() == schedule.in_flight(stages, stage, num_microbatches)  # type: ignore[attr-defined]
