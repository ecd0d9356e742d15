"""Where log bytes come from for `explain`: files, standard input, gzip; with clear errors and without loading them whole."""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO

CHUNK = 256 * 1024
"""Bytes read at once: what fits the second-level cache is scanned twice as fast as a megabyte (docs/performance.md)."""


class SourceError(Exception):
    """A source that cannot be read; the text names it, the reason and what to do."""


def read(source: str) -> Iterator[bytes]:
    """The bytes of a file (or "-" for standard input) in chunks, unpacked where they are gzip.

    Raises SourceError for a missing, unreadable or broken one. What was read before a gzip file breaks off has been given.
    """
    if source == "-":
        yield from _unpacked(sys.stdin.buffer, "standard input")
        return
    try:
        if os.path.isdir(source):
            raise SourceError(f"{source}: is a directory; name the log file in it")
        with open(source, "rb", buffering=0) as file:
            yield from _unpacked(file, source)
    except FileNotFoundError:
        raise SourceError(f"{source}: no such file") from None
    except PermissionError:
        raise SourceError(f"{source}: permission denied; make it readable for {_me()} or copy it") from None
    except OSError as error:
        raise SourceError(f"{source}: cannot be read: {error.strerror or error}") from None


def _me() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _unpacked(file: BinaryIO | io.RawIOBase, name: str) -> Iterator[bytes]:
    first = file.read(CHUNK) or b""
    if first[:2] != b"\x1f\x8b":
        while first:
            yield first
            first = file.read(CHUNK) or b""
        return
    unpack = zlib.decompressobj(wbits=31)
    data = first
    try:
        while data:
            out = unpack.decompress(data, CHUNK)
            if out:
                yield out
            if unpack.eof:
                data = unpack.unused_data or file.read(CHUNK) or b""
                if data:
                    if data[:2] != b"\x1f\x8b":
                        return  # padding behind the last member
                    unpack = zlib.decompressobj(wbits=31)
                continue
            data = unpack.unconsumed_tail or file.read(CHUNK) or b""
    except zlib.error as error:
        raise SourceError(f"{name}: the gzip data is broken ({error}); what came before it was read") from None
    if not unpack.eof:
        raise SourceError(f"{name}: the gzip data ends too early; what came before it was read")
