import pytest

from kvchat.engine.discovery.arguments import (
    BadArguments,
    BadWorkers,
    KnownOptions,
    Option,
    check_arguments,
    parse_arguments,
    parse_help,
    parse_workers,
    state_arguments,
)

KNOWN = KnownOptions(
    (
        Option(("-t", "--threads"), 1),
        Option(("-c", "--ctx-size"), 1),
        Option(("--prio",), 1),
        Option(("--lora",), 1),
        Option(("--swa-full",), 0),
        Option(("-new", "--webui", "--no-webui"), 0),
    )
)


def test_split_like_a_shell() -> None:
    assert parse_arguments("--lora '/a b/c.gguf'  -t 4") == ("--lora", "/a b/c.gguf", "-t", "4")
    assert parse_arguments("--chat-template #x") == ("--chat-template", "#x")
    assert parse_arguments(" ") == ()
    with pytest.raises(BadArguments, match="closing quotation mark"):
        parse_arguments("--lora 'a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-c 4096", "a separate setting"),
        ("--ctx_size 4096", "a separate setting"),
        ("--host 0.0.0.0", "from this computer only"),
        ("--api-key secret", "from this computer only"),
        ("--cors-origins *", "from this computer only"),
        ("--port=1", "from this computer only"),
        ("--slot-save-path /tmp", "chat memory"),
        ("--parallel 4", "chat memory"),
        ("--no-kv-unified", "chat memory"),
        ("-m other.gguf", "model is chosen"),
        ("--no-webui", "only for chats"),
        ("--rpc a:1", "a separate setting"),
        ("--version", "exit"),
    ],
)
@pytest.mark.parametrize("known", [KNOWN, None])
def test_reserved_options_are_refused_with_the_reason(text: str, reason: str, known: KnownOptions | None) -> None:
    with pytest.raises(BadArguments) as refused:
        check_arguments(parse_arguments(text), known)
    assert text.split()[0] in refused.value.detail
    assert reason in refused.value.detail


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--nope", "does not support the option --nope"),
        ("--threads=4", "Use a space"),
        ("--threads", "takes 1 value, but you entered 0"),
        ("--threads 4 5", "takes 1 value, but you entered 2"),
        ("--swa-full yes", "does not take a value"),
        ("threads 4", '"threads" is not an option'),
        ("-new", "only for chats"),  # an alias that only the build knows
    ],
)
def test_invalid_arguments_are_refused(text: str, message: str) -> None:
    check_arguments(parse_arguments("-t 4 --prio -1 --lora x --swa-full"), KNOWN)
    with pytest.raises(BadArguments) as refused:
        check_arguments(parse_arguments(text), KNOWN)
    assert message in refused.value.detail


def test_state_arguments() -> None:
    assert state_arguments(parse_arguments("-t 4 -ngl 99 --prio -1")) == ""
    assert (
        state_arguments(parse_arguments("-t 4 --rope_scaling yarn --temp 0 --lora 'a b'"))
        == "--rope-scaling yarn --lora 'a b'"
    )
    command = "-m /m.gguf --host 0.0.0.0 --port 80 --api-key s3cret --slot-save-path /s -c 4096 -t 4 -fa on --metrics"
    assert state_arguments(parse_arguments(command), external=True) == "-c 4096 -fa on"
    assert state_arguments(parse_arguments("--api-key=s3cret"), external=True) == ""


@pytest.mark.parametrize("text", ["den", "den:", ":1", "den:0", "den:65536", "a/b:1", "http://den:1", "::1:2", "-x:1;"])
def test_invalid_workers_are_refused(text: str) -> None:
    assert parse_workers("den:50052, 192.168.1.7:1\n[::1]:2,") == ("den:50052", "192.168.1.7:1", "[::1]:2")
    assert parse_workers(" ,") == ()
    with pytest.raises(BadWorkers):
        parse_workers(f"den:1 {text}")


# Excerpt of the help of build 11434; the oldest supported build uses the same layout.
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


def test_help_is_parsed() -> None:
    known = parse_help(HELP)
    assert known.find("-t") == known.find("--threads") == Option(("-t", "--threads"), 1)
    assert known.find("--no-kv-offload") == Option(("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"), 0)
    assert [known.find(name).value_count for name in ("--usage", "-ot", "--control-vector-layer-range")] == [0, 1, 2]  # type: ignore[union-attr]
    assert known.find("--ctx_size") is known.find("--ctx-size") is not None  # in long options alone
    assert known.find("-t_") is None
    assert known.missing(("--model", "--cache-ram", "--jinja")) == {"--cache-ram", "--jinja"}
    newer = parse_help(HELP + "-lv,   --verbosity N   threshold:\n   - 4: trace (more info)\n")
    assert (known.has_trace_level, newer.has_trace_level) == (False, True)


@pytest.mark.parametrize("text", ["", "usage: other [-h]\n", "-h, --help   something else\n", "\0\n--\n-\n---"])
def test_foreign_help_is_rejected(text: str) -> None:
    assert parse_help(text) is None
