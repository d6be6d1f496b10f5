"""A shop at work: enqueue some hundreds of jobs, let the real worker command perform them, and look.

    make demo

Everything lives in a temporary folder and is gone afterwards. Every number shown is read from the store.
The exit status is 0 only if each job ended as it should.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from packhorse import Job, JobHandle, JobState, Packhorse
from packhorse.stores.contract import Selection

PATIENCE = 50.0
REPORT_DELAY = 5.0
COLOURS = {
    JobState.SCHEDULED: "blue",
    JobState.READY: "cyan",
    JobState.RUNNING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "magenta",
}

console = Console(highlight=False)


class Surprise(Exception):
    """Something did not go as the demo promises."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="packhorse-demo-") as name:
        folder = Path(name)
        (folder / "bank").mkdir()
        os.environ["PACKHORSE_STORE"] = f"sqlite:///{folder}/shop.db"
        os.environ["SHOP_BANK"] = str(folder / "bank")
        from shop import tasks  # not before the store is named

        try:
            play(tasks.app, folder)
        except Surprise as surprise:
            console.print(f"[red]Unexpected:[/red] {surprise}")
            return 1
        finally:
            tasks.app.close()
    console.print("[green]Every job ended as it should.[/green]")
    return 0


def play(app: Packhorse, folder: Path) -> None:
    asked = enqueue()
    total = sum(app.inspection.counts().values())
    with worker(folder) as process:
        follow(app, total, process)
        stop(process)
    show_dead_letters(app)
    show_report(asked.report)
    show_offer(asked.offer)
    show_summary(app)
    check(app, total, asked.charges)


class Asked(NamedTuple):
    charges: list[JobHandle[str]]
    report: JobHandle[str]
    offer: JobHandle[None]


def enqueue() -> Asked:
    """Many jobs in one stroke, single ones, a delayed one, and one that comes too late."""
    from shop.tasks import app, charge, fetch, nightly_report, resize, send_mail

    began = time.perf_counter()
    app.enqueue_many(resize.call(photo, width=24) for photo in range(300))
    app.enqueue_many(send_mail.call(f"customer{number}@example.org", "Your order") for number in range(200))
    app.enqueue_many(fetch.call(f"https://example.org/feed/{number}") for number in range(100))
    charges = [charge.enqueue(order, "valid") for order in range(1, 41)]
    charge.enqueue(13, card="stolen")
    report = nightly_report.using(run_after=timedelta(seconds=REPORT_DELAY)).enqueue("Monday")
    ended = datetime.now(UTC) - timedelta(minutes=1)
    offer = send_mail.using(expires=ended).enqueue("customer1@example.org", "Only until a minute ago!")
    took = time.perf_counter() - began
    console.print(f"Enqueued {sum(app.inspection.counts().values())} jobs in {took:.2f} s. No worker runs yet.")
    return Asked(charges, report, offer)


@contextmanager
def worker(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command of everyday use, in the folder that holds the shop."""
    arguments = ["worker", "shop.tasks:app", "--processes", "2", "--concurrency", "4"]
    arguments += ["--queues", "payments,mail,*", "--log-level", "WARNING"]
    console.print(f"[dim]$ packhorse {shlex.join(arguments)}[/dim]", soft_wrap=True)
    log = folder / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "packhorse", *arguments],
            cwd=Path(__file__).parent,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    except Surprise as surprise:
        raise Surprise(f"{surprise}\nThe worker's log:\n{log.read_text()[-4000:]}") from None
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()


def follow(app: Packhorse, total: int, process: subprocess.Popen[bytes]) -> None:
    """Until all jobs have finished: a live picture on a terminal, a line a second elsewhere."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for counts in looks(app, total, process, every=0.1):
                live.update(picture(counts, total), refresh=True)
    else:
        for counts in looks(app, total, process, every=1.0):
            print(line(counts), flush=True)


def looks(app: Packhorse, total: int, process: subprocess.Popen[bytes], every: float) -> Iterator[dict[JobState, int]]:
    deadline = time.monotonic() + PATIENCE
    while True:
        counts = app.inspection.counts()
        yield counts
        if sum(number for state, number in counts.items() if state.finished) == total:
            return
        if process.poll() is not None:
            raise Surprise(f"the worker ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise Surprise(f"not all jobs finished within {PATIENCE:g} s")
        time.sleep(every)


def picture(counts: dict[JobState, int], total: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for state, colour in COLOURS.items():
        bar = ProgressBar(total=total, completed=counts[state], width=40, complete_style=colour, finished_style=colour)
        table.add_row(Text(state.value, colour), Text(str(counts[state]), justify="right"), bar)
    return table


def line(counts: dict[JobState, int]) -> str:
    return ", ".join(f"{counts[state]} {state}" for state in COLOURS)


def stop(process: subprocess.Popen[bytes]) -> None:
    began = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        raise Surprise("the worker did not stop within 20 s of TERM") from None
    if status != 0:
        raise Surprise(f"the worker stopped with status {status}")
    console.print(f"The worker left {time.perf_counter() - began:.2f} s after TERM.\n")


def show_dead_letters(app: Packhorse) -> None:
    for found in app.inspection.jobs(Selection(states=[JobState.FAILED])):
        job = app.job(found.id).look()
        table = Table("attempt", "ended", "failure", box=box.SIMPLE_HEAD)
        console.print(f"[bold]Dead letter[/bold] {job.id}, task {job.task}")
        for attempt in job.failures:
            table.add_row(str(attempt.number), clock(attempt.ended_at), str(attempt.failure))
        table.add_row(str(job.attempts), clock(job.finished_at), str(job.failure))
        last = job.failure.traceback.strip().splitlines() if job.failure else []
        console.print(Group(table, Text("\n".join(last[-4:]), "dim")), "")


def show_report(report: JobHandle[str]) -> None:
    job = report.look()
    if job.started_at is None or job.run_at is None:
        raise Surprise("the delayed job never began")
    late = (job.started_at - job.run_at).total_seconds()
    if late < 0:
        raise Surprise("the delayed job began too early")
    console.print(
        f"[bold]Delayed:[/bold] the report was asked for at {clock(job.created_at)} to run at {clock(job.run_at)}. "
        f"It began {late * 1000:.0f} ms after its time and says: {report.result(0)!r}"
    )


def show_offer(offer: JobHandle[None]) -> None:
    job = offer.look()
    console.print(f"[bold]Expired:[/bold] the offer ended {job.state} ({job.reason}) and was never sent.")


def show_summary(app: Packhorse) -> None:
    by_task: dict[str, list[Job]] = defaultdict(list)
    for job in app.inspection.jobs():
        by_task[job.task].append(job)
    console.print("\n[bold]The shop's tasks[/bold]")
    table = Table("task", box=box.SIMPLE_HEAD)
    for column in ("jobs", "succeeded", "failed", "cancelled", "attempts", "mean"):
        table.add_column(column, justify="right")
    for task, jobs in sorted(by_task.items()):
        done = [job for job in jobs if job.state is JobState.SUCCEEDED]
        table.add_row(
            task.removeprefix("shop.tasks."),
            str(len(jobs)),
            str(len(done)),
            str(sum(job.state is JobState.FAILED for job in jobs)),
            str(sum(job.state is JobState.CANCELLED for job in jobs)),
            str(sum(job.attempts for job in jobs)),
            f"{mean_time(done) * 1000:.1f} ms",
        )
    console.print(table)


def mean_time(jobs: list[Job]) -> float:
    times = [(job.finished_at - job.started_at).total_seconds() for job in jobs if job.finished_at and job.started_at]
    return sum(times) / len(times) if times else 0.0


def check(app: Packhorse, total: int, charges: list[JobHandle[str]]) -> None:
    """What this demo promises."""
    counts = {state: number for state, number in app.inspection.counts().items() if number}
    expected = {JobState.SUCCEEDED: total - 2, JobState.FAILED: 1, JobState.CANCELLED: 1}
    if counts != expected:
        raise Surprise(f"expected {expected}, the store says {counts}")
    for order, job in enumerate(charges, 1):
        if job.result(0) != f"receipt {order:04}":
            raise Surprise(f"order {order} has the receipt {job.result(0)!r}")
        if job.look().attempts != (2 if order % 10 == 0 else 1):
            raise Surprise(f"order {order} took {job.look().attempts} attempts")
    [dead] = app.inspection.jobs(Selection(states=[JobState.FAILED]))
    if dead.attempts != 3:
        raise Surprise(f"the stolen card was tried {dead.attempts} times, not 3")
    if left := app.inspection.processes():
        raise Surprise(f"{len(left)} processes are still enrolled")


def clock(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%H:%M:%S.%f")[:-3] if moment else "–"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
