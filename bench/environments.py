"""An environment for each peer, with what it needs and nothing of ours; `make clean` removes them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from bench.systems.base import ROOT

FOLDER = ROOT / ".venv-peers"
NEWER = ("python3.12", "python3.13", "python3.14")
VERSIONS = """
import importlib.metadata, json, platform, sys
found = {name: importlib.metadata.version(name) for name in sys.argv[1:]}
print(json.dumps({"python": platform.python_version(), **found}))
"""


def installed(name: str, requirements: tuple[str, ...], needs: tuple[int, int]) -> Path:
    """The Python of that environment, made if it is not there; RuntimeError where it cannot be."""
    base = interpreter(needs)
    folder = FOLDER / f"{name}-{_version(base)}"
    stamp = folder / "installed.txt"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _run([base, "-m", "venv", str(folder)])
        _run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *requirements])
        stamp.write_text(wanted)
    return folder / "bin/python"


def versions(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = json.loads(_run([str(python), "-c", VERSIONS, *names]))
    return found


def interpreter(needs: tuple[int, int]) -> str:
    """Ours, or the first one here that is new enough: on the path, or beside ours, as version managers keep them."""
    if sys.version_info >= needs:
        return sys.executable
    for name in (*NEWER, *_beside()):
        if (found := _version(name)) and tuple(map(int, found.split("."))) >= needs:
            return name
    raise RuntimeError(f"it needs Python {needs[0]}.{needs[1]}, and there is none on the path or beside ours")


def _beside() -> list[str]:
    folder = Path(sys.base_prefix).parent
    return [str(found) for name in NEWER for found in sorted(folder.glob(f"*/bin/{name}"))]


@cache
def _version(python: str) -> str:
    """Empty where it does not run: a name on the path may be a stand-in that only complains."""
    try:
        return _run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    except (OSError, RuntimeError):
        return ""


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … failed: {done.stderr.strip()[-300:]}")
    return done.stdout
