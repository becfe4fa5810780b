"""What the steward adds to a status has the keys that were recorded; the values are this machine's."""

from __future__ import annotations

from tests.golden.files import CHANGED, is_recorded
from tests.unit.steward.test_service import guard, notified, steward  # noqa: F401 - with a fixture


async def test_the_steward_adds_the_keys_that_it_added(guard):  # noqa: F811
    async with steward(guard):
        await guard.order(notifications=notified("true"))
        document = await guard.status_with(lambda one: one["notifications"] and one.get("filesystems"))

    made = {
        "": sorted(document),
        "filesystems[]": sorted(document["filesystems"][0]),
        "notifications[]": sorted(document["notifications"][0]),
        "parts[]": sorted(document["parts"][0]),
        "swap_traffic": sorted(document["swap_traffic"]),
    }
    assert is_recorded("status-of-steward.json", made), CHANGED
