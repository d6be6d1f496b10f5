"""The tasks of a small shop. Nothing here leaves the machine: waiting stands for the mail server, the bank, the net.

packhorse worker shop.tasks:app
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from packhorse import Exponential, Packhorse, TaskError

app = Packhorse("shop")  # its jobs live in $PACKHORSE_STORE


class CardRefused(TaskError):
    """The bank said no. It will say so again, but banks have been wrong before."""


@app.task
def resize(photo: int, width: int) -> dict[str, int]:
    """Average the pixels of a made-up photo down to a thumbnail."""
    size = 240
    pixels = [(photo * 31 + place * 7) % 256 for place in range(size * size)]
    step = max(1, size // width)
    small = [
        sum(pixels[row * size + column : row * size + column + step]) // step
        for row in range(0, size, step)
        for column in range(0, size, step)
    ]
    return {"photo": photo, "width": width, "brightness": sum(small) // len(small)}


@app.task(queue_name="mail")
def send_mail(to: str, subject: str) -> None:
    time.sleep(0.04)


@app.task
async def fetch(url: str) -> int:
    """A coroutine: it waits on the worker's event loop and holds up no thread."""
    await asyncio.sleep(0.15)
    return len(url)


@app.task(queue_name="payments", priority=50, retries=2, backoff=Exponential(base=0.5))
def charge(order: int, card: str) -> str:
    """Charge a card. Stolen ones are refused each time; now and then the bank's first answer gets lost."""
    time.sleep(0.02)
    if card == "stolen":
        raise CardRefused(f"order {order}: the bank refuses this card")
    if order % 10 == 0 and _first_request(order):
        raise ConnectionError(f"order {order}: the bank did not answer")
    return f"receipt {order:04}"


def _first_request(order: int) -> bool:
    """The bank remembers orders it has seen, so that asking twice charges once."""
    try:
        (Path(os.environ["SHOP_BANK"]) / str(order)).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@app.task(queue_name="reports", priority=-10)
def nightly_report(day: str) -> str:
    time.sleep(0.1)
    return f"All was well on {day}."
