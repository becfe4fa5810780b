"""What the daemon starts with: the configuration in the file or, where that is refused, the last good one.

What reads a configuration takes 3 MiB and is done with for a long time: a child reads it (`reactor/run.py`),
and the guard imports it at a reload.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from reactor.config.documents import drop_in_paths, load_document
from reactor.config.settings import Configuration, load_configuration, read_text, settings_from_text
from reactor.errors import ConfigError
from reactor.model.settings import Settings, Start

_LOG: Final = logging.getLogger("reactor.daemon")
_STATE_FILE: Final = re.compile(r"""\bstateFile["']?\s*:\s*["']?(/[^\s"'#,}]+)""")


def configuration_to_start_with(path: Path, config_dir: Path | None = None) -> Start:
    """Return the configuration in the file and its drop-ins or, where they are refused, the last good one.

    Raises ConfigError where the file is refused and none is kept that came from the same path.
    """
    try:
        return _start(load_configuration(path, config_dir, may_run_commands=True), config_dir)
    except ConfigError as error:
        for directory in dict.fromkeys(_directories(path, config_dir)):
            kept = _kept(directory, path)
            if kept is not None:
                return _start(kept, config_dir, error)
        raise


def _start(
    configuration: Configuration, config_dir: Path | None, refused: ConfigError | None = None
) -> Start:
    return Start(
        settings=configuration.settings, text=configuration.text, config_dir=config_dir, refused=refused
    )


def _directories(path: Path, config_dir: Path | None) -> Iterator[Path]:
    """Yield where the last good one may lie: beside the state file that a refused text names, if any."""
    drop_ins: tuple[Path, ...] = ()
    with suppress(OSError):
        drop_ins = () if config_dir is None else drop_in_paths(config_dir)
    for one in (*reversed(drop_ins), path):
        text = ""
        try:
            text = read_text(one, may_be_pipe=False)[0]
            document = load_document(text, str(one))
        except (OSError, UnicodeDecodeError):
            continue
        except ConfigError:  # no YAML: what the key is followed by has to do
            found = _STATE_FILE.search(text)
            document = {"reactor": {"stateFile": found[1]}} if found else None
        section = document.get("reactor") if isinstance(document, Mapping) else None
        state_path = section.get("stateFile") if isinstance(section, Mapping) else None
        if isinstance(state_path, str) and state_path.startswith("/") and "\0" not in state_path:
            yield Path(state_path).parent
    yield Path(Settings().state_path).parent


def _kept(directory: Path, path: Path) -> Configuration | None:
    """Return what was kept there of the configuration at `path`, None where nothing that can be used."""
    # Seldom needed, and Trio comes with it.
    from reactor.guard.state import LAST_GOOD_NAME, last_good_file  # noqa: PLC0415

    file = last_good_file(directory / LAST_GOOD_NAME, path)
    text, why = file.load(), file.problem
    try:
        if text:
            return Configuration(settings=settings_from_text(text, str(path)), text=text)
    except ConfigError as error:
        why = f"{directory / LAST_GOOD_NAME}: not used: {error}"
    if why is not None:
        _LOG.error("last good configuration: %s", why)
    return None
