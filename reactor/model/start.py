"""What the daemon starts with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reactor.errors import ConfigError
from reactor.model.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Settings and their text. `refused` is why the file was not taken, None where it was.

    `config_dir` is where its drop-ins are, if any.
    """

    settings: Settings
    text: str
    config_dir: Path | None = None
    refused: ConfigError | None = None
