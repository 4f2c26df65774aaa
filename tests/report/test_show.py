"""Listing accelerators and schedules."""

import pytest

from hetplan.errors import SpecError
from hetplan.report.show import (
    SORT_KEYS,
    accelerator_screen,
    accelerators_record,
    accelerators_screen,
    schedules_record,
    schedules_screen,
    select_accelerators,
)
from hetplan.schedule.schedules import SCHEDULES
from hetplan.specs.catalog import all_accelerators
from tests.report import samples
from tests.report.screens import SHEETS


def names(**options: str) -> list[str]:
    """Names in the order selected."""
    return [spec.name for spec in select_accelerators(SHEETS, **options)]


def test_selection() -> None:
    """Largest first by the key, by name where the key is the name; a format leaves out what cannot run in it."""
    assert names() == ["mi300x-192gb", "a100-sxm4-80gb", "a30", "v100-sxm2-32gb"]
    assert names(supports="fp16", sort="name") == ["a100-sxm4-80gb", "a30", "mi300x-192gb", "v100-sxm2-32gb"]
    assert names(supports="bf16", sort="price") == ["a100-sxm4-80gb", "a30", "mi300x-192gb"]
    assert names(supports="fp8") == ["mi300x-192gb"]
    assert names(supports="nvfp4") == []
    assert names(sort="memory") == ["mi300x-192gb", "a100-sxm4-80gb", "v100-sxm2-32gb", "a30"]


@pytest.mark.parametrize(
    ("options", "flag", "hint"),
    [
        ({"supports": "bf61"}, "--supports", "bf16"),
        ({"sort": "size"}, "--sort", "price"),
        ({"sort": "pirce"}, "--sort", "price"),
    ],
)
def test_wrong_options(options: dict[str, str], flag: str, hint: str) -> None:
    """An unknown format or key names those that exist."""
    with pytest.raises(SpecError) as caught:
        select_accelerators(SHEETS, **options)
    assert caught.value.mistakes[0].key == flag
    assert hint in caught.value.mistakes[0].hint


def test_estimates_are_marked() -> None:
    """A rate that nobody measured has a tilde; what cannot run in the format has no rate."""
    text = samples.plain(accelerators_screen(SHEETS, samples.stream(140), total=55))
    rows = {line.split()[0]: line.split() for line in text.splitlines()[3:7]}
    assert rows["a100-sxm4-80gb"][2:3] == ["271"]
    assert rows["a30"][2] == "~116"
    assert rows["v100-sxm2-32gb"][2] == "-"
    assert "4 of 55" in text


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("key", SORT_KEYS)
def test_the_whole_catalogue_fits(key: str, width: int) -> None:
    """Every datasheet fits in one line at every width, and shows its figures."""
    specs = select_accelerators(all_accelerators(), sort=key)
    lines = samples.plain(accelerators_screen(specs, samples.stream(width), total=len(specs))).splitlines()
    assert all(len(line) <= width for line in lines)
    assert [line.split()[0] for line in lines[3 : 3 + len(specs)]] == [spec.name for spec in specs]


def test_formats_outlive_the_peak() -> None:
    """At 80 columns the formats are still there."""
    text = samples.plain(accelerators_screen(all_accelerators(), samples.stream(80), total=55))
    assert "formats" in text


@pytest.mark.parametrize("spec", all_accelerators(), ids=lambda spec: spec.name)
def test_every_datasheet_shows_its_sources(spec: object) -> None:
    """Every source of the datasheet is on its screen, and no line is too long."""
    sheet = next(s for s in all_accelerators() if s == spec)
    text = samples.plain(accelerator_screen(sheet, samples.stream(80)))
    squeezed = "".join(text.split())
    for source in sheet.sources.values():
        assert "".join(source.split()) in squeezed
    assert all(len(line) <= 80 for line in text.splitlines())


def test_schedules() -> None:
    """One row for each schedule there is."""
    record = schedules_record()
    assert [row.name for row in record.schedules] == [schedule.name for schedule in SCHEDULES]
    assert "1f1b" in samples.plain(schedules_screen(record, samples.stream(80)))


def test_empty_listing() -> None:
    """A format that nothing supports lists nothing, and says so."""
    text = samples.plain(accelerators_screen((), samples.stream(80), total=55, supports="nvfp4"))
    assert "0 of 55" in text
    assert accelerators_record(()).accelerators == ()
