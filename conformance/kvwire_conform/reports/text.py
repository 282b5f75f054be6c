"""Text from a peer, and numbers, as a person can safely read them."""

from __future__ import annotations

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_ASCII = str.maketrans(
    {
        "×": "x",
        "…": "...",
        "–": "-",
        "—": "-",
        "−": "-",
        "·": ",",
        "•": "-",
        "→": "->",
        "←": "<-",
        "▶": ">",
        "≤": "<=",
        "≥": ">=",
        "≠": "!=",
        "≈": "~",
        "“": '"',
        "”": '"',
        "‘": "'",
        "’": "'",
    }
)


def printable(text: str) -> str:
    """The text in printable characters only: controls, line breaks, surrogates, invisible and direction marks escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def plain_ascii(text: str) -> str:
    """Printable text in ASCII only: signs spelled out, other characters escaped."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else _escaped(char) for char in text.translate(_ASCII))


def _escaped(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shorten(text: str, limit: int) -> str:
    """The text, or its first characters and how many were left out."""
    return text if len(text) <= limit else f"{text[:limit]}… (+{count(len(text) - limit)} characters)"


def count(number: int) -> str:
    """1234567 as 1,234,567."""
    return f"{number:,}"


def counted(number: int, one: str, many: str = "") -> str:
    """``1 message``, ``2 messages``, ``no messages``."""
    if number == 1:
        return f"1 {one}"
    return f"{count(number) if number else 'no'} {many or one + 's'}"


def all_of(number: int, what: str) -> str:
    """``both sources``, ``all 8 sources``."""
    return f"both {what}" if number == 2 else f"all {number} {what}"


def size(octets: float) -> str:
    """Bytes with a decimal prefix, three digits or so."""
    if octets < 1000:
        return f"{int(octets)} B"
    for unit in ("kB", "MB", "GB"):
        octets /= 1000
        if octets < 999.5:
            return f"{octets:.1f} {unit}" if octets < 99.95 else f"{octets:.0f} {unit}"
    return f"{octets / 1000:,.1f} TB"


def seconds(span: float) -> str:
    """A span of time: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if not 0 <= span < 1e9:
        return f"{span:.3g} s"
    if span < 9.95:
        return f"{span:.1f} s"
    whole = round(span)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{count(whole // 3600)} h {whole // 60 % 60} min"
