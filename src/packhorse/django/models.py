"""Read-only views of the tables, for queries of a site's own. The store writes; Django makes and changes nothing here.

The admin reads no rows of them: what it needs of the models are their names and permissions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ClassVar, NoReturn

from django.db import models, router
from django.utils import timezone

from packhorse.clock import to_datetime, to_microseconds
from packhorse.control import me
from packhorse.django.places import PREFIX
from packhorse.ids import from_text, to_text
from packhorse.job import JobState
from packhorse.stores.contract import Act, Change, Paused, Selection
from packhorse.stores.sql_exchange import STATES

CODES = {state: number for number, state in enumerate(STATES, 1)}


class ReadOnly(TypeError):
    def __init__(self) -> None:
        super().__init__("These tables are the store's: use result.job, or application.control, to change a job.")


class IdField(models.BinaryField):
    """Sixteen bytes in the database, the usual text in Python."""

    def get_internal_type(self) -> str:
        return "BinaryField"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> str | None:
        return None if value is None else to_text(bytes(value))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if value is None or isinstance(value, bytes | memoryview):
            return value
        try:
            return connection.Database.Binary(from_text(value if isinstance(value, uuid.UUID) else str(value)))
        except ValueError:
            return connection.Database.Binary(b"")  # nobody has such an id

    def value_to_string(self, obj: Any) -> str:
        return str(self.value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        return value


class MomentField(models.BigIntegerField):
    """Microseconds in the database, a datetime in Python."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> datetime | None:
        return None if value is None else to_datetime(value)

    def get_prep_value(self, value: Any) -> Any:
        return to_microseconds(value) if isinstance(value, datetime) else value

    def to_python(self, value: Any) -> Any:
        return value


class StateField(models.SmallIntegerField):
    """A number in the database, a JobState in Python."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> JobState:
        return STATES[value - 1]

    def get_prep_value(self, value: Any) -> Any:
        return CODES[JobState(value)] if isinstance(value, str) else value

    def to_python(self, value: Any) -> Any:
        return value


class ReadOnlyQuerySet(models.QuerySet):
    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ReadOnly

    create = bulk_create = update = bulk_update = delete = get_or_create = update_or_create = _refuse
    acreate = abulk_create = aupdate = abulk_update = adelete = aget_or_create = aupdate_or_create = _refuse


class View(models.Model):
    class Meta:
        abstract = True
        managed = False
        default_permissions = ("view",)

    objects: ClassVar[Any] = ReadOnlyQuerySet.as_manager()

    def save(self, *args: Any, **kwargs: Any) -> None:
        raise ReadOnly

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        raise ReadOnly


class JobQuerySet(ReadOnlyQuerySet):
    def clear_finished_in_batches(
        self,
        batch_size: int = 500,
        finished_before: datetime | None = None,
        task: str | None = None,
        pause: Callable[[], object] = lambda: None,
    ) -> int:
        """Discard jobs that succeeded, a day ago or before the time given; how many. Retention does so by itself.

        `pause` is called between batches.
        """
        from packhorse.django.application import application_at

        app = application_at(self.db if self._db else router.db_for_write(self.model))
        before = timezone.now() - timedelta(days=1) if finished_before is None else finished_before
        chosen = Selection(
            states={JobState.SUCCEEDED},
            tasks=None if task is None else {task},
            finished_before=to_microseconds(before),
        )
        cleared, after = 0, None
        while True:
            moved = app.store.move(chosen, Change(Act.DISCARD), me(), "", after=after, limit=batch_size)
            cleared, after = cleared + moved.jobs, moved.after
            if after is None:
                return cleared
            pause()


class Job(View):
    """What changes of a job; `payload` has the rest."""

    n = models.BigIntegerField(primary_key=True)
    id = IdField()
    state = StateField()
    queue = models.TextField()
    rank = models.SmallIntegerField()
    attempts = models.IntegerField()
    losses = models.IntegerField()
    run_at = MomentField(null=True)
    expires_at = MomentField(null=True)
    share = models.TextField(null=True)
    process = IdField(null=True)
    claimed_at = MomentField(null=True)
    started_at = MomentField(null=True)
    finished_at = MomentField(null=True)

    objects: ClassVar[Any] = JobQuerySet.as_manager()

    class Meta(View.Meta):
        db_table = f"{PREFIX}job"
        permissions = (
            ("view_job_arguments", "Can view arguments and results of jobs"),
            ("retry_job", "Can retry jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("run_job", "Can run scheduled jobs now"),
            ("discard_job", "Can discard jobs"),
        )

    def __str__(self) -> str:
        return f"{self.id} ({self.state})"


class Payload(View):
    id = IdField(primary_key=True)
    job = models.OneToOneField(Job, models.DO_NOTHING, db_column="n", related_name="payload", db_constraint=False)
    task = models.TextField()
    created_at = MomentField()

    class Meta(View.Meta):
        db_table = f"{PREFIX}payload"

    def __str__(self) -> str:
        return f"{self.id} of {self.task}"


class Process(View):
    id = IdField(primary_key=True)
    role = models.TextField()
    host = models.TextField()
    pid = models.IntegerField()
    queues = models.TextField()
    supervisor = IdField(null=True)
    started_at = MomentField()

    class Meta(View.Meta):
        db_table = f"{PREFIX}process"
        verbose_name_plural = "processes"

    def __str__(self) -> str:
        return f"{self.role} {self.pid} on {self.host}"


class Schedule(View):
    key = models.TextField(primary_key=True)
    task = models.TextField()
    rule = models.TextField()
    zone = models.TextField()
    paused = models.SmallIntegerField()
    next_at = MomentField(null=True)
    last_job = IdField(null=True)
    error = models.TextField()

    class Meta(View.Meta):
        db_table = f"{PREFIX}schedule"
        permissions = (
            ("run_schedule", "Can run schedules now"),
            ("pause_schedule", "Can pause schedules"),
            ("resume_schedule", "Can resume schedules"),
        )

    def __str__(self) -> str:
        return str(self.key)


class Pause(View):
    """Of a queue or a task; `name` is unique only together with `kind`."""

    name = models.TextField(primary_key=True)
    kind = models.TextField()
    until = MomentField(null=True)
    reason = models.TextField()
    actor = models.TextField()
    paused_at = MomentField()

    class Meta(View.Meta):
        db_table = f"{PREFIX}pause"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class OfKind(models.Manager.from_queryset(ReadOnlyQuerySet)):  # type: ignore[misc]
    def __init__(self, kind: Paused) -> None:
        super().__init__()
        self.kind = kind

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(kind=self.kind)


class Queue(Pause):
    """A queue that is paused."""

    objects: ClassVar[Any] = OfKind(Paused.QUEUE)

    class Meta(View.Meta):
        proxy = True
        permissions = (("pause_queue", "Can pause queues"), ("resume_queue", "Can resume queues"))


class Task(Pause):
    """A task that is paused."""

    objects: ClassVar[Any] = OfKind(Paused.TASK)

    class Meta(View.Meta):
        proxy = True
        permissions = (("pause_task", "Can pause tasks"), ("resume_task", "Can resume tasks"))
