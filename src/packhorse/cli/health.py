"""`packhorse doctor`: what may be wrong with the running thing."""

from __future__ import annotations

from collections import Counter
from http.client import HTTPConnection

import click
from rich.text import Text

from packhorse.cli.common import Target, json_option, on_application
from packhorse.cli.showing import cell, count, note, print_json, show
from packhorse.doctor import examine
from packhorse.runtime.probe import WITHIN, parse_address
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


@click.command()
@click.option("--probe", required=True, metavar="[HOST:]PORT", help="Where `packhorse worker --probe` answers.")
@click.option("--within", default=WITHIN, show_default=True, type=click.FloatRange(0.1), help="Seconds.")
@json_option
def health(probe: str, within: float, as_json: bool) -> None:
    """Whether the workers of a machine could claim a job within some seconds.

    Asks the supervisor itself, so it works where curl is missing. The exit status is 0 where they could, else 1.

    \b
    Examples:
      packhorse health --probe 8080
      packhorse health --probe 10.0.0.7:8080 --within 30
    """
    host, port = parse_address(probe)
    connection = HTTPConnection(host, port, timeout=within)
    try:
        connection.request("GET", f"/health?within={within}")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except OSError as error:
        raise click.ClickException(f"Nobody answers on {host}:{port}: {error.strerror or error}.") from None
    finally:
        connection.close()
    if as_json:
        print_json({"healthy": answer.status == 200, "why": "" if answer.status == 200 else text})
    elif answer.status == 200:
        click.echo(text)
    else:
        click.echo(f"Error: {text}", err=True)
    raise SystemExit(answer.status != 200)
