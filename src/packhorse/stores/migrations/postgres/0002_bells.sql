-- Bells that a transaction of somebody else's rings when it commits, and not while it lasts: whoever rings has a place
-- among the writers until the commit, and who is about to sleep waits for the writers. The rows never outlast it.
create unlogged table bell (
    transaction xid8 not null,
    channel     text collate "C" not null,
    counter     text collate "C" not null,
    writing     bigint not null,
    listening   bigint not null,
    primary key (transaction, channel)
);

create function ring_at_commit() returns trigger language plpgsql set search_path from current as $$
begin
    delete from bell where transaction = new.transaction and channel = new.channel;
    perform ring(new.channel, new.counter::regclass, new.writing, new.listening);
    return null;
end
$$;

create constraint trigger bell_at_commit after insert on bell deferrable initially deferred
    for each row execute function ring_at_commit();
