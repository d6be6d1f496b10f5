from typing import Any

from django.db import migrations

ONLY_VIEW: dict[str, Any] = {"managed": False, "default_permissions": ("view",)}


class Migration(migrations.Migration):
    """One permission for each action of the admin. Of what Django makes by itself only "view" means something here."""

    dependencies = [("packhorse", "0001_initial")]

    operations = [
        migrations.AlterModelOptions(
            "job",
            ONLY_VIEW
            | {
                "permissions": (
                    ("view_job_arguments", "Can view arguments and results of jobs"),
                    ("retry_job", "Can retry jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("run_job", "Can run scheduled jobs now"),
                    ("discard_job", "Can discard jobs"),
                )
            },
        ),
        migrations.AlterModelOptions("payload", ONLY_VIEW),
        migrations.AlterModelOptions("process", ONLY_VIEW | {"verbose_name_plural": "processes"}),
        migrations.AlterModelOptions(
            "schedule",
            ONLY_VIEW
            | {
                "permissions": (
                    ("run_schedule", "Can run schedules now"),
                    ("pause_schedule", "Can pause schedules"),
                    ("resume_schedule", "Can resume schedules"),
                )
            },
        ),
        migrations.AlterModelOptions("pause", ONLY_VIEW),
        migrations.CreateModel(
            "Queue",
            [],
            ONLY_VIEW
            | {
                "proxy": True,
                "permissions": (("pause_queue", "Can pause queues"), ("resume_queue", "Can resume queues")),
            },
            ("packhorse.pause",),
        ),
        migrations.CreateModel(
            "Task",
            [],
            ONLY_VIEW
            | {
                "proxy": True,
                "permissions": (("pause_task", "Can pause tasks"), ("resume_task", "Can resume tasks")),
            },
            ("packhorse.pause",),
        ),
    ]
