"""TFRecord: the framing of TensorBoard's event files, read up to where the writer has come.

A record is its length (uint64), the length's checksum, the bytes, and their checksum: CRC-32C,
rotated by 15 bits, plus 0xa282ead8 (little-endian).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER, _FOOTER = 12, 4
_MASK = 0xA282EAD8
_CHECKED_BYTES = 4096  # records that are longer hold images and graphs, which nobody here reads


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    value, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """Return the checksum of bytes as the format stores it."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


@dataclass
class Reading:
    """How far a file was read, and why not further.

    Attributes:
        records: those that were whole.
        damaged: whole records whose checksum is wrong; they are left out.
        cut_at: the byte at which a record is not whole (yet), -1 where the file ends with one.
        broken_at: the byte at which there is no record, -1 where there is none such.
    """

    records: int = 0
    damaged: int = 0
    cut_at: int = -1
    broken_at: int = -1


def records_in(data: bytes, reading: Reading) -> Iterator[bytes]:
    """Yield the bytes of each whole record, and tell in `reading` how it ended."""
    at = 0
    while at < len(data):
        if at + _HEADER > len(data):
            reading.cut_at = at
            return
        length, check = struct.unpack_from("<QI", data, at)
        if masked(data[at : at + 8]) != check:
            reading.broken_at = at
            return
        end = at + _HEADER + length
        if end + _FOOTER > len(data):
            reading.cut_at = at
            return
        body = data[at + _HEADER : end]
        (check,) = struct.unpack_from("<I", data, end)
        at = end + _FOOTER
        if length <= _CHECKED_BYTES and masked(body) != check:
            reading.damaged += 1
            continue
        reading.records += 1
        yield body


def is_record_file(head: bytes) -> bool:
    """Return whether a file that begins so is one of records."""
    if len(head) < _HEADER:
        return False
    return masked(head[:8]) == int(struct.unpack_from("<I", head, 8)[0])
