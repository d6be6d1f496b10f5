"""The admin: pages that look through `inspection` and act through `control`, whatever store the jobs are in.

Django imports this where `django.contrib.admin` is installed.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from packhorse.django import models
from packhorse.django.admin.jobs import JobAdmin
from packhorse.django.admin.pausing import QueueAdmin, TaskAdmin
from packhorse.django.admin.processes import ProcessAdmin
from packhorse.django.admin.schedules import ScheduleAdmin

__all__ = ["register"]


def register(site: Any) -> None:
    """Have the pages on a site of your own too. They lead to each other, so that it is all or none."""
    site.register(models.Job, JobAdmin)
    site.register(models.Queue, QueueAdmin)
    site.register(models.Task, TaskAdmin)
    site.register(models.Schedule, ScheduleAdmin)
    site.register(models.Process, ProcessAdmin)


register(admin.site)
