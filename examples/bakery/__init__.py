"""A small Django site whose orders are baked in the background: `make demo-django` runs it."""
