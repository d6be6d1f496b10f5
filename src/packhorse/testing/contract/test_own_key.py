"""`own_key`: a secret that goes with the store, for applications that were given none."""

from packhorse.stores import Store
from packhorse.testing.contract.helpers import insert


def test_it_is_the_same_whenever_asked(store: Store):
    """Made at the first call and kept; a store that has no place for a key says so each time."""
    key = store.own_key()
    insert(store, "a")
    assert store.own_key() == key


def test_it_cannot_be_guessed(store: Store):
    """A key is long enough to sign with, or there is none."""
    key = store.own_key()
    assert key is None or (isinstance(key, bytes) and len(key) >= 32)
