"""Turns: short questions are computed one after another, and none waits for a long one."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from forerun.server import limits
from forerun.server.limits import QuestionPool, ServerLimits


def test_short_questions_take_turns_and_a_long_one_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, most, ended = [0], [0], threading.Event()

    def short() -> None:
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        time.sleep(0.002)
        busy[0] -= 1

    def failing() -> None:
        raise ZeroDivisionError

    async def ask() -> None:
        pool = QuestionPool(ServerLimits(workers=2))
        monkeypatch.setattr(limits, "_TURN_SECONDS", 5.0)  # on a busy machine too
        await asyncio.gather(*(pool.answer(short) for _ in range(20)))
        assert most == [1]
        failed = await asyncio.gather(pool.answer(failing), return_exceptions=True)
        assert isinstance(failed[0], ZeroDivisionError)
        monkeypatch.setattr(limits, "_TURN_SECONDS", 0.01)
        long = asyncio.create_task(pool.answer(lambda: ended.wait(5)))
        await asyncio.sleep(0.05)
        for _ in range(3):
            await pool.answer(short)  # beside it
        assert not long.done()
        ended.set()
        assert await long

    asyncio.run(ask())
