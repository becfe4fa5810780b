"""Text that others wrote, made fit for people: one function for every log line, table, message and event."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return the text with every character that is not printable written as its escape.

    A cgroup, a process or a volume may be called anything: what moves a cursor, clears a screen, turns the
    direction of reading, ends a line, or is not UTF-8 (`os.fsdecode` keeps such bytes as surrogates). The
    escape is Python's: `\x1b`, `\u202e`; a byte that is not UTF-8 is `\xff`. What is printable stays as it
    is, backslashes too: systemd escapes with them, and its names should be found as it writes them.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def wrapped(text: str, columns: int) -> str:
    """Return the text in lines of that many columns, broken at spaces alone: a longer word stays whole."""
    # Only what people read is wrapped, so no daemon loads it.
    import textwrap  # noqa: PLC0415

    lines = textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)
