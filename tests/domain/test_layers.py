"""Imports point down only, Django and the database drivers stay where they belong."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "packhorse"

# From top to bottom. A module may import its own layer and those below. A folder counts as one module.
LAYERS = {
    "skins": "__init__ __main__ cli dashboard django testing",
    "use cases": "app config context control doctor events flow handle hooks inspection lending middleware reporters"
    " runtime scheduling steps task varying waiting",
    "stores": "stores",
    "domain": "clock codec crontab errors failpoints forks hops ids interrupting job limits logs masking moments"
    " outcome pickling queues retry schedule seals shapes signing zones",
}
LAYER_OF = {module: layer for layer, modules in LAYERS.items() for module in modules.split()}
HEIGHT = {layer: height for height, layer in enumerate(reversed(LAYERS))}

# Which store's modules may import a driver. Nobody else imports those modules before the store is opened.
DRIVERS = {"psycopg": "postgres", "psycopg_pool": "postgres", "pymysql": "mysql", "MySQLdb": "mysql", "redis": "redis"}


@dataclass(frozen=True)
class Import:
    name: str
    """Absolute and dotted. For `from a import b` it is `a.b`, whether b is a module or not."""
    line: int
    in_function: bool


def imports_of(path: Path, package: Path) -> Iterator[Import]:
    """Every import that happens at run time: those under `if TYPE_CHECKING:` are left out."""
    parents = (package.name, *path.relative_to(package).parent.parts)

    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(alias.name, node.lineno, in_function)
                return
            case ast.ImportFrom():
                base = parents[: len(parents) + 1 - node.level] if node.level else ()
                for alias in node.names:
                    name = ".".join([*base, *([node.module] if node.module else []), alias.name])
                    yield Import(name, node.lineno, in_function)
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                children: Iterator[ast.AST] = iter(node.orelse)
            case _:
                children = ast.iter_child_nodes(node)
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in children:
            yield from visit(child, inside)

    yield from visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), False)


def module_of(path: Path, package: Path) -> str:
    """The name in the table: `job` for job.py, `stores` for everything under stores/."""
    return path.relative_to(package).with_suffix("").parts[0]


def target_of(name: str, package: Path) -> str:
    """The name in the table for an import from the package; `from packhorse import Packhorse` means `__init__`."""
    first = name.split(".")[1] if "." in name else "__init__"
    exists = (package / first).is_dir() or (package / f"{first}.py").is_file()
    return first if exists else "__init__"


def of_store(path: Path, store: str) -> bool:
    return path.parent.name == "stores" and path.stem.split("_")[0] == store


def driven(name: str, package: Path) -> str | None:
    """The store with a driver that an imported module belongs to."""
    match name.split("."):
        case [package.name, "stores", module, *_] if (store := module.split("_")[0]) in DRIVERS.values():
            return store
    return None


def complaints(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        module = module_of(path, package)
        if module not in LAYER_OF:
            found.append(f"{path.relative_to(package)}: add {module!r} to LAYERS in tests/domain/test_layers.py")
            continue
        for imported in imports_of(path, package):
            where = f"{path.relative_to(package)}:{imported.line}"
            root = imported.name.split(".")[0]
            if (store := driven(imported.name, package)) and not imported.in_function and not of_store(path, store):
                found.append(f"{where}: modules of the {store} store are imported in the function that opens it")
            if root == package.name:
                target = target_of(imported.name, package)
                mine, other = LAYER_OF[module], LAYER_OF.get(target)
                if other and HEIGHT[other] > HEIGHT[mine]:
                    found.append(f"{where}: {module} ({mine}) imports {target} ({other}) from above")
            elif root in {"django", "django_tasks"} and module != "django":
                found.append(f"{where}: only packhorse/django imports Django")
            elif root == "sqlite3" and module != "stores":
                found.append(f"{where}: only stores import sqlite3")
            elif root in DRIVERS and not (
                module == "stores" and (imported.in_function or of_store(path, DRIVERS[root]))
            ):
                found.append(f"{where}: {root} is imported by its store, in the function that opens it")
    return found


def test_the_package_keeps_its_layers():
    assert complaints(PACKAGE) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("app.py", "from packhorse.stores import sqlite"),
        ("app.py", "from . import job, task"),
        ("stores/sqlite.py", "import sqlite3"),
        ("stores/sqlite.py", "from ..job import Job"),
        ("stores/postgres.py", "import psycopg"),
        ("stores/postgres_watch.py", "import psycopg\nfrom packhorse.stores.postgres import x"),
        ("stores/__init__.py", "def opened():\n    from packhorse.stores.postgres import x\n    import psycopg"),
        ("job.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from packhorse.app import Packhorse"),
        ("cli/jobs.py", "from packhorse import Packhorse"),
        ("django/backend.py", "from django.tasks import Task"),
        ("__init__.py", "from packhorse.app import Packhorse"),
    ],
)
def test_allows(tmp_path: Path, path: str, source: str):
    assert complaints(written(tmp_path, path, source)) == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("job.py", "import packhorse.app", "job.py:1: job (domain) imports app (use cases) from above"),
        ("job.py", "from packhorse import app", "job.py:1: job (domain) imports app (use cases) from above"),
        ("job.py", "from .app import Packhorse", "job.py:1: job (domain) imports app (use cases) from above"),
        ("job.py", "def f():\n    from . import app", "job.py:2: job (domain) imports app (use cases) from above"),
        ("stores/__init__.py", "from ..app import x", "stores (stores) imports app (use cases) from above"),
        ("app.py", "from packhorse import Packhorse", "app (use cases) imports __init__ (skins) from above"),
        (
            "job.py",
            "if TYPE_CHECKING:\n    pass\nelse:\n    import packhorse.app",
            "job.py:4: job (domain) imports app",
        ),
        ("novel.py", "", "novel.py: add 'novel' to LAYERS"),
        ("app.py", "from django.conf import settings", "app.py:1: only packhorse/django imports Django"),
        ("app.py", "def f():\n    import sqlite3", "app.py:2: only stores import sqlite3"),
        ("app.py", "def f():\n    import redis", "app.py:2: redis is imported by its store"),
        ("stores/sql.py", "import redis", "sql.py:1: redis is imported by its store, in the function"),
        ("stores/sql.py", "from packhorse.stores import redis", "modules of the redis store are imported in the"),
        ("app.py", "from packhorse.stores.mysql_place import x", "modules of the mysql store are imported in the"),
        (
            "stores/sqlite.py",
            "try:\n    import MySQLdb\nexcept ImportError:\n    pass",
            "sqlite.py:2: MySQLdb is imported",
        ),
    ],
)
def test_complains(tmp_path: Path, path: str, source: str, complaint: str):
    [found] = complaints(written(tmp_path, path, source))
    assert complaint in found


def written(tmp_path: Path, path: str, source: str) -> Path:
    """A small package with one module per layer, and the given one."""
    package = tmp_path / "packhorse"
    for name in ("__init__.py", "app.py", "task.py", "job.py", "stores/sqlite.py", path):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    (package / path).write_text(source, encoding="utf-8")
    return package
