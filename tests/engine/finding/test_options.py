from __future__ import annotations

import pytest

from kvchat.engine.finding.arguments import Option, parse_help

# Cut out of what build 11434 prints; the oldest build kvchat takes prints the same layout.
HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-t,    --threads N                      number of CPU threads to use during generation (default: -1)
                                        (env: LLAMA_ARG_THREADS)
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to enable KV cache offloading (default: enabled)
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type
--control-vector-layer-range START END
                                        layer range to apply the control vector(s) to, start and end inclusive
-m,    --model FNAME                    model path to load
--ctx-size N                            size of the prompt context (default: 0, 0 = loaded from model)
--port PORT                             port to listen (default: 8080)
- none: no option at all
"""


def test_every_spelling_and_how_many_values_follow() -> None:
    known = parse_help(HELP)
    assert known is not None
    assert known.find("-t") == known.find("--threads") == Option(("-t", "--threads"), 1)
    assert known.find("--no-kv-offload") == Option(("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"), 0)
    assert [known.find(name).values for name in ("--usage", "-ot", "--control-vector-layer-range")] == [0, 1, 2]  # type: ignore[union-attr]


def test_underscores_are_dashes_in_long_options_alone() -> None:
    known = parse_help(HELP)
    assert known is not None
    assert known.find("--ctx_size") is known.find("--ctx-size") is not None
    assert known.find("-t_") is None


def test_what_is_missing() -> None:
    known = parse_help(HELP)
    assert known is not None
    assert known.missing(("--model", "--cache-ram", "--jinja")) == {"--cache-ram", "--jinja"}


def test_numbered_log_levels_are_found() -> None:
    older, newer = parse_help(HELP), parse_help(HELP + "-lv,   --verbosity N   threshold:\n   - 4: trace (more info)\n")
    assert older is not None
    assert newer is not None
    assert (older.traces, newer.traces) == (False, True)


@pytest.mark.parametrize("text", ["", "usage: other [-h]\n", "-h, --help   something else\n", "\0\n--\n-\n---"])
def test_what_is_no_llama_server_is_not_taken_for_one(text: str) -> None:
    assert parse_help(text) is None
