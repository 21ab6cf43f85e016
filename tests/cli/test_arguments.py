"""Parsing of the command line."""

import argparse
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvchat
from kvchat.cli.arguments import (
    AskOptions,
    BenchOptions,
    ChangeSettingOptions,
    JsonOptions,
    ModelsOptions,
    PreparedNameOptions,
    PruneOptions,
    SearchModelsOptions,
    WindowOptions,
)
from kvchat.cli.options import COMMANDS, CommandKind, build_parser, parse
from kvchat.errors import KvchatError
from tests.systems import WINDOWS


def parse_ask(*arguments: str) -> AskOptions:
    options: AskOptions = parse(["ask", *arguments])[1].with_input()
    return options


def test_every_option_of_ask_is_parsed():
    line = "--chat abc --model m.gguf --engine /opt/llama-server --system Brief --max-tokens 9 --temperature 0 --seed 7"
    options = parse_ask(*line.split(), "--json", "--starter", "Hello")
    paths = {"model": Path("m.gguf").absolute(), "engine": Path("/opt/llama-server").absolute()}
    sampling = {"max_tokens": 9, "temperature": 0.0, "seed": 7}
    expected = AskOptions(
        prompt="Hello", chat_id="abc", system="Brief", as_json=True, starter=True, **paths, **sampling
    )
    assert options == expected


def set_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes | None) -> None:
    monkeypatch.setattr("sys.stdin", data if data is None else io.TextIOWrapper(io.BytesIO(data)))


def test_the_question_comes_from_the_command_line_standard_input_or_a_conversation(monkeypatch):
    set_stdin(monkeypatch, b"\xef\xbb\xbfa long\nquestion caf\xe9")
    assert parse_ask("--new", "-") == AskOptions(prompt="a long\nquestion caf\ufffd", new=True)
    set_stdin(monkeypatch, b"a question")
    assert parse_ask("--new") == AskOptions(prompt="a question", new=True)
    if not WINDOWS:  # whose arguments are text
        expected = AskOptions(prompt="caf\ufffd \ufffd", system="é")  # UTF-8 whatever the locale
        assert parse_ask("--system", "\udcc3\udca9", "caf\udce9 \udcff") == expected
    for data in (b"", b" \n", b"\0", b"x" * 64_000_001, None):
        for arguments in (["-"], ["--new"]) if data is not None else (["-"],):
            set_stdin(monkeypatch, data)
            with pytest.raises(KvchatError):
                parse_ask(*arguments)
    set_stdin(monkeypatch, b"")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert parse_ask("--new") == AskOptions(new=True)
    with pytest.raises(KvchatError):
        parse_ask("--json")


@pytest.mark.parametrize(
    ("shell", "start"), [("bash", "complete -o"), ("zsh", "#compdef kvchat"), ("tcsh", "complete ")]
)
def test_completion_scripts_know_every_command(shell, start, run):
    printed = run("completion", shell).out
    assert start in printed
    assert all(command in printed for command in ("engines", "chats", "settings", "rename"))


@pytest.mark.parametrize(
    ("line", "name", "options"),
    [
        ("--hidden", "", WindowOptions(hidden=True)),
        ("--starter bench --tokens 500", "bench", BenchOptions(starter=True, tokens=500)),
        ("store --json verify", "store verify", JsonOptions(as_json=True)),
        ("store prune --to 2GB --dry-run", "store prune", PruneOptions(target_bytes=2 * 10**9, dry_run=True)),
        ("store prune --to 1.5mb", "store prune", PruneOptions(target_bytes=1_500_000)),
        ("store prune --to 1000", "store prune", PruneOptions(target_bytes=1000)),
        ("models --folder a --folder b", "models", ModelsOptions(folders=(Path("a"), Path("b")))),
        ("models search gemma 3", "models search", SearchModelsOptions(words=("gemma", "3"))),
        ("prepared --model m remove x", "prepared remove", PreparedNameOptions(model=Path("m").absolute(), name="x")),
        (
            "settings set model_folders a b",
            "settings set",
            ChangeSettingOptions(name="model_folders", values=("a", "b")),
        ),
    ],
)
def test_a_command_line_becomes_options(line, name, options):
    command, parsed = parse(line.split())
    assert (command.name, parsed) == (name, options)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_each_command_has_a_function_of_its_kind(command):
    if command.kind is not CommandKind.WINDOW:
        assert inspect.iscoroutinefunction(command.load_function()) is (command.kind is not CommandKind.SYNC)


@pytest.mark.parametrize(
    "line",
    [
        *(f"bench --tokens {count}" for count in ("0", "-1", "1e3", "999999999999")),
        *(
            "store prune",
            "store prune --to much",
            "store mend",
            "ask --new --chat abc x",
            "ask --model caf\udce9.gguf x",
        ),
        *(f"store prune --to={size}" for size in ("", "-1", "nan", "1e9", "9" * 400 + "TB", "2QB", "10000000TB")),
        *(f"ask --max-tokens={bad} x" for bad in ("0", "many", "1e3", "-1", "", "9" * 5000, str(2**31))),
        *(f"ask --temperature={bad} x" for bad in ("nan", "inf", "-inf", "1e9", "-0.1", "warm", "")),
        *(f"ask --seed={bad} x" for bad in ("-5", "1.5", str(2**32), "nan")),
    ],
)
def test_invalid_commands_print_the_usage(line, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(line.split())
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert f"usage: kvchat {line.split()[0]}" in errors
    assert "1 tokens" not in errors


def commands_with_json(parser: argparse.ArgumentParser, parent: str = "") -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from commands_with_json(command, f"{parent} {name}".strip())
        elif "--json" in action.option_strings:
            yield parent


def test_the_manual_describes_the_json_of_each_command():
    manual = (Path(kvchat.__file__).parent / "ui" / "manual" / "command-line.md").read_text("utf-8")
    table = manual[manual.index("| command | content of the object |") : manual.index("## Exit codes")]
    known = set(re.findall("`([a-z ]+)`", "".join(line.split("|")[1] for line in table.splitlines() if "|" in line)))
    missing = {
        command
        for command in commands_with_json(build_parser())
        if command not in known and command.split()[-1] not in known
    }
    assert not missing
