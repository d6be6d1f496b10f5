"""Processes: who is there, how long their leases last, and what they do."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django.http import HttpResponse

from packhorse.cli.showing import span
from packhorse.django.admin.base import Page, PageAdmin
from packhorse.django.admin.showing import Link, moment
from packhorse.job import JobState
from packhorse.masking import printable
from packhorse.stores.contract import Selection

RUNNING_CAP = 1_000
SHOWN = 10


class ProcessAdmin(PageAdmin):
    routes = (("", "list_processes", "changelist"),)

    def list_processes(self, page: Page) -> HttpResponse:
        jobs = self._running(page) if page.may("view_job") else {}
        now = datetime.now(UTC)
        rows = []
        for it in page.app.inspection.processes():
            doing = jobs.get(it.id, [])[:SHOWN]
            rows.append(
                {
                    "id": it.id,
                    "cells": [printable(it.role), printable(it.host), it.pid, printable(it.queues)],
                    "started": moment(it.started_at),
                    "up": span((now - it.started_at).total_seconds()),
                    "lease": f"{it.lease_left:.0f} s left" if it.lease_left > 0 else "over",
                    "lost": it.lease_left <= 0,
                    "running": it.running,
                    "jobs": doing,
                    "others": max(0, it.running - len(doing)) if doing else 0,
                }
            )
        return self.render(page, "processes", "Processes", rows=rows)

    def _running(self, page: Page) -> dict[str, list[Any]]:
        """By process; of very many jobs not all."""
        found: dict[str, list[Any]] = {}
        running = page.app.inspection.stored_jobs(Selection(states={JobState.RUNNING}), page=RUNNING_CAP)
        for job in islice(running, RUNNING_CAP):
            link = Link(printable(job.task), self.url("change", job.id, model="job", **page.ours))
            found.setdefault(job.process or "", []).append((link, moment(job.started_at or job.claimed_at)))
        return found
