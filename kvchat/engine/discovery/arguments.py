"""Parser for llama-server's --help, and checks of the user's extra arguments and RPC servers. No I/O."""

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvchat.engine.api.errors import EngineUnusable
from kvchat.text.language import N_, _, join_sentences, plural

_OPTION_NAME = re.compile(r"-{1,2}[A-Za-z][\w-]*")
_DESCRIPTION_GAP = re.compile(r"(?<![,\s])\s{2,}")  # spaces after a comma are between two names


@dataclass(frozen=True)
class Option:
    names: tuple[str, ...]  # all spellings, including "--no-…"
    value_count: int


@dataclass(frozen=True)
class KnownOptions:
    options: tuple[Option, ...]
    has_trace_level: bool = False  # it has the log level "trace", so lower levels log no conversations

    def find(self, name: str) -> Option | None:
        normalized = normalize_name(name)
        return next((option for option in self.options if normalized in option.names), None)

    def missing(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for name in names if self.find(name) is None)


def normalize_name(name: str) -> str:
    """Replace underscores in a long option, as llama.cpp's common/arg.cpp does."""
    return name.replace("_", "-") if name.startswith("--") else name


def parse_help(text: str) -> KnownOptions | None:
    """Parse the output of `llama-server --help`; None if another program wrote it.

    A line with an option has its names, its values and, after two spaces or on the next line, its description
    (common_arg::to_string in llama.cpp's common/arg.cpp).
    """
    options = []
    for line in text.splitlines():
        head, names = _DESCRIPTION_GAP.split(line, maxsplit=1)[0], list[str]()
        while match := _OPTION_NAME.match(head):
            names.append(match[0])
            head = head[match.end() :].lstrip(", ")
        if names:
            value_count = 2 if re.fullmatch(r"[A-Z]+ [A-Z]+", head) else int(head != "")
            options.append(Option(tuple(names), value_count))
    known_options = KnownOptions(tuple(options), has_trace_level="4: trace" in text)
    return None if known_options.missing(("--model", "--port")) else known_options


_ADVICE = N_("Correct the extra arguments in the settings, or clear them.")


class BadArguments(EngineUnusable):
    def __init__(self, detail: str) -> None:
        super().__init__(_("The engine's extra arguments are invalid"), detail, _(_ADVICE))


class BadWorkers(EngineUnusable):
    def __init__(self, detail: str) -> None:
        advice = _("Enter each server as name:port in the settings, or clear the list.")
        super().__init__(_("The list of RPC servers is invalid"), detail, advice)


_LOCAL = N_("kvchat allows access to the engine from this computer only")
_SEPARATE_SETTING = N_("it has a separate setting")
_FOR_MEMORY = N_("chat memory depends on it")
_CHOSEN_IN_WINDOW = N_("the model is chosen in the window")
_CHATS_ONLY = N_("kvchat uses the engine only for chats")
_FOR_MONITORING = N_("kvchat uses it to monitor the engine")
_PRINTS_AND_EXITS = N_("the engine would print information and exit")

# Options that users cannot set, by the reason. One spelling of each is enough, because --help lists the others.
_RESERVED = {
    _LOCAL: "--host --port --reuse-port --path --api-prefix --api-key --api-key-file --ssl-key-file --ssl-cert-file"
    " --cors-origins --cors-methods --cors-headers --cors-credentials",
    _SEPARATE_SETTING: "-c --ctx-size -ctk --cache-type-k -ctv --cache-type-v --rpc",
    _FOR_MEMORY: "--slot-save-path -np --parallel -kvu --kv-unified -b --batch-size -cram --cache-ram --cache-prompt"
    " --cache-reuse --context-shift --cache-idle-slots --sleep-idle-seconds",
    _CHOSEN_IN_WINDOW: "-m --model -mu --model-url -hf -hfr --hf-repo -hff --hf-file -hft --hf-token -dr --docker-repo"
    " --models-dir --models-preset --models-max --models-autoload",
    _CHATS_ONLY: "--ui --webui --ui-config --ui-config-file --ui-mcp-proxy"
    " --tools --tools-runtime --mcp-servers-config --mcp-servers-json -ag --agent --jinja --media-path",
    _FOR_MONITORING: "--metrics --slots --props --log-disable --log-file",
    _PRINTS_AND_EXITS: "-h --help --usage --version --list-devices -cl --cache-list --completion-bash",
}
_RESERVED_REASONS = {name: reason for reason, names in _RESERVED.items() for name in names.split()}

# Options that change speed, placement or sampling, but not the saved KV cache.
_STATELESS = (
    "-t --threads -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch"
    " -Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch -ub --ubatch-size --warmup --no-warmup"
    " --mmap --no-mmap --mlock -lm --load-mode -dio --direct-io -ndio --no-direct-io --numa -dev --device"
    " -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -cmoe --cpu-moe"
    " -ncmoe --n-cpu-moe -ot --override-tensor --no-host --repack -nr --no-repack --op-offload --no-op-offload"
    " -kvo --kv-offload -nkvo --no-kv-offload -fit --fit -fitt --fit-target -fitc --fit-ctx --check-tensors"
    " -s --seed --samplers --temp --temperature --top-k --top-p --min-p --typical --repeat-last-n --repeat-penalty"
    " --presence-penalty --frequency-penalty --dry-multiplier --mirostat --reasoning-format --reasoning-budget"
    " --chat-template --chat-template-file --chat-template-kwargs -to --timeout --threads-http -a --alias"
    " -v --verbose -lv --verbosity --log-colors --log-prefix --log-timestamps --offline --perf --no-perf"
)


def parse_arguments(text: str) -> tuple[str, ...]:
    """Split the arguments as a shell does. Raises BadArguments if a quotation mark is not closed."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    if sys.platform == "win32":
        lexer.escape = ""  # for paths like C:\models
    try:
        return tuple(lexer)
    except ValueError as error:
        raise BadArguments(_("A closing quotation mark is missing.")) from error


def check_arguments(arguments: Sequence[str], known_options: KnownOptions | None) -> None:
    """Raise BadArguments for options that kvchat sets itself or that the build, if known, does not support."""
    for name, values in _group_by_option(arguments):
        if not name.startswith("-"):
            raise BadArguments(_('"{name}" is not an option; options start with a dash.', name=name))
        option = known_options.find(name) if known_options else None
        spellings = {normalize_name(name.partition("=")[0]), *(option.names if option else ())}
        spellings |= {f"--{spelling[5:]}" for spelling in spellings if spelling.startswith("--no-")}
        if reason := next((_RESERVED_REASONS[spelling] for spelling in spellings & _RESERVED_REASONS.keys()), None):
            raise BadArguments(_("{name} cannot be set here: {reason}.", name=name, reason=_(reason)))
        if known_options is None:
            continue
        if option is None:
            hint = _("Use a space instead of the equals sign.") if "=" in name else ""
            raise BadArguments(join_sentences(_("This engine does not support the option {name}.", name=name), hint))
        if values and not option.value_count:
            raise BadArguments(_("{name} does not take a value.", name=name))
        if len(values) != option.value_count:
            problem = plural(
                option.value_count,
                "{name} takes {count} value, but you entered {given}.",
                "{name} takes {count} values, but you entered {given}.",
                name=name,
                given=len(values),
            )
            raise BadArguments(problem)


def state_arguments(arguments: Sequence[str], *, external: bool = False) -> str:
    """Return the arguments on which a saved KV cache depends. `external`: they are those of the user's own server."""
    excluded = set(_STATELESS.split())
    if external:
        unrelated = (_LOCAL, _CHOSEN_IN_WINDOW, _CHATS_ONLY, _FOR_MONITORING)
        excluded |= {"--slot-save-path", *(name for name, reason in _RESERVED_REASONS.items() if reason in unrelated)}
    tokens: list[str] = []
    for name, values in _group_by_option(arguments):
        normalized = normalize_name(name)
        if normalized.partition("=")[0] not in excluded:
            tokens += [normalized, *values]
    return shlex.join(tokens)


def possible_file_names(state_arguments: str) -> tuple[str, ...]:
    """Return all parts of the arguments that may be file names.

    LoRA options have values such as `path,path` and `path:scale`.
    """
    tokens = [part for word in shlex.split(state_arguments) for part in {word, *word.split(",")}]
    return tuple(sorted({name for word in tokens for name in (word, word.rpartition(":")[0]) if name}))


def parse_workers(text: str) -> tuple[str, ...]:
    """Parse RPC servers such as `host:port`, separated by commas, spaces or line ends. Raises BadWorkers."""
    workers = tuple(filter(None, re.split(r"[,\s]+", text)))
    for worker in workers:
        host, colon, port = worker.rpartition(":")
        is_host = re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%\w]+\]", host)
        if not colon or not is_host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise BadWorkers(_('"{worker}" is not a valid name and port.', worker=worker))
    return workers


def _group_by_option(arguments: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each option with its values. An argument with a dash is an option, unless it is a negative number."""
    at = 0
    while at < len(arguments):
        end = at + 1
        while end < len(arguments) and (arguments[end][:1] != "-" or re.fullmatch(r"-\d.*|-", arguments[end])):
            end += 1
        yield arguments[at], tuple(arguments[at + 1 : end])
        at = end
