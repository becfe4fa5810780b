"""Check the English of what people read: `python -m tests.language FILE…` names each sentence to rewrite.

A sentence has at most 30 words, begins with its subject, and has no parenthesis within a parenthesis.
Markdown is read as a reader sees it: code blocks are left out, inline code is one word, and each cell of a
table is a text of its own. Headings, and labels before a colon, are no sentences.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

MOST_WORDS: Final = 30

_UNSEEN = re.compile(r"^ *```.*?^ *```[^\n]*|<!--.*?-->|^#[^\n]*", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+|^>\s*")
_TABLE_RULE = re.compile(r"^\s*\|[\s:|-]+\|?\s*$")
_INLINE = (
    (re.compile(r"`[^`]*`"), "X"),
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\*\*"), ""),
)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z\"(]|reactor |systemd |containerd )")
_CLAUSE_END = re.compile(r"(?<=[;:.!?])\s+")
# A free relative or an inversion in the place of the subject. A question may begin so, and a label.
_INVERTED = re.compile(
    r"(?:Who|Whom|What|Whoever|Whatever|Told|Of the|Of \w+s|Not \w+ed)\b(?!.*\?$)(?!(?: ?[\w'/-]+){0,7}:)"
)
_NESTED = re.compile(r"\([^()]*\([^()]*\)[^()]*\)")


def sentences(markdown: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each sentence of a page with its line (from 1), and whether it stands in a table."""
    seen = _UNSEEN.sub(lambda match: "\n" * match.group().count("\n"), markdown)
    paragraph: list[str] = []
    begin = 0
    for number, line in enumerate([*seen.split("\n"), ""], 1):
        if not line.strip() or _ITEM.match(line) or line.lstrip().startswith("|"):
            yield from ((begin, sentence, False) for sentence in _split(" ".join(paragraph), _SENTENCE_END))
            paragraph = []
        if line.lstrip().startswith("|"):
            if not _TABLE_RULE.match(line):
                for cell in _plain(line).strip().strip("|").split("|"):
                    yield from ((number, clause, True) for clause in _split(cell, _CLAUSE_END))
        elif line.strip():
            if not paragraph:
                begin = number
            paragraph.append(_ITEM.sub("", line))


def problems(markdown: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the problem of each sentence of a page that is to be rewritten."""
    for line, sentence, is_cell in sentences(markdown):
        words = len(sentence.split())
        if words > MOST_WORDS:
            yield line, f"{words} words: {sentence}"
        elif not is_cell and _INVERTED.match(sentence):
            yield line, f"subject first: {sentence}"
        elif _NESTED.search(sentence):
            yield line, f"parenthesis within a parenthesis: {sentence}"


def _split(text: str, end: re.Pattern[str]) -> Iterator[str]:
    yield from (part.strip() for part in end.split(_plain(text)) if part.strip())


def _plain(text: str) -> str:
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return text


def main(paths: Sequence[str]) -> int:
    """Print the problems of these pages, and return the exit status: 1 if there are any."""
    found = [
        f"{path}:{line}: {problem}" for path in paths for line, problem in problems(Path(path).read_text())
    ]
    print("\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
