"""Completion: the `completion` command, and what the shell may offer for an option."""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from packhorse.app import Packhorse
from packhorse.runtime.loading import load_app

SHELLS = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/packhorse.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)), required=False)
def completion(shell: str | None) -> None:
    """Print the script that lets your shell complete commands, options, queues and tasks.

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
    names: set[str] = set()
    if (app := _application(ctx)) is not None:
        names |= {task.options.queue_name for task in app.tasks.values()}
        try:
            names |= {queue.queue for queue in app.inspection.queues()} if app.inspection.exists() else set()
        except Exception:
            pass
        finally:
            app.close()
    return _offered(names, incomplete)


def known_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    app = _application(ctx)
    return _offered(set(app.tasks), incomplete) if app is not None else []


def _application(ctx: click.Context) -> Packhorse | None:
    path, store = ctx.params.get("app") or ctx.params.get("app_option"), ctx.params.get("store")
    if path is None and ctx.args and any(param.name == "app" for param in ctx.command.params):
        path = ctx.args[0]  # click gives up on arguments where the last option has no value yet
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # what a module prints is no completion
            return load_app(path) if path else Packhorse("packhorse", store)
    except Exception:
        return None


def _offered(names: set[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete) and name.isprintable()]
