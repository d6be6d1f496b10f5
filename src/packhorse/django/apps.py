"""The app for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class PackhorseConfig(AppConfig):
    name = "packhorse.django"
    label = "packhorse"
    verbose_name = "Packhorse"
    default_auto_field = "django.db.models.BigAutoField"
