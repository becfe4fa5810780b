"""The last configuration that was right, kept beside the state file for a start with one that is not.

A refused reload leaves the daemon with what it had. Without this file the next crash would be final: the
start that follows would read the refused configuration, and the node would have no guard.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from reactor.config.documents import load_document
from reactor.config.drop_ins import drop_in_paths
from reactor.config.settings import Configuration, load_configuration, settings_from_text
from reactor.errors import ConfigError
from reactor.kernel.small_file import KeptFile, document_of
from reactor.model.settings import Settings

_LOG: Final = logging.getLogger("reactor.daemon")
_NAME: Final = "last-good-config.json"
_VERSION: Final = 1
_SMALL: Final = 64 << 10
_MAX_BYTES: Final = 4 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to start with. `refused` is why it is not what the file says now, None where it is.

    `config_dir` is where its drop-ins are, if any.
    """

    configuration: Configuration
    config_dir: Path | None = None
    refused: ConfigError | None = None


def configuration_to_start_with(path: Path, config_dir: Path | None = None) -> Start:
    """Return the configuration in the file and its drop-ins or, where they are refused, the last good one.

    Raises ConfigError where the file is refused and none is kept that came from the same path.
    """
    try:
        found = load_configuration(path, config_dir, may_run_commands=True)
        return Start(configuration=found, config_dir=config_dir)
    except ConfigError as error:
        for directory in dict.fromkeys(_directories(path, config_dir)):
            kept = _kept(directory / _NAME, path)
            if kept is not None:
                return Start(configuration=kept, config_dir=config_dir, refused=error)
        raise


class LastGoodFile(KeptFile[str]):
    """Keeps the text of the configuration in force, which came from `path`, beside the state file."""

    def __init__(self, state_path: Path, path: Path) -> None:
        self._path_of_text = str(path.absolute())
        failure = "last good configuration: not kept, a restart with a wrong file would be refused"
        super().__init__(state_path.with_name(_NAME), self._document, failure, _LOG)

    def _is_small(self) -> bool:
        return all(len(text) <= _SMALL for text in self._shown)

    def _document(self, text: str) -> object:
        return {"version": _VERSION, "path": self._path_of_text, "text": text}


def _directories(path: Path, config_dir: Path | None) -> Iterator[Path]:
    """Yield where the last good one may lie: beside the state file that a refused text names, if any."""
    drop_ins: tuple[Path, ...] = ()
    with suppress(OSError):
        drop_ins = () if config_dir is None else drop_in_paths(config_dir)
    for one in (*reversed(drop_ins), path):
        try:
            document = load_document(one.read_text(encoding="utf-8"), str(one))
        except (OSError, UnicodeDecodeError, ConfigError):
            document = None
        section = document.get("reactor") if isinstance(document, Mapping) else None
        state_path = section.get("stateFile") if isinstance(section, Mapping) else None
        if isinstance(state_path, str) and state_path.startswith("/") and "\0" not in state_path:
            yield Path(state_path).parent
    yield Path(Settings().state_path).parent


def _kept(kept_path: Path, path: Path) -> Configuration | None:
    """Return what was kept of the configuration at `path`, None where there is nothing that can be used."""
    try:
        document = document_of(_content(kept_path), version=_VERSION, max_bytes=_MAX_BYTES)
        if document["path"] != str(path.absolute()):
            return None
        text = document["text"]
        return Configuration(settings=settings_from_text(text, str(path)), text=text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        _LOG.error("%s: not used: %s: %s", kept_path, type(error).__name__, error)
        return None


def _content(path: Path) -> bytes:
    """Return the file's content. Raises OSError; ValueError where others may have written it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ValueError(
                f"uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}; accepted: a file of uid "
                f"{os.geteuid()}, mode 0600"
            )
        return file.read(_MAX_BYTES + 1)
