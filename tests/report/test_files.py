"""Reading and writing the files that commands name."""

import io
import os
import stat
import sys
from pathlib import Path

import pytest

from hetplan.errors import SpecError
from hetplan.report.files import read_text, write_text_atomically


def mistake_of(action: object, *arguments: object) -> str:
    """What is said of a file."""
    with pytest.raises(SpecError) as caught:
        action(*arguments)  # type: ignore[operator]
    assert caught.value.mistakes[0].hint
    return caught.value.mistakes[0].message


def test_written_text_is_read_back(tmp_path: Path) -> None:
    """What is written is what is read, and nothing else is left in the folder."""
    path = tmp_path / "r.json"
    write_text_atomically(path, "é\n")
    write_text_atomically(path, "ü\n")
    assert read_text(path) == "ü\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full the old content stands, and no temporary file is left."""
    path = tmp_path / "r.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "no space left" in mistake_of(write_text_atomically, path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.json"]


def test_modes_and_links_are_kept(tmp_path: Path) -> None:
    """A replaced file keeps its permissions, a link its target, a new file follows the umask."""
    path, link = tmp_path / "r.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text_atomically(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    old = os.umask(0o027)
    try:
        write_text_atomically(tmp_path / "fresh", "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_devices_are_written_to() -> None:
    """A device is not replaced by a file."""
    write_text_atomically("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_standard_streams(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """- is stdin and stdout."""
    write_text_atomically("-", "out\n")
    assert capsys.readouterr().out == "out\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfin\n")))
    assert read_text("-") == "in\n"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    """A missing directory, a directory, a name that is too long, and a file in place of a directory."""
    (tmp_path / "file").write_text("x")
    assert "no such directory" in mistake_of(write_text_atomically, tmp_path / "no" / "r.json", "x")
    assert "is a directory" in mistake_of(write_text_atomically, tmp_path, "x")
    assert "cannot be written" in mistake_of(write_text_atomically, tmp_path / ("n" * 300), "x")
    assert "cannot be written" in mistake_of(write_text_atomically, tmp_path / "file" / "r.json", "x")
    assert "cannot be written" in mistake_of(write_text_atomically, "a\0b", "x")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a directory, and bytes that are no text."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    assert "no such file" in mistake_of(read_text, tmp_path / "no.json")
    assert "is a directory" in mistake_of(read_text, tmp_path)
    assert "not UTF-8" in mistake_of(read_text, tmp_path / "binary")
    assert "cannot be read" in mistake_of(read_text, "a\0b")


def test_protected_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission denied is said in those words."""

    def refuse(**arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert "permission denied" in mistake_of(write_text_atomically, tmp_path / "r.json", "x")
