"""Roles that run: worker, dispatcher, supervisor."""
