"""Output with a bound: the head and the tail of a stream, and how much it was in all."""

from __future__ import annotations

from manyhands.core.redaction import KNOWN


class Capture:
    """Takes any number of bytes and holds at most ``limit``: the first half of the limit from the start of the stream, the rest from
    its end."""

    def __init__(self, limit: int) -> None:
        self._head_size = limit // 2
        self._tail_size = limit - self._head_size
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    @property
    def limit(self) -> int:
        return self._head_size + self._tail_size

    @property
    def omitted(self) -> int:
        """Bytes left out between head and tail."""
        return self.total - len(self._head) - len(self._tail)

    def feed(self, data: bytes) -> None:
        """Add what came next."""
        self.total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > self._tail_size:
                del self._tail[: len(self._tail) - self._tail_size]

    def joined(self) -> bytes:
        """Head and tail, joined. Where ``omitted`` is not 0, the gap is after the first ``limit // 2`` bytes."""
        if not self.omitted:
            return bytes(self._head + self._tail)
        return KNOWN.cut(bytes(self._head), end=True) + KNOWN.cut(bytes(self._tail), start=True)

    def read(self, start: int, limit: int) -> bytes:
        """The stream from byte ``start`` on, at most ``limit`` bytes. Where something is left out, a line in its place says how much."""
        start = max(0, start)
        tail_start = self.total - len(self._tail)
        head = bytes(self._head[start:])
        tail = bytes(self._tail[max(0, start - tail_start) :])
        lost = max(0, tail_start - max(start, len(self._head)))
        if lost:
            head, tail = KNOWN.cut(head, end=True), KNOWN.cut(tail, start=start < tail_start)
        if lost == 0 and len(head) + len(tail) <= limit:
            return head + tail
        return _shortened(head, tail, lost, limit)


def _shortened(head: bytes, tail: bytes, lost: int, limit: int) -> bytes:
    if lost == 0:
        joined = head + tail
        head, tail = joined[: len(joined) // 2], joined[len(joined) // 2 :]
    widest = len(_gap(lost + len(head) + len(tail)))
    room = max(0, limit - widest)
    kept_head = head[: max(room // 2, room - len(tail))]
    kept_tail = tail[len(tail) - min(len(tail), room - len(kept_head)) :]
    if len(kept_head) < len(head) or len(kept_tail) < len(tail):
        kept_head, kept_tail = KNOWN.cut(kept_head, end=True), KNOWN.cut(kept_tail, start=True)
    left_out = lost + len(head) + len(tail) - len(kept_head) - len(kept_tail)
    return (kept_head + _gap(left_out) + kept_tail)[:limit] if left_out else kept_head + kept_tail


def _gap(count: int) -> bytes:
    return b"\n[%d bytes left out]\n" % count
