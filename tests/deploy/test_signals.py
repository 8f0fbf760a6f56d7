"""Signals that ask for a stop, and those that come while a run cleans up."""

from __future__ import annotations

import os
import signal

import pytest

from olmorl.deploy.signals import unheard


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_clean_up_is_not_cut_short_and_afterwards_signals_do_what_they_did(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, _: heard.append(number))
    try:
        with unheard():
            os.kill(os.getpid(), number)
            assert signal.getsignal(number) is not signal.SIG_IGN, "what is started meanwhile would inherit it"
        assert heard == []
        os.kill(os.getpid(), number)
        assert heard == [number]
    finally:
        signal.signal(number, before)
