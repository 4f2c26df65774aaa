"""Pieces of Markdown that generated parts are made of."""

from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def fenced(text: str, language: str = "") -> str:
    """A fenced block."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def console(command: str, output: str) -> str:
    """A command with what it printed."""
    return fenced(f"$ {command}\n{output}", "console")


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
