-- One narrow row per job carries all that changes; the wide rows beside it are written once.
-- Times are microseconds, UTC; ids are sixteen bytes.
-- The constraints keep values of another type out: to SQLite every number is smaller than every text, every text is
-- smaller than every blob, and null passes (typeof would make inserts slower by a quarter). They are for mistakes, not
-- for attackers, who can switch them off. There is one for each column, since SQLite looks only at those whose column is
-- written. Real numbers pass, as a sum beyond 64 bits is one: it must not stop the batch it is in.
-- States: 1 scheduled, 2 waiting, 3 ready, 4 running, 5 succeeded, 6 failed, 7 cancelled.

create table job (
    n           integer primary key,
    id          blob    not null,               -- unique by way of payload, which leads from the id to n
    state       integer not null,
    queue       text    not null,
    rank        integer not null,               -- minus the priority: smaller runs sooner; 0 where it ages
    order_key   integer not null,               -- when it became due, or will be; for a share, its turn
    epoch       integer not null default 0,     -- raised by every claim and every forced release, never reset
    attempts    integer not null default 0,
    losses      integer not null default 0,
    strays      integer not null default 0,     -- how often it came to a worker that does not know its task
    suspect     integer not null default 0,     -- 1: it may have begun on a worker that was lost
    run_at      integer,
    expires_at  integer,
    share       text,
    limited     integer not null default 0,     -- how many permits and tokens it needs, see hold
    waits_on    text    not null default '',    -- the line it waits in; empty: at the door, to be judged
    ageing      integer not null default 0,     -- microseconds of waiting that make up for a point of priority
    priority    integer,                        -- where it ages, so that the rank does not tell
    process     blob,                           -- the owner while running, then who performed it
    nonce       integer,                        -- of the exchange that claimed it
    claimed_at  integer,
    started_at  integer,
    finished_at integer,
    prune_at    integer,                        -- where the rule for its state does not count
    asked       text,                           -- an operator wants the running job to end, and why
    asked_kind  text,                           -- 'cancel', or 'restart': then it goes back
    asked_seal  blob,
    awaits      text,                           -- a signal that makes it due before its time, while it is scheduled
    watched     blob,                           -- at its gate: the first of its parents that has not ended
    check (state < ''),
    check (queue < x''),
    check (rank < ''),
    check (order_key < ''),
    check (epoch < ''),
    check (attempts < ''),
    check (losses < ''),
    check (strays < ''),
    check (suspect < ''),
    check (run_at < ''),
    check (expires_at < ''),
    check (nonce < ''),
    check (asked < x''),
    check (asked_kind < x''),
    check (asked_seal >= x''),
    check (awaits < x'')
);

create index job_to_claim   on job (queue, rank, order_key, id)  where state = 3;
create index job_to_promote on job (order_key, id)               where state = 1;
create index job_waiting    on job (waits_on, rank, order_key, id) where state = 2;
create index job_held       on job (process, nonce, id)          where state = 4;
create index job_awaiting   on job (awaits, id)                  where awaits is not null;
create index job_to_prune   on job (state, prune_at, finished_at, id) where state > 4;

create table payload (
    id         blob    not null primary key,
    n          integer not null,
    task       text    not null,
    body       blob    not null,
    created_at integer not null,
    tags       text,                            -- a JSON list; the rows of tag serve look-ups
    check (task < x''),
    check (body >= x''),
    check (created_at < '')
) without rowid;

create index payload_large on payload (id) where length(body) > 4194;

create table ending (
    id           blob not null primary key,
    result       blob,
    result_until integer,
    result_error text,
    failure      blob,
    reason       text,
    spent        integer not null
);

create index ending_result_until on ending (result_until, id) where result_until is not null;

-- Attempts that did not succeed; the last one of a finished job lives in its ending.
create table attempt (
    id         blob    not null,
    epoch      integer not null,
    number     integer not null,
    process    blob    not null,
    started_at integer,
    ended_at   integer not null,
    failure    blob    not null,
    spent      integer not null,
    primary key (id, epoch)
);

create table tag (
    name text not null,
    id   blob not null,
    primary key (name, id)
) without rowid;

create index tag_of_job on tag (id);

create table entry (
    id   blob not null,
    kind text not null,
    name text not null,
    data blob not null,
    primary key (id, kind, name)
);

-- The limits and rates a job must meet before it may run; a rate has a period.
create table hold (
    id       blob    not null,
    place    integer not null,
    key      text    not null,
    number   integer not null,                  -- permits, or tokens in a period
    conflict integer not null,
    period   integer,
    burst    integer,
    primary key (id, place)
) without rowid;

-- The right to run under a limit, one numbered row each: it can be neither overrun nor leaked.
create table permit (
    key text    not null,
    n   integer not null,
    id  blob    not null,
    run integer not null default 0,             -- it is the last of several that have this permit one after the other
    primary key (key, n)
) without rowid;

create index permit_of_job on permit (id);

-- How many permits a key has, as the newest job says that came with it.
create table limit_cap (
    key     text    not null primary key,
    permits integer not null,
    since   blob    not null
) without rowid;

-- Numbers set at run time, which count instead of what jobs bring along.
create table limit_set (
    key     text    not null primary key,
    permits integer not null
) without rowid;

-- How far a rate is used up: all its tokens are back at `since` and the time that `taken` of them need.
create table rate (
    key        text    not null primary key,
    tokens     integer not null,
    period     integer not null,
    burst      integer not null,
    brought_by blob    not null,                -- the newest job that came with these numbers
    since      integer not null,
    taken      integer not null,
    wake_at    integer                          -- when it calls those who wait; null: nobody does
) without rowid;

create index rate_to_wake on rate (wake_at) where wake_at is not null;

-- Jobs that have their token and have not begun.
create table ticket (
    key text not null,
    id  blob not null,
    primary key (key, id)
) without rowid;

create index ticket_of_job on ticket (id);

-- The last turn of each share among those who take turns with each other.
create table turn (
    scope text    not null,
    rank  integer not null,
    share text    not null,
    last  integer not null,
    primary key (scope, rank, share)
) without rowid;

create table share_weight (
    share  text    not null primary key,
    weight integer not null
) without rowid;

create table unique_key (
    key         text    not null primary key,
    id          blob    not null,
    until_start integer not null,
    lapses_at   integer                         -- held so long, if the job is kept
) without rowid;

create index unique_key_of_job on unique_key (id);
create index unique_key_lapsed on unique_key (lapses_at) where lapses_at is not null;

-- Numbers go on where all were deleted: a job remembers the last it got.
create table signal (
    n     integer primary key autoincrement,
    name  text    not null,
    data  blob    not null,
    until integer not null,
    check (name < x''),
    check (data >= x''),
    check (until < '')
);

create index signal_of_name on signal (name, n);
create index signal_until   on signal (until, n);

create table process (
    id          blob    not null primary key,
    role        text    not null,
    host        text    not null,
    pid         integer not null,
    queues      text    not null,
    supervisor  blob,
    started_at  integer not null,
    lease       integer not null,
    lease_until integer not null,               -- in ticks of the boot below, which no clock step touches
    boot        text    not null,
    check (lease < ''),
    check (lease_until < '')
);

create table pause (
    kind      text    not null,                 -- queue or task
    name      text    not null,
    until     integer,
    reason    text    not null,
    actor     text    not null,
    paused_at integer not null,
    primary key (kind, name),
    check (kind < x''),
    check (name < x''),
    check (until < '')
) without rowid;

create table audit (
    n      integer primary key,
    at     integer not null,
    actor  text    not null,
    act    text    not null,
    reason text    not null,
    jobs   integer not null
);

-- Jobs that come after others.
create table edge (
    child  blob    not null,
    parent blob    not null,
    need   integer not null,                    -- 0 that it succeeds, 1 that it ends, 2 that it does not succeed
    ended  integer not null default 0,          -- 2 badly, 1 badly and forgiven; otherwise the parent's row tells
    primary key (child, parent)
) without rowid;

create index edge_of_parent on edge (parent);

create table member (
    flow  blob    not null,
    place integer not null,
    id    blob    not null,
    primary key (flow, place)
) without rowid;

create index member_of_job on member (id);

create table schedule (
    "key"       text    not null primary key,
    task        text    not null,
    rule        text    not null,
    payload     blob    not null,               -- its arguments, sealed
    source      text    not null,               -- the application whose code declares it; empty: made at run time
    zone        text    not null,
    start       integer,
    "end"       integer,
    repeats     integer,
    jitter      integer not null,
    misfire     text    not null,
    grace       integer,
    overlap     text    not null,
    queue       text,
    priority    integer,
    paused      integer not null,
    handled     integer,                        -- what is due up to here has been dealt with
    next_at     integer,
    last_job    blob,
    error       text    not null,
    fingerprint text    not null,
    revision    integer not null
) without rowid;

create index schedule_due on schedule (next_at, "key") where not paused;

-- One job for each moment, whoever ticks and however long the job is kept.
create table tick (
    schedule text    not null,
    moment   integer not null,
    job      blob,                              -- null: an earlier one still ran
    primary key (schedule, moment)
) without rowid;

create index tick_moment on tick (moment);
