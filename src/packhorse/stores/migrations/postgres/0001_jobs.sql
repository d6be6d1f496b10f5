-- One narrow row per job carries all that changes; the wide rows beside it are written once.
-- Times are microseconds, UTC; ids are sixteen bytes. Texts sort by their bytes, as they do everywhere else.
-- States: 1 scheduled, 2 waiting, 3 ready, 4 running, 5 succeeded, 6 failed, 7 cancelled.

create sequence job_n cache 1;

create table job (
    n           bigint not null primary key,    -- from job_n
    id          bytea not null,                 -- unique by way of payload, which leads from the id to n
    state       smallint not null,
    queue       text collate "C" not null,
    rank        smallint not null,              -- minus the priority: smaller runs sooner; 0 where it ages
    order_key   bigint not null,                -- when it became due, or will be; for a share, its turn
    epoch       integer not null default 0,     -- raised by every claim and every forced release, never reset
    attempts    integer not null default 0,
    losses      integer not null default 0,
    strays      integer not null default 0,     -- how often it came to a worker that does not know its task
    suspect     smallint not null default 0,    -- 1: it may have begun on a worker that was lost
    run_at      bigint,
    expires_at  bigint,
    share       text collate "C",
    limited     integer not null default 0,     -- how many permits and tokens it needs, see hold
    waits_on    text collate "C" not null default '',  -- the line it waits in; empty: at the door, to be judged
    ageing      bigint not null default 0,      -- microseconds of waiting that make up for a point of priority
    priority    smallint,                       -- where it ages, so that the rank does not tell
    process     bytea,                          -- the owner while running, then who performed it
    nonce       bigint,                         -- of the exchange that claimed it
    claimed_at  bigint,
    started_at  bigint,
    finished_at bigint,
    prune_at    bigint,                         -- where the rule for its state does not count
    asked       text collate "C",               -- an operator wants the running job to end, and why
    asked_kind  text collate "C",               -- 'cancel', or 'restart': then it goes back
    asked_seal  bytea,
    awaits      text collate "C",               -- a signal that makes it due before its time, while it is scheduled
    watched     bytea                          -- at its gate: the first of its parents that has not ended
);

create index job_to_claim   on job (queue, rank, order_key, id)  where state = 3;
create index job_to_promote on job (order_key, id)               where state = 1;
create index job_waiting    on job (waits_on, rank, order_key, id) where state = 2;
create index job_held       on job (process, nonce, id)          where state = 4;
create index job_awaiting   on job (awaits, id)                  where awaits is not null;
create index job_to_prune   on job (state, prune_at, finished_at, id) where state > 4;

create table payload (
    id         bytea not null primary key,
    n          bigint not null,
    task       text collate "C" not null,
    body       bytea not null,
    created_at bigint not null,
    tags       text collate "C"                -- a JSON list; the rows of tag serve look-ups
);

create table ending (
    id           bytea not null primary key,
    result       bytea,
    result_until bigint,
    result_error text collate "C",
    failure      bytea,
    reason       text collate "C",
    spent        smallint not null
);

create index ending_result_until on ending (result_until, id) where result_until is not null;

-- Attempts that did not succeed; the last one of a finished job lives in its ending.
create table attempt (
    id         bytea not null,
    epoch      integer not null,
    number     bigint not null,
    process    bytea not null,
    started_at bigint,
    ended_at   bigint not null,
    failure    bytea not null,
    spent      smallint not null,
    primary key (id, epoch)
);

create table tag (
    name text collate "C" not null,
    id   bytea not null,
    primary key (name, id)
);

create index tag_of_job on tag (id);

create table entry (
    id   bytea not null,
    kind text collate "C" not null,
    name text collate "C" not null,
    data bytea not null,
    primary key (id, kind, name)
);

-- The limits and rates a job must meet before it may run; a rate has a period.
create table hold (
    id       bytea not null,
    place  bigint not null,
    key      text collate "C" not null,
    number   bigint not null,                   -- permits, or tokens in a period
    conflict smallint not null,
    period   bigint,
    burst    bigint,
    primary key (id, place)
);

-- The right to run under a limit, one numbered row each: it can be neither overrun nor leaked.
create table permit (
    key text collate "C" not null,
    n   bigint not null,
    id  bytea not null,
    run smallint not null default 0,            -- it is the last of several that have this permit one after the other
    primary key (key, n)
);

create index permit_of_job on permit (id);

-- How many permits a key has, as the newest job says that came with it.
create table limit_cap (
    key     text collate "C" not null primary key,
    permits bigint not null,
    since   bytea not null
);

-- Numbers set at run time, which count instead of what jobs bring along.
create table limit_set (
    key     text collate "C" not null primary key,
    permits bigint not null
);

-- How far a rate is used up: all its tokens are back at `since` and the time that `taken` of them need.
create table rate (
    key        text collate "C" not null primary key,
    tokens     bigint not null,
    period     bigint not null,
    burst      bigint not null,
    brought_by bytea not null,                  -- the newest job that came with these numbers
    since      bigint not null,
    taken      bigint not null,
    wake_at    bigint                           -- when it calls those who wait; null: nobody does
);

create index rate_to_wake on rate (wake_at) where wake_at is not null;

-- Jobs that have their token and have not begun.
create table ticket (
    key text collate "C" not null,
    id  bytea not null,
    primary key (key, id)
);

create index ticket_of_job on ticket (id);

-- The last turn of each share among those who take turns with each other.
create table turn (
    scope text collate "C" not null,
    rank  smallint not null,
    share text collate "C" not null,
    last  bigint not null,
    primary key (scope, rank, share)
);

create table share_weight (
    share  text collate "C" not null primary key,
    weight bigint not null
);

create table unique_key (
    key         text collate "C" not null primary key,
    id          bytea not null,
    until_start smallint not null,
    lapses_at   bigint                          -- held so long, if the job is kept
);

create index unique_key_of_job on unique_key (id);
create index unique_key_lapsed on unique_key (lapses_at) where lapses_at is not null;

-- Numbers go on where all were deleted: a job remembers the last it got.
create table signal (
    n     bigint generated always as identity primary key,
    name  text collate "C" not null,
    data  bytea not null,
    until bigint not null
);

create index signal_of_name on signal (name, n);
create index signal_until   on signal (until, n);

create table process (
    id          bytea not null primary key,
    role        text collate "C" not null,
    host        text collate "C" not null,
    pid         bigint not null,
    queues      text collate "C" not null,
    supervisor  bytea,
    started_at  bigint not null,
    lease       bigint not null,
    lease_until bigint not null,                -- in ticks of the boot below, which no clock step touches
    boot        text collate "C" not null,
    exchanged   bigint                          -- the nonce of its last exchange that travelled in one go
);

create table pause (
    kind      text collate "C" not null,        -- queue or task
    name      text collate "C" not null,
    until     bigint,
    reason    text collate "C" not null,
    actor     text collate "C" not null,
    paused_at bigint not null,
    primary key (kind, name)
);

create index pause_until on pause (until) where until is not null;

create table audit (
    n      bigint generated always as identity primary key,
    at     bigint not null,
    actor  text collate "C" not null,
    act    text collate "C" not null,
    reason text collate "C" not null,
    jobs   bigint not null
);

-- Jobs that come after others.
create table edge (
    child  bytea not null,
    parent bytea not null,
    need   smallint not null,                   -- 0 that it succeeds, 1 that it ends, 2 that it does not succeed
    ended  smallint not null default 0,         -- 2 badly, 1 badly and forgiven; otherwise the parent's row tells
    primary key (child, parent)
);

create index edge_of_parent on edge (parent);

create table member (
    flow  bytea not null,
    place  bigint not null,
    id    bytea not null,
    primary key (flow, place)
);

create index member_of_job on member (id);

create table schedule (
    "key"       text collate "C" not null primary key,
    task        text collate "C" not null,
    rule        text collate "C" not null,
    payload     bytea not null,                 -- its arguments, sealed
    source      text collate "C" not null,      -- the application whose code declares it; empty: made at run time
    zone        text collate "C" not null,
    start       bigint,
    "end"       bigint,
    repeats     bigint,
    jitter      bigint not null,
    misfire     text collate "C" not null,
    grace       bigint,
    overlap     text collate "C" not null,
    queue       text collate "C",
    priority    smallint,
    paused      smallint not null,
    handled     bigint,                         -- what is due up to here has been dealt with
    next_at     bigint,
    last_job    bytea,
    error       text collate "C" not null,
    fingerprint text collate "C" not null,
    revision    bigint not null
);

create index schedule_due on schedule (next_at, "key") where paused = 0;

-- One job for each moment, whoever ticks and however long the job is kept.
create table tick (
    schedule text collate "C" not null,
    moment   bigint not null,
    job      bytea,                             -- null: an earlier one still ran
    primary key (schedule, moment)
);

create index tick_moment on tick (moment);

-- Ends a stroke, for one that finds in its last statement that it should not have begun.
create function refuse(why text) returns bigint language plpgsql as $$
begin
    raise exception 'refused' using errcode = why;
end
$$;

-- Wake-ups: whoever writes counts here what may concern those who look for something to claim (ready), or those who wait
-- for jobs to end (ended), and calls them only where one of them sleeps. How that misses nobody: docs/decisions/0014.
create sequence change_ready;
create sequence change_ended;

create function ring(channel text, counter regclass, writing bigint, listening bigint) returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(writing);
    if pg_try_advisory_lock(listening) then
        perform pg_advisory_unlock(listening);
    else
        perform pg_notify(channel, '');
    end if;
    perform nextval(counter);
end
$$;
