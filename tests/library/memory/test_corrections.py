from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvchat.engine.running.log import Allocations, Buffer, Purpose
from kvchat.engine_host.managed import learn, learn_share, measured_bars, share_taken
from kvchat.library.memory import corrections
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.corrections import DAY_S, NOTHING_LEARNED, Circumstances, CorrectionBook, Corrections
from kvchat.library.memory.machine import DeviceMemory, MemoryFacts
from kvchat.words.wording import day
from tests.library.gguf_files import llama_8b
from tests.library.memory.choosing import choose

GB = 1_000_000_000
NOW = 1_800_000_000.0
HERE = Circumstances("model", 5 * GB, "version: 1", "CUDA")


@pytest.fixture
def book(tmp_path: Path) -> CorrectionBook:
    return CorrectionBook(tmp_path / "state" / "memory.json")


def test_what_is_learned_is_found_again_in_the_same_circumstances_alone(book: CorrectionBook) -> None:
    assert book.find(HERE) == NOTHING_LEARNED
    book.learn(HERE, Corrections(kv=0.5, share=0.8))
    book.learn(HERE, Corrections(kv=0.6, flash_attention=False))
    assert book.find(HERE) == Corrections(kv=0.6, flash_attention=False)
    for other in ({"model": "other"}, {"build": "version: 2"}, {"device": "CPU"}):
        assert book.find(dataclasses.replace(HERE, **other)) == NOTHING_LEARNED


def test_the_newest_are_kept(book: CorrectionBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "MOST_ENTRIES", 3)
    for number in range(5):
        book.learn(dataclasses.replace(HERE, model=str(number)), Corrections(kv=1.5))
    assert book.find(dataclasses.replace(HERE, model="1")) == NOTHING_LEARNED
    assert book.find(dataclasses.replace(HERE, model="2")).kv == 1.5


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"model|5000000000|version: 1|CUDA": {"kv": 1e9}}', "\0"])
def test_a_damaged_book_is_an_empty_one(book: CorrectionBook, tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "memory.json").write_text(text)
    assert book.find(HERE) == NOTHING_LEARNED
    book.learn(HERE, Corrections(kv=0.5))
    assert book.find(HERE).kv == 0.5


def allocated(choice: ContextChoice, *, kv: float = 1.0, compute: float = 1.0, refused: bool = False) -> Allocations:
    """What an engine would report that takes so many times what was estimated."""
    places = [("CPU" if bar.place == "memory" else bar.place, bar) for bar in choice.bars]
    buffers = [Buffer(place, Purpose.WEIGHTS, bar.weights) for place, bar in places]
    buffers += [Buffer(place, Purpose.KV, round(bar.kv * kv)) for place, bar in places]
    buffers += [Buffer(place, Purpose.COMPUTE, round(bar.compute * compute)) for place, bar in places]
    return Allocations(tuple(buffers), choice.tokens, refused)


@pytest.mark.parametrize("devices", [(), (DeviceMemory("CUDA0", 12 * GB),), (DeviceMemory("CUDA0", 6 * GB),)])
def test_the_next_estimate_is_what_the_engine_took(tmp_path: Path, devices: tuple[DeviceMemory, ...]) -> None:
    large, memory = llama_8b(tmp_path), MemoryFacts(16 * GB, devices=devices)
    first = choose(large, memory)
    actual = allocated(first, kv=1.3, compute=0.4)
    learned = learn(first, NOTHING_LEARNED, actual)
    assert (learned.kv, learned.compute) == (pytest.approx(1.3, rel=1e-3), pytest.approx(0.4, rel=1e-3))
    second = choose(large, memory, corrections=learned)
    again = learn(second, learned, allocated(second))
    assert (again.kv, again.compute) == (pytest.approx(1.3, rel=1e-3), pytest.approx(0.4, rel=1e-3))


def test_bars_show_the_engines_figures(tmp_path: Path) -> None:
    choice = choose(llama_8b(tmp_path), MemoryFacts(16 * GB, devices=(DeviceMemory("CUDA0", 12 * GB),)))
    gpu, computer = measured_bars(choice.bars, allocated(choice, kv=2))
    assert gpu.kv == 2 * choice.bars[0].kv
    assert (gpu.measured, gpu.free, computer.other) == (True, 12 * GB, choice.bars[1].other)


def test_refused_flash_attention_is_learned_before_its_buffer(tmp_path: Path) -> None:
    choice = choose(llama_8b(tmp_path), MemoryFacts(16 * GB))
    learned = learn(choice, NOTHING_LEARNED, allocated(choice, compute=30, refused=True))
    assert (learned.flash_attention, learned.compute) == (False, 1.0)


def test_what_did_not_fit_is_not_tried_at_once(tmp_path: Path) -> None:
    large, memory = llama_8b(tmp_path), MemoryFacts(16 * GB)
    worked = choose(large, memory, wanted=20_480)
    learned = learn_share(worked, NOTHING_LEARNED, NOW)
    assert learned.share == share_taken(worked)
    bounded = choose(large, memory, corrections=learned)
    assert bounded.tokens == 20_480
    assert bounded.reason.endswith(f"it is tried again from {day(NOW + DAY_S)} on.")
    assert learn_share(worked, learned, None) == learned
    more = choose(large, memory, wanted=40_960, corrections=learned)
    assert learn_share(more, learned, None) == NOTHING_LEARNED  # more did fit this time


def test_what_did_not_fit_is_tried_again_after_a_time_that_doubles(tmp_path: Path) -> None:
    """One that never fits is tried on day 1, 3, 7, 15, 31, and then once in 32 days."""
    now = NOW
    book = CorrectionBook(tmp_path / "memory.json", lambda: now)
    large, memory = llama_8b(tmp_path), MemoryFacts(16 * GB)
    least = choose(large, memory, wanted=2048)
    book.learn(HERE, learn_share(least, NOTHING_LEARNED, now))
    trials = []
    for number in range(1, 100):
        now = NOW + number * DAY_S
        known = book.find(HERE)
        tried = choose(large, memory, corrections=known)
        if tried.tokens > least.tokens:
            trials.append(number)
            assert "ran out" not in tried.reason
            book.learn(HERE, learn_share(least, known, now))
    assert trials == [1, 3, 7, 15, 31, 63, 95]
    # Another failure on the day of one is no reason to wait for longer, and a load that succeeds ends the waiting.
    once_more = book.find(HERE).after_running_out(0.3, now)
    assert once_more.ran_out == book.find(HERE).ran_out
    book.learn(HERE, learn_share(choose(large, memory), once_more, None))
    assert book.find(HERE) == NOTHING_LEARNED


def test_a_clock_that_was_wrong_holds_nothing_back(tmp_path: Path) -> None:
    book = CorrectionBook(tmp_path / "memory.json", lambda: NOW)
    book.learn(HERE, Corrections(share=0.5, ran_out=1, ran_out_at=NOW + 400 * DAY_S))
    assert book.find(HERE).limit == 1.0


def test_an_engine_that_tells_no_sizes_teaches_what_suffices(tmp_path: Path) -> None:
    worked = choose(llama_8b(tmp_path), MemoryFacts(16 * GB), wanted=20_480)
    assert learn(worked, learn_share(worked, NOTHING_LEARNED, NOW), None).share == share_taken(worked)


def test_a_load_with_another_context_teaches_nothing(tmp_path: Path) -> None:
    choice = choose(llama_8b(tmp_path), MemoryFacts(16 * GB))
    other = dataclasses.replace(allocated(choice, kv=3), context_size=512)
    assert learn(choice, NOTHING_LEARNED, other) == NOTHING_LEARNED
