"""The shared options and the training flags."""

from typing import get_args

from hetplan.cli.kinds import Choice, Whole
from hetplan.cli.options import Flag, training_flags
from hetplan.specs.accelerator import Format
from hetplan.specs.training import Optimizer, TrainingSpec
from tests.cli.runner import Run


def test_one_flag_for_each_training_value(run: Run) -> None:
    """Every training value has its flag, in `search` and in `predict`, with the limits of the file."""
    flags = training_flags()
    assert list(flags) == list(TrainingSpec.model_fields)
    for command in ("search", "predict"):
        text = run(command, "--help").out
        for name in flags:
            assert f"--{name.replace('_', '-')} " in text
    kinds = {name: flag.kind for name, (flag, _) in flags.items() if isinstance(flag, Flag)}
    assert kinds["global_batch_size"] == Whole(least=1, most=10_000_000)
    assert kinds["precision"] == Choice(get_args(Format))
    assert kinds["optimizer"] == Choice(get_args(Optimizer))


def test_help_shows_defaults(run: Run) -> None:
    """Defaults stand in the help as they would be written."""
    text = " ".join(run("search", "--help").out.split())
    for part in (
        "[default: 5]",
        "[default: 0.001]",
        "[default: 60]",
        "[default: highs]",
        "[default: those the stack runs]",
    ):
        assert part in text
    assert "None" not in text
