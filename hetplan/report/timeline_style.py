"""Colours and names of the timeline, for light and dark grounds.

Useful work is one hue in several depths, overhead has others. Nothing is told by colour alone: recompute is striped,
weight gradients have upright lines, gradient sync level ones, idle time dots, and transfers stand in a thin row of
their own. Marks have a WCAG contrast of at least 3 with the ground, texts of at least 4.5, and the depths of the one
hue differ by at least 1.6 from each other.
"""

from dataclasses import dataclass

from hetplan.prediction import TRACE_KINDS, TraceKind
from hetplan.report.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours on one ground."""

    ground: str
    ink: str
    quiet: str
    line: str
    idle: str
    marks: dict[TraceKind, str]
    texts: dict[TraceKind, str]
    """Of numbers in blocks."""


LIGHT = Theme(
    ground="#ffffff",
    ink="#1b1f24",
    quiet="#57606a",
    line="#d5dae1",
    idle="#eef1f4",
    marks={
        "forward": "#3f87d4",
        "recompute": "#b85c00",
        "backward": "#1b4a84",
        "weight": "#0b2545",
        "transfer": "#0f766e",
        "gradient_sync": "#8a2fb0",
        "optimizer": "#262c34",
    },
    texts={"forward": "#10151b", "backward": "#ffffff", "weight": "#ffffff"},
)
DARK = Theme(
    ground="#14171c",
    ink="#e6e9ee",
    quiet="#9aa4b1",
    line="#333a44",
    idle="#20252c",
    marks={
        "forward": "#b3d7ff",
        "recompute": "#f0a24a",
        "backward": "#4b8bd4",
        "weight": "#2a66a8",
        "transfer": "#3fd0b4",
        "gradient_sync": "#c77dea",
        "optimizer": "#e6e9ee",
    },
    texts={"forward": "#10151b", "backward": "#10151b", "weight": "#ffffff"},
)
FONT = 'system-ui,"Segoe UI",Roboto,"Liberation Sans",sans-serif'
MONO = 'ui-monospace,"JetBrains Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace'


def kind_name(kind: TraceKind, shown: Timeline) -> str:
    """What a kind is called; the backward pass is that of the inputs where the weights' is apart."""
    if kind == "backward" and "weight" in shown.kinds:
        return "input gradient"
    return {"weight": "weight gradient", "gradient_sync": "gradient sync"}.get(kind, kind)


def css_variables(selector: str) -> str:
    """Both themes as custom properties, chosen by what the reader's system prefers."""
    light, dark = (
        ";".join(f"--{name}:{colour}" for name, colour in _properties(theme).items()) for theme in (LIGHT, DARK)
    )
    return (
        f"{selector}{{{light};color-scheme:light}}\n"
        f"@media (prefers-color-scheme:dark){{{selector}{{{dark};color-scheme:dark}}}}\n"
    )


def _properties(theme: Theme) -> dict[str, str]:
    plain = {"ground": theme.ground, "ink": theme.ink, "quiet": theme.quiet, "line": theme.line, "idle": theme.idle}
    marks = {css_name(kind): theme.marks[kind] for kind in TRACE_KINDS}
    texts = {f"on-{css_name(kind)}": colour for kind, colour in theme.texts.items()}
    return plain | marks | texts


def css_name(kind: TraceKind) -> str:
    """A kind in names of classes and properties."""
    return kind.replace("_", "-")
