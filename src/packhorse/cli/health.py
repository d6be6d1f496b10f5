"""`packhorse doctor`: what may be wrong with the running thing."""

from __future__ import annotations

from collections import Counter

import click
from rich.text import Text

from packhorse.cli.common import Target, json_option, on_application
from packhorse.cli.showing import cell, count, note, print_json, show
from packhorse.doctor import examine
from packhorse.stores.contract import Finding, Level

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@click.command()
@on_application(positional=True)
@json_option
def doctor(target: Target, as_json: bool) -> None:
    """Look for trouble: in the store, among the processes, in queues nobody serves, in signatures and keys.

    Looks at jobs in samples, oldest first. Ends with status 1 where there is a problem.

    \b
    Examples:
      packhorse doctor shop.tasks:app
      packhorse doctor shop.tasks:app --json
      packhorse doctor --store sqlite:///packhorse.db --app-name shop
    """
    app = target.make()
    findings = list(examine(app, named=target.named))
    levels = Counter(finding.level for finding in findings)
    if as_json:
        print_json({"findings": [f._asdict() for f in findings], **{level: levels[level] for level in Level}})
    else:
        for finding in findings:
            show(*_lines(finding))
        if target.app is None:
            note("Name the application to have its tasks, signatures and keys looked at too.")
        click.echo(f"{count(levels[Level.PROBLEM], 'problem')}, {count(levels[Level.WARNING], 'warning')}.")
    if levels[Level.PROBLEM]:
        raise SystemExit(1)


def _lines(finding: Finding) -> list[Text]:
    head = Text(f"{finding.level:8}", STYLES[finding.level])
    lines = [head.append_text(cell(f"{finding.about:11} {finding.text}", "none", cap=2_000))]
    if finding.remedy:
        lines.append(cell(f"{'':20}→ {finding.remedy}", "dim", cap=2_000))
    return lines
