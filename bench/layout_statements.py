"""Ways to lay jobs out in tables on PostgreSQL, each with the statements of one exchange; measured by bench.layouts.

All promise the same: jobs come in the order of rank, order key and id, and to one worker only; a claim raises the epoch
and writes process and nonce; an end is taken only under the token of the claim; payload, result and history stay, and
what is to be pruned is found by an index. They are written in the words of the store, so that all travel alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from packhorse.stores.migrate import steps
from packhorse.stores.postgres_exchange import FITTING, NEXT_OF_ONE, TAKE, TOKEN
from packhorse.stores.sql_exchange import SUCCESS


@dataclass(frozen=True)
class Layout:
    name: str
    tables: str
    wait: str  # inserts ready jobs; $1 and $2 are the first and the last number
    end: str  # inserts finished ones, likewise
    claim: str  # queue, limit, process, nonce, now, how many start at once, now; the number of a row comes last
    finish: str  # brings the ids of those that were accepted
    finish_moments: int  # how often it is told the time, before the batch
    finished: str  # how many have ended, with their result


STORE = "".join(step.sql for step in steps("postgres"))
BATCH = "bigint bytea bigint bytea bigint bigint bytea"
ENDED = f"({{rows:{BATCH}}}) as ended (n, process, nonce, id, epoch, duration, result)"

NUMBERS = "generate_series($1::bigint, $2::bigint) as i"
ID = "decode(lpad(to_hex(i), 32, '0'), 'hex')"
BODY = "decode(repeat(md5(i::text), 6), 'hex')"
RESULT = "convert_to('{\"made\":' || i || '}', 'UTF8')"
PROCESS = "'\\x00112233445566778899aabbccddeeff'::bytea"
WIDE = f"{ID}, 'tasks.noop', {BODY}, i"

# What the store does when it exchanges in one go, but with one statement for the end and for what is kept of it.
PAYLOAD = f"insert into payload (n, id, task, body, created_at) select i, {WIDE} from {NUMBERS}"
JOB = "insert into job (n, id, state, queue, rank, order_key) "
NARROW = f"with payload as ({PAYLOAD}) {JOB} select i, {ID}, 3, 'default', 0, i from {NUMBERS}"
CLAIM_OF_STORE = TAKE.format(before="", **NEXT_OF_ONE, number=", job.n", beyond="")
CLAIM_OF_STORE = CLAIM_OF_STORE.replace(FITTING.format(beyond=""), "body")  # no layout's payloads are large
STATES = Layout(
    name="A states",
    tables=STORE,
    wait=NARROW,
    end=f"""
        with payload as ({PAYLOAD}), ending as (
            insert into ending (id, result, spent) select {ID}, {RESULT}, 1 from {NUMBERS}
        )
        insert into job (n, id, state, queue, rank, order_key, epoch, attempts, process, nonce, started_at, finished_at)
        select i, {ID}, 5, 'default', 0, i, 1, 1, {PROCESS}, i, i, i from {NUMBERS}
    """,
    claim=CLAIM_OF_STORE,
    finish=f"""
        with done as (
            update job set {SUCCESS} from {ENDED} where {TOKEN} returning ended.id, ended.result
        )
        insert into ending (id, result, spent) select id, result, 1 from done returning id
    """,
    finish_moments=2,
    finished="select count(*) from ending where result is not null",
)

# A row for each place a job stands in. Those of ready and claimed jobs carry what a job that is put back must keep.
CARRIED = """
    id bytea not null, queue text collate "C" not null, rank smallint not null, order_key bigint not null,
    epoch integer not null default 0, attempts integer not null default 0, losses integer not null default 0,
    strays integer not null default 0, expires_at bigint, share text collate "C", limited integer not null default 0,
    ageing bigint not null default 0, priority smallint
"""
POINTERS = f"""
    create table ready ({CARRIED}, primary key (id));  -- a job is found, moved and cancelled by its id
    create index ready_to_claim on ready (queue, rank, order_key, id);
    create table claimed (
        {CARRIED}, process bytea not null, nonce bigint not null, claimed_at bigint not null, started_at bigint,
        asked text collate "C", asked_kind text collate "C", asked_seal bytea, primary key (id)
    );
    create index claimed_held on claimed (process, nonce);
"""
KEPT = "id, queue, rank, order_key, attempts, losses, strays, expires_at, share, limited, ageing, priority"
# The locked rows are reached by where they stand: cheaper than by their ids.
CLAIM = f"""
    with picked as materialized (
        select ctid as spot, rank, order_key, id from ready where queue = ?
        order by rank, order_key, id limit ? for update skip locked
    ), numbered as (
        select spot, row_number() over (order by rank, order_key, id) as place from picked
    ), gone as (
        delete from ready using numbered where ready.ctid = numbered.spot returning ready.*, place
    ), taken as (
        insert into claimed ({KEPT}, epoch, process, nonce, claimed_at, started_at)
        select {KEPT}, epoch + 1, ?, ?, ?, case when place <= ? then cast(? as bigint) end from gone
        returning *
    )
    select taken.process, taken.nonce, taken.id, taken.epoch, task, body, taken.queue,
           coalesce(-taken.priority, taken.rank), taken.attempts, taken.losses, created_at, taken.expires_at,
           taken.strays, cast(null as bigint)
    from taken left join job on job.id = any(array[taken.id])
    order by taken.rank, taken.order_key, taken.id
"""
# `is not distinct from` and `+ 0` hide that the index of what a process holds would do.
UNCLAIM = f"""
    delete from claimed using {ENDED}
    where claimed.id = any(array[ended.id]) and claimed.process is not distinct from ended.process
      and claimed.nonce + 0 = ended.nonce and claimed.epoch = ended.epoch
    returning claimed.*, ended.duration, ended.result
"""
READY = f"insert into ready (queue, rank, order_key, id) select 'default', 0, i, {ID} from {NUMBERS}"
END = """
    state smallint not null{default}, epoch integer, attempts integer, losses integer, process bytea, nonce bigint,
    started_at bigint, finished_at bigint, prune_at bigint, result bytea, result_until bigint,
    result_error text collate "C", failure bytea, reason text collate "C", spent smallint
"""
PAID = """
    id bytea not null primary key, task text collate "C" not null, body bytea not null, created_at bigint not null,
    tags text collate "C"
"""

# The wide row learns how it ended where it stands: no index knows of it, and pages have room for both versions.
UPDATED = Layout(
    name="B pointers, row updated",
    tables=f"""
        {POINTERS}
        create table job ({PAID}, {END.format(default=" default 3")}) with (fillfactor = 45);
        create table finished (
            state smallint not null, prune_at bigint, finished_at bigint not null, id bytea not null
        );
        create index finished_to_prune on finished (state, prune_at, finished_at, id);
    """,
    wait=f"with ready as ({READY}) insert into job (id, task, body, created_at) select {WIDE} from {NUMBERS}",
    end=f"""
        with finished as (
            insert into finished (state, finished_at, id) select 5, i, {ID} from {NUMBERS}
        )
        insert into job (id, task, body, created_at, state, epoch, attempts, losses, process, nonce, started_at,
                         finished_at, result, spent)
        select {WIDE}, 5, 1, 1, 0, {PROCESS}, i, i, i, {RESULT}, 1 from {NUMBERS}
    """,
    claim=CLAIM,
    finish=f"""
        with moment (now) as (values (?::bigint)), gone as ({UNCLAIM}), finished as (
            insert into finished (state, finished_at, id) select 5, (select now from moment), id from gone
        )
        update job set
            state = 5, epoch = gone.epoch, attempts = gone.attempts + 1, losses = gone.losses, process = gone.process,
            nonce = gone.nonce, started_at = (select now from moment) - gone.duration,
            finished_at = (select now from moment), result = gone.result, spent = 1
        from gone where job.id = any(array[gone.id]) returning job.id
    """,
    finish_moments=1,
    finished="select count(*) from job where state = 5 and result is not null",
)

# The wide row is never touched again: how it ended is a row of its own.
INSERTED = Layout(
    name="B' pointers, end inserted",
    tables=f"""
        {POINTERS}
        create table job ({PAID});
        create table ending (id bytea not null primary key, queue text collate "C" not null, {END.format(default="")});
        create index ending_to_prune on ending (state, prune_at, finished_at, id);
    """,
    wait=f"with ready as ({READY}) insert into job (id, task, body, created_at) select {WIDE} from {NUMBERS}",
    end=f"""
        with job as (insert into job (id, task, body, created_at) select {WIDE} from {NUMBERS})
        insert into ending (id, queue, state, epoch, attempts, losses, process, nonce, started_at, finished_at, result,
                            spent)
        select {ID}, 'default', 5, 1, 1, 0, {PROCESS}, i, i, i, {RESULT}, 1 from {NUMBERS}
    """,
    claim=CLAIM,
    finish=f"""
        with moment (now) as (values (?::bigint)), gone as ({UNCLAIM})
        insert into ending (id, queue, state, epoch, attempts, losses, process, nonce, started_at, finished_at, result,
                            spent)
        select id, queue, 5, epoch, attempts + 1, losses, process, nonce, (select now from moment) - duration,
               (select now from moment), result, 1
        from gone returning id
    """,
    finish_moments=1,
    finished="select count(*) from ending where result is not null",
)

# The narrow row is as in the store while the job lives; at its end it moves. The payload stays where it is.
ARCHIVED = "n, id, state, queue, rank, order_key, epoch, attempts, losses, process, nonce, started_at, finished_at"
ARCHIVE = Layout(
    name="C live and archive",
    tables=f"""
        {STORE};
        drop table ending;
        drop index job_to_prune;
        create table archive (
            like job including defaults, result bytea, result_until bigint, result_error text collate "C",
            failure bytea, reason text collate "C", spent smallint not null, primary key (n)
        );
        create index archive_to_prune on archive (state, prune_at, finished_at, id);
        create index archive_result_until on archive (result_until, id) where result_until is not null;
    """,
    wait=NARROW,
    end=f"""
        with payload as ({PAYLOAD}) insert into archive ({ARCHIVED}, result, spent)
        select i, {ID}, 5, 'default', 0, i, 1, 1, 0, {PROCESS}, i, i, i, {RESULT}, 1 from {NUMBERS}
    """,
    claim=CLAIM_OF_STORE,
    finish=f"""
        with moment (now) as (values (?::bigint)), gone as (
            delete from job using {ENDED} where {TOKEN}
            returning job.*, ended.duration, ended.result
        )
        insert into archive ({ARCHIVED}, expires_at, share, limited, ageing, priority, strays, result, spent)
        select n, id, 5, queue, rank, order_key, epoch, attempts + 1, losses, process, nonce,
               (select now from moment) - duration, (select now from moment),
               expires_at, share, limited, ageing, priority, strays, result, 1
        from gone returning id
    """,
    finish_moments=1,
    finished="select count(*) from archive where result is not null",
)

LAYOUTS = (STATES, UPDATED, INSERTED, ARCHIVE)
