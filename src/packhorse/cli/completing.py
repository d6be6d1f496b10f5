"""Completion: the `completion` command, and what the shell may offer for an option."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from zoneinfo import available_timezones

import click
from click.shell_completion import CompletionItem, get_completion_class

from packhorse.app import Packhorse
from packhorse.inspection import just_before
from packhorse.runtime.loading import load_app
from packhorse.stores.contract import Paused

SHELLS = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/packhorse.fish",
}
OFFERED_KEYS = 100


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)), required=False)
def completion(shell: str | None) -> None:
    """Print the script that completes commands, options, queues, tasks, limits, shares and schedules in your shell.

    Without SHELL it is the one of $SHELL.

    \b
    Examples:
      eval "$(packhorse completion bash)"                       # now; put the line into ~/.bashrc for always
      eval "$(packhorse completion zsh)"                        # the same in ~/.zshrc
      packhorse completion fish > ~/.config/fish/completions/packhorse.fish
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name) if name in SHELLS else None
    if found is None:
        raise click.UsageError(f"Say for which shell: {', '.join(SHELLS)}.")
    command = click.get_current_context().find_root().command
    place = SHELLS[name]
    line = "packhorse completion fish >" if name == "fish" else f'eval "$(packhorse completion {name})"  in'
    click.echo(f"# Completion for {name}. To have it always: {line} {place}")
    click.echo(found(command, {}, "packhorse", "_PACKHORSE_COMPLETE").source())


# A look at the application or the store while somebody types: whatever goes wrong, there is just nothing to offer.


def stored_queues(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Queues of the application's tasks, and those that have jobs."""

    def found(app: Packhorse) -> Iterator[str]:
        yield from (task.options.queue_name for task in app.tasks.values())
        if app.inspection.exists():
            yield from (queue.queue for queue in app.inspection.queues())

    return _offered(ctx, incomplete, found)


def known_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _offered(ctx, incomplete, lambda app: iter(app.tasks))


def paused_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    def found(app: Packhorse) -> Iterator[str]:
        if app.inspection.exists():
            yield from (pause.name for pause in app.inspection.pauses() if pause.kind is Paused.TASK)

    return _offered(ctx, incomplete, found)


def stored_limits(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The first ones that begin so: there may be a key for every customer."""

    def found(app: Packhorse) -> Iterator[str]:
        if app.inspection.exists():
            yield from (view.key for view in islice(app.inspection.limits(after=just_before(incomplete)), OFFERED_KEYS))

    return _offered(ctx, incomplete, found)


def stored_schedules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    def found(app: Packhorse) -> Iterator[str]:
        if app.inspection.exists():
            yield from (view.key for view in islice(app.schedules.all(after=just_before(incomplete)), OFFERED_KEYS))

    return _offered(ctx, incomplete, found)


def known_shares(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shares of the application's tasks, and those that have a weight."""

    def found(app: Packhorse) -> Iterator[str]:
        yield from (task.options.share for task in app.tasks.values() if task.options.share is not None)
        yield from _weighted(app)

    return _offered(ctx, incomplete, found)


def time_zones(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(available_timezones()) if name.startswith(incomplete)]


def weighted_shares(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _offered(ctx, incomplete, _weighted)


def _weighted(app: Packhorse) -> Iterator[str]:
    if app.inspection.exists():
        yield from app.inspection.weights()


def _application(ctx: click.Context) -> Packhorse | None:
    path, store = ctx.params.get("app") or ctx.params.get("app_option"), ctx.params.get("store")
    if path is None and ctx.args and any(param.name == "app" for param in ctx.command.params):
        path = ctx.args[0]  # click gives up on arguments where the last option has no value yet
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # what a module prints is no completion
            return load_app(path) if path else Packhorse("packhorse", store)
    except Exception:
        return None


def _offered(ctx: click.Context, incomplete: str, found: Callable[[Packhorse], Iterator[str]]) -> list[CompletionItem]:
    names: set[str] = set()
    if (app := _application(ctx)) is not None:
        try:
            names.update(name for name in found(app) if name.startswith(incomplete) and name.isprintable())
        except Exception:
            pass
        finally:
            app.close()
    return [CompletionItem(name) for name in sorted(names)]
