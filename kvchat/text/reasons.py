"""Reasons as data: a code with the values for its text. Stored, compared and sent to programs in this form.

The table of codes is the one place where a reason is worded: a sentence may change, a code may not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvchat.text.language import N_, _, capitalize_first, end_sentence, format_number, join_list


class ReasonCode(StrEnum):
    """Codes of all reasons, with a sentence and, for some, one without values."""

    sentence: str
    general: str

    def __new__(cls, code: str, sentence: str = "", general: str = "") -> ReasonCode:
        member = str.__new__(cls, code)
        member._value_, member.sentence, member.general = code, sentence, general
        return member

    ERROR = "error", "{message}"  # message of the system, the engine or an error

    # Why a prompt was read: no match
    FIRST_REPLY = "first-reply", N_("the first reply")
    NOTHING_SAVED = "nothing-saved", N_("this chat has no saved memory")
    NOTHING_ALIKE = "nothing-alike", N_("no saved memory starts with the same text")
    BEGINS_DIFFERENTLY = (
        "begins-differently",
        N_("the saved memory starts differently ({shared} tokens in common)"),
        N_("the saved memory starts differently"),
    )
    CANNOT_GO_BACK = (
        "cannot-go-back",
        N_("the chat was changed before the end of its saved memory, and this model cannot rewind"),
    )
    GOES_ON_OTHERWISE = (
        "goes-on-otherwise",
        N_("the saved memory starts the same but continues differently, and this model cannot rewind"),
    )
    OTHER_MODEL = "other-model", N_("saved with a different model")
    OTHER_SETTINGS = (
        "other-settings",
        N_("saved with different engine settings ({settings})"),
        N_("saved with different engine settings"),
    )
    INDEX_LOST = "index-lost", N_("the chat memory index was lost or damaged and was recreated")
    INDEX_LOST_ON = "index-lost-on", N_("{reason}; the chat memory index was lost on {day}")

    # What differs between two engines
    MODEL = "model", N_("model")
    KV_TYPE_K = "kv_type_k", N_("K cache type")
    KV_TYPE_V = "kv_type_v", N_("V cache type")
    FLASH_ATTENTION = "flash_attention", N_("flash attention")
    STREAMS = "streams", N_("number of KV streams")
    ROPE = "rope", N_("context length, which changes how this model encodes positions")
    OPTIONS = "options", N_("extra engine arguments")
    BUILD = "build", N_("engine build")

    # Why a chat's memory was lost
    SET_ASIDE = "set-aside", N_("its memory was discarded: {reason}"), N_("its memory was discarded")
    BLOCK_DAMAGED = "block-damaged", N_("a block was damaged ({error})")
    PRUNED = "pruned", N_("its memory was deleted to stay within the storage limit")
    PRUNED_BY_USER = "pruned-by-user", N_("its memory was deleted to free up disk space")
    EXPIRED = "expired", N_("its memory was deleted because it was not used for a long time")
    DELETED_MEANWHILE = "deleted-meanwhile", N_("its memory was deleted in the meantime")
    NOT_FINISHED = "not-finished", N_("kvchat quit before the memory of this chat was saved")
    NOT_WAITED_FOR = "not-waited-for", N_("kvchat quit without waiting for its memory to be saved")

    # Why it could not be loaded
    NOT_READABLE = "not-readable", N_("its saved memory could not be read ({error})")
    NOT_STAGED = "not-staged", N_("its file could not be copied to the engine's folder ({error})")
    PART_DAMAGED = "part-damaged", N_("part of its memory was damaged ({error})")
    NO_STORE = "no-store", N_("chat memory is unavailable")
    NEEDS_PROJECTOR = (
        "needs-projector",
        N_("its saved memory contains images, and the model was loaded without its vision file"),
    )
    NOT_WORTH_IT = "not-worth-it", N_("reprocessing it takes no longer than loading it")
    TOO_SHORT = "too-short", N_("this engine cannot restore a chat shorter than the model’s sliding window")
    NO_RESTORING = "no-restoring", N_("chat memory does not work with this engine and model")
    TOO_LARGE_NOW = "too-large-now", N_("its saved memory is longer than the current context length")
    DIED_OVER_RESTORE = "died-over-restore", N_("the engine crashed while loading its memory")
    FAILED_OVER_USE = "failed-over-use", N_("the engine failed while using its memory")
    REFUSED = "refused", N_("the engine rejected its memory: {message}")
    LOADED_LESS = "loaded-less", N_("the engine loaded only {loaded} of {tokens} tokens")
    OTHER_ENGINE = "other-engine", N_("it was saved with a different configuration ({differences})")
    LONGER_THAN_CONTEXT = "longer-than-context", N_("it has {tokens} tokens, but the context length is {context_size}")

    # Why it was loaded but not used
    HOLLOW_RESTORE = "hollow", N_("the engine accepted {accepted} tokens but reused only {reused}")
    REUSED_LESS = "reused-less", N_("the engine reused only {reused} of the {held} tokens it held")
    NOT_REUSED = "not-reused", N_("the engine did not reuse its cached tokens")
    PURGED = "purged", N_("the engine discarded the chat to make room for others")
    RENDERS_OTHERWISE = "renders-otherwise", N_("the engine's prompt differed from its own preview")

    # Results of restore tests
    UNUSED = "unused", N_("the engine loaded a chat’s memory but did not use it")
    UNUSED_AGAIN = "unused-again", N_("the engine loaded chat memory {count} times in a row but never used it")
    TOO_SLOW_TO_TRY = "too-slow-to-try", N_("the engine is too slow to test in advance")
    NOT_TRIED = "not-tried", N_("it could not be tested in advance ({reason})")
    IN_USE = "in-use", N_("it was not tested in advance because another program may be using the server")
    OUT_OF_REACH = "out-of-reach", N_("the server saves its files where kvchat cannot access them")
    DIED_OVER_TRIAL = "died-over-trial", N_("the engine crashed during the test")
    WINDOW_AS_CONTEXT = "window-as-context", N_("the model's sliding window is as long as the context")
    TAKES_LONG = "takes-long", N_("a test would take too long with this model")
    NEVER_REUSES = "never-reuses", N_("the engine reprocesses a short chat even if it is still loaded")
    LITTLE_ROOM = "little-room", N_("not enough disk space for the test's files")
    NOTHING_LOADED = "nothing-loaded", N_("nothing was loaded")
    USED_LESS = "used-less", N_("the engine accepted {accepted} tokens but used only {used}")
    NO_PARTS = "no-parts", N_("saved chats can be reused only as a whole: {reason}")
    NO_WAY_BACK = "no-way-back", N_("the engine cannot rewind: it used {used} of {tokens} tokens")
    NEEDS_SWA_FULL = (
        "needs-swa-full",
        N_("{reason}; adding --swa-full to the extra arguments may help but uses more memory"),
    )

    # Why nothing was kept
    NEVER_SAVED = "never-saved", N_("“Never keep chat memory” is on for this chat")
    OVER_LIMIT = "over-limit", N_("it takes {size}, but the storage limit is {limit}")
    DISK_NEARLY_FULL = "disk-nearly-full", N_("the disk is nearly full: {free} is free, and {floor} must stay free")
    DISK_FULL = "disk-full", N_("the disk is full")
    NOT_WRITTEN = "not-written", N_("it could not be written ({error})")
    NO_FILE = "no-file", N_("the engine reported a save but created no file")
    FILE_BROKEN = "file-broken", N_("the engine's file is damaged ({error})")
    FILE_CUT = "file-cut", N_("the engine's file is incomplete: {written} written, {there} found")
    NOTHING_HELD = "nothing-held", N_("the engine had no tokens from this chat")
    OTHERS_HELD = "others-held", N_("the engine holds another prompt: {tokens} tokens, {shared} of them from this chat")
    HELD_LESS = "held-less", N_("the engine held {held} tokens instead of {tokens}")
    BLOCKS_DELETED = "blocks-deleted", N_("its blocks were deleted repeatedly during the save")
    FILE_CHANGED = "file-changed", N_("its file changed during the save")
    INDEX_DAMAGED = "index-damaged", N_("the chat memory index was damaged and was recreated")
    INDEX_NOT_WRITTEN = "index-not-written", N_("the chat memory index could not be written ({error})")
    DIED_OVER_SAVE = "died-over-save", N_("the engine crashed while saving the system prompt")
    NEXT_MESSAGE = "next-message", N_("the next message was sent before saving finished")

    # Why nothing is processed ahead
    READ_AHEAD_OFF = "read-ahead-off", N_("turned off in Settings")
    FOREIGN_ENGINE = "foreign-engine", N_("the engine is external")
    ON_BATTERY = "on-battery", N_("this computer is running on battery")
    COSTS_MORE = "costs-more", N_("restoring the saved state would take longer than processing")

    # Why a program's prompt differs from the last
    OTHER_PROMPT = "other-prompt", N_("different prompt")
    OTHER_CONVERSATION = "other-conversation", N_("a different conversation started")
    OTHER_WAY = (
        "other-way",
        N_("the conversation branched at message {number} ({role})"),
        N_("the conversation branched"),
    )
    BILLING_HEADER = "billing-header", N_("the billing header")
    DATE_IN_SYSTEM = "date-in-system", N_("the date in the system prompt")
    DATE_IN_TOOLS = "date-in-tools", N_("the date in the tool list")
    DATE_IN_FIRST = "date-in-first", N_("the date in the first message")
    DATE_IN_MESSAGE = "date-in-message", N_("the date in message {number} ({role})"), N_("the date in a message")
    DATE_IN_TEMPLATE = "date-in-template", N_("the date added by the chat template")
    TIME_IN_SYSTEM = "time-in-system", N_("the time in the system prompt")
    TIME_IN_TOOLS = "time-in-tools", N_("the time in the tool list")
    TIME_IN_FIRST = "time-in-first", N_("the time in the first message")
    TIME_IN_MESSAGE = "time-in-message", N_("the time in message {number} ({role})"), N_("the time in a message")
    TIME_IN_TEMPLATE = "time-in-template", N_("the time added by the chat template")
    FOLDER_IN_SYSTEM = "folder-in-system", N_("the working folder in the system prompt")
    FOLDER_IN_TOOLS = "folder-in-tools", N_("the working folder in the tool list")
    FOLDER_IN_FIRST = "folder-in-first", N_("the working folder in the first message")
    FOLDER_IN_MESSAGE = (
        "folder-in-message",
        N_("the working folder in message {number} ({role})"),
        N_("the working folder in a message"),
    )
    FOLDER_IN_TEMPLATE = "folder-in-template", N_("the working folder in the chat template")
    PATH_IN_SYSTEM = "path-in-system", N_("a file path in the system prompt")
    PATH_IN_TOOLS = "path-in-tools", N_("a file path in the tool list")
    PATH_IN_FIRST = "path-in-first", N_("a file path in the first message")
    PATH_IN_MESSAGE = (
        "path-in-message",
        N_("a file path in message {number} ({role})"),
        N_("a file path in a message"),
    )
    PATH_IN_TEMPLATE = "path-in-template", N_("a file path in the chat template")
    GIT_STATUS = "git-status", N_("the git status in the system prompt")
    SYSTEM_CHANGED = "system-changed", N_("the system prompt was changed")
    OTHER_OPTIONS = ("other-options", N_("different request options: {options}"), N_("different request options"))
    TEMPLATE_DROPS_REASONING = (
        "template-drops-reasoning",
        N_("the chat template dropped the reasoning of earlier turns"),
    )
    TEMPLATE_REWORDS = "template-rewords", N_("the chat template formatted the same messages differently")
    TOOLS_CHANGED = "tools-changed", N_("tool list changed: {changes}"), N_("tool list changed")
    TOOLS_ADDED = "tools-added", N_("{tools} added")
    TOOLS_REMOVED = "tools-removed", N_("{tools} removed")
    TOOLS_REDESCRIBED = "tools-redescribed", N_("{tools} changed")
    MORE = "more", N_("{count} more")
    TOOLS_REORDERED = "tools-reordered", N_("tools reordered")
    PROGRAM_DROPS_REASONING = ("program-drops-reasoning", N_("the app omitted the reasoning of earlier turns"))
    REMINDER_MOVES = "reminder-moves", N_("a <system-reminder> moved")
    RESULTS_CLEARED = (
        "results-cleared",
        N_("old tool results were cleared, starting at message {number} ({role})"),
        N_("old tool results were cleared"),
    )
    REPOSITORY_MAP = "repository-map", N_("the repository map")
    FILES_IN_CHAT = "files-in-chat", N_("the files in the chat")
    SURROUNDINGS = "surroundings", N_("the environment details from the app")
    LEFT_OUT = "left-out", N_("earlier messages omitted: {count}"), N_("earlier messages omitted")
    SUMMARISED = "summarised", N_("earlier messages were summarized (compaction)")
    PUT_IN = (
        "put-in",
        N_("content was inserted before message {number} ({role})"),
        N_("content was inserted before a message"),
    )
    EDITED = "edited", N_("message {number} ({role}) was edited"), N_("an earlier message was edited")


@dataclass(frozen=True)
class Reason:
    """Code with the values of its placeholders: numbers, names, reasons, and tuples of names and reasons."""

    code: ReasonCode
    places: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        return self._format(_, format_number, join_list)

    @property
    def as_sentence(self) -> str:
        return end_sentence(capitalize_first(self.text))

    @property
    def english(self) -> str:
        """English text, for programs, logs and JSON."""
        return self._format(str, "{:,}".format, ", ".join)

    def _format(
        self, translated: Callable[[str], str], figure: Callable[[int], str], joined: Callable[[Iterable[str]], str]
    ) -> str:
        def format_value(value: Any) -> str:
            if isinstance(value, Reason):
                return value._format(translated, figure, joined)
            if isinstance(value, int):
                return figure(value)
            return value if isinstance(value, str) else joined(map(format_value, value))

        sentence = self.code.sentence if self.places else self.code.general or self.code.sentence
        return translated(sentence).format(**{name: format_value(value) for name, value in self.places.items()})


def parse_reason(stored: object) -> Reason | None:
    """Parse `dataclasses.asdict` of a reason; None for anything else, or another version's code."""
    with suppress(TypeError, ValueError, LookupError, AttributeError, RecursionError):
        reason = _parse_value(stored)
        if isinstance(reason, Reason) and reason.english:
            return reason
    return None


def _parse_value(stored: Any) -> Any:
    match stored:
        case {"code": code, "places": places}:
            return Reason(ReasonCode(code), {str(name): _parse_value(value) for name, value in places.items()})
        case [*values]:
            return tuple(map(_parse_value, values))
        case int() | str():
            return stored
    raise TypeError
