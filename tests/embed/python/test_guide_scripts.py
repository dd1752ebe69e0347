"""Runs the programs that guide/python.md and python/README.md show, each as it stands but for the server's port."""

import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
README = HERE.parents[2] / "python/README.md"
SAYS = {
    "guide_minute.py": ["token 3", "held for at least another 29 s"],
    "guide_asyncio.py": ["token 3"],
    "guide_tour.py": ["pick 3", "ship 3", "send", "lead", "both"],
    "guide_moving.py": ["3"],
}


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("guide_*.py")))
def test_a_program_of_the_guide_runs(portcullis, name):
    text = (HERE / name).read_text()
    assert "6379" in text
    done = subprocess.run([sys.executable, "-c", text.replace("6379", str(portcullis.port))], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    for line in SAYS[name]:
        assert line in done.stdout


def test_the_readme_has_the_first_program_of_the_guide():
    assert (HERE / "guide_minute.py").read_text() in README.read_text()
