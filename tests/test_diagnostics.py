from pathlib import Path

from tests.running import ask, running


async def test_diagnostics_describe_the_engine_without_private_data(tmp_path, fake_engine):
    async with running(tmp_path, fake_engine, kv_type="q8_0") as runtime:
        assert await runtime.engine.vitals() is None
        await ask(runtime, (await runtime.chat.new_conversation()).id, "A question of mine")
        (key,) = runtime.engine.secrets
        runtime._log.note(f"0.00.000.001 I a line with {key} and {Path.home()}/model.gguf")
        text = await runtime.diagnostics()
        for part in ("ready", "kv_type: 'q8_0'", "a line with ‹removed› and ~/model.gguf", "model.gguf", "memory"):
            assert part in text
        for private in (key, "A question of mine", f"{Path.home()}/"):
            assert private not in text
