"""What the tests' tasks work on."""

import uuid

from django.db import models


class Order(models.Model):
    number = models.IntegerField(default=0)
    paid = models.BooleanField(default=False)


class Visible(models.Manager):
    def get_queryset(self):
        return super().get_queryset().filter(hidden=False)


class Parcel(models.Model):
    """Its key is no number, and its default manager hides some."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    hidden = models.BooleanField(default=False)

    objects = Visible()
