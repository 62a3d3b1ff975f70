"""Byte-level mutations drawn from a seeded generator."""

from __future__ import annotations

import random


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return the input with a few bytes changed, inserted, removed, repeated or cut off."""
    result = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(result))
        kind = draw.randrange(5)
        if kind == 0 and result:
            result[at % len(result)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif kind == 1:
            result[at:at] = draw.randbytes(draw.randint(1, 8))
        elif kind == 2:
            del result[at : at + draw.randint(1, 8)]
        elif kind == 3:
            result[at:at] = result[at : at + draw.randint(1, 32)]
        else:
            del result[at:]
    return bytes(result)
