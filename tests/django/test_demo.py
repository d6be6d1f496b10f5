"""`make demo-django`, in the environment of these tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_ends_as_it_should(tmp_path: Path):
    """It checks itself; without a terminal it ends by itself."""
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "django_demo.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("Every order was baked.\n")
    assert "in attempt " in ran.stdout
