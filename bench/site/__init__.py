"""The Django site of the scenario `django`: one task, performed by the backend that the environment names."""

from __future__ import annotations


def environment(backend: str, url: str, threads: int) -> dict[str, str]:
    """Of a program of the site."""
    return {
        "DJANGO_SETTINGS_MODULE": "bench.site.settings",
        "BENCH_BACKEND": backend,
        "BENCH_URL": url,
        "BENCH_THREADS": str(threads),
    }
