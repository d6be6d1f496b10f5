"""Roles that run: worker, dispatcher, scheduler, and the supervisor over them."""
