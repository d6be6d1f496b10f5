"""The bakery, a Django site, with its server and `manage.py packhorse`; orders go in through a view.

On a terminal it goes on until Ctrl-C; elsewhere, or with --once, it ends when all orders are baked.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

MANAGE = [sys.executable, str(Path(__file__).parent / "bakery" / "manage.py")]
ORDERS = [("rye", 3), ("wheat", 5), ("spelt", 2), ("oat", 7)]
PATIENCE = 120.0


class Surprise(Exception):
    """The demo did not go as it should."""


def main() -> int:
    once = "--once" in sys.argv[1:] or not sys.stdout.isatty()
    password = secrets.token_urlsafe(6)
    with TemporaryDirectory(prefix="packhorse-bakery-") as name, ExitStack() as stack:
        folder = Path(name)
        os.environ |= {"BAKERY_FOLDER": name, "BAKERY_KEY": secrets.token_urlsafe(50)}
        os.environ["DJANGO_SUPERUSER_PASSWORD"] = password
        try:
            manage("migrate", "-v0")
            manage("createsuperuser", "--noinput", "--username", "baker", "--email", "baker@example.org", "-v0")
            site = f"http://127.0.0.1:{free_port()}"
            server = stack.enter_context(running(folder, "runserver", "--noreload", site.removeprefix("http://")))
            worker = stack.enter_context(running(folder, "packhorse", "--no-reload"))
            play(Browser(site), [server, worker])
            say(f"Look at {site}/ and, as baker with the password {password}, at {site}/admin/")
            manage("packhorse", "status")
            if not once:
                say("Ctrl-C ends it.")
                wait_until(lambda: False, "", [server, worker], float("inf"))
        except KeyboardInterrupt:
            pass
        except Surprise as surprise:
            say(f"Unexpected: {surprise}")
            for log in folder.glob("*.log"):
                say(f"{log.name}:\n{log.read_text()[-4000:]}")
            return 1
    say("Every order was baked.")
    return 0


def play(browser: Browser, processes: list[subprocess.Popen[bytes]]) -> None:
    wait_until(browser.answers, "the site to answer", processes)
    places = [browser.order(bread, loaves) for bread, loaves in ORDERS]
    say(f"{len(places)} orders went in through a view, and were enqueued with its transaction.")

    def all_baked() -> bool:
        return all(browser.look(place)["status"] == "SUCCESSFUL" for place in places)

    wait_until(all_baked, "the orders to be baked", processes)
    for place in places:
        say(f"  {browser.look(place)['result']}")


class Browser:
    def __init__(self, site: str) -> None:
        self._site = site
        self._jar = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._jar))

    def answers(self) -> bool:
        try:
            self._opener.open(f"{self._site}/", timeout=10).close()
        except URLError:
            return False
        return True

    def order(self, bread: str, loaves: int) -> str:
        """Where its state can be looked at."""
        token = next(cookie.value for cookie in self._jar if cookie.name == "csrftoken")
        form = urlencode({"bread": bread, "loaves": loaves, "csrfmiddlewaretoken": token})
        with self._opener.open(f"{self._site}/orders/", form.encode(), timeout=30) as answer:
            return str(answer.url)

    def look(self, place: str) -> dict[str, Any]:
        with self._opener.open(place, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def manage(*words: str) -> None:
    say(f"$ manage.py {shlex.join(words)}")
    done = subprocess.run([*MANAGE, *words])
    if done.returncode != 0:
        raise Surprise(f"manage.py {words[0]} ended with {done.returncode}")


@contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    say(f"$ manage.py {shlex.join(words)}")
    with (folder / f"{words[0]}.log").open("wb") as log:
        process = subprocess.Popen([*MANAGE, *words], stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(
    condition: Callable[[], bool], what: str, processes: list[subprocess.Popen[bytes]], patience: float = PATIENCE
) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        if any(process.poll() is not None for process in processes):
            raise Surprise("a process has ended by itself")
        if time.monotonic() > deadline:
            raise Surprise(f"waited too long for {what}")
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
