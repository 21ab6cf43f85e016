"""Test of an engine: it must start, load a model, reply, and restore what it saved."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.errors import EngineGone
from kvchat.engine.api.wire import ChatMessage, Sampling
from kvchat.engine.discovery.engines import EngineLocation, EngineNotFound, list_devices, probe
from kvchat.engine.discovery.graphics import RETRY_ADVICE, Backend, describe_missing_libraries, undetected_gpu_error
from kvchat.engine.process.plan import LaunchPlan
from kvchat.engine.process.supervisor import EngineSupervisor, RestartPolicy
from kvchat.engine_host.choice import promised_strategy
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.library.gguf.facts import read_facts
from kvchat.library.gguf.kv_cache import kv_bytes_per_token
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import RestoreFinding, Strategy
from kvchat.session.self_test import self_test
from kvchat.text.formatting import format_duration, format_rate
from kvchat.text.language import _, join_list

_CONTEXT_TOKENS = 2048  # tokens; enough for a short reply and a sliding window


@dataclass(frozen=True)
class TrialStep:
    name: str
    detail: str
    error: KvchatError | None = None


@dataclass(frozen=True)
class EngineTrial:
    """The completed steps of a test, in order. The test ends with the first step that fails."""

    steps: tuple[TrialStep, ...]

    @property
    def works(self) -> bool:
        return all(step.error is None for step in self.steps)


async def try_engine(
    location: EngineLocation,
    model: Path | None,
    on_step: Callable[[TrialStep], None] = lambda _: None,
    needs: Backend | None = None,
) -> EngineTrial:
    """Test that an engine starts and, if a model is given, that it replies and restores a saved KV cache.

    `needs`: the backend whose GPU the engine must detect. Failures are in the result and in the steps passed to
    `on_step`.
    """
    steps: list[TrialStep] = []

    def report_step(step: TrialStep) -> None:
        steps.append(step)
        on_step(step)

    try:
        try:
            engine_probe = await asyncio.to_thread(probe, location)
        except EngineNotFound as error:
            if not (needs and location.path):
                raise
            # For a downloaded engine, report the packages that provide the missing libraries, not a path.
            lacking = await asyncio.to_thread(describe_missing_libraries, location.path)
            title = _("The engine cannot run on this computer")
            raise KvchatError(title, lacking or error.detail, _(RETRY_ADVICE)) from error
        report_step(TrialStep(_("Version"), engine_probe.version))
        devices = await asyncio.to_thread(list_devices, location)
        if needs and location.path and all(device.name.startswith(("CPU", "BLAS")) for device in devices):
            raise await asyncio.to_thread(undetected_gpu_error, location.path, needs)
        report_step(TrialStep(_("Devices"), join_list(device.label for device in devices) or _("CPU only")))
        if model is None:
            report_step(TrialStep(_("Model"), _("No model to test with")))
        else:
            with tempfile.TemporaryDirectory(prefix="kvchat-trial-", ignore_cleanup_errors=True) as folder:
                plan = LaunchPlan(model, _CONTEXT_TOKENS, Path(folder), known_options=engine_probe.options)
                await _test_with_model(location, plan, report_step)
    except KvchatError as error:
        report_step(TrialStep(error.title, error.detail, error))
    return EngineTrial(tuple(steps))


async def _test_with_model(
    location: EngineLocation, plan: LaunchPlan, report_step: Callable[[TrialStep], None]
) -> None:
    supervisor = EngineSupervisor(policy=RestartPolicy(max_deaths=1))
    started = time.perf_counter()
    try:
        await supervisor.start(location, iter([plan]))
        engine = await supervisor.ready()
        took = format_duration(1000 * (time.perf_counter() - started))
        loaded = _("{model} loaded in {time}", model=plan.model.stem, time=took)
        report_step(TrialStep(_("Model"), loaded))
        timings = None
        stream = engine.chat([ChatMessage("user", "Say hello.")], Sampling(max_tokens=8, temperature=0.0))
        async with contextlib.aclosing(stream) as chunks:
            async for chunk in chunks:
                timings = chunk.timings or timings
        report_step(TrialStep(_("Reply"), format_rate(timings.tokens_per_second) if timings else _("received")))
        finding = await _self_test(engine, supervisor.generation, plan)
        if not (finding.proved and finding.strategy.supports_saving):
            title = _("Chat memory does not work with this engine")
            if finding.strategy.supports_saving:
                title = _("Chat memory may not work with this engine")
            advice = _(
                "You can chat, but each chat is reprocessed when you open it. Try another version of llama-server."
            )
            raise KvchatError(title, finding.description, advice)
        report_step(TrialStep(_("Chat memory"), finding.description))
    except EngineGone as error:  # the supervisor may know why the engine died
        raise await error.explain() from error
    finally:
        await supervisor.close()


async def _self_test(engine: LlamaServerClient, generation: int, plan: LaunchPlan) -> RestoreFinding:
    promised, window, per_token = Strategy.PLAIN, 0, 0.0
    with contextlib.suppress(KvchatError):  # the engine can read the model, even if kvchat cannot
        facts = await asyncio.to_thread(read_facts, plan.model)
        promised, window = promised_strategy(facts, swa_full=False), facts.kv.window
        per_token = kv_bytes_per_token(facts.kv, plan.kv_type, plan.kv_type)
    context_size = (await engine.facts()).context_size
    fingerprint = Fingerprint(str(plan.model), plan.kv_type, plan.kv_type, "auto", 1, "")
    untested = RestoreFinding(promised, proved=False)
    return await self_test(
        ReadyEngine(engine, generation, plan.slot_path, fingerprint, context_size, per_token, untested, window=window)
    )
