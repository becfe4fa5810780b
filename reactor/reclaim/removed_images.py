"""How many images were removed, by what they were removed for."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class RemovedFor(StrEnum):
    """Why an image was removed, in the words of the kubelet's metric."""

    SPACE = "space"
    AGE = "age"


RemovedImages = Counter[RemovedFor]
