"""Holds more and more memory."""

held = []
while True:
    held.append(bytearray(b"x" * 4_000_000))
