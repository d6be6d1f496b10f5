"""What is asked often goes along an index, whatever the server knows of its tables: nothing, old news or fresh ones."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from packhorse.clock import SECOND
from packhorse.ids import new_id
from packhorse.job import JobState, NewJob
from packhorse.outcome import Outcome
from packhorse.queues import EVERYTHING, Selected, parse_queues
from packhorse.stores import postgres_arrays, postgres_session
from packhorse.stores.contract import ProcessInfo
from packhorse.stores.postgres import PostgresStore
from tests.contract.stores import schemas
from tests.servers.postgres import Server

WORKER = b"w" * 16
JOBS = 5_000
QUEUES: list[Selected] = [EVERYTHING, parse_queues("mail,reports*,default"), parse_queues("mail,default,*")]
SCANS = {"Index Scan", "Index Only Scan"}
UNREAD = {"Seq Scan", "Bitmap Heap Scan", "Hash Join", "Merge Join", "Materialize"}

TYPES = {
    int: "bigint",
    bool: "bigint",
    bytes: "bytea",
    str: "text",
    list: "text[]",
    postgres_arrays.BigintArray: "bigint[]",
    postgres_arrays.ByteaArray: "bytea[]",
    postgres_arrays.TextArray: "text[]",
}

Texts = dict[str, list[str]]  # and the types of each one's parameters


@pytest.fixture(
    params=[
        "empty",
        "empty and analyzed",
        "never analyzed",
        "analyzed while empty",
        "analyzed while none ran",
        "analyzed",
        "divided",
        "divided and analyzed",
    ]
)
def known(request: pytest.FixtureRequest, postgres: Server) -> Iterator[PostgresStore]:
    with schemas(postgres) as urls:
        divided = request.param.startswith("divided")
        store = PostgresStore(f"{next(urls)}{'&history=daily' if divided else ''}")
        store.enroll(ProcessInfo(WORKER, "worker", "here", 1), 600 * SECOND)
        run(store, "alter table job set (autovacuum_enabled = off)")
        if request.param in ("analyzed while empty", "empty and analyzed"):
            run(store, "vacuum")
            run(store, "analyze")
        if not request.param.startswith("empty"):
            store.insert([NewJob(new_id(), "task", b"{}", queue=f"reports{n % 40}") for n in range(JOBS)])
        if request.param == "analyzed while none ran":
            run(store, "analyze")
        if request.param in ("analyzed", "divided and analyzed"):
            store.exchange(WORKER, 1, [], EVERYTHING, 1_000)
            run(store, "analyze")
        yield store
        store.close()


def run(store: PostgresStore, text: str) -> None:
    connection = store._connections.take()
    connection.execute(text.encode())
    store._connections.give_back(connection)


@pytest.fixture
def said(known: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> Texts:
    """All that is said while jobs come, are looked for, claimed, begun and ended, as workers and dispatchers do it."""
    said: Texts = {}
    original = postgres_session.Session._run

    def run(self: postgres_session.Session, text: str, parameters: Any) -> postgres_session.Found:
        said[text] = [TYPES.get(type(value), "unknown") for value in parameters]
        return original(self, text, parameters)

    monkeypatch.setattr(postgres_session.Session, "_run", run)
    known.insert([NewJob(new_id(), "task", b"{}", queue=queue) for queue in ("mail", "reports7", "default") * 9])
    for nonce, queues in enumerate(QUEUES, 2):
        known.exchange(WORKER, nonce, [], (), 10)
        claims = known.exchange(WORKER, nonce, [], queues, 8, starting=2).claims
        assert claims
        started = [claim.token for claim in claims[2:4]]
        ends = [JobState.SUCCEEDED, JobState.FAILED, JobState.READY, JobState.SCHEDULED]
        outcomes = [
            Outcome(claim.token, state, spent=state is not JobState.READY, result=b"1" if state is ends[0] else None)
            for claim, state in zip(claims, ends, strict=False)
        ]
        known.exchange(WORKER, nonce + 10, outcomes, queues, 2, started=started)
        known._detours = 0
        well = [Outcome(claim.token, JobState.SUCCEEDED, result=b"1") for claim in claims[4:]]
        known.exchange(WORKER, nonce + 20, well, queues, 2, started=started)
    known.promote(100)
    known.beat([WORKER])
    known.orders([WORKER])
    monkeypatch.undo()
    return {text: types for text, types in said.items() if text.split()[0] in ("select", "insert", "update", "with")}


def plans(store: PostgresStore, said: Texts) -> dict[str, dict[str, Any]]:
    """As they are made once, for whatever values come."""
    connection = store._connections.take()
    found = {}
    for number, (text, types) in enumerate(said.items()):
        declared = f"({', '.join(types)})" if types else ""
        values = f"({', '.join(['null'] * len(types))})" if types else ""
        connection.execute(f"prepare plan_{number} {declared} as {text}".encode())
        row = connection.execute(f"explain (format json) execute plan_{number}{values}".encode()).fetchone()
        assert row is not None
        found[text] = row[0][0]["Plan"] if not isinstance(row[0], str) else json.loads(row[0])[0]["Plan"]
        connection.execute(f"deallocate plan_{number}".encode())
    store._connections.give_back(connection)
    return found


def faults(node: dict[str, Any], limited: bool = False) -> Iterator[str]:
    kind = node["Node Type"]
    if kind in UNREAD:
        yield f"{kind} on {node.get('Relation Name', '')}"
    if kind == "Tid Scan" and "TID Cond" not in node:
        yield f"all of {node['Relation Name']}"
    if kind in SCANS and "Index Cond" not in node and not limited:
        yield f"all of {node['Index Name']}"
    # The first of an index by its own order, or nothing but whether there is one.
    first_only = kind == "Limit" or (kind in ("LockRows", "Result", "Subquery Scan") and limited)
    for below in node.get("Plans", ()):
        yield from faults(below, first_only or below.get("Parent Relationship") == "InitPlan")


def test_1B_20_1B_21_only_index_scans_where_workers_look(known: PostgresStore, said: Texts):
    assert sum("update job set" in text for text in said) >= 4
    assert sum("refuse(" in text for text in said) == 6, "none of it travelled in one go"
    bad = {text: list(faults(plan)) for text, plan in plans(known, said).items()}
    assert not {text: found for text, found in bad.items() if found}


@pytest.mark.parametrize(
    "text",
    ["select 1 from job where attempts = 3", "select id from job where state = 4", "select count(*) from payload"],
)
def test_what_reads_a_whole_table_would_be_found(known: PostgresStore, text: str):
    [plan] = plans(known, {text: []}).values()
    assert list(faults(plan))
