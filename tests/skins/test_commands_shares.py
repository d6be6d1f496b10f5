"""`packhorse shares`: looking at the weights of shares, changing them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from tests.skins.shops import FORBIDDEN, HOSTILE, Run, busy_shop, told


@pytest.fixture
def app(shop: Path) -> Iterator[Packhorse]:
    app = busy_shop(shop)
    app.control.migrate()
    yield app
    app.close()


def test_weights_are_listed(app: Packhorse, packhorse: Run):
    """By the names of the shares."""
    app.control.set_weight("bob", 1_000)
    app.control.set_weight("ann", 3)
    output = packhorse("shares", "list", "busy_shop").output
    assert [line.split() for line in output.splitlines()[-2:]] == [["ann", "3"], ["bob", "1,000"]]
    assert told(packhorse("shares", "list", "--json")) == [
        {"share": "ann", "weight": 3},
        {"share": "bob", "weight": 1_000},
    ]


def test_no_weights_are_no_table(app: Packhorse, packhorse: Run):
    assert packhorse("shares", "list").output == "No share has a weight: all get one turn where others get one.\n"
    assert told(packhorse("shares", "list", "--json")) == []


def test_a_weight_is_set_and_taken_back(app: Packhorse, packhorse: Run):
    """And both are kept in the audit."""
    on = ("--app", "busy_shop", "--reason", "pays more", "--actor", "eve")
    result = packhorse("shares", "set", "ann", "3", *on)
    assert result.output == "Share ann gets 3 turns from now on where others get one.\n"
    assert app.inspection.weights() == {"ann": 3}
    assert packhorse("shares", "set", "bob", "1", *on).output == (
        "Share bob gets 1 turn from now on where others get one.\n"
    )
    assert packhorse("shares", "reset", "ann", *on).output == "Share ann no longer has the weight 3.\n"
    assert packhorse("shares", "reset", "ann").output == "Share ann had no weight.\n"
    assert app.inspection.weights() == {"bob": 1}
    assert [audit[1:4] for audit in app.inspection.audit()[1:]] == [("eve", "set_weight", "pays more")] * 3


def test_scripts_get_the_weight_and_the_one_before(app: Packhorse, packhorse: Run):
    """None where there is none."""
    assert told(packhorse("shares", "set", "ann", "7", "--json")) == {"share": "ann", "weight": 7, "was": None}
    assert told(packhorse("shares", "set", "ann", "8", "--json")) == {"share": "ann", "weight": 8, "was": 7}
    assert told(packhorse("shares", "reset", "ann", "--json")) == {"share": "ann", "weight": None, "was": 8}


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["set", "no spaces", "2"], 1, "cannot be a share"),
        (["set", HOSTILE, "2"], 1, "cannot be a share"),
        (["set", "ann", "0"], 2, "1<=x<=1000"),
        (["set", "ann", "1.5"], 2, "'1.5' is not a valid integer"),
        (["set", "ann"], 2, "Missing argument"),
        (["reset"], 2, "Missing argument"),
        (["reset", "*"], 1, "cannot be a share"),
    ],
)
def test_a_wrong_word_is_explained(app: Packhorse, packhorse: Run, args: list[str], status: int, message: str):
    """And no weight is changed."""
    result = packhorse("shares", *args)
    assert result.exit_code == status, result.output
    assert message in result.output
    assert not set(result.output) & set(FORBIDDEN)
    assert app.store.audit() == []
