"""The screens of `show stacks`."""

import pytest

from hetplan.cost.profiles import load_stack
from hetplan.report.stacks import stack_screen, stacks_record, stacks_screen
from tests.report import samples


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_width(width: int) -> None:
    """No line is longer than the width, and no figure is cut."""
    stack, shown = load_stack(), samples.stream(width)
    for lines in (stacks_screen([stack], shown), stack_screen(stack, shown)):
        text = samples.plain(lines)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text


def test_figures_and_sources() -> None:
    """Every figure stands with its unit, and below it where it comes from."""
    text = samples.plain(stack_screen(load_stack(), samples.stream(140)))
    assert "host_per_layer" in text
    assert "300 us  host time" in text
    assert "20 GB/s  device to host copy" in text
    assert " ".join(load_stack().sources["network_share"].split()) in " ".join(text.split())


def test_record() -> None:
    """The record holds the profiles as they are."""
    assert stacks_record([load_stack()]).stacks == (load_stack(),)
