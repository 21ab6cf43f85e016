"""Example programs and requests for the programs window."""

import time
from datetime import datetime

from kvchat.api_service import LoadedSlot
from kvchat.gateway.diagnosis.prompts import Divergence
from kvchat.gateway.diagnosis.rules import PromptChange
from kvchat.gateway.records import ProgramTotal, RequestRecord, Stage, TokenCost
from kvchat.text.reasons import Reason, ReasonCode
from tests.ui.staged_runtime import StagedRuntime

CLAUDE, LONG_NAME = "claude-cli", "an-editor-of-a-name-that-is-much-longer-than-any-window-is-wide-编辑器"


def a_request(number: int, program: str = CLAUDE, **others: object) -> RequestRecord:
    """Return a finished request, warm by default."""
    facts: dict[str, object] = {
        "model": "Qwen3.6-27B-Q4_K_M",
        "stream": True,
        "stage": Stage.DONE,
        "status": 200,
        "source": "disk",
        "found_tokens": 20_600,
        "prompt_tokens": 20_968,
        "cached_tokens": 20_656,
        "generated_tokens": 412,
        "restore_ms": 310.0,
        "processing_ms": 620.0,
        "first_ms": 1010.0,
        "total_ms": 12_400.0,
        "saved_ms": 40_700.0,
    }
    return RequestRecord(number, program, "/v1/messages", time.time() - 60 * number, **(facts | others))  # type: ignore[arg-type]


def parted() -> RequestRecord:
    """Return a request whose prompt diverged and was reprocessed, with one rewritten text."""
    before = "<env>\n  Working directory: /home/ada/engine\n  Today's date: Sun Nov 22 2026\n</env>"
    divergence = Divergence(
        312, 20_968, Reason(ReasonCode.DATE_IN_SYSTEM), before,
        before.replace("Sun Nov 22", "Mon Nov 23"),
    )  # fmt: skip
    header = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=0aaa9;"
    change = PromptChange("billing-header", "the system prompt", header, "", would_diverge=True)
    return a_request(
        1, source="cold", cached_tokens=312, processing_ms=41_000.0, first_ms=41_300.0, saved_ms=600.0,
        divergence=divergence, changes=(change,),
    )  # fmt: skip


def fill(runtime: StagedRuntime) -> None:
    """Add three programs, requests in progress, and slot contents."""
    server, now = runtime.api_server, datetime.now().timestamp()
    misses = {
        ReasonCode.DATE_IN_SYSTEM: TokenCost(3, 62_000, 123_000.0),
        ReasonCode.TOOLS_CHANGED: TokenCost(2, 21_000, 41_000.0),
        ReasonCode.SUMMARISED: TokenCost(1, 9_000, 18_000.0),
    }
    mended = {"billing-header": TokenCost(48, 980_000, 1_950_000.0)}
    server.totals.count(CLAUDE, ProgramTotal(124, 2_400_000, 2_210_000, 4_400_000.0, now - 40, misses, mended))
    server.totals.count("opencode", ProgramTotal(31, 420_000, 402_000, 700_000.0, now - 4000))
    server.totals.count(LONG_NAME, ProgramTotal(2, 3_000, 0, 0.0, now - 90_000))
    left, hot = a_request(5, stage=Stage.LEFT), a_request(7, source="hot", restore_ms=0.0)
    server.recent_requests = [a_request(9), hot, left, parted(), a_request(3, "opencode")]
    reading = a_request(
        0, stage=Stage.READING, slot=0, found_tokens=4_096, processed_tokens=8_192, cached_tokens=None, first_ms=None
    )
    server.active_requests = [reading, a_request(0, LONG_NAME, stage=Stage.QUEUED, cached_tokens=None)]
    server.loaded_slots = (
        LoadedSlot(0, f"program/{CLAUDE}", 12_288),
        LoadedSlot(1, "c", 5_900),
        LoadedSlot(2, "program/opencode", 18_400),
    )
