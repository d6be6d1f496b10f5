"""What can be wrong with a PostgreSQL server, as far as our own user may see."""

from __future__ import annotations

from collections.abc import Iterator

from packhorse.clock import SECOND
from packhorse.stores import postgres_holders
from packhorse.stores.contract import Finding, Level
from packhorse.stores.postgres_session import Schema, Session

OLD_SNAPSHOT = 300.0  # seconds: what is dead since then cannot be removed
DEAD_SHARE, DEAD_LEAST = 0.5, 10_000
CONNECTIONS_SHARE = 0.9
SKEW_WARNING = 2.0
HELD_IDLE, HELD_AT_WORK = 3.0, 30.0  # seconds that somebody else's transaction may hold locks of ours
SERVER = """
    select current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
           current_setting('synchronous_commit'), current_setting('autovacuum'),
           current_setting('max_connections')::bigint, cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)
"""
OLDEST = """
    select pid::bigint, coalesce(application_name, ''), coalesce(state, ''),
           cast(extract(epoch from clock_timestamp() - xact_start) as float8)
    from pg_stat_activity
    where xact_start is not null and backend_type = 'client backend' and pid <> pg_backend_pid()
      and (backend_xmin is not null or backend_xid is not null)
    order by xact_start limit 1
"""
CONNECTIONS = "select count(*) from pg_stat_activity where backend_type = 'client backend'"
DEAD = """
    select n_live_tup, n_dead_tup from pg_stat_user_tables where schemaname = $1 and relname = $2
"""
SWITCHED_OFF = """
    select relname::text from pg_class
    where relnamespace = to_regnamespace($1) and relkind = 'r' and reloptions::text like '%autovacuum_enabled=false%'
"""


def examine(c: Session, schema: Schema, now: int, *, pooled: bool) -> list[Finding]:
    """`now` is what we take for the time."""
    [(version, fsync, whole_pages, durable, autovacuum, most, its_now)] = c.plain(SERVER).fetchall()
    [(connections,)] = c.plain(CONNECTIONS).fetchall()
    return [
        Finding(Level.OK, "postgres", f"PostgreSQL is {version}{', behind a pooler' if pooled else ''}."),
        _durable(fsync, whole_pages, durable),
        _transactions(c),
        *_holders(c, schema),
        *_vacuum(c, f'"{schema.replace(chr(34), chr(34) * 2)}"', schema, autovacuum),
        _connections(connections, most),
        _skew((its_now - now) / SECOND),
    ]


def _durable(fsync: str, whole_pages: str, durable: str) -> Finding:
    if fsync == "off" or whole_pages == "off":
        text = (
            "The server does not write what it has acknowledged: when its machine fails, the database may be spoiled."
        )
        return Finding(Level.PROBLEM, "durability", text, "Set fsync and full_page_writes to on.")
    if durable == "off":
        text = (
            "The server acknowledges what it has not written yet: when it fails, the jobs of the last moment are lost."
        )
        return Finding(Level.WARNING, "durability", text, "Set synchronous_commit to on, or bear with that.")
    return Finding(Level.OK, "durability", "What the server acknowledges is on its disk.")


def _transactions(c: Session) -> Finding:
    for pid, name, state, seconds in c.plain(OLDEST).fetchall():
        if seconds >= OLD_SNAPSHOT:
            text = f"A transaction of {name or 'somebody'} (pid {pid}, {state}) is open for {seconds:.0f} seconds."
            remedy = (
                f"Dead rows pile up behind it and claims get slow: end it, if need be by pg_terminate_backend({pid})."
            )
            return Finding(Level.WARNING, "transactions", text, remedy)
    return Finding(Level.OK, "transactions", "No transaction is open for long.")


def _holders(c: Session, schema: Schema) -> Iterator[Finding]:
    """Of each, as the remedy is to end it."""
    for holder in postgres_holders.find(c, schema, HELD_IDLE, HELD_AT_WORK):
        what = "what all limited, unique or chained jobs need" if holder.holds_subject else "rows of jobs"
        remedy = (
            "Commit or roll back soon after jobs were enqueued or completed in a transaction; end a forgotten one by "
            f"pg_terminate_backend({holder.pid})."
        )
        yield Finding(Level.WARNING, "held up", f"{_sentence(str(holder))} holds {what}.", remedy)


def _vacuum(c: Session, quoted: str, schema: Schema, autovacuum: str) -> Iterator[Finding]:
    off = [name for (name,) in c.plain(SWITCHED_OFF, [quoted]).fetchall()]
    if autovacuum == "off" or off:
        which = f"for {', '.join(sorted(off))}" if off and autovacuum != "off" else "on this server"
        text = f"Autovacuum is switched off {which}: dead rows stay, and claims get slower and slower."
        yield Finding(Level.PROBLEM, "vacuum", text, "Switch it on.")
    for live, dead in c.plain(DEAD, [schema, f"{schema.prefix}job"]).fetchall():
        text = f"The table of jobs has {dead:,} dead rows and {live:,} live ones."
        if dead >= DEAD_LEAST and dead > DEAD_SHARE * (dead + live):
            remedy = "Run VACUUM on it; if they come back, look for transactions that are open for long."
            yield Finding(Level.WARNING, "vacuum", text, remedy)
        else:
            yield Finding(Level.OK, "vacuum", text)


def _connections(number: int, most: int) -> Finding:
    text = f"{number} of {most} connections are in use."
    if number < CONNECTIONS_SHARE * most:
        return Finding(Level.OK, "connections", text)
    return Finding(Level.WARNING, "connections", text, "Raise max_connections, or put a pooler before the server.")


def _skew(seconds: float) -> Finding:
    if abs(seconds) < SKEW_WARNING:
        return Finding(Level.OK, "server clock", "The clocks of the server and of this machine agree.")
    text = f"The server's clock is {abs(seconds):.1f} seconds {'ahead of' if seconds > 0 else 'behind'} this machine's."
    return Finding(Level.WARNING, "server clock", text, "Let both follow a time server.")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
