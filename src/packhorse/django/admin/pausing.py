"""Queues and tasks: what is in them, and holding them back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpResponse

from packhorse.cli.common import parse_duration
from packhorse.cli.tasks import rules_text
from packhorse.django.admin.base import Page, PageAdmin
from packhorse.django.admin.showing import Link, moment
from packhorse.errors import ConfigError
from packhorse.job import JobState
from packhorse.masking import printable
from packhorse.stores.contract import Pause, Paused


class PausingAdmin(PageAdmin):
    """Pages with a list of names, each of which can be paused and resumed."""

    routes = (("", "list_names", "changelist"), ("act/", "act", "act"))
    posts = ("act",)
    kind: Paused

    def list_names(self, page: Page) -> HttpResponse:
        raise NotImplementedError

    def pauses(self, page: Page) -> dict[str, Pause]:
        return {it.name: it for it in page.app.inspection.pauses() if it.kind is self.kind}

    def row(self, page: Page, name: str, pause: Pause | None, cells: list[Any]) -> dict[str, Any]:
        verb = "pause" if pause is None else "resume"
        return {
            "name": name,
            "text": printable(name),
            "url": self.url("changelist", model="job", **{self.kind.value: name}, **page.ours),
            "pause": pause and _pause_text(pause),
            "cells": cells,
            "action": verb if page.may(f"{verb}_{self.kind}") else None,
        }

    def listed(self, page: Page, columns: list[str], rows: list[dict[str, Any]], nothing: str) -> HttpResponse:
        return self.render(
            page,
            "pausing",
            f"{self.kind}s".capitalize(),
            kind=self.kind.value,
            columns=columns,
            rows=rows,
            nothing=nothing,
            act_url=self.url("act", **page.ours),
        )

    def act(self, page: Page) -> HttpResponse:
        """Whoever pauses is asked for a reason, and how long it is to last."""
        post = page.request.POST
        name, resuming = post.get("name", ""), post.get("action") == "resume"
        page.need(f"{'resume' if resuming else 'pause'}_{self.kind}")
        if resuming:
            was_paused = self._resume(page, name)
            text = f"{self.kind.capitalize()} {printable(name)} {'goes on' if was_paused else 'was not paused'}."
            page.tell(text, well=was_paused)
            return self.redirect(page)
        lasting, given = None, post.get("lasting", "").strip()
        error = ""
        if given and (lasting := parse_duration(given)) is None:
            error = f"{given!r} is no duration. Write one like 30d, 2h, 45m, 10s or 1h30m."
        if error or not page.confirmed:
            return self._ask(page, name, error)
        self._pause(page, name, lasting)
        end = "until somebody resumes it" if lasting is None else f"for {given}"
        page.tell(f"{self.kind.capitalize()} {printable(name)} is paused {end}.")
        return self.redirect(page)

    def _ask(self, page: Page, name: str, error: str) -> HttpResponse:
        return self.render(
            page,
            "pause",
            f"Pause {self.kind} {printable(name)}?",
            [("Pause", None)],
            kind=self.kind.value,
            name=name,
            error=error,
            reason=page.reason,
            lasting=page.request.POST.get("lasting", ""),
            act_url=self.url("act", **page.ours),
            list_url=self.url("changelist", **page.ours),
        )

    def _pause(self, page: Page, name: str, lasting: timedelta | None) -> None:
        control = page.app.control
        pause = control.pause if self.kind is Paused.QUEUE else control.pause_task
        pause(name, until=lasting, reason=page.reason, actor=page.actor)

    def _resume(self, page: Page, name: str) -> bool:
        control = page.app.control
        resume = control.resume if self.kind is Paused.QUEUE else control.resume_task
        return resume(name, reason=page.reason, actor=page.actor)


class QueueAdmin(PausingAdmin):
    kind = Paused.QUEUE

    def list_names(self, page: Page) -> HttpResponse:
        """Those that have jobs or are paused, and those that the site declares."""
        found = {it.queue: it for it in page.app.inspection.queues()}
        declared = {*page.place.queues, *(task.options.queue_name for task in page.app.tasks.values())}
        rows = []
        for name in sorted(found.keys() | declared):
            queue = found.get(name)
            cells = [self._cell(page, name, state, queue.of(state) if queue else 0) for state in JobState]
            rows.append(self.row(page, name, None if queue is None else queue.pause, cells))
        return self.listed(page, [state.value for state in JobState], rows, "No jobs, and no paused queues.")

    def _cell(self, page: Page, name: str, state: JobState, number: int) -> Link | str:
        if not number:
            return "·"
        return Link(f"{number:,}", self.url("changelist", model="job", queue=name, state=state.value, **page.ours))


class TaskAdmin(PausingAdmin):
    kind = Paused.TASK

    def list_names(self, page: Page) -> HttpResponse:
        """Those that the site declares, and others that are paused."""
        pauses, known = self.pauses(page), page.app.tasks
        rows = []
        for name in sorted(known.keys() | pauses.keys()):
            cells = ["", "", ""]
            if (task := known.get(name)) is not None:
                retries = "unlimited" if task.policy.retries is None else str(task.policy.retries)
                cells = [printable(task.options.queue_name), retries, printable("; ".join(rules_text(task)))]
            rows.append(self.row(page, name, pauses.get(name), cells))
        return self.listed(page, ["queue", "retries", "limits"], rows, "No tasks, and none is paused.")

    def _pause(self, page: Page, name: str, lasting: timedelta | None) -> None:
        if name not in page.app.known_tasks:
            raise ConfigError(f"There is no task {name!r} in this site.")
        super()._pause(page, name, lasting)


def _pause_text(pause: Pause) -> str:
    end = f"until {moment(pause.until)}" if pause.until is not None else "until somebody resumes it"
    return printable(f"paused {end}, by {pause.actor}{pause.reason and f': {pause.reason}'}")
