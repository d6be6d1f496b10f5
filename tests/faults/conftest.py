from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import Place, PostgresPlace

# What is about a worker's life is tested on a server, too.
ON_SERVERS = (
    "test_crash_matrix",
    "test_endings",
    "test_flow_crash_matrix",
    "test_flows",
    "test_lookahead",
    "test_outside",
    "test_schedules",
    "test_steps",
    "test_supervisor",
)
ABOUT_THE_FILE = (
    "test_a_worker_cut_off_stops_its_tasks_before_its_lease_is_over",  # a lock that keeps all others from writing
    "test_the_probe_says_whether_jobs_could_be_claimed",  # the same
    "test_changed_sources_start_it_anew",  # an application that names its own file
)
# These in every run; the others on servers are more of the same.
CHOSEN = (
    "test_dying_there_loses_nothing[postgres-exchange.before_commit@1]",
    "test_dying_there_loses_nothing[postgres-exchange.after_commit@1]",
    "test_dying_there_loses_nothing[postgres-insert.after_commit@1]",
    "test_dying_there_loses_nothing[postgres-tick.before_commit@1]",
    "test_a_killed_worker_has_its_job_run_again_at_once[postgres]",
    "test_term_lets_a_running_job_end_once[postgres]",
    "test_quit_ends_at_once_and_hands_back_unspent[postgres]",
    "test_a_process_that_dies_takes_nobody_along[postgres-signal",
    "test_roles_may_run_apart[postgres]",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in ON_SERVERS:
        stores = ["sqlite"] if metafunc.function.__name__ in ABOUT_THE_FILE else ["sqlite", "postgres"]
        metafunc.parametrize("place", stores, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        store = item.callspec.params.get("place") if hasattr(item, "callspec") else None
        if store == "postgres" and not item.name.startswith(CHOSEN):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    on_server = getattr(request, "param", "sqlite") == "postgres"
    place = PostgresPlace(tmp_path, request.getfixturevalue("postgres")) if on_server else Place(tmp_path)
    yield place
    place.end()
