"""The suite of the contract, on every store of ours. Its tests are in `packhorse.testing.contract`."""

import pytest

from packhorse.testing.contract import *  # noqa: F403
from packhorse.testing.contract.test_state_machine import test_a_few_short_histories, test_many_long_histories

pytest.mark.timeout(600)(test_a_few_short_histories)  # shrinking a failure takes its time
pytest.mark.timeout(0)(test_many_long_histories)
pytest.mark.slow(test_many_long_histories)
