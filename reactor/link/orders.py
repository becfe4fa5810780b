"""What the steward works by: told by the guard at first, and whenever another configuration is in force."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from reactor.model.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """`start` names this run of the guard's, as its lines do; `number` counts its orders.

    Of `settings` those hold from the first orders on that take effect at a start only.
    """

    start: str
    number: int
    settings: Settings


def write_orders(orders: Orders) -> bytes:
    """Return the orders' bytes."""
    return pickle.dumps(orders)


def read_orders(content: bytes) -> Orders:
    """Return the orders that the guard has written. For the steward, which trusts it; never for the guard."""
    orders: Orders = pickle.loads(content)  # noqa: S301 - the guard's own, over a pair that only it has
    return orders
