"""The proof of the store contract, for any store: all that `packhorse.stores.contract` promises, as pytest tests.

A store proves itself with one line, and a fixture that says how to open it. In its `test_my_store.py`:

    import pytest
    from my_store import MyStore
    from packhorse.testing.contract import *

    @pytest.fixture
    def new_store(tmp_path_factory):
        return lambda clock: MyStore(tmp_path_factory.mktemp("store") / "jobs", clock)

`new_store(clock)` answers a new, empty store that takes all its time from that clock; it is called again and again, but
never before the store of the last call was closed. The fixture may be parametrized, and clean up behind a `yield`.

Besides the tests by name, `test_state_machine` holds the store against a plain model through random histories: a few
short ones, and in `test_many_long_histories` many long ones. That takes a minute or so; `-k "not many_long"` leaves it
out, and HYPOTHESIS_PROFILE=nightly makes a night of it.

An epoch begins at 0 and is raised by one at a time, here and in the model. Epochs of jobs that do not run, and what a
store may have left lying about, cannot be seen through the contract; `behind` says how to show them all the same.
"""

from importlib import import_module

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as missing:
    raise ImportError(
        f"packhorse.testing.contract needs pytest and Hypothesis ({missing}). Run: pip install pytest hypothesis"
    ) from missing

SUITE = (
    "fixtures",
    "test_adopt",
    "test_ageing",
    "test_claim_order",
    "test_fencing",
    "test_flows",
    "test_insert",
    "test_lease",
    "test_leave",
    "test_limits",
    "test_looking",
    "test_lost_replies",
    "test_move",
    "test_one_place",
    "test_one_stroke",
    "test_orders",
    "test_outcomes",
    "test_overdue",
    "test_own_key",
    "test_pause",
    "test_payloads",
    "test_promote",
    "test_prune",
    "test_rates",
    "test_record",
    "test_reseal",
    "test_schedules",
    "test_schema",
    "test_shares",
    "test_signals",
    "test_starting",
    "test_state_machine",
    "test_unique",
    "test_waiting",
)

HISTORIES = ("model", "history", "history_of_flows", "history_of_schedules", "history_of_signals")

pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in ("helpers", *HISTORIES, *SUITE)))

_FIXTURE = type(pytest.fixture(lambda: None))
__all__ = []

for _module in SUITE:
    for _name, _value in vars(import_module(f"{__name__}.{_module}")).items():
        if _name.startswith("test_") and _name in __all__:
            raise ImportError(
                f"{_module} has a {_name}, and so has a module before it: the later would hide the earlier"
            )
        if _name.startswith("test_") or isinstance(_value, _FIXTURE):
            globals()[_name] = _value
            __all__.append(_name)
