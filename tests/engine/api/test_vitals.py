import contextlib
from pathlib import Path

import pytest

from kvchat.engine.api.vitals import (
    SlotState,
    Speed,
    collect_vitals,
    drm_memory,
    nvidia_memory,
    parse_metrics,
    parse_slots,
)
from kvchat.engine.api.wire import ChatMessage, Sampling
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import LaunchPlan
from tests.engine_fixtures import supervised

# A response of build 11434.
SLOTS = b'[{"id": 0, "n_ctx": 1024, "speculative": false, "is_processing": true, "n_prompt_tokens": 90}]'
METRICS = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 71
llamacpp:prompt_seconds_total 0.5
llamacpp:tokens_predicted_total 20
llamacpp:tokens_predicted_seconds_total 1e+1
"""


def test_slots() -> None:
    assert parse_slots(SLOTS) == (SlotState(busy=True, tokens=90, context_size=1024),)
    for body in (b"", b"[]", b"{}", b'{"error": {}}', b"[1]", b'[{"n_ctx": "x"}]'):
        assert parse_slots(body) == (), body


def test_speed() -> None:
    assert parse_metrics(METRICS) == Speed(prefill=142.0, decode=2.0)
    single_token = "llamacpp:tokens_predicted_total 1\nllamacpp:tokens_predicted_seconds_total 1e-06\n"
    for text in ("", "llamacpp:prompt_seconds_total 0\n", single_token):
        assert parse_metrics(text) == Speed(None, None)


def test_nvidia_memory() -> None:
    listing = "17, 2048\n18, 1024\n99, 512\n20, [N/A]\n"
    assert nvidia_memory(listing, [17, 18]) == 3 << 30
    assert nvidia_memory(listing, [20]) is None
    assert nvidia_memory("", [17]) is None


def test_drm_memory_counts_each_client_once(tmp_path: Path) -> None:
    folder = tmp_path / "17" / "fdinfo"
    folder.mkdir(parents=True)
    card = "pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t5\ndrm-memory-vram:\t2048 KiB\n"
    (folder / "3").write_text(card)
    (folder / "4").write_text(card)
    (folder / "5").write_text(card.replace("client-id:\t5", "client-id:\t6").replace("2048 KiB", "1 MiB"))
    (folder / "6").write_text("pos:\t0\nflags:\t02\n")
    assert drm_memory([17], tmp_path) == 3 << 20
    assert drm_memory([18], tmp_path) is None


@pytest.mark.engine
async def test_vitals_of_real_engine(real_llama_server: EngineLocation, smollm2: Path, tmp_path: Path) -> None:
    async with supervised(real_llama_server, LaunchPlan(smollm2, 512, tmp_path)) as supervisor:
        engine = await supervisor.ready()
        async with contextlib.aclosing(engine.chat([ChatMessage("user", "Hello")], Sampling(max_tokens=4))) as chunks:
            async for _ in chunks:
                pass
        vitals = await collect_vitals(supervisor.pid, engine)
    assert vitals.memory is not None
    assert vitals.memory > 50_000_000  # the weights are mapped and were read
    assert (vitals.slot.busy, vitals.slot.context_size) == (False, 512)
    assert vitals.slot.tokens > 4
    assert vitals.speed.prefill
    assert vitals.speed.decode
    assert await collect_vitals(None, engine) == type(vitals)(None, None, None, None, Speed(None, None))
