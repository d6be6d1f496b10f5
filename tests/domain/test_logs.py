"""Log lines: one record on one line, for people and for programs, whatever is logged."""

import json
import logging
import logging.handlers
import queue
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.errors import ConfigError
from packhorse.ids import new_id, to_text
from packhorse.logs import EXTRAS, JobLogger, JSONFormatter, TextFormatter, configure, job_extra
from packhorse.masking import Secret

RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Evil(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


def record(
    msg: Any = "hello", *args: Any, error: BaseException | None = None, extra: Mapping[str, object] | None = None
) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    name = "packhorse.jobs"
    return logging.getLogger(name).makeRecord(name, logging.INFO, __file__, 1, msg, args, info, extra=extra)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def as_json(given: logging.LogRecord) -> dict[str, Any]:
    line = JSONFormatter().format(given)
    assert line.isascii()
    assert line.isprintable()
    found: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)
    return found


def as_text(given: logging.LogRecord) -> str:
    """Without the time and the process id."""
    line = TextFormatter().format(given)
    day, hour, level, process, rest = line.split(maxsplit=4)
    datetime.fromisoformat(f"{day} {hour.replace(',', '.')}")
    assert process == str(given.process)
    return f"{level} {rest}"


# JSON


def test_a_record_becomes_one_json_object():
    """With the time in UTC and what the caller added."""
    extra = {"job_id": "x1", "attempt": 2, "ratio": 0.5, "late": True, "tags": ["a", {"b": None}]}
    given = record("job %s ended", "x1", extra=extra)
    found = as_json(given)
    assert datetime.fromisoformat(found.pop("time")) == datetime.fromtimestamp(given.created, UTC)
    assert found == {
        "level": "INFO",
        "logger": "packhorse.jobs",
        "message": "job x1 ended",
        "process": given.process,
        "thread": given.threadName,
        **extra,
    }


def test_an_exception_is_told_as_text():
    """The whole traceback, in one field of the same line."""
    found = as_json(record("it failed", error=raised(ValueError("two\nlines"))))
    assert found["message"] == "it failed"
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert found["exception"].endswith("ValueError: two\nlines")


def test_an_exception_that_another_process_wrote_down_is_told_too():
    """As the handlers of the standard library pass records between processes."""
    waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    logging.handlers.QueueHandler(waiting).handle(record("it failed", error=raised(ValueError("far away"))))
    passed_on = waiting.get()
    assert passed_on.exc_info is None
    assert "ValueError: far away" in JSONFormatter().format(passed_on)


def test_an_exception_without_a_text_is_told_all_the_same():
    """Its own methods may raise."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert "Broken" in as_json(record(error=raised(Broken())))["exception"]
    assert "exception" not in as_json(logging.makeLogRecord({"msg": "a", "exc_info": (None, None, None)}))


def test_the_stack_is_told_where_asked_for():
    """`stack_info=True`."""
    given = record()
    given.stack_info = "Stack (most recent call last):\n  here"
    assert as_json(given)["stack"] == given.stack_info
    assert as_text(given).endswith("hello\n    Stack (most recent call last):\n      here")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (object(), "object"),
        (Secret("hunter2"), "Secret"),
        ([Secret("hunter2"), {"a": b"x"}], ["Secret", {"a": "bytes"}]),
        (Unspeakable(), "Unspeakable"),
        (Evil(a=1), "Evil"),
        ({(1, 2): 3}, "dict"),
        (float("nan"), "float"),
        ([float("inf")], "list"),
        ([10**5_000], "list"),
        ("\ud800", "\\ud800"),
        (list(range(100_000)), "list"),
    ],
)
def test_an_extra_that_is_no_json_is_told_by_its_type(value: Any, shown: Any):
    """Its content is nobody's business, and its methods may raise."""
    assert as_json(record(extra={"thing": value}))["thing"] == shown


def test_an_extra_that_contains_itself_is_told_by_its_type():
    """So is one too deep."""
    knot: list[Any] = []
    knot.append(knot)
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    found = as_json(record(extra={"knot": knot, "deep": deep}))
    assert (found["knot"], found["deep"]) == ("list", "list")


def test_an_extra_cannot_pass_for_a_field_of_ours():
    """It gets another name."""
    found = as_json(record(extra={"level": "FORGED", "time": "never", "logger": "other"}))
    assert found["level"] == "INFO"
    assert (found["level_"], found["time_"], found["logger_"]) == ("FORGED", "never", "other")


def test_a_message_whose_arguments_do_not_fit_is_told_with_the_reason():
    """A wrong log call must not end what it tells of."""
    assert as_json(record("%d jobs", "many"))["message"] == "'%d jobs' (TypeError while filling in its arguments)"
    assert as_json(record("%s", Unspeakable()))["message"] == "'%s' (RuntimeError while filling in its arguments)"
    assert "'%d jobs' (TypeError" in as_text(record("%d jobs", "many"))


def test_a_record_beyond_help_still_gives_a_line():
    """It says at least that there was one."""
    assert as_json(record(Unspeakable()))["message"] == "a log record could not be written: RuntimeError"
    assert TextFormatter().format(record(Unspeakable())).endswith("a log record could not be written: RuntimeError")
    assert as_json(logging.makeLogRecord({"created": "yesterday"}))["logger"] == "packhorse.logs"


def test_long_texts_are_cut():
    """No single record can fill a disk."""
    long = "x" * 1_000_000
    given = record(long, error=raised(ValueError(long)), extra={"note": long, "task": long})
    assert len(JSONFormatter().format(given)) < 150_000
    assert len(TextFormatter().format(given)) < 150_000


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.builds(object)
    | st.builds(Unspeakable)
    | st.builds(Secret, st.text()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner) | st.tuples(inner),
    max_leaves=8,
)
extras = st.dictionaries(st.text(st.characters()).filter(lambda name: name not in RESERVED), anything)


@given(anything, st.lists(anything), extras, st.text(st.characters()))
def test_every_record_gives_one_line_of_json(msg: Any, args: list[Any], extra: dict[str, Any], error: str):
    """Whatever is logged, with whatever arguments and extras."""
    given = record(msg, *args, error=ValueError(error), extra=extra)
    assert as_json(given)["level"] in {"INFO", "ERROR"}


@given(anything, st.lists(anything), extras, st.text(st.characters()))
def test_every_record_gives_text_without_control_characters(
    msg: Any, args: list[Any], extra: dict[str, Any], error: str
):
    """And only the lines of a traceback follow the first, indented, so that none can pass for a record."""
    given = record(msg, *args, error=ValueError(error), extra=dict(zip(EXTRAS, extra.values(), strict=False)))
    first, *below = TextFormatter().format(given).split("\n")
    assert first.isprintable()
    assert all(line.startswith("    ") and line.isprintable() for line in below)


# Text


def test_a_line_of_text_ends_in_the_known_extras():
    """In their own order; what others add is left to JSON."""
    extra = {"other": 1, "attempt": 2, **job_extra("x1", "shop.mail", "default", 2), "process_id": "p7"}
    line = as_text(record("job %s ended", "x1", extra=extra))
    assert line == ("INFO packhorse.jobs: job x1 ended job_id=x1 task=shop.mail queue=default attempt=2 process_id=p7")
    assert as_text(record("hello")) == "INFO packhorse.jobs: hello"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("two words", '"two words"'),
        ("", '""'),
        ('x" task="forged', r'"x\" task=\"forged"'),
        ("a=b", '"a=b"'),
        ("a\nb", "a\\nb"),
        (None, "null"),
        (Secret("hunter2"), "Secret"),
    ],
)
def test_an_extra_stays_one_word(value: Any, shown: str):
    """A queue's name cannot pass for another extra."""
    assert as_text(record("hello", extra={"queue": value})) == f"INFO packhorse.jobs: hello queue={shown}"


def test_a_message_cannot_forge_another_record():
    """Nor command the terminal that shows it."""
    line = as_text(record("bad name: %s", "x\n2030-01-01 00:00:00,000 ERROR 1 packhorse: all lost\x1b[2J"))
    assert line == ("INFO packhorse.jobs: bad name: x\\n2030-01-01 00:00:00,000 ERROR 1 packhorse: all lost\\x1b[2J")


def test_a_traceback_follows_indented():
    """Readable, and its text cannot pass for another record either."""
    first, *below = as_text(record("it failed", error=raised(ValueError("x\n2030-01-01 ERROR\x07")))).split("\n")
    assert first == "INFO packhorse.jobs: it failed"
    assert below[0] == "    Traceback (most recent call last):"
    assert below[-2:] == ["    ValueError: x", "    2030-01-01 ERROR\\x07"]


def test_formatting_leaves_the_record_as_it_was():
    """Other handlers see it too."""
    given = record("a\nb %s", "c", error=raised(ValueError("x")))
    before = dict(vars(given))
    TextFormatter().format(given)
    JSONFormatter().format(given)
    assert vars(given) == before


# Loggers


def test_a_job_is_named_by_its_ids():
    """As bytes or as text."""
    id = new_id()
    assert job_extra(id, "shop.mail", "default", 1) == job_extra(to_text(id), "shop.mail", "default", 1)
    assert set(job_extra(id, "shop.mail", "default", 1)) <= set(EXTRAS)
    assert not set(EXTRAS) & RESERVED


def test_a_job_logger_adds_the_ids_and_keeps_the_callers_own_extras(caplog: pytest.LogCaptureFixture):
    """What the caller says of the same name wins."""
    log = JobLogger(logging.getLogger("packhorse.test"), job_extra("x1", "shop.mail", "default", 2))
    own = {"size": 7, "queue": "other"}
    with caplog.at_level(logging.INFO, "packhorse.test"):
        log.info("hello %s", "world", extra=own)
        log.info("again")
        JobLogger(logging.getLogger("packhorse.test")).info("bare")
    first, second, bare = (vars(each) for each in caplog.records)
    ids = {"job_id": "x1", "task": "shop.mail", "queue": "default", "attempt": 2}
    assert first | ids | own == first
    assert second | ids == second
    assert "size" not in second
    assert "job_id" not in bare
    assert own == {"size": 7, "queue": "other"}


# Setting up


@contextmanager
def bare_logging() -> Iterator[logging.Logger]:
    """The root logger as a program finds it that has configured nothing. No fixture: pytest adds its handlers later."""
    root, ours = logging.getLogger(), logging.getLogger("packhorse")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    root.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


@contextmanager
def a_level_of_its_own(name: str, level: int) -> Iterator[logging.Logger]:
    logger = logging.getLogger(name)
    logger.setLevel(level)
    try:
        yield logger
    finally:
        logger.setLevel(logging.NOTSET)


def test_configuring_sends_records_to_standard_error(capsys: pytest.CaptureFixture[str]):
    """Those of the program too, at the level asked for."""
    with bare_logging():
        configure("info", "json")
        logging.getLogger("packhorse.jobs").info("ours")
        logging.getLogger("shop").info("theirs")
        logging.getLogger("packhorse.jobs").debug("too fine")
        with a_level_of_its_own("chatty", logging.DEBUG) as chatty:
            chatty.debug("too fine, too")
    out, err = capsys.readouterr()
    assert out == ""
    assert [json.loads(line)["message"] for line in err.splitlines()] == ["ours", "theirs"]


def test_configuring_again_changes_format_and_level_and_adds_nothing(capsys: pytest.CaptureFixture[str]):
    """Each record is written once."""
    with bare_logging() as root:
        configure("ERROR", "json")
        configure(logging.DEBUG, "text")
        configure(logging.DEBUG, "text")
        assert len(root.handlers) == 1
        logging.getLogger("packhorse.jobs").debug("hello")
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.endswith("packhorse.jobs: hello\n")


def test_what_a_handler_of_the_program_has_written_is_not_written_twice(capsys: pytest.CaptureFixture[str]):
    """As Django has one below the root, whose logger hands on what it gets."""
    theirs = logging.getLogger("site")
    with bare_logging():
        configure("INFO")
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.WARNING)
        theirs.addHandler(handler)
        try:
            logging.getLogger("site.tasks").warning("loud")
            logging.getLogger("site.tasks").info("quiet")
        finally:
            theirs.removeHandler(handler)
    err = capsys.readouterr().err
    assert (err.count("loud"), err.count("quiet")) == (1, 1)


def test_a_program_with_handlers_of_its_own_keeps_them():
    """Only the level of our own loggers is set."""
    with bare_logging() as root:
        theirs = logging.NullHandler()
        root.addHandler(theirs)
        root.setLevel(logging.ERROR)
        configure("DEBUG", "json")
        assert root.handlers == [theirs]
        assert theirs.formatter is None
        assert root.level == logging.ERROR
        assert logging.getLogger("packhorse.jobs").isEnabledFor(logging.DEBUG)


def test_an_unknown_format_or_level_is_refused():
    """The message says which formats there are, and nothing is set up by half."""
    with bare_logging() as root:
        with pytest.raises(ConfigError, match=r"There is no log format 'xml'\. Use text or json\."):
            configure("INFO", "xml")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="LOUD"):
            configure("LOUD")
        assert root.handlers == []


def test_the_package_is_silent_until_logging_is_configured():
    """Python itself would print warnings that nobody handles."""
    code = "import logging, packhorse.logs; logging.getLogger('packhorse.jobs').error('hello')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
