"""The wheel carries the course: an installed grader works from any directory."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from grader.checkpoint import files_under

ROOT = Path(__file__).resolve().parents[1]
COURSE = "grader/_course"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, by its own build backend, with stale bytecode lying about."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    junk = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis")
    for name in ("grader", "chapters", "solutions", "notebooks"):
        shutil.copytree(ROOT / name, source / name, ignore=junk)
    for folder in ("chapters/01-messages/tests", "solutions/01-messages/mini_agent"):
        (source / folder / "__pycache__").mkdir()
        (source / folder / "__pycache__/x.cpython-311.pyc").write_bytes(b"stale")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-c", "import sys, hatchling.build as b; b.build_wheel(sys.argv[1])", out],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


def test_the_course_is_in_it_byte_for_byte(wheel: Path) -> None:
    """Chapters and solutions, nothing added and nothing lost; no bytecode."""
    wanted = {
        f"{COURSE}/{folder}/{name}": path.read_bytes()
        for folder in ("chapters", "solutions", "notebooks")
        for name, path in files_under(ROOT / folder).items()
    }

    with zipfile.ZipFile(wheel) as archive:
        carried = {
            name: archive.read(name) for name in archive.namelist() if name.startswith(COURSE)
        }

    assert sorted(carried) == sorted(wanted)
    assert [name for name in wanted if carried[name] != wanted[name]] == []


def test_it_works_from_any_directory(wheel: Path, tmp_path: Path) -> None:
    """Unpacked far from the checkout, `grader` makes and grades a practice of its own course."""
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONUTF8": "1"}

    ran = subprocess.run(
        [sys.executable, "-m", "grader", "practice", "01", "mydir"],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )

    assert ran.returncode == 1, ran.stderr
    assert "Checkpoint 01" in ran.stdout
    assert "course: " not in ran.stdout  # it is the packaged one
    assert (here / "mydir/mini_agent/types.py").read_bytes() == (
        ROOT / "chapters/01-messages/starter/mini_agent/types.py"
    ).read_bytes()
