"""What the contract does not show. A store's test module may say how to look; without it only the contract is checked.

@epochs.register
def _(store: MyStore) -> dict[bytes, int]:
    return dict(store.database.execute("select id, epoch from job"))
"""

from functools import singledispatch

from packhorse.stores import Store


@singledispatch
def epochs(store: Store) -> dict[bytes, int] | None:
    """The epoch of every job, or None where nobody said how to read it."""
    return None


@singledispatch
def leftovers(store: Store) -> list[str]:
    """Sentences on what belongs to no job, or to one that cannot have it; always empty in a sound store."""
    return []
