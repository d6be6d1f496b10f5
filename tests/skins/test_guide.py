"""The guide is true: its examples run and are well typed, its commands parse, its tables are complete, its links lead.

The Python blocks of a page run in order, in one module, in an empty folder, on SQLite; indented ones belong to the `if`
above them. Words behind ```python say more:

    main            as in the program itself, behind `if __name__ == "__main__":`
    worker          a worker performs the jobs of `app` meanwhile
    raises=Error    the block ends in this error
    file=name       it is not run but written to that file, as are blocks of other languages; pytest runs test_*.py

A block "```text printed" is what the block before it printed, an expected error included; … stands for anything. A
block "```text logged" is a line of the log.
"""

import importlib
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import click
import pytest

import packhorse
from packhorse import Embedded, Packhorse
from packhorse.cli import main
from packhorse.config import Settings
from packhorse.events import EventKind
from packhorse.task import Declared

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
LINKED = [*PAGES, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "decisions").glob("*.md"))]

FENCED = re.compile(r"^```(\w*) ?(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROWS = re.compile(r"^\| `(\w+)` \|(.*)\|$", re.MULTILINE)


class Block(NamedTuple):
    language: str
    words: dict[str, str]
    text: str
    line: int

    @property
    def runs(self) -> bool:
        return self.language == "python" and "file" not in self.words


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCED.finditer(text):
        language, words, body = found.groups()
        named = {name: value for name, _, value in (word.partition("=") for word in words.split())}
        assert named.keys() <= {"main", "worker", "raises", "file", "printed", "logged"}, f"{page.name}: {words}"
        yield Block(language, named, body, text[: found.start(3)].count("\n"))


def by_name(path: Path) -> str:
    return path.stem


# Examples.


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module in which a page runs, in an empty folder; what it sets and imports does not outlast it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    logger = logging.getLogger("packhorse")
    handlers, level = list(logger.handlers), logger.level
    with patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("PACKHORSE_")]:
            del os.environ[name]
        yield module
    for value in vars(module).values():
        if isinstance(value, Packhorse):
            value.close()
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_the_examples_run(page: Path, shop: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Each builds on the ones before it, and prints what the page says."""
    printed = ""
    for block in blocks(page):
        if "file" in block.words:
            write(tmp_path / block.words["file"], block.text)
        elif block.runs:
            printed = run(block, shop, page)
        elif "printed" in block.words:
            pattern = re.escape(block.text.strip()).replace("…", ".*")
            assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"{page.name}:{block.line}\n{printed}"
        elif "logged" in block.words:
            assert block.text.strip() in [f"{it.levelname} {it.name}: {it.getMessage()}" for it in caplog.records]


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)  # a file of settings may hold keys


def run(block: Block, shop: ModuleType, page: Path) -> str:
    code = compile("\n" * block.line + textwrap.dedent(block.text), str(page), "exec", dont_inherit=True)
    output = StringIO()
    shop.__name__ = "__main__" if "main" in block.words else "shop"
    with redirect_stdout(output), Embedded(shop.app) if "worker" in block.words else nullcontext():
        if (expected := block.words.get("raises")) is None:
            exec(code, vars(shop))
        else:
            with pytest.raises(error_named(expected)) as raised:
                exec(code, vars(shop))
            print(f"{type(raised.value).__name__}: {raised.value}")
    return output.getvalue()


def error_named(name: str) -> type[BaseException]:
    found: type[BaseException] = getattr(packhorse, name)
    return found


@pytest.mark.slow
def test_the_tests_in_the_guide_pass(tmp_path: Path):
    """All files that pages show, in one folder, as a reader has them."""
    for block in (block for page in PAGES for block in blocks(page) if "file" in block.words):
        write(tmp_path / block.words["file"], block.text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not many_long", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_five_minutes_are_one_program(tmp_path: Path):
    """Pasted into one file they run; and a command that imports the file enqueues nothing."""
    page = list(blocks(GUIDE / "index.md"))
    (tmp_path / "shop.py").write_text("\n\n".join(block.text for block in page if block.runs), encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}

    def ran(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, *args], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert ran("shop.py") == "".join(block.text for block in page if "printed" in block.words)
    for _ in range(2):
        [queue] = json.loads(ran("-m", "packhorse", "status", "shop:app", "--json"))["queues"]
        assert (queue["succeeded"], queue["scheduled"], queue["ready"]) == (1, 1, 500)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_a_page_that_needs_a_worker_says_so(page: Path):
    """Where readers see it: the word behind ```python is not shown."""
    if any("worker" in block.words for block in blocks(page)):
        text = " ".join(FENCED.sub("", page.read_text(encoding="utf-8")).split())
        assert "](index.md#running-the-examples)" in text


def test_no_example_sleeps_and_hopes():
    """They wait for results."""
    for page in PAGES:
        texts = [block.text for block in blocks(page) if block.language == "python"]
        assert not [text for text in texts if re.search(r"(?<!context\.)\bsleep\(", text)]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with one file for each page, and the files that pages show."""
    for page in PAGES:
        texts = [(f"{page.stem}_page.py", block.text) for block in blocks(page) if block.runs]
        texts += [(name, b.text) for b in blocks(page) if (name := b.words.get("file", "")).endswith(".py")]
        for name, text in texts:
            with open(tmp_path / name, "a", encoding="utf-8") as file:
                file.write(f"# {page.name}\n{text}\n")
    return tmp_path


@pytest.mark.slow
def test_mypy_accepts_the_examples(programs: Path):
    """As strictly as it looks at Packhorse itself."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", os.devnull, "."]
    ran = subprocess.run(command, cwd=programs, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_pyright_accepts_the_examples(programs: Path):
    """With the settings under which it looks at the public API."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pyright"]
    (programs / "pyrightconfig.json").write_text(json.dumps(config | {"include": ["."], "exclude": []}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(programs)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# Commands.


def command_lines(page: Path) -> Iterator[tuple[list[str], bool]]:
    """The words of each, and whether it is complete: those in running text may leave out what they are not about."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language in ("", "console"):
            for line in block.text.replace("\\\n", " ").splitlines():
                if found := re.search(r"(?:^|[\s(])packhorse ([^()]*)", line.removeprefix("$ ")):
                    yield shlex.split(found[1].partition(")")[0].replace("…", "0"), comments=True), True
    for inline in re.findall(r"`packhorse\s+([^`]+)`", FENCED.sub("", text)):
        yield shlex.split(inline), False


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_the_commands_parse(page: Path):
    """Every command exists and has the options shown; whole lines also have all they need."""
    for words, complete in command_lines(page):
        command, name, rest = named_command(words)
        known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h", "--version"}
        for word in rest:
            assert not word.startswith("-") or word.partition("=")[0] in known, f"{name}: {word}"
        if complete:
            context = click.Context(main, info_name="packhorse")
            command.make_context(name, list(rest), parent=context).close()


def named_command(words: list[str]) -> tuple[click.Command, str, list[str]]:
    command: click.Command = main
    name, rest = "packhorse", list(takewhile(lambda word: word not in (">", "|"), words))
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.commands.get(rest[0])
        assert found is not None, f"there is no command {name} {rest[0]}"
        command, name, rest = found, f"{name} {rest[0]}", rest[1:]
    return command, name, rest


def test_every_command_is_shown():
    """On the page about commands, in an example or at least by name; `worker` has a section elsewhere."""
    shown = {named_command(words)[1] for words, _ in command_lines(GUIDE / "commands.md")}
    assert set(leaves(main, "packhorse")) <= shown


def leaves(command: click.Command, name: str) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield name
        return
    for part, below in command.commands.items():
        yield from leaves(below, f"{name} {part}")


# Tables and links.


def test_every_setting_is_in_the_table():
    """With its default, written as `packhorse check` writes it."""
    rows = ROWS.findall((GUIDE / "settings.md").read_text(encoding="utf-8"))
    told = {name: rest.split("|")[0].strip(" `") for name, rest in rows}
    assert told == {name: value for name, value, _ in Settings.of().describe()}


def test_every_error_is_in_the_tables():
    """With the errors that it is a kind of."""
    rows = ROWS.findall((GUIDE / "errors.md").read_text(encoding="utf-8"))
    told = {name: re.findall(r"`(\w+)`", rest.split("|")[0]) for name, rest in rows}
    assert told == {error.__name__: [base.__name__ for base in error.__bases__] for error in errors()}


def errors() -> set[type[BaseException]]:
    modules = [importlib.import_module(f"packhorse{name}") for name in ("", ".errors", ".signing", ".testing")]
    found: list[Any] = [getattr(it, name) for it in modules for name in getattr(it, "__all__", vars(it))]
    ours = (it for it in found if isinstance(it, type) and it.__module__.startswith("packhorse"))
    return {it for it in ours if issubclass(it, BaseException)}


def test_every_option_and_every_event_is_in_its_table():
    """Under the heading of its page."""
    assert first_cells("tasks.md", "## Declare") == {*Declared.__annotations__, "takes_context"}
    assert first_cells("middleware.md", "## Events") == set(EventKind)


def first_cells(page: str, heading: str) -> set[str]:
    section = (GUIDE / page).read_text(encoding="utf-8").partition(f"{heading}\n")[2].partition("\n## ")[0]
    return {name for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"\w+", cell)}


def test_every_logger_is_in_the_table():
    """And no other."""
    told = re.findall(r"^\| `([\w.]+)` \|", (GUIDE / "logging.md").read_text(encoding="utf-8"), re.MULTILINE)
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    used = [text for text in sources if re.search(r"\blog\.\w+\(", text)]
    assert set(told) == {name for text in used for name in re.findall(r'getLogger\("([\w.]+)"\)', text)} - {"packhorse"}


@pytest.mark.parametrize("page", LINKED, ids=by_name)
def test_links_lead_somewhere(page: Path):
    """To files and headings that exist."""
    for target in re.findall(r"\]\(([^)]+)\)", FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target:
            path, _, heading = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), target
            assert not heading or heading in headings(file), target


def headings(page: Path) -> set[str]:
    lines = FENCED.sub("", page.read_text(encoding="utf-8")).splitlines()
    return {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in lines if line[:1] == "#"}


def test_the_index_names_every_page():
    """In the table of contents."""
    named = re.findall(r"\]\((\w+\.md)\)", (GUIDE / "index.md").read_text(encoding="utf-8"))
    assert set(named) == {page.name for page in GUIDE.glob("*.md")} - {"index.md"}
