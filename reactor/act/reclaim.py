"""What a node can give back before a pod is ended: dead containers, unused images."""

from __future__ import annotations

from typing import Protocol

from reactor.model.signals import Reclaim


class NodeReclaim(Protocol):
    """Where node-level reclaim is done: a container runtime has images, a plain node has nothing."""

    async def run(self, kind: Reclaim) -> None:
        """Give back what `kind` names and return when it is free. Raises OSError or ReactorError."""


class NoReclaim:
    """A plain Linux node: no runtime, no containers or images to give back."""

    async def run(self, kind: Reclaim) -> None:
        """Return at once."""
