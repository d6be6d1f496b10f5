"""What an application does when its processes come and go."""

import pytest

from packhorse import ConfigError, Embedded, Occasion, Packhorse

SOON = 60.0


def test_hooks_are_called_in_each_process_in_order(app: Packhorse):
    said: list[tuple[str, str]] = []

    @app.hook("start")
    @app.hook("stop", role="worker")
    @app.hook("exit", role="worker")
    def note(occasion: Occasion) -> None:
        said.append((occasion.role, occasion.when))

    @app.task
    def job() -> list[str]:
        return [when for role, when in said if role == "worker"]

    with Embedded(app):
        assert job.enqueue().result(SOON) == ["start"]
    assert [pair for pair in said if pair[0] == "worker"] == [("worker", when) for when in ("start", "stop", "exit")]
    assert sorted(role for role, when in said if when == "start") == ["dispatcher", "scheduler", "worker"]


def test_a_hook_that_fails_is_reported_and_nothing_else(app: Packhorse, caplog: pytest.LogCaptureFixture):
    @app.hook("start", role="worker")
    def broken(occasion: Occasion) -> None:
        raise SystemExit("no")

    @app.task
    def job() -> str:
        return "done"

    with Embedded(app):
        assert job.enqueue().result(SOON) == "done"
    assert "a hook at the start of a worker failed: broken" in caplog.text


def test_hooks_that_cannot_be(app: Packhorse):
    with pytest.raises(ConfigError, match="start, stop or exit"):
        app.hook("boot")(print)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="supervisor, worker"):
        app.hook("start", role="boss")(print)  # type: ignore[arg-type]
