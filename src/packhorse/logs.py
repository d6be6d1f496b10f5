"""How Packhorse logs: loggers named `packhorse.*`, silent until somebody listens, one record on one line.

Nothing here masks: what is handed to a logger has been masked, or was never secret.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal

from packhorse.errors import ConfigError
from packhorse.ids import to_text
from packhorse.job import TRACEBACK_CAP, storable
from packhorse.masking import printable

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"

EXTRAS = ("job_id", "task", "queue", "attempt", "state", "duration", "process_id", "worker")
"""What our own records may carry, in the order in which a line of text shows it."""

MESSAGE_CAP = 16 * 1024
EXTRA_CAP = 4 * 1024

# A library stays silent until its user configures logging. Without this, Python itself would print our warnings.
logging.getLogger("packhorse").addHandler(logging.NullHandler())


def job_extra(id: bytes | str, task: str, queue: str, attempt: int) -> dict[str, object]:
    """For `log.info(..., extra=job_extra(...))`."""
    return {"job_id": id if isinstance(id, str) else to_text(id), "task": task, "queue": queue, "attempt": attempt}


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds a job's ids to each record: `JobLogger(log, job_extra(...))`. The caller's own extras are kept, and win."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}


class JSONFormatter(logging.Formatter):
    """One JSON object per line, in ASCII: no terminal and no reader of lines can be fooled by what it says."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            return _json_line(self._fields(record))
        except Exception as error:  # a record that cannot be written must not end what it tells of
            return _json_line({"level": "ERROR", "logger": __name__, "message": _unwritable(error)})

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": storable(_message(record), MESSAGE_CAP),
            "process": record.process,
            "thread": record.threadName,
        }
        if trouble := _exception(self, record):
            found["exception"] = trouble
        if record.stack_info:
            found["stack"] = storable(record.stack_info, TRACEBACK_CAP)
        for name, value in _extras(record).items():
            found[f"{name}_" if name in found else name] = value
        return found


class TextFormatter(logging.Formatter):
    """Lines to read, with the known extras at their end. Only a traceback takes more lines, and those are indented."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        try:
            return "\n".join([self._line(record), *self._below(record)])
        except Exception as error:
            return f"ERROR {__name__}: {_unwritable(error)}"

    def _line(self, record: logging.LogRecord) -> str:
        message = printable(_message(record), MESSAGE_CAP)
        values = vars(record) | {
            "asctime": self.formatTime(record),
            "process": record.process or 0,  # logging can be told not to look it up
            "name": printable(record.name),
            "message": message,
        }
        extras = _extras(record)
        return " ".join([LOG_FORMAT % values, *(f"{name}={_word(extras[name])}" for name in EXTRAS if name in extras)])

    def _below(self, record: logging.LogRecord) -> list[str]:
        text = "\n".join(filter(None, [_exception(self, record), record.stack_info]))
        return [f"    {printable(line)}" for line in storable(text, TRACEBACK_CAP).split("\n")] if text else []


_FORMATTERS: dict[str, Callable[[], logging.Formatter]] = {"text": TextFormatter, "json": JSONFormatter}


class _Handler(logging.StreamHandler[Any]):
    """Ours, to know it again. A line that another handler has written to the terminal is not written twice."""

    def filter(self, record: logging.LogRecord) -> Any:
        return False if _is_written(record) else super().filter(record)


def _is_written(record: logging.LogRecord) -> bool:
    """Where programs give handlers to loggers of theirs, and those hand on what they get, as Django's do."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger.parent is not None:
        for handler in logger.handlers:
            shown = isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout)
            if shown and record.levelno >= handler.level and handler.filter(record):
                return True
        logger = logger.parent
    return False


def configure(level: str | int, format: Literal["text", "json"] = "text") -> None:
    """For commands: log to standard error. May be called again; a program that set up its own handlers keeps them."""
    if format not in _FORMATTERS:
        raise ConfigError(f"There is no log format {format!r}. Use {' or '.join(_FORMATTERS)}.")
    level = level.upper() if isinstance(level, str) else level
    logging.getLogger("packhorse").setLevel(level)
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_Handler(sys.stderr))
    for handler in root.handlers:
        if isinstance(handler, _Handler):
            handler.setFormatter(_FORMATTERS[format]())
            handler.setLevel(level)  # a logger with a level of its own, as Django's, would not ask the root for one
            root.setLevel(level)


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _extras(record: logging.LogRecord) -> dict[str, object]:
    """What the caller added, as JSON can say it."""
    return {str(name): _json_value(value) for name, value in vars(record).items() if name not in _STANDARD}


def _json_value(value: object) -> object:
    if issubclass(type(value), str):
        return storable(str.__str__(value), EXTRA_CAP)
    try:
        text = json.dumps(value, allow_nan=False, default=_type_name)
        return json.loads(text) if len(text) <= EXTRA_CAP else _type_name(value)
    except Exception:  # not finite, too deep, odd keys, or methods of its own that raise
        return _type_name(value)


def _type_name(value: object) -> str:
    return type(value).__name__


def _json_line(found: dict[str, object]) -> str:
    return json.dumps(found, allow_nan=False, default=_type_name).replace("\x7f", "\\u007f")


def _word(value: object) -> str:
    """Quoted where it could be taken for more than one word."""
    text = printable(value if isinstance(value, str) else json.dumps(value), EXTRA_CAP)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(" \"'=") else text


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:
        return f"{record.msg!r} ({_type_name(error)} while filling in its arguments)"


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Python's own text of it. A record from another process brings it along as `exc_text`."""
    if not record.exc_info or record.exc_info[0] is None:
        return storable(record.exc_text or "", TRACEBACK_CAP)
    try:
        return storable(formatter.formatException(record.exc_info), TRACEBACK_CAP)
    except Exception as error:
        return f"<no traceback: {_type_name(error)} while formatting it>"


def _unwritable(error: Exception) -> str:
    return f"a log record could not be written: {_type_name(error)}"
