"""Schedules: when they come next, running one now, and letting their moments pass."""

from __future__ import annotations

from itertools import islice
from typing import Any

from django.core.exceptions import BadRequest
from django.http import HttpResponse

from packhorse.cli.schedules import SHOWN_MOMENTS, SHOWN_TICKS, moment_text, next_text
from packhorse.django.admin.base import Page, PageAdmin
from packhorse.django.admin.showing import Link, at, facts, opened, value
from packhorse.errors import ConfigError
from packhorse.ids import to_text
from packhorse.masking import printable
from packhorse.scheduling import ScheduleView

PER_PAGE = 100
VERBS = {"run_now": "run", "pause": "pause", "resume": "resume"}
LABELS = {"run_now": "Run now", "pause": "Pause", "resume": "Resume"}


class ScheduleAdmin(PageAdmin):
    routes = (
        ("", "list_schedules", "changelist"),
        ("act/", "act", "act"),
        ("show/", "show_schedule", "show"),  # the key is in the query: no path takes all that may stand in a store
    )
    posts = ("act",)

    def list_schedules(self, page: Page) -> HttpResponse:
        after = page.request.GET.get("after", "")
        found = list(islice(page.app.schedules.all(after=after), PER_PAGE + 1))
        views, more = found[:PER_PAGE], len(found) > PER_PAGE
        saved = {view.key for view in page.app.schedules.all()} if page.app.schedules.declared else set()
        return self.render(
            page,
            "schedules",
            "Schedules",
            rows=[self._row(page, view) for view in views],
            unsaved=", ".join(sorted(it.key for it in page.app.schedules.declared if it.key not in saved)),
            first=self.url("changelist", **page.ours) if after else None,
            next=self.url("changelist", after=views[-1].key, **page.ours) if more else None,
            act_url=self.url("act", **page.ours),
        )

    def _row(self, page: Page, view: ScheduleView) -> dict[str, Any]:
        return {
            "key": view.key,
            "text": printable(view.key),
            "url": self.url("show", key=view.key, **page.ours),
            "task": printable(view.task),
            "words": printable(view.words),
            "next": moment_text(view, view.next_at),
            "last": view.last_job and self._job(page, view.last_job),
            "paused": view.paused,
            "error": printable(view.error),
            "actions": self._actions(page, view),
        }

    def _job(self, page: Page, id: str) -> Link:
        return Link(id, self.url("change", id, model="job", **page.ours))

    def _actions(self, page: Page, view: ScheduleView) -> list[tuple[str, str]]:
        fit = ("run_now", "resume" if view.paused else "pause")
        return [(name, LABELS[name]) for name in fit if page.may(f"{VERBS[name]}_schedule")]

    def show_schedule(self, page: Page) -> HttpResponse:
        key, schedules = page.request.GET.get("key", ""), page.app.schedules
        view = schedules.get(key)
        ticks = [
            (moment_text(view, at(it.moment)), None if it.job is None else self._job(page, to_text(it.job)))
            for it in schedules.ticks(key, SHOWN_TICKS)
        ]
        return self.render(
            page,
            "schedule",
            f"Schedule {printable(view.key)}",
            [(printable(view.key), None)],
            view=view,
            facts=self._facts(page, view),
            arguments=opened(
                lambda: schedules.shown_arguments(key),
                lambda it: [(printable(name), value(item)) for name, item in it.items()],
            )
            if page.may("view_job_arguments")
            else None,
            upcoming=[moment_text(view, it) for it in _upcoming(page, view)],
            ticks=ticks,
            actions=self._actions(page, view),
            act_url=self.url("act", **page.ours),
        )

    def _facts(self, page: Page, view: ScheduleView) -> list[tuple[str, Any]]:
        return facts(
            [
                ("task", Link(printable(view.task), self.url("changelist", model="job", task=view.task, **page.ours))),
                ("when", view.words),
                ("rule", view.rule),
                ("zone", view.zone),
                ("declared", view.source and f"in the code of {view.source}: it is changed there"),
                ("paused", "yes" if view.paused else None),
                ("repeats", view.repeats),
                ("start", moment_text(view, view.start)),
                ("end", moment_text(view, view.end)),
                ("jitter", view.jitter or None),
                ("misfire", view.misfire),
                ("grace", view.grace),
                ("overlap", view.overlap),
                ("queue", view.queue_name),
                ("priority", view.priority),
                ("error", view.error),
            ]
        )

    def act(self, page: Page) -> HttpResponse:
        post = page.request.POST
        name, key = post.get("action", ""), post.get("name", "")
        if name not in VERBS:
            raise BadRequest("There is no such action.")
        page.need(f"{VERBS[name]}_schedule")
        schedules = page.app.schedules
        match name:
            case "run_now":
                job = schedules.run_now(key, reason=page.reason, actor=page.actor)
                page.tell(f"Schedule {printable(key)}: enqueued job {job.id}.")
            case "pause":
                schedules.pause(key, reason=page.reason, actor=page.actor)
                page.tell(f"Schedule {printable(key)} is paused until somebody resumes it.")
            case _:
                schedules.resume(key, reason=page.reason, actor=page.actor)
                page.tell(f"Schedule {printable(key)} goes on, {next_text(schedules.get(key))}.")
        return self.redirect(page, "show", key=key) if "from" in post else self.redirect(page)


def _upcoming(page: Page, view: ScheduleView) -> list[Any]:
    try:
        return page.app.schedules.upcoming(view.key, SHOWN_MOMENTS)
    except ConfigError:  # which the view tells
        return []
