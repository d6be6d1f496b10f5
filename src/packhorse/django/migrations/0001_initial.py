from typing import Any

from django.db import migrations, models

from packhorse.django.models import IdField
from packhorse.django.operations import ApplySteps


def view(name: str, key: tuple[str, Any], **options: str) -> migrations.CreateModel:
    """An unmanaged model. Django compares no fields of those, so that the primary key will do."""
    table = f"packhorse_{name.lower()}"
    return migrations.CreateModel(name, [key], options={"managed": False, "db_table": table, **options})


class Migration(migrations.Migration):
    initial = True

    operations = [
        ApplySteps(sqlite=1, postgres=2),
        view("Job", ("n", models.BigIntegerField(primary_key=True, serialize=False))),
        view("Payload", ("id", IdField(primary_key=True, serialize=False))),
        view("Process", ("id", IdField(primary_key=True, serialize=False)), verbose_name_plural="processes"),
        view("Schedule", ("key", models.TextField(primary_key=True, serialize=False))),
        view("Pause", ("name", models.TextField(primary_key=True, serialize=False))),
    ]
