from __future__ import annotations

from kvchat.engine.running.log import Level, at_least, with_levels

LOG = """\
kvchat starts llama-server --model m.gguf
0.00.006.018 I srv    load_model: loading model
  continued
0.00.291.553 W llama_context: n_ctx_seq (200192) > n_ctx_train (8192)
0.00.296.764 E ggml_aligned_malloc: insufficient memory
what it could not have
0.00.300.000 D detail
terminate called after throwing an instance
12.00.300.000 I later""".splitlines()


def test_levels_and_what_continues_a_line() -> None:
    assert [level.name[0] for level, _ in with_levels(LOG)] == list("IIIWEEDEI")


def test_only_what_matters() -> None:
    assert len(at_least(LOG, Level.DETAIL)) == 9
    assert at_least(LOG, Level.WARNING) == [LOG[3], LOG[4], LOG[5], LOG[7]]
    assert at_least(LOG, Level.ERROR) == [LOG[4], LOG[5], LOG[7]]
