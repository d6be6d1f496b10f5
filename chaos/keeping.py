"""A history in a file, so that a run can be looked at again: `python -m chaos --again FOLDER`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos.history import Ack, Bounds, Effect, Fault, History, Pace, Row, Span
from chaos.ledger import Ledger

NAME = "history.json"


def keep(history: History, folder: Path) -> None:
    """All but the ledger, which is there already."""
    kept: dict[str, Any] = {
        "acks": history.acks,
        "rows": list(history.rows.values()),
        "faults": [fault._replace(pids=sorted(fault.pids)) for fault in history.faults],  # type: ignore[arg-type]
        "limits": history.limits,
        "rates": history.rates,
        "schedules": history.schedules,
        "leftovers": history.leftovers,
        "bounds": asdict(history.bounds),
    }
    (folder / NAME).write_text(json.dumps(kept))


def kept(folder: Path) -> History:
    given = json.loads((folder / NAME).read_text())
    rows = [Row(*row) for row in given["rows"]]
    return History(
        acks=[Ack(id, kind, at, attempts, tuple(after)) for id, kind, at, attempts, after in given["acks"]],
        lines=list(Ledger(folder / "ledger").read()),
        rows={row.id: row for row in rows},
        faults=[
            Fault(kind, begin, end, Effect(effect), frozenset(pids), bound)
            for kind, begin, end, effect, pids, bound in given["faults"]
        ],
        limits=given["limits"],
        rates={key: Pace(*pace) for key, pace in given["rates"].items()},
        schedules={key: Span(*span) for key, span in given["schedules"].items()},
        leftovers=given["leftovers"],
        bounds=Bounds(**given["bounds"]),
    )
