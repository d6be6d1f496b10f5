"""An application that moves money: each job changes two accounts and is completed in the same transaction.

PACKHORSE_STORE   where jobs live
BANK              where the accounts are: the file, or what psycopg connects with; the same database
"""

import os
import signal
import sqlite3
import threading
from typing import Any

import psycopg

from packhorse import Context, Packhorse

ACCOUNTS = 20
BEGINNING = 1_000

app = Packhorse(
    "bank",
    heartbeat=0.25,
    lease=5.0,
    polling_interval=0.2,
    keys=["a key that only these tests ever sign with"],
)
_own = threading.local()


def connect() -> Any:
    where = os.environ["BANK"]
    if where.startswith("host="):
        return psycopg.connect(where)
    return sqlite3.connect(where, timeout=20, isolation_level="IMMEDIATE")


def found() -> None:
    connection = connect()
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    connection.execute("drop table if exists account")
    connection.execute("drop table if exists moved")
    connection.execute("create table account (id integer primary key, balance integer not null)")
    connection.execute("create table moved (number integer, source integer, target integer, amount integer)")
    rows = [(number, BEGINNING) for number in range(ACCOUNTS)]
    connection.cursor().executemany(f"insert into account values ({mark}, {mark})", rows)
    connection.commit()
    connection.close()


@app.task(takes_context=True, retries=None, backoff=0.05)
def move(context: Context, number: int, source: int, target: int, amount: int) -> None:
    connection = getattr(_own, "connection", None)
    if connection is None:
        connection = _own.connection = connect()
    try:
        mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
        values = ", ".join([mark] * 4)
        connection.execute(f"insert into moved values ({values})", (number, source, target, amount))
        changes = sorted([(source, -amount), (target, amount)])  # in one order, so that two do not wait for each other
        for account, change in changes:
            connection.execute(f"update account set balance = balance + {mark} where id = {mark}", (change, account))
        context.complete_with(connection, number)
        connection.commit()
    except BaseException:
        _own.connection = None
        connection.close()  # which rolls back
        raise


@app.task(takes_context=True, isolate=True)
def move_apart(context: Context, number: int) -> None:
    """In a process of its own, which is killed as soon as the money is there."""
    move.function(context, number, 0, 1, 5)
    os.kill(os.getpid(), signal.SIGKILL)
