"""Which images the project removed against which upstream's code did."""

from __future__ import annotations

from collections.abc import Sequence

from tests.upstream.differential.compare import Difference
from tests.upstream.differential.words import Json


def compare_images(document: Json, lines: Sequence[Json], result: Json) -> list[Difference]:
    """Return the first difference: from there on the images left are not the same. Ties are free."""
    if result.get("error"):
        return [Difference(step=0, kind="refused upstream", text=result["error"])]
    ages = {image["id"]: (image.get("lastUsed"), image.get("firstDetected")) for image in document["images"]}
    for index, (line, theirs) in enumerate(zip(lines, result["steps"], strict=True)):
        if [ages[image] for image in line["imagesRemoved"]] != [ages[image] for image in theirs]:
            text = f"{line['imagesRemoved']} here, {theirs} upstream"
            return [Difference(step=index, kind="images", text=text)]
    return []
