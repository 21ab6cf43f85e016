"""What the command line's words become."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kvchat.cli.arguments import ask_options, bench_options, build_parser
from kvchat.cli.options import AskOptions, BenchOptions


def parse_ask(*arguments: str) -> AskOptions:
    return ask_options(build_parser().parse_args(["ask", *arguments]))


def test_a_bare_question_leaves_everything_else_open() -> None:
    assert parse_ask("Hello") == AskOptions(prompt="Hello")


def test_every_option_of_ask_arrives() -> None:
    options = parse_ask(
        *("--chat", "abc", "--model", "m.gguf", "--engine", "/opt/llama-server", "--system", "Be brief."),
        *("--max-tokens", "9", "--temperature", "0", "--seed", "7", "--json", "--starter", "Hello"),
    )
    assert options == AskOptions(
        prompt="Hello",
        chat_id="abc",
        model=Path("m.gguf"),
        engine=Path("/opt/llama-server"),
        system="Be brief.",
        max_tokens=9,
        temperature=0.0,
        seed=7,
        as_json=True,
        starter=True,
    )


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a long\nquestion"))
    assert parse_ask("--new", "-") == AskOptions(prompt="a long\nquestion", new=True)


def test_starter_may_stand_before_the_command() -> None:
    assert ask_options(build_parser().parse_args(["--starter", "ask", "Hello"])).starter


@pytest.mark.parametrize(
    "arguments", [["--new", "--chat", "abc", "x"], ["--max-tokens", "0", "x"], ["--max-tokens", "many", "x"], []]
)
def test_nonsense_is_refused_with_a_usage_message(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_ask(*arguments)
    assert ended.value.code == 2
    assert "usage: kvchat ask" in capsys.readouterr().err


def test_bench_options() -> None:
    parser = build_parser()
    assert bench_options(parser.parse_args(["bench"])) == BenchOptions()
    told = bench_options(parser.parse_args(["bench", "--model", "m.gguf", "--tokens", "500", "--json"]))
    assert told == BenchOptions(model=Path("m.gguf"), tokens=500, as_json=True)
    shared = bench_options(parser.parse_args(["bench", "--chats", "20", "--tokens", "1800"]))
    assert shared == BenchOptions(tokens=1800, chats=20)
    assert bench_options(parser.parse_args(["bench", "--after-restart"])).after_restart
    drawn = bench_options(parser.parse_args(["bench", "--turns", "7", "--plot", "turns.svg"]))
    assert drawn == BenchOptions(turns=7, plot=Path("turns.svg"))


def test_no_command_means_the_app() -> None:
    options = build_parser().parse_args(["--hidden"])
    assert (options.command, options.hidden, options.starter) == (None, True, False)
